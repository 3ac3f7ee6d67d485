"""Token ids of texts on disk: files that are mapped into memory, and the folder that holds them.

A pack is a folder of

    pack.json            written last: what the pack is of, its data sets, and of every file its name, texts and tokens
    tokenizers/          that made the ids
    000012.json          one for every unit of work that is done, which names the unit's files
    000012-0.target.ids      ids of the unit's texts one after the other, an end symbol after each: uint16 or uint32
    000012-0.target.lengths  tokens of every text, its end symbol included: uint32
    000012-0.source.*        of pairs, the other side

A unit has files of its own for every data set of a mixture (-0, -1, ...). What belongs to one data set is read as one
stream, in the order of the units. All numbers are little-endian.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.data.disk import MADE_AGAIN, read_json_object, reading
from ostinato.errors import DataError

PACK_FORMAT, PACK_VERSION = "ostinato-pack", 4
PACK_FILE, TOKENIZERS = "pack.json", "tokenizers"
LENGTHS = np.dtype("<u4")
_MOST_MAPS = 128
"""Files of a pack that are mapped at a time: each takes an open file."""


def dtype_of(vocab_size: int) -> np.dtype[Any]:
    """Return the type that ids of a vocabulary are stored in."""
    return np.dtype("<u2") if vocab_size <= 2**16 else np.dtype("<u4")


@dataclass(frozen=True, slots=True)
class Shard:
    """The files of one unit, data set and side: how their names begin, and how many texts and tokens they hold."""

    name: str
    n_texts: int
    n_tokens: int

    def files(self, dtype: np.dtype[Any]) -> list[tuple[str, int]]:
        """Return names and sizes in bytes."""
        return [
            (f"{self.name}.ids", self.n_tokens * dtype.itemsize),
            (f"{self.name}.lengths", self.n_texts * LENGTHS.itemsize),
        ]

    def are_whole(self, folder: Path, dtype: np.dtype[Any]) -> bool:
        """Return whether the files are there, with their sizes."""
        return all((folder / name).is_file() and (folder / name).stat().st_size == n for name, n in self.files(dtype))


class Stream:
    """The ids of all texts of one data set and side, one after the other.

    Args:
        folder: of the pack. shards: in their order. mapped: gives the ids of one of them.
    """

    def __init__(self, folder: Path, shards: Sequence[Shard], mapped: Callable[[Shard], NDArray[Any]]) -> None:
        self._folder, self._shards, self._mapped = folder, [shard for shard in shards if shard.n_tokens], mapped
        self._ends = np.cumsum([shard.n_tokens for shard in self._shards], dtype=np.int64)

    @property
    def n_tokens(self) -> int:
        """All ids, end symbols included."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def take(self, start: int, end: int) -> list[int]:
        """Return the ids from `start` to before `end`, which may lie in several files."""
        found: list[int] = []
        number = int(np.searchsorted(self._ends, start, side="right"))
        while start < end:
            last = min(end, int(self._ends[number]))
            first = int(self._ends[number]) - self._shards[number].n_tokens
            found += self._mapped(self._shards[number])[start - first : last - first].tolist()
            start, number = last, number + 1
        return found

    def lengths(self) -> NDArray[np.int32]:
        """Return the tokens of every text, end symbols included; they are held in memory."""
        parts = [np.fromfile(self._folder / f"{shard.name}.lengths", LENGTHS) for shard in self._shards]
        return np.concatenate([np.zeros(0, LENGTHS), *parts]).astype(np.int32)


class Pack:
    """A finished pack, opened.

    Args:
        folder: that holds it.

    Raises:
        DataError: it is damaged, of another format, or a file has another size.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path, hint = folder / PACK_FILE, MADE_AGAIN.replace("it,", f"{folder},")
        content = read_json_object(path, DataError, hint)
        with reading(path, DataError, hint):
            if content["format"] != PACK_FORMAT or content["version"] != PACK_VERSION:
                raise DataError(f"{path}: is of format {content['format']} {content['version']}{hint}")
            self.content = content
            self.sha256, self.n_texts, self.n_tokens = content["sha256"], content["n_texts"], content["n_tokens"]
            self.column: str | None = content["settings"]["column"]
            self._dtype = np.dtype(content["dtype"])
            # A map that is dropped no longer counts as memory of this process.
            self._mapped = lru_cache(_MOST_MAPS)(self._map)
            self._shards: dict[str, dict[str, list[Shard]]] = {
                group: {side: [Shard(**one) for one in shards] for side, shards in sides.items()}
                for group, sides in content["groups"].items()
            }
        for sides in self._shards.values():
            for shard in (shard for shards in sides.values() for shard in shards):
                if not shard.are_whole(folder, self._dtype):
                    raise DataError(f"{folder / shard.name}.*: a file is missing, or has another size{hint}")

    @property
    def groups(self) -> list[str]:
        """The data sets, in the order in which they first occur; one without a name where there is no mixture."""
        return list(self._shards)

    def stream(self, group: str, side: str) -> Stream:
        """Return the ids of a data set's side: "source" or "target"."""
        return Stream(self.folder, self._shards[group][side], self._mapped)

    def _map(self, shard: Shard) -> NDArray[Any]:
        return np.memmap(self.folder / f"{shard.name}.ids", self._dtype, mode="r", shape=(shard.n_tokens,))

    @property
    def has_sources(self) -> bool:
        """Return whether the texts are pairs."""
        return any("source" in sides for sides in self._shards.values())

    def describe(self) -> dict[str, Any]:
        """Return what data.json says of a split that is read from a pack."""
        return {"n": self.n_texts, "sha256": self.sha256, "packed": True, **self.content.get("published", {})}


def finished(
    units: Iterable[Mapping[str, Mapping[str, Mapping[str, Any]]]], digest: str, settings: Mapping[str, Any], dtype: str
) -> dict[str, Any]:
    """Return the content of pack.json.

    Args:
        units: of every unit, data set -> side -> shard. digest: of what the examples are made of.
        settings: how files are read.
    """
    groups: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for unit in units:
        for group, sides in unit.items():
            for side, shard in sides.items():
                groups.setdefault(group, {}).setdefault(side, []).append(shard)
    targets = [shard for sides in groups.values() for shard in sides["target"]]
    return {
        "format": PACK_FORMAT,
        "version": PACK_VERSION,
        "sha256": digest,
        "n_texts": sum(shard["n_texts"] for shard in targets),
        "n_tokens": sum(
            shard["n_tokens"] for sides in groups.values() for shards in sides.values() for shard in shards
        ),
        "dtype": dtype,
        "settings": dict(settings),
        "groups": groups,
    }
