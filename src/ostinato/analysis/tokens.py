"""Which tokens an expert is for.

    PMI(w, e) = log( n(w, e) N / (n(w) n(e)) )        SUT, figure 8

in nats: 0 where a token goes to an expert as often as any other does.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ostinato.analysis.arrays import Floats, Ints
from ostinato.errors import DataError


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


def top_tokens(counts_VE: ArrayLike, n: int, *, min_count: float = 5.0) -> list[Ints]:
    """Return for every expert the tokens with the highest PMI, the highest first; ties by count, then by number.

    Args:
        n: so many at most. min_count: tokens routed less often say little, and are left out.
    """
    counts = np.asarray(counts_VE, dtype=np.float64)
    pmi_VE, often = expert_token_pmi(counts), counts.sum(1) >= min_count
    found = []
    for e in range(counts.shape[1]):
        seen = np.flatnonzero(often & (counts[:, e] > 0))
        order = np.lexsort((seen, -counts[seen, e], -pmi_VE[seen, e]))
        found.append(seen[order[:n]])
    return found
