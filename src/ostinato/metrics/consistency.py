"""Consistency: how often two outputs agree, whether they are right or wrong (Hupkes et al. 2020, arXiv 1908.08351)."""

from __future__ import annotations

from collections.abc import Iterable

from ostinato.errors import DataError


def consistency(outputs: Iterable[str], others: Iterable[str]) -> float:
    """Return the share of pairs of outputs, in [0, 1], that are equal up to the amount of white space.

    Args:
        outputs: for instance for sequences as they are.
        others: for instance for the same with a synonym, in the same order.

    Raises:
        DataError: there are none, or not as many of the one as of the other.
    """
    first, second = [output.split() for output in outputs], [output.split() for output in others]
    if len(first) != len(second) or not first:
        raise DataError(f"consistency needs as many outputs on both sides, not {len(first)} and {len(second)}")
    return sum(one == other for one, other in zip(first, second, strict=True)) / len(first)
