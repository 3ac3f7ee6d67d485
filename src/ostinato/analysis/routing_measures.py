"""Measures of routing, from what routers chose: use of experts, tokens of an expert, and how stable routing is.

Use of experts (the same numbers that `evaluate` sums over passes):

    load_e = sum_n w_n (places of e in row n) / (k sum_n w_n)        w_n: what is left of token n, 1 without halting
    H(e) = -sum_e load_e log load_e                                  log E: even use
    H(e|h) = sum_n w_n H(p_n) / sum_n w_n                            0: every token is sure of its expert

Sparse Universal Transformer, section 2.3: mutual information of tokens and experts is the entropy of the mean p_n less
H(e|h).

Tokens of an expert, in nats; 0 where a token goes to an expert as often as tokens do on average:

    PMI(w, e) = log( n(w, e) N / (n(w) n(e)) )                                                 SUT, figure 8
    I(e) = sum_w n(w, e) / n(e) PMI(w, e)                            what its expert tells about a token

Stability over the updates of one run, and over runs:

    RF = fraction of tokens whose first expert at one checkpoint is not that at another        X-MoE, figure 3a
    IC = 1/m^2 sum_ij rho(l_i, l_j),  l_r: tokens by expert in run r, rho: Pearson             X-MoE, figure 3b

The paper's text takes RF against the last checkpoint, its caption between two successive ones: both are of use. The
diagonal is part of IC: m runs that have nothing in common reach 1/m.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ostinato.analysis.arrays import Floats, Ints, entropy, matrix, same_rows
from ostinato.errors import DataError

NOT_ROUTED = -1


@dataclass(frozen=True, slots=True)
class ExpertUse:
    """How a router used its experts; entropies in nats.

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


def expert_token_pmi(counts_VE: ArrayLike) -> Floats:
    """Return pointwise mutual information of tokens and experts, `[V, E]`.

    -inf where a token that was seen never went to an expert that was used; NaN for tokens and experts never seen.

    Args:
        counts_VE: how often token w was sent to expert e.

    Raises:
        DataError: no matrix, a negative count, or nothing counted.
    """
    counts = np.asarray(counts_VE, dtype=np.float64)
    if counts.ndim != 2 or (counts < 0).any() or not counts.sum() > 0:
        raise DataError(f"counts must be a matrix of numbers from 0, not all 0; got the shape {counts.shape}")
    expected = counts.sum(1, keepdims=True) * (counts.sum(0, keepdims=True) / counts.sum())
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Floats = np.log(counts / expected)
    return found


def expert_information(counts_VE: ArrayLike) -> Floats:
    """Return what being sent to every expert tells about a token, I(e) in nats, `[E]`.

    0 where its tokens are drawn as all tokens are, and for an expert never used. The mean, weighted by use, is the
    mutual information of tokens and experts.

    Args:
        counts_VE: how often token w was sent to expert e.

    Raises:
        DataError: no matrix, a negative count, or nothing counted.
    """
    pmi_VE, counts = expert_token_pmi(counts_VE), np.asarray(counts_VE, dtype=np.float64)
    told: Floats = np.where(counts > 0, counts * np.where(counts > 0, pmi_VE, 0.0), 0.0).sum(0)
    found: Floats = np.divide(told, counts.sum(0), out=np.zeros_like(told), where=counts.sum(0) > 0)
    return found


def top_tokens(counts_VE: ArrayLike, n: int, *, min_count: float = 5.0) -> list[Ints]:
    """Return for every expert the tokens with the highest PMI, the highest first; ties by count, then by number.

    Args:
        n: tokens per expert at most. min_count: tokens that were routed less often are left out.
    """
    counts = np.asarray(counts_VE, dtype=np.float64)
    pmi_VE, often = expert_token_pmi(counts), counts.sum(1) >= min_count
    found = []
    for e in range(counts.shape[1]):
        seen = np.flatnonzero(often & (counts[:, e] > 0))
        order = np.lexsort((seen, -counts[seen, e], -pmi_VE[seen, e]))
        found.append(seen[order[:n]])
    return found


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
