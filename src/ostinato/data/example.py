"""One example of a data set, before it becomes token ids; the fingerprint of a stream of them, and a part of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")

NOT_IN_PASSAGE = -1
"""`answer_start` of a question whose answer is not in the passage: it has no label, and no output is right."""


@dataclass(frozen=True, slots=True)
class Example:
    """A pair of texts, or one text for a language model.

    Args:
        source: the model's input; None for language models.
        target: the expected output; for language models, the text.
        continues: the target follows the source in one text: a language model reads both, and only the target's labels
            count.
        columns: metadata such as a category, carried through to the metrics and never shown to the model.
    """

    source: str | None
    target: str
    columns: dict[str, object] = field(default_factory=dict)
    continues: bool = False


class Fingerprint:
    """The SHA-256 and the number of examples that pass by, in their order.

    One JSON line per example is hashed: ``[source, target, columns]``, ASCII only, keys sorted, no spaces. Equal rows
    in equal order give equal fingerprints, whatever file format they were read from. The stream is read once and
    never held.
    """

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self.n = 0

    def of(self, examples: Iterable[Example]) -> Iterator[Example]:
        """Yield the examples, each when it has been counted."""
        for example in examples:
            record = [example.source, example.target, example.columns]
            line = json.dumps(record, sort_keys=True, ensure_ascii=True, separators=(",", ":"), default=str)
            self._digest.update(line.encode("ascii") + b"\n")
            self.n += 1
            yield example

    @property
    def sha256(self) -> str:
        """The hash of those that have passed, in hexadecimal."""
        return self._digest.hexdigest()


def fingerprint(examples: Iterable[Example]) -> tuple[str, int]:
    """Return the SHA-256 and the number of examples (`Fingerprint`), which are read once."""
    found = Fingerprint()
    for _ in found.of(examples):
        pass
    return found.sha256, found.n


def take_evenly(items: Iterable[T], n: int | None) -> Iterable[T]:
    """Return n of N items in their order, spread evenly over all: items floor(k N / n), k = 0 .. n - 1, from 0.

    The first n would be a biased sample of a split that is sorted, by length for example. The same items are taken
    every time, and where n divides m, those n are among the m that would be taken. Where the rows repeat a pattern, all
    may be of one kind: every fifth question of bAbI is the first of its story.

    Args:
        items: read to the end, because their number has to be known; an endless stream is for `itertools.islice`.
        n: None, or N and more: all.
    """
    if n is None:
        return items
    held = items if isinstance(items, Sequence) else list(items)
    return held if n >= len(held) else [held[k * len(held) // n] for k in range(n)]
