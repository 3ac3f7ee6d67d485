"""Bytes of a model on every rank."""

from __future__ import annotations

from collections.abc import Sequence


def shard_dimension(shape: Sequence[int], n: int) -> int:
    """Return along which dimension n processes share a parameter: the first that they divide, else the first.

    Experts stand side by side in the first one, and may be fewer than the processes.
    """
    return next((dimension for dimension, size in enumerate(shape) if size % n == 0), 0)
