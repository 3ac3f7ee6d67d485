"""Files of the user's own as the source of a pack.

Units are stretches of plain files, row groups of Parquet files, and whole files of other kinds; small ones together.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ostinato.data.example import Example
from ostinato.data.file_hashes import file_hash
from ostinato.data.lines import WHOLE, read_lines, stretches_beside, stretches_of
from ostinato.data.packs.source import PackSource, Unit, unit_bytes
from ostinato.data.pair_changes import PairChanges
from ostinato.data.sources import Fields, Part, are_parallel, kind_of_file, kind_of_files, read_part
from ostinato.data.tables import parquet_groups
from ostinato.data.tokenizer import Unknown
from ostinato.errors import DataError


@dataclass(frozen=True, slots=True)
class FilePart:
    """A part of a file, and the name that `origin_column` gives its examples."""

    name: str
    part: Part


@dataclass(frozen=True, slots=True)
class FileSource(PackSource):
    """Files, and how they are read.

    Args:
        files: each with the name that `origin_column` gives its examples. fields, column, unknown, changes: see
            `PackSource`.
        is_whole: a whole file is one text.
    """

    files: tuple[tuple[str, Path], ...]
    fields: Fields
    is_whole: bool = False
    origin_column: str | None = None
    column: str | None = None
    unknown: Unknown = "error"
    changes: PairChanges | None = None

    @property
    def name(self) -> str:
        """The first files."""
        return ", ".join(str(path) for path in self.paths()[:5])

    def paths(self) -> list[Path]:
        """Return the files."""
        return [path for _, path in self.files]

    def reading(self) -> dict[str, Any]:
        """Return everything but the files; see `PackSource`."""
        return {name: getattr(self, name) for name in ("is_whole", "origin_column", "column", "unknown")}

    def content(self) -> dict[str, Any]:
        """Return kind and hash of every file, and its name where examples have it."""
        with ThreadPoolExecutor() as threads:
            hashes = list(threads.map(file_hash, self.paths()))
        files = [
            {"origin": None if self.origin_column is None else name, "kind": kind_of_file(path), "sha256": digest}
            for (name, path), digest in zip(self.files, hashes, strict=True)
        ]
        return {"files": files}

    def units(self) -> list[Unit]:
        """Return the work; see `PackSource`."""
        together: dict[str, list[Path]] = {}
        for name, path in self.files:  # what has a name of its own is read by itself
            together.setdefault(name if self.origin_column else "", []).append(path)
        for paths in () if self.is_whole else together.values():
            kind_of_files(paths)
        size = unit_bytes(self.n_bytes)
        units: list[Unit] = []
        for n_bytes, part in self._parts(size):
            if units and units[-1].n_bytes + n_bytes <= size:
                last = units.pop()
                units.append(Unit((*last.parts, part), last.n_bytes + n_bytes))
            else:
                units.append(Unit((part,), n_bytes))
        return units

    def _parts(self, size: int) -> Iterator[tuple[int, FilePart]]:
        """Yield the parts of all files with their bytes."""
        if not self.is_whole and self.origin_column is None and are_parallel(self.paths(), self.fields):
            sources, targets = self.paths()
            yield from ((n_bytes, FilePart("", part)) for n_bytes, part in _parallel_parts(sources, targets, size))
            return
        for name, path in self.files:
            yield from ((n_bytes, FilePart(name, part)) for n_bytes, part in _parts_of(path, size, self.is_whole))

    def to_send(self) -> FileSource:
        """Return the same without its files, which parts name; see `PackSource`."""
        return replace(self, files=())

    def read_part(self, part: FilePart) -> Iterator[tuple[int, Example]]:
        """Yield the examples of a part; see `PackSource`."""
        path = part.part.path
        if self.is_whole:
            text = "\n".join(line for _, line in read_lines(path))
            if not text.strip():
                raise DataError(f"{path}: no text")
            yield 1, Example(None, text, self._named({}, part.name))
            return
        for number, example in read_part(part.part, self.fields, self.wanted):
            yield number, replace(example, columns=self._named(example.columns, part.name))

    def place(self, part: FilePart, side: str = "target") -> tuple[Path, str]:
        """Return the file; see `PackSource`."""
        path = part.part.sources.path if part.part.sources is not None and side == "source" else part.part.path
        return path, "row" if kind_of_file(path) in ("parquet", "arrow") else "line"

    def _named(self, columns: dict[str, object], name: str) -> dict[str, object]:
        return columns if self.origin_column is None else columns | {self.origin_column: name}


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
                yield held, Part(path, groups=(first, number + 1))
                first, held = number + 1, 0
    elif kind in ("json", "text") and _is_plain(path):
        for stretch in stretches_of(path, size):
            yield (n_bytes if stretch.end is None else stretch.end) - stretch.start, Part(path, stretch)
    else:
        yield n_bytes, Part(path)


def _parallel_parts(sources: Path, targets: Path, size: int) -> Iterator[tuple[int, Part]]:
    """Yield the parts of parallel text: stretches of the targets, each with that of their sources."""
    of_sources, of_targets = sources.stat().st_size, targets.stat().st_size
    stretches, beside = [WHOLE], None
    if of_sources + of_targets > size and _is_plain(sources) and _is_plain(targets):
        stretches = stretches_of(targets, -(-size * of_targets // (of_sources + of_targets)))
        beside = stretches_beside(sources, stretches)
    if beside is None:  # where the sources have too few lines, reading both says so
        stretches = beside = [WHOLE]
    for one, other in zip(stretches, beside, strict=True):
        ends = ((of_targets, one), (of_sources, other))
        n_bytes = sum((whole if stretch.end is None else stretch.end) - stretch.start for whole, stretch in ends)
        yield n_bytes, Part(targets, one, sources=Part(sources, other))


def _is_plain(path: Path) -> bool:
    return path.suffix.lower() not in (".gz", ".zst")
