"""A data set of the library datasets as the source of a pack.

Units are ranges of its rows; of a stream its shards, which are mostly the files that it is published as.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sized
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ostinato.config.data import DataSetConfig
from ostinato.data.example import Example
from ostinato.data.file_hashes import file_hash
from ostinato.data.hub import load, local_files, read_rows, repository_bytes, revision_of, title
from ostinato.data.packs.source import PackSource, Unit, unit_bytes
from ostinato.data.pair_changes import PairChanges
from ostinato.data.sources import Fields
from ostinato.data.tokenizer import Unknown
from ostinato.errors import DataError


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows of a data set, or shards of a stream: the numbers of the first and of the one after the last."""

    start: int
    stop: int


@dataclass(frozen=True)
class DataSetSource(PackSource):
    """A data set, and how it is read.

    Args:
        data_set: which. fields, column, unknown, changes: see `PackSource`.
        origin_column: column that gets the name of the data set.
        tables: files that the library's cache must have it in, if any are given: they are those of one commit.
    """

    data_set: DataSetConfig
    fields: Fields
    origin_column: str | None = None
    column: str | None = None
    unknown: Unknown = "error"
    changes: PairChanges | None = None
    tables: tuple[Path, ...] = ()

    @property
    def _is_remote_stream(self) -> bool:
        return self.data_set.streaming and not Path(self.data_set.hf).exists()

    @cached_property
    def _fixed(self) -> DataSetConfig:
        """The data set, of a stream from a hub the commit that is there now."""
        if not self._is_remote_stream:
            return self.data_set
        return self.data_set.model_copy(update={"revision": revision_of(self.data_set)})

    @cached_property
    def _rows(self) -> Any:
        rows = load(self._fixed)
        if self.tables and self.tables != tuple(Path(file["filename"]) for file in rows.cache_files):
            raise DataError(f"{self.name}: was published anew while it was tokenised; the same command begins anew")
        return rows

    @property
    def _origin(self) -> dict[str, object]:
        """The column that all examples get."""
        return {} if self.origin_column is None else {self.origin_column: Path(self.data_set.hf).name}

    @property
    def name(self) -> str:
        """Name and split."""
        return title(self.data_set)

    def paths(self) -> list[Path]:
        """Return the files of a folder, or those in the library's cache."""
        if Path(self.data_set.hf).exists():
            return local_files(self.data_set)
        return [] if self.data_set.streaming else [Path(file["filename"]) for file in self._rows.cache_files]

    @property
    def n_bytes(self) -> int:
        """Of all examples, about; of a stream from a hub as it says, else of the whole repository."""
        if not self._is_remote_stream:
            return super().n_bytes
        splits = self._rows.info.splits or {}
        known = splits[self.data_set.split].num_bytes if self.data_set.split in splits else None
        return int(known or repository_bytes(self._fixed))

    @property
    def n_bytes_of_text(self) -> int:
        """See `PackSource`; what is streamed from a hub counts as large."""
        return sys.maxsize if self._is_remote_stream else super().n_bytes_of_text

    def reading(self) -> dict[str, Any]:
        """Return everything but where the data set is; see `PackSource`."""
        # Units of a stream are others.
        read = self.data_set.model_dump(mode="json", include={"split", "subset", "columns", "streaming"})
        kept = {name: getattr(self, name) for name in ("column", "unknown")}
        return {"data_set": read, **kept, "origin": self._origin}

    def content(self) -> dict[str, Any]:
        """Return the hashes of the files; of a stream from a hub its commit."""
        if self._is_remote_stream:
            return {"repository": [self.data_set.hf, self._fixed.revision]}
        root = Path(self.data_set.hf)
        if not root.exists():
            return {"tables": [file_hash(path) for path in self.paths()]}
        # A single file has a name of the user's own, of which only the ending matters.
        names = ((path.suffix if path == root else path.relative_to(root).as_posix(), path) for path in self.paths())
        return {"files": [[name, file_hash(path)] for name, path in names]}

    def units(self) -> list[Unit]:
        """Return the work; see `PackSource`."""
        n_bytes = self.n_bytes
        if not isinstance(self._rows, Sized):
            n = self._rows.num_shards
            return [Unit((RowRange(number, number + 1),), n_bytes // n) for number in range(n)]
        n = len(self._rows)
        at_once = max(1, n * unit_bytes(n_bytes) // max(n_bytes, 1))
        ranges = (RowRange(start, min(start + at_once, n)) for start in range(0, n, at_once))
        return [Unit((rows,), n_bytes * (rows.stop - rows.start) // n) for rows in ranges]

    def to_send(self) -> DataSetSource:
        """Return the same of one commit; see `PackSource`."""
        is_local = Path(self.data_set.hf).exists()
        return replace(self, data_set=self._fixed, tables=() if is_local else tuple(self.paths()))

    def read_part(self, part: RowRange) -> Iterator[tuple[int, Example]]:
        """Yield the examples of a part; see `PackSource`."""
        if isinstance(self._rows, Sized):
            rows, n_before = self._rows.select(range(part.start, part.stop)), part.start  # type: ignore[attr-defined]
        else:
            rows, n_before = self._rows.shard(self._rows.num_shards, part.start), 0
        where = self.place(part)[0]
        found = read_rows(rows, self.data_set, self.fields, where=where, n_before=n_before, wanted=self.wanted)
        for number, example in found:
            yield number, replace(example, columns=example.columns | self._origin)

    def place(self, part: RowRange) -> tuple[str, str]:
        """Return the data set, of a stream in several shards which one; see `PackSource`."""
        if not isinstance(self._rows, Sized) and self._rows.num_shards > 1:
            return f"{self.name}, shard {part.start + 1} of {self._rows.num_shards}", "row"
        return self.name, "row"
