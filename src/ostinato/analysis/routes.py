"""How steady routing is: over the updates of one run, and over runs.

    RF = fraction of tokens whose first expert at one checkpoint is not that at another        X-MoE, figure 3a
    IC = 1/m^2 sum_ij rho(l_i, l_j),  l_r: tokens by expert in run r, rho: Pearson             X-MoE, figure 3b

The paper's text takes RF against the last checkpoint, its caption between two successive ones: both are of use. The
diagonal is part of IC: m runs that have nothing in common reach 1/m.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ostinato.analysis.arrays import Floats, matrix
from ostinato.errors import DataError

NOT_ROUTED = -1


def routing_fluctuation(first_N: ArrayLike, second_N: ArrayLike) -> float:
    """Return RF of the first experts of the same tokens at two checkpoints; NaN where no token was routed at both.

    Args:
        first_N, second_N: numbers of experts, `NOT_ROUTED` (-1) where a token was not routed: it had halted.

    Raises:
        DataError: not as many tokens.
    """
    first, second = np.asarray(first_N), np.asarray(second_N)
    if first.shape != second.shape:
        raise DataError(f"{first.shape} and {second.shape}: the same tokens are needed at both checkpoints")
    both = (first != NOT_ROUTED) & (second != NOT_ROUTED)
    return float((first[both] != second[both]).mean()) if both.any() else float("nan")


def load_correlations(loads_RE: ArrayLike) -> Floats:
    """Return Pearson's correlation of the loads of every two runs, `[R, R]`.

    A load that is the same for all experts correlates with itself only: 1 on the diagonal, 0 elsewhere.
    """
    loads = matrix("loads", loads_RE)
    centred = loads - loads.mean(1, keepdims=True)
    norms = np.linalg.norm(centred, axis=1, keepdims=True)
    even = norms <= np.finfo(np.float64).eps * np.abs(loads).max(1, keepdims=True) * loads.shape[1]
    unit = np.where(even, 0.0, centred / np.where(even, 1.0, norms))
    found: Floats = (unit @ unit.T).clip(-1, 1)
    np.fill_diagonal(found, 1.0)
    return found


def inter_run_consistency(loads_RE: ArrayLike) -> float:
    """Return IC of the tokens (or the share of them) by expert in every run, `[R, E]`; 1 for one run."""
    return float(load_correlations(loads_RE).mean())
