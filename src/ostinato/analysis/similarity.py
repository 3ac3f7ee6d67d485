"""How alike two models' states of the same sentences are: CKA, neighbourhoods, and both in units of another seed.

Linear centred kernel alignment:

    CKA(X, Y) = |Y^T X|_F^2 / (|X^T X|_F |Y^T Y|_F),    columns of X and Y centred over the n sentences

in [0, 1]; 1 where one is the other turned, mirrored and scaled (Kornblith et al. 2019, section 3). One Wide FFN prints
|X Y^T|_F^2 instead: with sentences as rows that product does not exist for matrices of different widths; it must mean
the formula above. With fewer sentences than columns CKA is biased upward: compare only numbers over equally many.

Local neighbourhood similarity, whether two models put the same sentences next to each other:

    LNS(s) = |kNN_1(s) n kNN_2(s)| / |kNN_1(s) u kNN_2(s)|        One Wide FFN, figure 2

by cosine distance, a sentence not being its own neighbour; k is 5 % of the sentences. In [0, 1]; 1 where all
neighbourhoods are the same. Two unrelated models reach about k / (2 (n - 1) - k): `chance_level`.

Two runs of one model from different seeds are not alike either. So the similarity of a variant to the baseline is
divided, module by module, by the mean similarity of other seeds to the baseline, and the ratios are averaged:

    s_m = sim(variant_m, baseline_m) / mean_b sim(seed_b,m, baseline_m),        S = mean_m s_m

1 = as alike as another seed; single runs may exceed it. (One Wide FFN, table 5. Its numbers do not follow from the raw
ones of table 9 by one division: modules are normalised first.) The untrained model, treated the same way, is the
lower bound: what the architecture and the tokens alone give.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ostinato.analysis.arrays import Floats, Ints, matrix, same_rows
from ostinato.errors import DataError

_NEIGHBOUR_SHARE = 0.05
"""Part of the sentences that are the neighbours of one."""


class CrossCovariance:
    """Sums over the rows of two matrices that come in batches: CKA of all of them, exactly, in O(D^2) memory.

    With a shift c, taken from the first batch so that nothing is lost by subtraction:
    sum (x - c)(y - c')^T - n mean(x - c) mean(y - c')^T is the cross-covariance of all rows, whatever the batches.
    """

    def __init__(self) -> None:
        self.n = 0
        self._shift: Floats = np.zeros(0)
        self._sum: Floats = np.zeros(0)
        self._products: Floats = np.zeros((0, 0))
        self._width = 0

    def add(self, x_ND: ArrayLike, y_NE: ArrayLike) -> None:
        """Count rows, `[N, D]` and `[N, E]`: row i of both belongs to the same sentence.

        Raises:
            DataError: not as many rows, or other widths than before.
        """
        x, y = matrix("x", x_ND), matrix("y", y_NE)
        same_rows(x=x, y=y)
        rows = np.concatenate([x, y], 1)
        if not self.n:
            self._width, self._shift = x.shape[1], rows.mean(0)
            self._sum, self._products = np.zeros(rows.shape[1]), np.zeros((rows.shape[1], rows.shape[1]))
        if x.shape[1] != self._width or rows.shape[1] != len(self._sum):
            wanted = self._width, len(self._sum) - self._width
            raise DataError(f"widths {x.shape[1]} and {y.shape[1]}, but those of the rows before were {wanted}")
        rows = rows - self._shift
        self.n += len(rows)
        self._sum += rows.sum(0)
        self._products += rows.T @ rows

    def cka(self) -> float:
        """Return CKA of all rows; NaN where one side does not vary."""
        if not self.n:
            return float("nan")
        covariance, D = self._products - np.outer(self._sum, self._sum) / self.n, self._width
        of_x, of_y = np.linalg.norm(covariance[:D, :D]), np.linalg.norm(covariance[D:, D:])
        if not of_x * of_y > 0:
            return float("nan")
        return min(float((covariance[:D, D:] ** 2).sum()) / float(of_x * of_y), 1.0)


def linear_cka(x_ND: ArrayLike, y_NE: ArrayLike) -> float:
    """Return CKA of two matrices whose rows belong to the same sentences; NaN where one does not vary.

    Raises:
        DataError: not as many rows, or numbers that are not finite.
    """
    x, y = matrix("x", x_ND), matrix("y", y_NE)
    same_rows(x=x, y=y)
    return min(float(((_unit(y).T @ _unit(x)) ** 2).sum()), 1.0)


def cka_matrix(modules: Sequence[ArrayLike], others: Sequence[ArrayLike] | None = None) -> Floats:
    """Return CKA of every module with every module, `[M, M]`, or with those of another model, `[M, M']`.

    Args:
        modules, others: states by module, `[N, D]` each; rows are the same sentences everywhere.
    """
    left = [_unit(matrix(f"module {i}", rows)) for i, rows in enumerate(modules)]
    right = left if others is None else [_unit(matrix(f"other module {i}", rows)) for i, rows in enumerate(others)]
    found = np.empty((len(left), len(right)))
    for i, x in enumerate(left):
        for j, y in enumerate(right):
            found[i, j] = found[j, i] if right is left and j < i else min(float(((y.T @ x) ** 2).sum()), 1.0)
    return found


def checkerboard(similarity_MM: ArrayLike) -> float:
    """Return mean_i CKA(i, i+2) - mean_i CKA(i, i+1) over modules in the order they run.

    Above 0 where a module is more like its second neighbour than its next one: the checkerboard that One Wide FFN's
    figure 1b shows. Ours, the paper gives no number. NaN below three modules.
    """
    similarity = np.asarray(similarity_MM, dtype=np.float64)
    if len(similarity) < 3:
        return float("nan")
    return float(np.diagonal(similarity, 2).mean() - np.diagonal(similarity, 1).mean())


def _unit(rows: Floats) -> Floats:
    """Return centred rows with |X^T X|_F = 1; NaN where they do not vary."""
    centred = rows - rows.mean(0)
    # |X X^T|_F is |X^T X|_F, and cheaper with fewer rows than columns.
    gram = centred.T @ centred if rows.shape[1] <= len(rows) else centred @ centred.T
    size = float(np.linalg.norm(gram))
    # What is left of a constant column after its mean is subtracted is rounding: less than that does not count.
    negligible = len(rows) * (np.finfo(np.float64).eps * float(np.abs(rows).max(initial=0.0))) ** 2
    return centred / np.sqrt(size) if size > negligible else np.full_like(centred, np.nan)


def _k(k: int | None, n: int) -> int:
    """Return k, by default 5 % of n sentences, at least 1."""
    return max(1, round(_NEIGHBOUR_SHARE * n)) if k is None else k


def nearest_neighbours(states_ND: ArrayLike, k: int | None = None) -> Ints:
    """Return the k nearest rows of every row by cosine, without itself, `[N, k]`, sorted by number.

    Rows at the very same distance count in no particular order; a row of zeros is equally far from all.

    Args:
        k: None: 5 % of the rows, at least 1.

    Raises:
        DataError: k is not in [1, N - 1].
    """
    rows = matrix("states", states_ND, min_rows=2)
    k = _k(k, len(rows))
    if not 1 <= k < len(rows):
        raise DataError(f"k is {k}: must lie in [1, {len(rows) - 1}] for {len(rows)} rows")
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.finfo(np.float64).tiny)
    closeness_NN = unit @ unit.T
    np.fill_diagonal(closeness_NN, -np.inf)
    return np.sort(np.argpartition(-closeness_NN, k - 1, axis=1)[:, :k], axis=1)


def local_neighbourhood_similarity(x_ND: ArrayLike, y_NE: ArrayLike, k: int | None = None) -> float:
    """Return LNS of two matrices whose rows belong to the same sentences, averaged over the sentences.

    Raises:
        DataError: not as many rows, or a k that is not in [1, N - 1].
    """
    x, y = matrix("x", x_ND, min_rows=2), matrix("y", y_NE, min_rows=2)
    same_rows(x=x, y=y)
    first, second = np.zeros((2, len(x), len(x)), dtype=np.bool_)
    for members_NN, rows in ((first, x), (second, y)):
        np.put_along_axis(members_NN, nearest_neighbours(rows, k), True, axis=1)
    return float(((first & second).sum(1) / (first | second).sum(1)).mean())


def chance_level(n: int, k: int | None = None) -> float:
    """Return about what LNS is of unrelated models: k / (2 (n - 1) - k).

    The expected overlap k^2 / (n - 1) of two draws of k among n - 1, over the expected union; 0.026 at 5 %.
    """
    k = _k(k, n)
    return k / (2 * (n - 1) - k)


@dataclass(frozen=True, slots=True)
class Normalised:
    """Similarity of a variant to a baseline, in units of another seed.

    Args:
        by_module_M: ratios. mean: of them. lower: the untrained model's mean ratio, None where none was given.
    """

    by_module_M: Floats
    mean: float
    lower: float | None


def normalise(
    variant_M: Sequence[float], seeds_SM: ArrayLike, untrained_M: Sequence[float] | None = None
) -> Normalised:
    """Return similarities to the baseline in units of another seed's.

    Args:
        variant_M: of the variant's modules to the baseline's. seeds_SM: of those of every other seed.
        untrained_M: of those of an untrained model.

    Raises:
        DataError: other numbers of modules, or a module in which the seeds have nothing in common.
    """
    benchmark_M = matrix("the similarities of other seeds", seeds_SM).mean(0)
    if not (benchmark_M > 0).all():
        raise DataError("other seeds have a module that is not like the baseline's at all: nothing to compare with")
    ratios: list[Floats] = []
    for values_M in (variant_M,) if untrained_M is None else (variant_M, untrained_M):
        values = np.asarray(values_M, dtype=np.float64)
        if values.shape != benchmark_M.shape:
            raise DataError(f"{values.size} modules, but the other seeds have {benchmark_M.size}")
        ratios.append(values / benchmark_M)
    return Normalised(ratios[0], float(ratios[0].mean()), None if untrained_M is None else float(ratios[1].mean()))
