"""Local neighbourhood similarity: whether two models put the same sentences next to each other.

    LNS(s) = |kNN_1(s) n kNN_2(s)| / |kNN_1(s) u kNN_2(s)|        One Wide FFN, figure 2

by cosine distance, a sentence not being its own neighbour; k is 5 % of the sentences. In [0, 1]; 1 where all
neighbourhoods are the same. Two models that know nothing of each other reach about k / (2 (n - 1) - k): `chance_level`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ostinato.analysis.arrays import Bools, Floats, Ints, matrix, same_rows
from ostinato.errors import DataError

SHARE = 0.05
"""Of the sentences that count as neighbours."""


def default_k(n: int) -> int:
    """Return 5 % of n sentences, at least 1."""
    return max(1, round(SHARE * n))


def nearest_neighbours(states_ND: ArrayLike, k: int | None = None) -> Ints:
    """Return the k nearest rows of every row by cosine, without itself, `[N, k]`, sorted by number.

    Rows at the very same distance count in no particular order; a row of zeros is equally far from all.

    Args:
        k: None: `default_k`.

    Raises:
        DataError: k is not in [1, N - 1].
    """
    rows = matrix("states", states_ND, min_rows=2)
    k = default_k(len(rows)) if k is None else k
    if not 1 <= k < len(rows):
        raise DataError(f"k is {k}: must lie in [1, {len(rows) - 1}] for {len(rows)} rows")
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.finfo(np.float64).tiny)
    closeness_NN = unit @ unit.T
    np.fill_diagonal(closeness_NN, -np.inf)
    return np.sort(np.argpartition(-closeness_NN, k - 1, axis=1)[:, :k], axis=1)


def neighbourhood_overlap(first_NK: Ints, second_NK: Ints) -> Floats:
    """Return LNS of every sentence, `[N]`, from the neighbours in two models, as of `nearest_neighbours`."""
    same_rows(first=first_NK, second=second_NK)
    first, second = _members(first_NK), _members(second_NK)
    found: Floats = (first & second).sum(1) / (first | second).sum(1)
    return found


def local_neighbourhood_similarity(x_ND: ArrayLike, y_NE: ArrayLike, k: int | None = None) -> float:
    """Return LNS of two matrices whose rows belong to the same sentences, averaged over the sentences.

    Raises:
        DataError: not as many rows, or a k that is not in [1, N - 1].
    """
    x, y = matrix("x", x_ND, min_rows=2), matrix("y", y_NE, min_rows=2)
    same_rows(x=x, y=y)
    return float(neighbourhood_overlap(nearest_neighbours(x, k), nearest_neighbours(y, k)).mean())


def chance_level(n: int, k: int | None = None) -> float:
    """Return about what LNS is of models that know nothing of each other: k / (2 (n - 1) - k).

    The expected overlap k^2 / (n - 1) of two draws of k among n - 1, over the expected union; 0.026 at 5 %.
    """
    k = default_k(n) if k is None else k
    return k / (2 * (n - 1) - k)


def _members(neighbours_NK: Ints) -> Bools:
    members = np.zeros((len(neighbours_NK), len(neighbours_NK)), dtype=np.bool_)
    np.put_along_axis(members, neighbours_NK, True, axis=1)
    return members
