"""Measures by token: what attention looks at, and how many rounds a token takes.

    H = -sum_s a_s log a_s        in nats, of a query's weights: 0 where all weight is on one key, log S at most
    mass = sum_{s in P} a_s       on given positions P, such as supporting facts

    map(t, r) = N_{r-1}(t) in the rounds token t takes part in, 0 in those it does not     SUT, figures 5-7 (top)
    ponder(t) = rounds token t takes part in                                               UT, figure 3

(Universal Transformers, figures 5-9, show attention weights by step and head; entropy and mass summarise them.)
N_{r-1}: the mass that is left before round r. Depth over many tokens and by column: `ostinato.evaluation.depth`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ostinato.analysis.arrays import Bools, Floats, Ints, entropy
from ostinato.errors import DataError


def attention_entropy(weights_XS: ArrayLike) -> Floats:
    """Return the entropy of weights over their last axis, in nats, `[...]` of `[..., S]`."""
    weights = np.asarray(weights_XS, dtype=np.float64)
    if (weights < 0).any():
        raise DataError("weights of attention must be at least 0")
    return entropy(weights)


def mass_on(weights_XS: ArrayLike, positions_XS: ArrayLike) -> Floats:
    """Return the weight on given keys, `[...]` of `[..., S]`.

    Args:
        positions_XS: True for the keys that are meant; broadcast against the weights.
    """
    found: Floats = (np.asarray(weights_XS, dtype=np.float64) * np.asarray(positions_XS, dtype=np.bool_)).sum(-1)
    return found


def halting_map(remaining_TR: ArrayLike, executed_TR: ArrayLike) -> Floats:
    """Return the mass left before every round, 0 where the token had halted, `[T, R]`.

    Raises:
        DataError: other shapes, or a mass outside [0, 1].
    """
    remaining, executed = np.asarray(remaining_TR, dtype=np.float64), _rounds(executed_TR)
    if remaining.shape != executed.shape:
        raise DataError(f"masses {remaining.shape} and rounds {executed.shape}: the same tokens and rounds are needed")
    # Sums of float32 pass one by rounding.
    if (remaining < -1e-5).any() or (remaining > 1 + 1e-5).any():
        raise DataError(f"masses run from {remaining.min()} to {remaining.max()}: must lie in [0, 1]")
    return np.where(executed, remaining, 0.0)


def ponder_times(executed_TR: ArrayLike) -> Ints:
    """Return the rounds every token took part in, `[T]`."""
    found: Ints = _rounds(executed_TR).sum(1)
    return found


def _rounds(executed_TR: ArrayLike) -> Bools:
    executed = np.asarray(executed_TR, dtype=np.bool_)
    if executed.ndim != 2:
        raise DataError(f"rounds by token must be a matrix, got the shape {executed.shape}")
    return executed
