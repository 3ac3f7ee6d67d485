"""Examples as rows of token ids, by what a model reads: pairs, texts, blocks of texts, or sequences with labels."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ostinato.config.positions import LearnedConfig
from ostinato.config.special_ids import SpecialIds
from ostinato.data.batch import TextSize
from ostinato.data.collate import IGNORED_LABEL, AnyRow, LabelledRow, Row
from ostinato.data.cuts import Cuts
from ostinato.data.labelled import classification_row, continuation_row, facts_row, span_row, tagging_row
from ostinato.data.objectives import objective_of, split_prefix
from ostinato.data.tokenizer import Tokenizer
from ostinato.data.tokenizers import Tokenizers
from ostinato.errors import DataError

if TYPE_CHECKING:
    from ostinato.config.data import DataConfig
    from ostinato.config.model import ModelConfig
    from ostinato.data.example import Example

_ROW_OF_HEAD: dict[str, Callable[[Example, Tokenizers, DataConfig, int, Cuts | None], LabelledRow | None]] = {
    "classification": classification_row,
    "tagging": tagging_row,
    "span": span_row,
}
_EVALUATION_SEED = 0


def encode_rows(
    examples: Iterable[Example],
    tokenizers: Tokenizers,
    data: DataConfig,
    config: ModelConfig,
    *,
    training: bool,
    name: str,
    cuts: Cuts | None = None,
) -> Iterator[AnyRow]:
    """Turn examples into rows for a model, one at a time.

    Texts are packed into blocks of `data.block_length` where that is set. In evaluation masks and prefixes are drawn
    here, the same ones every time; in training `TrainingBatches` draws them again in every epoch.

    Args:
        training: see `encode_examples`.
        name: of the split, for errors.
        cuts: counts what is cut of too long examples.

    Raises:
        DataError: an example that cannot be encoded; names it.
    """
    cuts = cuts if data.over_length == "truncate" else None
    encode = _ROW_OF_HEAD.get(config.reads)
    if config.max_words is not None:
        encode = partial(facts_row, max_words=config.max_words)
    if encode is not None:
        for index, example in enumerate(examples):
            try:
                labelled = encode(example, tokenizers, data, index, cuts)
            except DataError as error:
                raise DataError(f"{name}: example {index + 1}: {error}") from error
            if labelled is not None:
                yield labelled
            elif not training:
                raise DataError(
                    f"{name}: example {index + 1} is too long: evaluation drops nothing, so raise "
                    "data.max_source_length or set data.over_length to 'truncate'"
                )
        return
    blocks, limits = Blocks.of(data, config, tokenizers.target.special_ids), data
    if blocks is not None:  # A text that is cut into blocks may have any length.
        limits = data.model_copy(update={"max_target_length": sys.maxsize})
    rows = encode_examples(
        examples,
        tokenizers,
        limits,
        training=training,
        name=name,
        joins_pairs=config.joins_pairs,
        n_symbols=symbols_of_limit(config),
        of_continued=data,
        cuts=cuts,
    )
    objective = objective_of(config, data, tokenizers)
    if objective is not None or blocks is not None:
        label = partial(_as_labelled, is_masked=config.reads == "masked", sees_prefix=objective is split_prefix)
        rows = map(label, rows) if blocks is None else _pack(rows, data, blocks, label)
    learned = [s.positions.max_length for s in config.stacks().values() if isinstance(s.positions, LearnedConfig)]
    for row in rows:
        # Blocks fit, but a text that is continued is in none.
        if isinstance(row, LabelledRow) and learned and row.length > min(learned):
            raise DataError(
                f"{name}: example {row.index + 1} has {row.length} tokens, but the model has {min(learned)} positions, "
                "and what comes before the part that is scored is never cut: train with more "
                "(model.*.positions.max_length), or leave it out"
            )
        if training or objective is None or not isinstance(row, LabelledRow):
            yield row
        else:
            yield objective(row, np.random.default_rng([_EVALUATION_SEED, row.index]))


def encode_examples(
    examples: Iterable[Example],
    tokenizers: Tokenizers,
    data: DataConfig,
    *,
    training: bool,
    name: str,
    joins_pairs: bool = False,
    n_symbols: int = 1,
    of_continued: DataConfig | None = None,
    cuts: Cuts | None = None,
) -> Iterator[AnyRow]:
    """Turn pairs and texts into rows, one at a time; an example that `continues` its source becomes a labelled row.

    Args:
        training: whether ``data.over_length = "drop"`` may drop rows; in evaluation such a row is an error, because a
            score over fewer rows would be another score.
        name: what the examples are called in errors, usually the split.
        joins_pairs: make one sequence of source and target, for a decoder-only model (`LanguageModelConfig`); the
            longest lengths are still those of each side.
        n_symbols: see `symbols_of_limit`.
        of_continued: settings for examples that continue their source; None: `data`.
        cuts: counts how many tokens every side has, and how many are too many.

    Raises:
        DataError: an example is longer than its limit, or holds an unknown symbol; names the example (from 1), the
            limit and the setting to change.
    """
    for index, example in enumerate(examples):
        where = f"{name}: example {index + 1}"
        if example.continues:
            try:
                yield continuation_row(example, tokenizers, of_continued or data, index)
            except DataError as error:
                raise DataError(f"{where}: {error}") from error
            continue
        source = None
        if example.source is not None:
            ids = _encode(tokenizers.source, example.source, data, f"{where}, source")
            if cuts is not None:
                cuts.add("source", len(ids) + 1, data.max_source_length)
            source = _limit_length(ids, data.max_source_length, 1, "source", data, training, where)
        ids = _encode(tokenizers.target, example.target, data, f"{where}, target")
        if cuts is not None:
            cuts.add("text" if example.source is None else "target", len(ids) + n_symbols, data.max_target_length)
        target = _limit_length(ids, data.max_target_length, n_symbols, "target", data, training, where)
        if target is not None and (source is not None or example.source is None):
            size = None
            if not training and example.source is None and len(target) == len(ids):
                said, text = tokenizers.target.decode(ids), example.target
                if tokenizers.target.unknown_id not in ids and "".join(said.split()) == "".join(text.split()):
                    # White space that a tokenizer drops is in no loss; what it puts between marks is none of the text.
                    n_bytes = min(TextSize.of(said).n_bytes, TextSize.of(text).n_bytes)
                    size = TextSize(TextSize.of(text).n_words, n_bytes)
            is_joined = joins_pairs and source is not None
            special = tokenizers.target.special_ids
            # A text that is cut goes on; an output, which has to end, ends where it is cut.
            next_id = ids[len(target)] if example.source is None and len(target) < len(ids) else None
            yield Row(
                source,
                target,
                example.columns,
                index,
                is_joined=is_joined,
                size=size,
                special_ids=special,
                next_id=next_id,
            )


def _encode(tokenizer: Tokenizer, text: str, data: DataConfig, where: str) -> list[int]:
    try:
        return tokenizer.encode(text, unknown=data.unknown)
    except DataError as error:
        raise DataError(f"{where}: {error}") from error


def symbols_of_limit(config: ModelConfig) -> int:
    """Return how many symbols `data.max_target_length` counts: the end symbol, and of masked models also the begin
    symbol, since there both have a column; other models read the one and predict the other in the same columns."""
    return 2 if config.reads == "masked" else 1


def _limit_length(
    ids: list[int], limit: int, n_symbols: int, side: str, data: DataConfig, training: bool, where: str
) -> list[int] | None:
    """Return ids that leave room for the symbols around them, or None for a row that is dropped."""
    if len(ids) + n_symbols <= limit:
        return ids
    if data.over_length == "truncate":
        return ids[: max(limit - n_symbols, 0)]
    if data.over_length == "drop" and training:
        return None
    raise too_long(len(ids), n_symbols, limit, side, where, training=training)


def too_long(n: int, n_symbols: int, limit: int, side: str, where: str, *, training: bool) -> DataError:
    """Return the error for a side of n tokens without so many symbols that count, too."""
    with_them = "its end symbol" if n_symbols == 1 else "its begin and end symbols"
    key = f"data.max_{side}_length"
    fix = "'truncate' or 'drop'" if training else "'truncate' (evaluation drops nothing)"
    return DataError(
        f"{where}: the {side} has {n + n_symbols} tokens with {with_them}, but {key} is {limit}: "
        f"raise {key}, or set data.over_length to {fix}"
    )


def _as_labelled(row: AnyRow, *, is_masked: bool, sees_prefix: bool) -> AnyRow:
    """Return a text as a labelled row, whatever else as it is; where a text is continued, what is given is its prefix.

    Raises:
        DataError: a masked model is to continue a text.
    """
    if isinstance(row, LabelledRow) and is_masked:
        raise DataError("the texts of this task are continued, which masked models do not: model.kind=language_model")
    if isinstance(row, LabelledRow) and sees_prefix:
        # The label of the prefix's last token is the first that counts.
        n_given = next(place for place, label in enumerate(row.labels) if label != IGNORED_LABEL)
        return replace(row, n_prefix=n_given + 1)
    is_text = isinstance(row, Row) and row.source_ids is None
    return labelled_text(row, is_masked=is_masked) if is_text else row  # type: ignore[arg-type]


def labelled_text(row: Row, *, is_masked: bool) -> LabelledRow:
    """Return a text as a labelled row; a masked model's labels are drawn later, others are the next tokens."""
    ids, special = row.target_ids, row.special_ids
    if is_masked:
        return LabelledRow([special.bos, *ids, special.eos], [], columns=row.columns, index=row.index)
    return LabelledRow([special.bos, *ids], row.labels, columns=row.columns, index=row.index, size=row.size)


