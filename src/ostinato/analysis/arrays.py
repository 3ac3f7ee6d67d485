"""Reading what the measures are given: arrays of numbers, float64 from there on."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ostinato.errors import DataError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def matrix(name: str, values: ArrayLike, *, min_rows: int = 1) -> Floats:
    """Return rows of numbers as float64.

    Raises:
        DataError: no matrix, fewer rows than `min_rows`, or a number that is not finite.
    """
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 2 or found.shape[0] < min_rows or not found.shape[1]:
        raise DataError(f"{name} must be a matrix of at least {min_rows} rows, got the shape {found.shape}")
    if not np.isfinite(found).all():
        raise DataError(f"{name} holds numbers that are not finite")
    return found


def same_rows(**arrays: NDArray[Any]) -> None:
    """Raise a DataError where arrays do not have the same number of rows."""
    if len({len(array) for array in arrays.values()}) > 1:
        counts = ", ".join(f"{name} has {len(array)}" for name, array in arrays.items())
        raise DataError(f"as many rows are needed in each: {counts}")


def entropy(shares_XS: NDArray[Any]) -> Floats:
    """Return -sum_s p_s log p_s over the last axis, in nats, `[...]` of `[..., S]`; 0 log 0 = 0."""
    logs = np.log(np.where(shares_XS > 0, shares_XS, 1.0))
    found: Floats = np.maximum(-(shares_XS * logs).sum(-1), 0.0)
    return found
