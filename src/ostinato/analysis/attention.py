"""What attention looks at.

    H = -sum_s a_s log a_s        in nats, of a query's weights: 0 where it looks at one key, log S at most
    mass = sum_{s in P} a_s       on given positions P, such as supporting facts

(Universal Transformers, figures 5-9, show weights by step and head; these are their numbers.)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ostinato.analysis.arrays import Floats, entropy
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