@dataclass(frozen=True, slots=True)
class Blocks:
    """How texts, an end symbol after each, become blocks that each begin with the begin symbol.

        text  a b c, text d e:        a b c eos d e eos
        attention by block:           ids bos a b c eos d e     labels a b c eos d e eos
        attention by text:            ids bos a b c bos d e     labels a b c eos d e eos,   positions 0 1 2 3 0 1 2

    By text, the rest of a text that was cut by the block before is a text of its own.

    Args:
        length: columns of a block. labels_all: every token is a label, as in language models; the block's last token is
            a label only. False: every token is in a column, as masked models need it.
        by_text: attention and positions are kept within texts.
    """

    length: int
    labels_all: bool
    by_text: bool
    special_ids: SpecialIds

    @classmethod
    def of(cls, data: DataConfig, config: ModelConfig, special_ids: SpecialIds) -> Blocks | None:
        """Return how a model reads blocks; None where a text is a row of its own."""
        if data.block_length is None:
            return None
        return cls(data.block_length, config.reads != "masked", data.block_attention == "text", special_ids)

    @property
    def n_new(self) -> int:
        """Tokens of the texts in a block."""
        return self.length if self.labels_all else self.length - 1

    def row(self, new: list[int], columns: dict[str, object], index: int, size: TextSize | None = None) -> LabelledRow:
        """Return the block of these tokens."""
        bos, eos = self.special_ids.bos, self.special_ids.eos
        if not self.labels_all:
            return LabelledRow([bos, *new], [], columns=columns, index=index)
        ids, positions = [bos, *new[:-1]], None
        if self.by_text:
            begins = [True, *(before == eos for before in ids[1:])]
            ids = [bos if begin else i for i, begin in zip(ids, begins, strict=True)]
            positions, start = [], 0
            for column, begin in enumerate(begins):
                start = column if begin else start
                positions.append(column - start)
        return LabelledRow(ids, new, columns=columns, index=index, size=size, positions=positions)


