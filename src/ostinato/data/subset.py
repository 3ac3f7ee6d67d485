"""Some rows of a split in place of all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")


def take_evenly(items: Iterable[T], n: int | None) -> Iterable[T]:
    """Return n of N items in their order, spread evenly over all: items floor(k N / n), k = 0 .. n - 1, from 0.

    The first n would say little of a split that is sorted, by length for example. The same items are taken every time,
    and where n divides m, those n are among the m that would be taken. Where the rows have a rhythm, all may be of one
    kind: every fifth question of bAbI is the first of its story.

    Args:
        items: read to the end, because their number has to be known; an endless stream is for `itertools.islice`.
        n: None, or N and more: all.
    """
    if n is None:
        return items
    held = items if isinstance(items, Sequence) else list(items)
    return held if n >= len(held) else [held[k * len(held) // n] for k in range(n)]
