"""Where the examples of a pack come from, cut into units of work; and a sample of them.

`ostinato.data.packs.files` reads files, `ostinato.data.packs.data_sets` data sets of the library datasets.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ostinato.data.example import Example
from ostinato.data.lines import bad_line
from ostinato.data.pair_changes import PairChanges
from ostinato.data.sources import Fields
from ostinato.data.tokenizer import Unknown
from ostinato.errors import DataError

UNIT_BYTES = 1 << 25
"""Of a unit, about; more where there would be more than `MOST_UNITS` units."""
SAMPLE_BYTES = 1 << 26
"""Of text that subwords are trained on, spread evenly over the units."""
MOST_UNITS = 256
_COMPRESSED, _TIMES_COMPRESSED = (".gz", ".zst", ".parquet"), 4


@dataclass(frozen=True, slots=True)
class Unit:
    """Parts of a source, of the kind that it reads, and how many bytes they take, about."""

    parts: tuple[Any, ...]
    n_bytes: int


class PackSource(ABC):
    """The examples of a split, and how they are read.

    Attributes:
        fields: of a text, or of a source and a target.
        column: of the data set that an example belongs to, for a mixture; None: all belong to one.
        unknown: what happens to symbols that the tokenizers do not know.
        changes: to pairs before they are tokenised; None: none.
    """

    fields: Fields
    column: str | None
    unknown: Unknown
    changes: PairChanges | None

    @property
    @abstractmethod
    def name(self) -> str:
        """What it is called in errors."""

    @abstractmethod
    def paths(self) -> list[Path]:
        """Return the files on this machine that hold the examples; others may hold some besides."""

    @abstractmethod
    def reading(self) -> dict[str, Any]:
        """Return how the examples are read, as JSON, but for fields and changes."""

    def settings(self) -> dict[str, Any]:
        """Return how the examples are read and changed, as JSON."""
        changed = {}
        if self.changes is not None:
            changed["changes"] = asdict(self.changes)
            if self.changes.second is None:  # packs that were made before there was one keep their names
                del changed["changes"]["second"]
        return {"fields": [list(one) for one in self.fields], **self.reading(), **changed}

    @abstractmethod
    def content(self) -> dict[str, Any]:
        """Return what tells the examples from others that are read in the same way, as JSON: hashes, mostly."""

    def published(self) -> dict[str, str]:
        """Return by which names others find the same examples, for people; nothing where there are none."""
        return {}

    @abstractmethod
    def units(self) -> list[Unit]:
        """Return the work: the same units for the same examples.

        Raises:
            DataError: something is not there, damaged, or cannot be read together.
        """

    @abstractmethod
    def to_send(self) -> PackSource:
        """Return what another process on this machine reads parts of units with."""

    @abstractmethod
    def read_part(self, part: Any) -> Iterator[tuple[int, Example]]:
        """Yield the examples of a part of a unit, as they are stored, each with the number of its line or row."""

    @abstractmethod
    def place(self, part: Any, side: str = "target") -> tuple[Path | str, str]:
        """Return what the numbers of a part's examples count in, and what they count: lines or rows.

        Args:
            side: of the example: "source" or "target".
        """

    def read(self, part: Any) -> Iterator[tuple[int, Example]]:
        """Yield the examples of a part of a unit, changed, each with the number of its line or row.

        Raises:
            DataError: one that cannot be read, or changed.
        """
        for number, example in self.read_part(part):
            try:
                yield number, example if self.changes is None else self.changes.of(example)
            except DataError as error:
                where, counted = self.place(part)
                raise bad_line(where, number, str(error), counted) from error

    @property
    def wanted(self) -> list[str]:
        """Columns that are needed beside the fields."""
        changes = self.changes or PairChanges()
        return [name for name in (self.column, changes.tag, changes.second) if name is not None]

    @property
    def n_bytes(self) -> int:
        """Of all examples, as they are on disk, about."""
        return sum(path.stat().st_size for path in self.paths())

    @property
    def n_bytes_of_text(self) -> int:
        """About how many bytes of text there are: of what is compressed, some times what it takes."""
        sizes = ((path.stat().st_size, path.suffix.lower() in _COMPRESSED) for path in self.paths())
        return sum(size * _TIMES_COMPRESSED if is_compressed else size for size, is_compressed in sizes)

    @property
    def is_compressed(self) -> bool:
        """Whether files on this machine hold more text than they take bytes."""
        return any(path.suffix.lower() in _COMPRESSED for path in self.paths())

    def states(self) -> dict[Path, tuple[int, int]]:
        """Return size and time of change of every file."""
        found = ((path, path.stat()) for path in self.paths())
        return {path: (state.st_size, state.st_mtime_ns) for path, state in found}


def unit_bytes(n_bytes: int) -> int:
    """Return how many bytes a unit should have, about, where all units together have `n_bytes`."""
    return max(UNIT_BYTES, -(-n_bytes // MOST_UNITS))


def sample(source: PackSource, n_bytes: int | None = None) -> Iterator[Example]:
    """Yield the examples that a tokenizer of subwords is trained on.

    All where there are few, else an even share from the beginning of every unit, or of `MOST_UNITS` of them.

    Args:
        n_bytes: characters of text, about; None: SAMPLE_BYTES.
    """
    n_bytes = SAMPLE_BYTES if n_bytes is None else n_bytes
    units, share = source.units(), sys.maxsize
    # Of a stream from a hub n_bytes_of_text is no size, but the largest number: n_bytes is what the hub says.
    if units and (source.n_bytes_of_text if source.is_compressed else source.n_bytes) > n_bytes:
        units = units[:: -(-len(units) // MOST_UNITS)]
        share = n_bytes // len(units)
    for unit in units:
        left = share
        for example in _examples(source, unit.parts):
            yield example
            left -= len(example.source or "") + len(example.target)
            if left <= 0:
                break


def all_examples(source: PackSource) -> Iterator[Example]:
    """Yield every example."""
    for unit in source.units():
        yield from _examples(source, unit.parts)


def _examples(source: PackSource, parts: Sequence[Any]) -> Iterator[Example]:
    return (example for part in parts for _, example in source.read(part))