def _pack(
    rows: Iterable[AnyRow], data: DataConfig, blocks: Blocks, label: Callable[[AnyRow], AnyRow]
) -> Iterator[LabelledRow]:
    """Cut texts into blocks; of a mixture those of every data set by themselves.

    A text that is continued, of which only a part counts, stays a row of its own.

    Args:
        label: see `_as_labelled`.
    """
    column = None if data.mixture is None else data.mixture.column
    packers: dict[str, _Packer] = {}
    index = 0
    for given in rows:
        row = label(given)
        if not isinstance(row, LabelledRow):
            raise DataError("data.block_length packs texts: these examples have a source")
        if isinstance(given, LabelledRow):
            yield row
            continue
        columns = {} if column is None or column not in row.columns else {column: row.columns[column]}
        packer = packers.setdefault(str(columns), _Packer(blocks, columns))
        for block in packer.add(row):
            yield replace(block, index=index)
            index += 1
    for packer in packers.values():
        if packer.held:
            yield replace(packer.block(packer.held, packer.size), index=index)
            index += 1


class _Packer:
    """Cuts texts into blocks.

    A block's size is that of the texts that end in it, so that sizes add up to those of all texts.

    Args:
        columns: metadata of every block.
    """

    def __init__(self, blocks: Blocks, columns: dict[str, object]) -> None:
        self._blocks, self._columns = blocks, columns
        self.held: list[int] = []
        """Tokens that are in no block yet."""
        self.size: TextSize | None = TextSize(0, 0)

    def add(self, row: LabelledRow) -> Iterator[LabelledRow]:
        """Take a text, and yield the blocks that are full."""
        n_new = self._blocks.n_new
        self.held += row.labels if self._blocks.labels_all else row.ids[1:]
        self.size = self.size + row.size if self.size is not None and row.size is not None else None
        start, end = 0, n_new
        while len(self.held) >= end:
            ends_here = len(self.held) == end
            # A text's size belongs to the block that its end symbol is in. Where that is a later one, this block has
            # the size of the texts before it.
            size = self.size
            if not ends_here and size is not None and row.size is not None:
                size = TextSize(size.n_words - row.size.n_words, size.n_bytes - row.size.n_bytes)
            yield self.block(self.held[start:end], size)
            self.size = TextSize(0, 0) if ends_here else row.size
            start, end = end, end + n_new
        # Once a text: a long one has many blocks.
        del self.held[:start]

    def block(self, new: list[int], size: TextSize | None) -> LabelledRow:
        """Return a block of these tokens."""
        return self._blocks.row(new, self._columns, 0, size)
