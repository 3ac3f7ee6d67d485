"""A data set of the library datasets as the source of a pack.

Units are ranges of its rows; of a stream its shards, which are mostly the files that it is published as, small files on
this machine together.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sized
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ostinato.config.data import DataSetConfig
from ostinato.data.example import Example
from ostinato.data.file_hashes import file_hash
from ostinato.data.hub import files_of_stream, load, read_rows, repository_bytes, revision_of, title
from ostinato.data.packs.source import PackSource, Unit, unit_bytes
from ostinato.data.pair_changes import PairChanges
from ostinato.data.sources import Fields
from ostinato.data.tokenizer import Unknown
from ostinato.errors import DataError


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows of a data set, or a shard of a stream: the numbers of the first and of the one after the last."""

    start: int
    stop: int


@dataclass(frozen=True)
class DataSetSource(PackSource):
    """A data set, and how it is read.

    Args:
        data_set: which. fields, column, unknown, changes: see `PackSource`.
        origin_column: column that gets the name of the data set.
        tables: files that the process which sends the work has the data set in; the one that does it must find it in
            the same ones. Empty: not checked.
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
        rows = load(self._fixed, self.fields)
        if self.tables and self.tables != tuple(Path(file["filename"]) for file in rows.cache_files):
            raise DataError(f"{self.name}: was changed while it was tokenised; the same command begins anew")
        return rows

    @property
    def _origin(self) -> dict[str, object]:
        """The column that all examples get."""
        return {} if self.origin_column is None else {self.origin_column: Path(self.data_set.hf).name}

    @property
    def name(self) -> str:
        """Name and split."""
        return title(self.data_set)

    @property
    def _is_stream(self) -> bool:
        return self._is_remote_stream or not isinstance(self._rows, Sized)

    @cached_property
    def _files(self) -> list[tuple[str, list[str]]]:
        return files_of_stream(self.data_set)

    def paths(self) -> list[Path]:
        """Return the files of a stream, or of the library's cache; none of a stream from a hub."""
        if not self._is_stream:
            return [Path(file["filename"]) for file in self._rows.cache_files]
        return [] if self._is_remote_stream else [path for name, _ in self._files if (path := Path(name)).is_file()]

    @property
    def n_bytes(self) -> int:
        """Of all rows; of a stream of its files, from a hub as that says, or else of the whole repository."""
        if not self._is_stream:
            return int(self._rows.data.nbytes)
        if not self._is_remote_stream:
            return super().n_bytes
        splits = self._rows.info.splits or {}
        known = splits[self.data_set.split].num_bytes if self.data_set.split in splits else None
        return int(known or repository_bytes(self._fixed))

    @property
    def n_bytes_of_text(self) -> int:
        """See `PackSource`; what is streamed from a hub counts as large."""
        if self._is_remote_stream:
            return sys.maxsize
        return super().n_bytes_of_text if self._is_stream else self.n_bytes

    def reading(self) -> dict[str, Any]:
        """Return everything but where the data set is; see `PackSource`."""
        # `streaming` is part of it, because a stream is cut into other units.
        read = self.data_set.model_dump(mode="json", include={"split", "subset", "columns", "streaming"})
        kept = {name: getattr(self, name) for name in ("column", "unknown")}
        return {"data_set": read, **kept, "origin": self._origin}

    def content(self) -> dict[str, Any]:
        """Return the hashes of the tables, or of a stream's files; of a stream from a hub its commit."""
        if self._is_remote_stream:
            return {"repository": list(self.published().values())}
        if not self._is_stream:
            return {"tables": [file_hash(path) for path in self.paths()]}
        found = [(Path(name), state) for name, state in self._files]
        files = [[path.suffix, file_hash(path)] if path.is_file() else [str(path), *state] for path, state in found]
        # Version 0.1.0 read numbers and truth values there: 046 as 46.
        is_table = any(re.search(r"\.(csv|tsv)(\.gz|\.zst)?$", path.name.lower()) for path, _ in found)
        return {"files": files, **({"texts": "as they stand"} if is_table else {})}

    def published(self) -> dict[str, str]:
        """Return repository and commit of a stream from a hub."""
        if not self._is_remote_stream:
            return {}
        return {"repository": self.data_set.hf, "commit": str(self._fixed.revision)}

    def units(self) -> list[Unit]:
        """Return the work; see `PackSource`."""
        n_bytes = self.n_bytes
        if not self._is_stream:
            n = len(self._rows)
            at_once = max(1, n * unit_bytes(n_bytes) // max(n_bytes, 1))
            ranges = (RowRange(start, min(start + at_once, n)) for start in range(0, n, at_once))
            return [Unit((rows,), n_bytes * (rows.stop - rows.start) // n) for rows in ranges]
        n = self._rows.num_shards
        # Of a hub it is no part of the content how large its files are: units that depend on it could be others later.
        at_once = 1 if self._is_remote_stream else max(1, n * unit_bytes(n_bytes) // max(n_bytes, 1))
        shards = [RowRange(number, number + 1) for number in range(n)]
        groups = [shards[start : start + at_once] for start in range(0, n, at_once)]
        return [Unit(tuple(own), n_bytes * len(own) // n) for own in groups]

    def to_send(self) -> DataSetSource:
        """Return the same of one commit; see `PackSource`."""
        return replace(self, data_set=self._fixed, tables=() if self._is_stream else tuple(self.paths()))

    def read_part(self, part: RowRange) -> Iterator[tuple[int, Example]]:
        """Yield the examples of a part; see `PackSource`."""
        if self._is_stream:
            rows, n_before = self._rows.shard(self._rows.num_shards, part.start), 0
        else:
            rows, n_before = self._rows.select(range(part.start, part.stop)), part.start
        where, wanted = self.place(part)[0], [name for name in self.wanted if name not in self._origin]
        found = read_rows(rows, self.data_set, self.fields, where=where, n_before=n_before, wanted=wanted)
        for number, example in found:
            yield number, replace(example, columns=example.columns | self._origin)

    def place(self, part: RowRange, side: str = "target") -> tuple[str, str]:
        """Return the data set, of a stream in several shards which one; see `PackSource`."""
        if self._is_stream and self._rows.num_shards > 1:
            return f"{self.name}, shard {part.start + 1} of {self._rows.num_shards}", "row"
        return self.name, "row"
