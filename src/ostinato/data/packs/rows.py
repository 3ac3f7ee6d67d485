"""The rows of a pack: token ids stay on disk until a batch needs them.

Whoever reads rows sees a sequence with the length of every row; in memory are 4 bytes a block, or 12 a text
(28 a pair).
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ostinato.data.batching import StoredRows
from ostinato.data.collate import AnyRow, LabelledRow, Row
from ostinato.data.cuts import Cuts, Kind
from ostinato.data.objectives import objective_of
from ostinato.data.rows import Blocks, labelled_text, symbols_of_limit, too_long
from ostinato.data.tokenizers import Tokenizers
from ostinato.errors import DataError

if TYPE_CHECKING:
    from ostinato.config.data import DataConfig
    from ostinato.config.model import ModelConfig
    from ostinato.data.packs.shards import Pack, Stream


def packed_rows(
    pack: Pack, data: DataConfig, config: ModelConfig, tokenizers: Tokenizers, *, name: str, cuts: Cuts | None = None
) -> StoredRows:
    """Return the rows that a model is trained on, those that `encode_rows` would give.

    Blocks of several data sets stand one data set after the other.

    Args:
        name: of the split, for errors. cuts: counts what is cut of too long texts.

    Raises:
        DataError: pairs that are to be packed into blocks, or a text that is too long.
    """
    blocks = Blocks.of(data, config, tokenizers.target.special_ids)
    if blocks is None:
        return PackedTexts(pack, data, config, tokenizers, name=name, cuts=cuts)
    if pack.has_sources:
        raise DataError("data.block_length packs texts: these examples have a source")
    return PackedBlocks(pack, blocks)


class PackedBlocks(StoredRows):
    """Blocks of texts: the ids of each are a slice of the stream."""

    def __init__(self, pack: Pack, blocks: Blocks) -> None:
        self._blocks, self._column = blocks, pack.column
        self._streams: list[tuple[str, Stream]] = [(group, pack.stream(group, "target")) for group in pack.groups]
        n_new = blocks.n_new
        counts = [-(-stream.n_tokens // n_new) for _, stream in self._streams]
        self._ends = list(accumulate(counts))
        self.lengths = np.full(sum(counts), blocks.length, dtype=np.int32)
        for end, (_, stream) in zip(self._ends, self._streams, strict=True):
            self.lengths[end - 1] -= -stream.n_tokens % n_new

    def data_sets(self) -> dict[str, NDArray[np.int64]]:
        """Return the numbers of the blocks of every data set."""
        bounds = zip([0, *self._ends], self._ends, self._streams, strict=False)
        return {group: np.arange(start, end) for start, end, (group, _) in bounds}

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> LabelledRow:
        place = bisect_right(self._ends, index)
        group, stream = self._streams[place]
        start = (index - (self._ends[place - 1] if place else 0)) * self._blocks.n_new
        new = stream.take(start, min(start + self._blocks.n_new, stream.n_tokens))
        return self._blocks.row(new, {} if self._column is None else {self._column: group}, index)


class PackedTexts(StoredRows):
    """Texts, or pairs, each a row of its own.

    Those that are too long are dropped, cut or an error, as `data.over_length` says. Rows have the numbers of their
    examples, counted in a mixture data set after data set.
    """

    def __init__(
        self,
        pack: Pack,
        data: DataConfig,
        config: ModelConfig,
        tokenizers: Tokenizers,
        *,
        name: str,
        cuts: Cuts | None = None,
    ) -> None:
        self._special = tokenizers.target.special_ids
        self._is_joined = config.joins_pairs and pack.has_sources
        self._is_masked = config.reads == "masked"
        self._is_labelled = not pack.has_sources and objective_of(config, data, tokenizers) is not None
        self._column, self._groups = pack.column, pack.groups
        self._sides = {"source": _Side(pack, "source")} if pack.has_sources else {}
        self._sides["target"] = _Side(pack, "target")
        self._kept: NDArray[np.int64] | None = None
        """Numbers of the examples that are rows; None: all are."""
        kinds: dict[str, Kind] = {"source": "source", "target": "target" if pack.has_sources else "text"}
        # Of either side, and how many symbols beside the end symbol it counts.
        limits = {
            "source": (data.max_source_length, 0),
            "target": (data.max_target_length, symbols_of_limit(config) - 1),
        }
        fits = np.ones(len(self._sides["target"].lengths), dtype=bool)
        for side, of_side in self._sides.items():
            limit, n_more = limits[side]
            fits &= (short := of_side.lengths <= limit - n_more)
            if data.over_length == "error" and not short.all():
                index = int(np.argmin(short))
                n = int(of_side.lengths[index]) - 1
                raise too_long(n, 1 + n_more, limit, side, self._name_of(index, name), training=True)
            if data.over_length == "truncate" and cuts is not None:
                cuts.add_all(kinds[side], of_side.lengths + n_more, limit)
            np.minimum(of_side.lengths, max(limit - n_more, 1), out=of_side.lengths)
        if data.over_length == "drop" and not fits.all():
            self._kept = np.nonzero(fits)[0]
        self.lengths = self._columns()

    def _name_of(self, number: int, name: str) -> str:
        """Return how an error names an example: of a mixture by its data set, for files may have them in turns."""
        if self._column is None:
            return f"{name}: example {number + 1}"
        side = self._sides["target"]
        place = side.place(number)
        return f"{name}, data set {self._groups[place]!r}: example {number - side.first[place] + 1}"

    def _columns(self) -> NDArray[np.int32]:
        lengths = [side.lengths for side in self._sides.values()]
        found = lengths[0]
        if len(lengths) == 2:
            found = lengths[0] + lengths[1] if self._is_joined else np.maximum(*lengths)
        if self._is_masked:  # both symbols have a column
            found = found + np.int32(1)
        return found if self._kept is None else found[self._kept]

    def data_sets(self) -> dict[str, NDArray[np.int64]]:
        """Return the numbers of the rows of every data set."""
        first = self._sides["target"].first
        bounds = first if self._kept is None else np.searchsorted(self._kept, first).tolist()
        return {group: np.arange(a, b) for group, a, b in zip(self._groups, bounds, bounds[1:], strict=False)}

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> AnyRow:
        number = index if self._kept is None else int(self._kept[index])
        ids = {name: side.labels(number) for name, side in self._sides.items()}
        last = {name: of_side.pop() for name, of_side in ids.items()}["target"]
        next_id = None if "source" in ids or last == self._special.eos else last
        columns: dict[str, object] = {}
        if self._column is not None:
            columns[self._column] = self._groups[self._sides["target"].place(number)]
        row = Row(
            ids.get("source"),
            ids["target"],
            columns,
            number,
            is_joined=self._is_joined,
            special_ids=self._special,
            next_id=next_id,
        )
        return labelled_text(row, is_masked=self._is_masked) if self._is_labelled else row


class _Side:
    """One side of all examples, data set after data set: `lengths` of the texts, end symbols included, and their ids.

    `lengths` may be lowered: what is given is then the beginning.
    """

    def __init__(self, pack: Pack, side: str) -> None:
        self._streams = [pack.stream(group, side) for group in pack.groups]
        of_groups = [stream.lengths() for stream in self._streams]
        self.first = list(accumulate(map(len, of_groups), initial=0))
        """Number of the first example of every data set, and that of all."""
        self.lengths = np.concatenate([np.zeros(0, np.int32), *of_groups]).astype(np.int32)
        self._starts = np.concatenate([np.zeros(0, np.int64), *(np.cumsum(n, dtype=np.int64) - n for n in of_groups)])

    def place(self, number: int) -> int:
        """Return the place of an example's data set."""
        return bisect_right(self.first, number) - 1

    def labels(self, number: int) -> list[int]:
        """Return the ids of an example with what follows them: the end symbol, or the next token where they are cut."""
        start = int(self._starts[number])
        return self._streams[self.place(number)].take(start, start + int(self.lengths[number]))
