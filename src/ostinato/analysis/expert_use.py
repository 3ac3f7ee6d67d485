"""How a router uses its experts, from what it chose: the arrays' twin of what `evaluate` adds up in passes.

    load_e = sum_n w_n (places of e in row n) / (k sum_n w_n)        w_n: what is left of token n, 1 without halting
    H(e) = -sum_e load_e log load_e                                  log E: even use
    H(e|h) = sum_n w_n H(p_n) / sum_n w_n                            0: every token is sure of its expert

Sparse Universal Transformer, section 2.3: mutual information of tokens and experts is the entropy of the mean p_n less
H(e|h).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ostinato.analysis.arrays import Floats, entropy, matrix, same_rows
from ostinato.errors import DataError


@dataclass(frozen=True, slots=True)
class ExpertUse:
    """What a router did with its tokens; entropies in nats.

    Args:
        load_E: every expert's share of the choices. load_entropy: H(e). row_entropy: H(e|h).
        dead: numbers of the experts that no token was sent to.
    """

    load_E: Floats
    load_entropy: float
    row_entropy: float
    dead: tuple[int, ...]


def expert_use(experts_NK: ArrayLike, probs_NE: ArrayLike, weight_N: ArrayLike | None = None) -> ExpertUse:
    """Return load, its entropy, H(e|h) and dead experts of routed tokens.

    Args:
        experts_NK: numbers of the k experts of every token. probs_NE: the router's distribution over experts.
        weight_N: how much a token counts, 0 or more; None: each as much.

    Raises:
        DataError: arrays that do not belong together, numbers of experts that there are not, no token that counts.
    """
    probs = matrix("probabilities", probs_NE)
    experts = np.asarray(experts_NK)
    weights = np.ones(len(probs)) if weight_N is None else np.asarray(weight_N, dtype=np.float64)
    same_rows(probabilities=probs, experts=experts, weights=weights)
    n_experts = probs.shape[1]
    if experts.ndim != 2 or not np.issubdtype(experts.dtype, np.integer):
        raise DataError(f"experts must be whole numbers [N, k], got {experts.dtype} of shape {experts.shape}")
    if experts.size and not 0 <= experts.min() <= experts.max() < n_experts:
        raise DataError(f"experts are numbered 0 to {n_experts - 1}, got {experts.min()} to {experts.max()}")
    if (weights < 0).any() or not weights.sum() > 0:
        raise DataError("weights must be 0 or more, and some token must count")
    places = np.repeat(weights[:, None], experts.shape[1], axis=1)
    counts = np.bincount(experts.ravel(), weights=places.ravel(), minlength=n_experts)
    load = counts / counts.sum()
    row_entropy = float((weights * entropy(probs)).sum() / weights.sum())
    return ExpertUse(load, float(entropy(load)), row_entropy, tuple(np.flatnonzero(counts == 0).tolist()))
