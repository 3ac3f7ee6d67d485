"""Tokenising one unit of work: files get their names when they are on the disk, and the unit a mark when all have."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ostinato.data.disk import PARTIAL, read_json_object, sync, write_json
from ostinato.data.example import Example
from ostinato.data.lines import bad_line
from ostinato.data.mixture import data_set_of
from ostinato.data.packs.shards import LENGTHS, Shard, dtype_of
from ostinato.data.packs.source import PackSource, Unit
from ostinato.data.tokenizer import Tokenizer
from ostinato.data.tokenizers import Tokenizers
from ostinato.errors import DataError
from ostinato.system_errors import naming

_HELD_TOKENS = 1 << 22
"""Tokens of a unit that are in memory before they are written."""
_MOST_GROUPS = 1000


@dataclass(frozen=True, slots=True)
class Work:
    """What every process of a packing knows: where units are written, and how they are read and encoded."""

    folder: Path
    source: PackSource
    tokenizers: Tokenizers

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the ids."""
        return dtype_of(max(self.tokenizers.source.vocab_size, self.tokenizers.target.vocab_size))

    def do(self, number: int, unit: Unit) -> None:
        """Tokenise a unit and mark it as done.

        Raises:
            DataError: an example that cannot be read or encoded.
        """
        writer = _UnitWriter(self.folder, number, self.dtype)
        for part in unit.parts:
            for line_or_row, example in self.source.read(part):
                side = "target"
                try:
                    encoded, group = {}, self._group(example)
                    for side, tokenizer, text in self._sides(example):
                        encoded[side] = self._ids(tokenizer, text)
                    writer.add(group, encoded)
                except DataError as error:
                    where, counted = self.source.place(part, side)
                    raise bad_line(where, line_or_row, str(error), counted) from error
        write_json(unit_file(self.folder, number), writer.close())

    def _group(self, example: Example) -> str:
        column = self.source.column
        return "" if column is None else data_set_of(column, example.columns, "the example")

    def _sides(self, example: Example) -> Iterator[tuple[str, Tokenizer, str]]:
        yield "target", self.tokenizers.target, example.target
        if example.source is not None:
            yield "source", self.tokenizers.source, example.source

    def _ids(self, tokenizer: Tokenizer, text: str) -> list[int]:
        return [*tokenizer.encode(text, unknown=self.source.unknown), self.tokenizers.target.special_ids.eos]


@dataclass(slots=True)
class _Held:
    """What a unit has of one data set and side: ids and lengths that are not written yet, and what is."""

    name: str
    ids: array[int]
    lengths: array[int] = field(default_factory=lambda: array("I"))
    n_texts: int = 0
    n_tokens: int = 0


class _UnitWriter:
    """Writes the shards of one unit under other names, which belong to this process, and renames them at the end."""

    def __init__(self, folder: Path, number: int, dtype: np.dtype[Any]) -> None:
        self._folder, self._number, self._dtype = folder, number, dtype
        self._held: dict[str, dict[str, _Held]] = {}
        self._n_held = 0

    def add(self, group: str, sides: dict[str, list[int]]) -> None:
        """Take an example."""
        if group not in self._held:
            if len(self._held) == _MOST_GROUPS:
                raise DataError(
                    f"the mixture has more than {_MOST_GROUPS} data sets: data.mixture.column names another"
                )
            place, code = len(self._held), "H" if self._dtype.itemsize == 2 else "I"
            self._held[group] = {s: _Held(f"{self._number:06d}-{place}.{s}", array(code)) for s in sides}
        for side, ids in sides.items():
            held = self._held[group][side]
            held.ids.extend(ids)
            held.lengths.append(len(ids))
            self._n_held += len(ids)
        if self._n_held > _HELD_TOKENS:
            self._flush()

    def _flush(self) -> None:
        for held in (held for sides in self._held.values() for held in sides.values()):
            for ending, values, dtype in (("ids", held.ids, self._dtype), ("lengths", held.lengths, LENGTHS)):
                path = self._partial(held.name, ending)
                # Not "ab", which would begin a file anew that somebody has removed meanwhile.
                with naming(path), path.open("r+b" if held.n_texts else "wb") as stream:
                    stream.seek(0, os.SEEK_END)
                    stream.write(np.asarray(values, dtype).tobytes())
            held.n_texts, held.n_tokens = held.n_texts + len(held.lengths), held.n_tokens + len(held.ids)
            held.ids, held.lengths = array(held.ids.typecode), array("I")
        self._n_held = 0

    def _partial(self, name: str, ending: str) -> Path:
        return self._folder / f"{PARTIAL}{os.getpid()}-{name}.{ending}"

    def close(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Give all files their names; return data set -> side -> shard."""
        self._flush()
        found: dict[str, dict[str, dict[str, Any]]] = {}
        for group, sides in self._held.items():
            for side, held in sides.items():
                for ending in ("ids", "lengths"):
                    partial = self._partial(held.name, ending)
                    sync(partial)
                    partial.replace(self._folder / f"{held.name}.{ending}")
                found.setdefault(group, {})[side] = asdict(Shard(held.name, held.n_texts, held.n_tokens))
        return found


def unit_file(folder: Path, number: int) -> Path:
    """Return the file that marks a unit as done."""
    return folder / f"{number:06d}.json"


def read_unit(folder: Path, number: int, dtype: np.dtype[Any]) -> dict[str, Any] | None:
    """Return what the mark of a unit holds; None where it is not done, or a file of its is not whole."""
    path = unit_file(folder, number)
    if not path.is_file():
        return None
    with suppress(DataError, AttributeError, TypeError):
        content = read_json_object(path, DataError)
        shards = [Shard(**one) for sides in content.values() for one in sides.values()]
        if all(shard.are_whole(folder, dtype) for shard in shards):
            return content
    return None
