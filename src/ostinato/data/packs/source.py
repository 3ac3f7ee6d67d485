"""The files that a pack is made of: how they are read, how they are cut into units of work, and a sample of them.

Units are stretches of plain files, row groups of Parquet files, and whole files of other kinds; small ones together.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ostinato.data.example import Example
from ostinato.data.lines import read_lines, stretches_of
from ostinato.data.sources import Fields, Part, kind_of_file, kind_of_files, read_part
from ostinato.data.tables import parquet_groups
from ostinato.data.tokenizer import Unknown
from ostinato.errors import DataError

UNIT_BYTES = 1 << 25
"""Of the files of a unit, about; more where there would be more than `_MOST_UNITS` units."""
SAMPLE_BYTES = 1 << 26
"""Of text that subwords are trained on, spread evenly over the units."""
_MOST_UNITS = 256
_COMPRESSED, _TIMES_COMPRESSED = (".gz", ".zst", ".parquet"), 4


@dataclass(frozen=True, slots=True)
class Unit:
    """Parts of files, each with the name that `origin_column` gives its examples, and their bytes on disk."""

    parts: tuple[tuple[str, Part], ...]
    n_bytes: int


@dataclass(frozen=True, slots=True)
class PackSource:
    """The files of a split, and how they are read.

    Args:
        files: each with the name that `origin_column` gives its examples.
        fields: of a text, or of a source and a target. is_whole: a whole file is one text.
        column: of the data set that an example belongs to, for a mixture; None: all belong to one.
        unknown: what happens to symbols that the tokenizers do not know.
    """

    files: tuple[tuple[str, Path], ...]
    fields: Fields
    is_whole: bool = False
    origin_column: str | None = None
    column: str | None = None
    unknown: Unknown = "error"

    @property
    def n_bytes(self) -> int:
        """Of all files, as they are on disk."""
        return sum(path.stat().st_size for _, path in self.files)

    @property
    def n_bytes_of_text(self) -> int:
        """About how many bytes of text the files hold: of what is compressed, some times what they take."""
        sizes = ((path.stat().st_size, path.suffix in _COMPRESSED) for _, path in self.files)
        return sum(size * _TIMES_COMPRESSED if is_compressed else size for size, is_compressed in sizes)

    def settings(self) -> dict[str, Any]:
        """Return everything but the files, as JSON."""
        kept = {name: getattr(self, name) for name in ("is_whole", "origin_column", "column", "unknown")}
        return {"fields": [list(one) for one in self.fields], **kept}

    def read(self, name: str, part: Part) -> Iterator[tuple[int, Example]]:
        """Yield the examples of a part, each with the number of its line or row."""
        if self.is_whole:
            text = "\n".join(line for _, line in read_lines(part.path))
            if not text.strip():
                raise DataError(f"{part.path}: no text")
            yield 1, Example(None, text, self._named({}, name))
            return
        for number, example in read_part(part, self.fields, [] if self.column is None else [self.column]):
            yield number, replace(example, columns=self._named(example.columns, name))

    def _named(self, columns: dict[str, object], name: str) -> dict[str, object]:
        return columns if self.origin_column is None else columns | {self.origin_column: name}


def units_of(source: PackSource) -> list[Unit]:
    """Return the work: the same units for the same files.

    Raises:
        DataError: a file that is not there, files of several kinds, or a damaged table.
    """
    together: dict[str, list[Path]] = {}
    for name, path in source.files:  # what has a name of its own is read by itself
        together.setdefault(name if source.origin_column else "", []).append(path)
    for paths in () if source.is_whole else together.values():
        kind_of_files(paths)
    size = max(UNIT_BYTES, -(-source.n_bytes // _MOST_UNITS))
    units: list[Unit] = []
    for name, path in source.files:
        for n_bytes, part in _parts_of(path, size, source.is_whole):
            if units and units[-1].n_bytes + n_bytes <= size:
                last = units.pop()
                units.append(Unit((*last.parts, (name, part)), last.n_bytes + n_bytes))
            else:
                units.append(Unit(((name, part),), n_bytes))
    return units


def _parts_of(path: Path, size: int, is_whole: bool) -> Iterator[tuple[int, Part]]:
    """Yield the parts of a file with their bytes."""
    n_bytes, kind = path.stat().st_size, kind_of_file(path)
    if is_whole or n_bytes <= size:
        yield n_bytes, Part(path)
    elif kind == "parquet":
        first = held = 0
        groups = parquet_groups(path)
        for number, (_, of_group) in enumerate(groups):
            held += of_group
            if held >= size or number == len(groups) - 1:
                yield held, Part(path, groups=range(first, number + 1))
                first, held = number + 1, 0
    elif kind in ("json", "text") and path.suffix not in (".gz", ".zst"):
        for stretch in stretches_of(path, size):
            yield (n_bytes if stretch.end is None else stretch.end) - stretch.start, Part(path, stretch)
    else:
        yield n_bytes, Part(path)


def sample(source: PackSource, n_bytes: int | None = None) -> Iterator[Example]:
    """Yield the examples that a tokenizer of subwords is trained on.

    All of small files, else an even share of every unit, from its beginning.

    Args:
        n_bytes: characters of text, about; None: SAMPLE_BYTES.
    """
    n_bytes = SAMPLE_BYTES if n_bytes is None else n_bytes
    units = units_of(source)
    share = sys.maxsize if source.n_bytes <= n_bytes else n_bytes // len(units)
    for unit in units:
        left = share
        for example in (example for name, part in unit.parts for _, example in source.read(name, part)):
            yield example
            left -= len(example.source or "") + len(example.target)
            if left <= 0:
                break


def all_examples(source: PackSource) -> Iterator[Example]:
    """Yield every example."""
    for name, path in source.files:
        yield from (example for _, example in source.read(name, Part(path)))
