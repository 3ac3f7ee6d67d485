"""The examples of a training split as rows: held in memory, or read from a pack."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ostinato.config.recipe import Recipe
from ostinato.data.batching import StoredRows
from ostinato.data.collate import AnyRow
from ostinato.data.cuts import Cuts
from ostinato.data.example import Example
from ostinato.data.packs.make import OnProgress, content_hash, make_pack
from ostinato.data.packs.rows import packed_rows
from ostinato.data.packs.shards import Pack
from ostinato.data.packs.source import PackSource
from ostinato.data.rows import encode_rows
from ostinato.data.tokenizers import Tokenizers
from ostinato.tasks.base import Task
from ostinato.tasks.packing import pack_source, training_tokenizers
from ostinato.training.rundir import describe_split


class HeldData:
    """Examples in memory."""

    def __init__(self, split: str, examples: Iterable[Example]) -> None:
        self._split, self._examples = split, list(examples)

    def tokenizers(self, recipe: Recipe, on_progress: OnProgress | None = None) -> Tokenizers:
        """Train tokenizers, or take those of the run to start from."""
        return training_tokenizers(recipe, None, self._examples)

    def sha256(self) -> str:
        """Return the SHA-256 that data.json has of the split."""
        return str(describe_split(self._split, self._examples)["sha256"])

    def describe(self, tokenizers: Tokenizers) -> dict[str, Any]:
        """Return what data.json has of the split."""
        return describe_split(self._split, self._examples)

    def rows(
        self, recipe: Recipe, tokenizers: Tokenizers, on_progress: OnProgress | None = None, cuts: Cuts | None = None
    ) -> Iterable[AnyRow]:
        """Return the rows of one epoch; see `encode_rows`."""
        return encode_rows(
            self._examples, tokenizers, recipe.data, recipe.model, training=True, name=self._split, cuts=cuts
        )


class PackedData:
    """Examples whose token ids are, or will be, in a pack."""

    def __init__(self, split: str, source: PackSource) -> None:
        self._split, self._source = split, source
        self._pack: Pack | None = None

    def tokenizers(self, recipe: Recipe, on_progress: OnProgress | None = None) -> Tokenizers:
        """Train tokenizers, or take those of the run to start from."""
        return training_tokenizers(recipe, self._source, (), on_progress)

    def sha256(self) -> str:
        """Return the SHA-256 that data.json has of the split."""
        return content_hash(self._source)

    def describe(self, tokenizers: Tokenizers) -> dict[str, Any]:
        """Return what data.json has of the split."""
        return self.pack(tokenizers).describe()

    def rows(
        self, recipe: Recipe, tokenizers: Tokenizers, on_progress: OnProgress | None = None, cuts: Cuts | None = None
    ) -> StoredRows:
        """Return the rows of one epoch; see `packed_rows`."""
        pack = self.pack(tokenizers, on_progress)
        return packed_rows(pack, recipe.data, recipe.model, tokenizers, name=self._split, cuts=cuts)

    def pack(
        self, tokenizers: Tokenizers, on_progress: OnProgress | None = None, *, n_processes: int | None = None
    ) -> Pack:
        """Return the pack, which is made where it is not there."""
        if self._pack is None:
            self._pack = make_pack(self._source, tokenizers, n_processes=n_processes, on_progress=on_progress)
        return self._pack


def training_data(recipe: Recipe, task: Task, *, is_packed: bool | None = None) -> HeldData | PackedData:
    """Return the data of a task's training split.

    Args:
        is_packed: what was decided when the run was begun; None: `data.packed` decides.

    Raises:
        ConfigError: `data.packed` asks for a pack where there can be none. DataError: examples that cannot be read.
    """
    split = task.splits()[0]
    source = pack_source(recipe, task, always=is_packed)
    return HeldData(split, task.examples(split)) if source is None else PackedData(split, source)


def packed_data(recipe: Recipe, task: Task) -> PackedData:
    """Return the data of a task's training split, to be packed.

    Raises:
        ConfigError: there can be no pack of it.
    """
    data = training_data(recipe, task, is_packed=True)
    assert isinstance(data, PackedData)  # anything else is refused
    return data
