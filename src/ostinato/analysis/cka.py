"""Linear centred kernel alignment: how alike two sets of states of the same sentences are.

    CKA(X, Y) = |Y^T X|_F^2 / (|X^T X|_F |Y^T Y|_F),    columns of X and Y centred over the n sentences

in [0, 1]; 1 where one is the other turned, mirrored and scaled (Kornblith et al. 2019, section 3). One Wide FFN prints
|X Y^T|_F^2 in its place: with sentences for rows that is no product of matrices of different widths, and not what it
means; the formula here is the right one. With fewer sentences than columns CKA is biased upward: compare only numbers
over equally many.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from ostinato.analysis.arrays import Floats, matrix, same_rows
from ostinato.errors import DataError


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
        return _ratio(float((covariance[:D, D:] ** 2).sum()), float(of_x * of_y))


def linear_cka(x_ND: ArrayLike, y_NE: ArrayLike) -> float:
    """Return CKA of two matrices whose rows belong to the same sentences; NaN where one does not vary.

    Raises:
        DataError: not as many rows, or numbers that are not finite.
    """
    x, y = matrix("x", x_ND), matrix("y", y_NE)
    same_rows(x=x, y=y)
    return float(_pairs([x], [y])[0, 0])


def cka_matrix(modules: Sequence[ArrayLike], others: Sequence[ArrayLike] | None = None) -> Floats:
    """Return CKA of every module with every module, `[M, M]`, or with those of another model, `[M, M']`.

    Args:
        modules, others: states by module, `[N, D]` each; rows are the same sentences everywhere.
    """
    mine = [matrix(f"module {i}", rows) for i, rows in enumerate(modules)]
    if others is None:
        return _pairs(mine, mine)
    return _pairs(mine, [matrix(f"other module {i}", rows) for i, rows in enumerate(others)])


def checkerboard(similarity_MM: ArrayLike) -> float:
    """Return mean_i CKA(i, i+2) - mean_i CKA(i, i+1) over modules in the order they run.

    Above 0 where a module is more like its second neighbour than its next one: the checkerboard that One Wide FFN's
    figure 1b shows. Ours, the paper gives no number. NaN below three modules.
    """
    similarity = np.asarray(similarity_MM, dtype=np.float64)
    if len(similarity) < 3:
        return float("nan")
    return float(np.diagonal(similarity, 2).mean() - np.diagonal(similarity, 1).mean())


def _pairs(mine: Sequence[Floats], others: Sequence[Floats]) -> Floats:
    same = mine is others
    left = [_unit(rows) for rows in mine]
    right = left if same else [_unit(rows) for rows in others]
    found = np.empty((len(left), len(right)))
    for i, x in enumerate(left):
        for j, y in enumerate(right):
            found[i, j] = found[j, i] if same and j < i else min(float(((y.T @ x) ** 2).sum()), 1.0)
    return found


def _unit(rows: Floats) -> Floats:
    """Return centred rows with |X^T X|_F = 1; NaN where they do not vary."""
    # A column that is the same everywhere is rounding once its mean is gone: by that measure it does not vary.
    centred = rows - rows.mean(0)
    size = float(np.linalg.norm(centred.T @ centred)) if rows.shape[1] <= len(rows) else _gram(centred)
    negligible = len(rows) * (np.finfo(np.float64).eps * float(np.abs(rows).max(initial=0.0))) ** 2
    return centred / np.sqrt(size) if size > negligible else np.full_like(centred, np.nan)


def _gram(centred: Floats) -> float:
    """Return |X X^T|_F, which is |X^T X|_F and cheaper where there are fewer rows than columns."""
    return float(np.linalg.norm(centred @ centred.T))


def _ratio(numerator: float, denominator: float) -> float:
    return min(numerator / denominator, 1.0) if denominator > 0 else float("nan")
