"""The overlap of two splits: how many examples of one are in the other, too."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from ostinato.data.example import Example
from ostinato.tasks.base import Task


@dataclass(frozen=True, slots=True)
class Overlap:
    """Number of examples of a split that are in another split, too.

    Args:
        n: examples in the split.
        n_seen_sources: those whose source is in the other split; for language models those whose whole text is, what it
            continues included.
        n_seen_pairs: those whose source and target are.
    """

    n: int
    n_seen_sources: int
    n_seen_pairs: int

    @property
    def fraction(self) -> float:
        """Share of the split whose source is in the other split; 0 for an empty split."""
        return self.n_seen_sources / self.n if self.n else 0.0


def measure_overlap(task: Task, split: str, against: str = "train") -> Overlap:
    """Return how much of a task's split occurs in another of its splits.

    Memory: 32 bytes and Python's overhead for every distinct example of `against`.

    Raises:
        ConfigError: the task has no such split.
    """
    return overlap(task.examples(split), task.examples(against))


def overlap(examples: Iterable[Example], seen: Iterable[Example]) -> Overlap:
    """Return how many of `examples` are among `seen`, which is read first."""
    sources: set[bytes] = set()
    pairs: set[bytes] = set()
    for example in seen:
        source, pair = _keys(example)
        sources.add(source)
        pairs.add(pair)
    n = n_sources = n_pairs = 0
    for example in examples:
        source, pair = _keys(example)
        n += 1
        n_sources += source in sources
        n_pairs += pair in pairs
    return Overlap(n, n_sources, n_pairs)


def _keys(example: Example) -> tuple[bytes, bytes]:
    source = example.target if example.source is None else example.source
    if example.continues:
        source = example.source or ""
        source += f"{'' if source[-1:].isspace() else ' '}{example.target}"  # as such texts are read
    digest = hashlib.blake2b(source.encode(), digest_size=16)
    source_key = digest.digest()
    if example.source is not None and not example.continues:
        digest.update(b"\x00" + example.target.encode())
    return source_key, digest.digest()
