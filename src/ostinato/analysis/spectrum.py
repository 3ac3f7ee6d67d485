"""How many directions a map uses: singular values, their cumulative share, effective rank.

    p_i = sigma_i / sum_j sigma_j,    share(i) = sum_{j <= i} p_j,    effective rank = exp(-sum_i p_i log p_i)

(Petty et al. 2023, figure 9: l1-normalised; effective rank: Roy and Vetterli 2007.) A straight line of shares uses
every direction alike. What is expected depends on the shape of the matrix, so a trained map is to be compared with
itself at random initialisation.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ostinato.analysis.arrays import Floats, matrix
from ostinato.errors import DataError


def singular_values(weight_OI: ArrayLike) -> Floats:
    """Return the singular values of a matrix, the greatest first, `[min(O, I)]`."""
    return np.linalg.svd(matrix("weight", weight_OI), compute_uv=False).astype(np.float64)


def cumulative_share(values_K: ArrayLike) -> Floats:
    """Return what part of the sum the i greatest make up, i = 1 .. K; never falls, ends at 1."""
    return np.cumsum(_shares(values_K))


def effective_rank(values_K: ArrayLike) -> float:
    """Return exp of the entropy of the shares: K where all are equal, 1 where one is all there is."""
    shares = _shares(values_K)
    used = shares[shares > 0]
    return float(np.exp(-(used * np.log(used)).sum()))


def excess_area(values_K: ArrayLike) -> float:
    """Return the area between the curve of shares against i / K and its diagonal: 0 where all are equal, below 1/2.

    The curve begins at 0 and is straight between its points.
    """
    shares = np.concatenate([[0.0], cumulative_share(values_K)])
    return float((shares[1:] + shares[:-1]).mean() / 2 - 0.5)


def _shares(values_K: ArrayLike) -> Floats:
    values = np.sort(np.asarray(values_K, dtype=np.float64))[::-1]
    if values.ndim != 1 or not values.size or (values < 0).any() or not values.sum() > 0:
        raise DataError("singular values must be a list of numbers that are at least 0, and not all 0")
    found: Floats = values / values.sum()
    return found
