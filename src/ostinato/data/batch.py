"""A batch: token ids with their keep masks, labels, and metadata of the examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from ostinato.config.special_ids import SpecialIds
from ostinato.errors import DataError
from ostinato.kernels.devices import moved, runs_ahead

T = TypeVar("T", "Tokens", "Batch")


@dataclass(frozen=True, slots=True)
class Tokens:
    """Padded token ids.

    Args:
        ids_BT: int64 ids; padding holds the pad id. Where a position is a fact of W words: `[B, T, W]`.
        keep_BT: True for real tokens.
        positions_BT: position of every token in its own sentence, from 0; None where all rows are padded on the right
            only, so that position t is column t. None reaches the number of columns.
        texts_BT: number of every column's text, from 1, where rows hold several texts that see nothing of each other;
            None: a row is one text.
        is_full: whether every token is real; None: the mask must be looked at. Noted by `to`, so that nobody need ask
            an accelerator.
    """

    ids_BT: Tensor
    keep_BT: Tensor
    positions_BT: Tensor | None = None
    texts_BT: Tensor | None = None
    is_full: bool | None = None

    @classmethod
    def from_lists(cls, sequences: Sequence[Sequence[int]], pad: int = SpecialIds().pad) -> Tokens:
        """Return sequences side by side, padded on the right with an id."""
        lengths = np.fromiter(map(len, sequences), dtype=np.int64, count=len(sequences))
        keep_BT = np.arange(lengths.max()) < lengths[:, None]
        ids_BT = np.full(keep_BT.shape, pad, dtype=np.int64)
        ids_BT[keep_BT] = np.concatenate([np.asarray(ids, dtype=np.int64) for ids in sequences])
        return cls(torch.from_numpy(ids_BT), torch.from_numpy(keep_BT))

    def rows(self, chosen: slice) -> Tokens:
        """Return some of the rows, padded as they are."""
        return replace(_changed(self, lambda tensor: tensor[chosen]), is_full=None)

    def to(self, device: torch.device | str) -> Tokens:
        """Return the tokens on another device."""
        is_full = self.is_full
        if is_full is None and not runs_ahead(self.keep_BT.device):
            is_full = bool(self.keep_BT.all())
        return replace(_changed(self, lambda tensor: moved(tensor, device)), is_full=is_full)


@dataclass(frozen=True, slots=True)
class TextSize:
    """Words and bytes (UTF-8) of a text; where the end symbol is a label, too, it counts as one word and one byte.

    White space that the tokenizer drops is no part of it. A text that is cut, has an unknown token, or whose letters
    the tokenizer changes (to lower case) has none: what it says is not all in the loss.
    """

    n_words: int
    n_bytes: int

    @classmethod
    def of(cls, text: str) -> TextSize:
        """Return the size of a text with its end: words are what white space separates."""
        return cls(len(text.split()) + 1, len(text.encode()) + 1)

    def __add__(self, other: TextSize) -> TextSize:
        return TextSize(self.n_words + other.n_words, self.n_bytes + other.n_bytes)


@dataclass(frozen=True, slots=True)
class Batch:
    """Examples side by side.

    A seq2seq batch has `source` and a `target` that begins with the begin symbol; a language model's batch has only
    `target`: a text behind a begin symbol, or a pair as one sequence, ``source <eos> <bos> target``, with
    `prefix_lengths_B`. `labels_BT` are the ids to predict at every column of the target (the target shifted left, then
    the end symbol, or the next token of a text that was cut); `loss_mask_BT` is True where a label counts, which is
    nowhere in a prefix.
    """

    target: Tokens
    labels_BT: Tensor
    loss_mask_BT: Tensor
    source: Tokens | None = None
    places_BL: Tensor | None = None
    """Columns of the target that labels are read from, where not every column has one: `labels_BT` and `loss_mask_BT`
    then have a column for every label of a sentence."""
    prefix_lengths_B: Tensor | None = None
    """Pairs as one sequence: real tokens of the source with its end symbol, which lead the sequence. A prefix language
    model lets them see each other in both directions. Of a span head: the columns before the passage."""
    continues: bool = False
    """Labels are of the text itself: of its continuation, its words, or all of it. Its prefix is no source that an
    output could be generated from."""
    indices: tuple[int, ...] = ()
    """Row numbers in the split."""
    sizes: tuple[TextSize | None, ...] = ()
    """Of the texts whose every token is a label, one for every row; None for other rows. Empty: of none."""
    columns: dict[str, list[object]] = field(default_factory=dict)
    """Metadata columns, carried through to the metrics."""

    @classmethod
    def from_lists(
        cls,
        targets: Sequence[Sequence[int]],
        sources: Sequence[Sequence[int]] | None = None,
        *,
        joins_pairs: bool = False,
        special_ids: SpecialIds = SpecialIds(),
    ) -> Batch:
        """Return a batch of token ids, which have no begin and end symbols yet, padded on the right.

            source: ids eos      target: bos ids      labels: ids eos
            joined: the target is  source eos bos target,  and labels begin at the column of bos

        Args:
            targets: of every row; texts, where there are no sources. sources: of every row; None: texts.
            joins_pairs: one sequence of source and target, as language models read pairs (`config.joins_pairs`).
            special_ids: the model's (`config.special_ids`).

        Raises:
            DataError: no rows, other numbers of sources than of targets, what is no list of whole numbers from 0 on, or
                pairs to join without sources.
        """
        _check_ids("targets", targets)
        bos, eos = special_ids.bos, special_ids.eos
        begun, labels = [[bos, *ids] for ids in targets], [[*ids, eos] for ids in targets]
        if sources is None:
            if joins_pairs:
                raise DataError("joins_pairs joins sources and targets: give sources")
            padded = Tokens.from_lists(labels, special_ids.pad)
            return cls(Tokens.from_lists(begun, special_ids.pad), padded.ids_BT, padded.keep_BT)
        _check_ids("sources", sources)
        if len(sources) != len(targets):
            raise DataError(f"{len(sources)} sources for {len(targets)} targets: every row needs both")
        read = [[*ids, eos] for ids in sources]
        if not joins_pairs:
            texts = cls.from_lists(targets, special_ids=special_ids)
            return replace(texts, source=Tokens.from_lists(read, special_ids.pad))
        # The source's own tokens are no labels: the labels have padding in their columns, which the mask leaves out.
        prefix_lengths_B = torch.tensor([len(source) for source in read], device="cpu")
        rows = zip(read, begun, labels, strict=True)
        both = [([*source, *target], [special_ids.pad] * len(source) + label) for source, target, label in rows]
        sequences = Tokens.from_lists([ids for ids, _ in both], special_ids.pad)
        padded = Tokens.from_lists([label for _, label in both], special_ids.pad)
        is_target_BT = torch.arange(sequences.ids_BT.shape[1], device="cpu") >= prefix_lengths_B[:, None]
        return cls(sequences, padded.ids_BT, padded.keep_BT & is_target_BT, prefix_lengths_B=prefix_lengths_B)

    @property
    def n_sentences(self) -> int:
        """Number of examples."""
        return self.labels_BT.shape[0]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Sentences, columns of the source (0 where there is none), and columns of the target."""
        source = 0 if self.source is None else self.source.ids_BT.shape[1]
        return self.n_sentences, source, self.target.ids_BT.shape[1]

    @property
    def has_sources(self) -> bool:
        """Whether the examples are pairs, so that outputs can be generated from their sources."""
        return self.source is not None or (self.prefix_lengths_B is not None and not self.continues)

    @property
    def n_labels(self) -> int:
        """Number of labels that count."""
        return int(self.loss_mask_BT.sum())

    def rows(self, chosen: slice) -> Batch:
        """Return some of the examples, maybe none, padded as they are."""
        return replace(
            _changed(self._with_tokens(lambda tokens: tokens.rows(chosen)), lambda tensor: tensor[chosen]),
            indices=self.indices[chosen],
            sizes=self.sizes[chosen],
            columns={name: values[chosen] for name, values in self.columns.items()},
        )

    def as_padded(self) -> Batch:
        """Return the batch as if it had padding, whether it has or not: masks are used for every batch then."""
        return self._with_tokens(lambda tokens: replace(tokens, is_full=False))

    def hidden_row(self) -> Batch:
        """Return the first example with all of its tokens and labels hidden: it takes part in nothing."""
        row = self.rows(slice(1)).as_padded()
        row = row._with_tokens(lambda tokens: replace(tokens, keep_BT=torch.zeros_like(tokens.keep_BT)))
        return replace(row, loss_mask_BT=torch.zeros_like(row.loss_mask_BT))

    def to(self, device: torch.device | str) -> Batch:
        """Return the batch on another device."""
        return _changed(self._with_tokens(lambda tokens: tokens.to(device)), lambda tensor: moved(tensor, device))

    def _with_tokens(self, change: Callable[[Tokens], Tokens]) -> Batch:
        """Return the batch with its sequences changed."""
        source = None if self.source is None else change(self.source)
        return replace(self, target=change(self.target), source=source)


def _check_ids(name: str, rows: Sequence[Sequence[int]]) -> None:
    """Refuse what is no list of lists of token ids, naming the row (from 1)."""
    if not len(rows):
        raise DataError("a batch needs at least one row")
    for number, row in enumerate(rows, 1):
        ids = np.asarray(row)
        if ids.ndim != 1 or (ids.size and (ids.dtype.kind not in "iu" or ids.min() < 0)):
            raise DataError(f"{name}: row {number} is {row!r}: must be a list of token ids, whole numbers from 0 on")


def _changed(record: T, change: Callable[[Tensor], Tensor]) -> T:
    """Return tokens or a batch with all tensors of its own changed; a batch keeps its tokens as they are."""
    values = {one.name: getattr(record, one.name) for one in fields(record)}
    changed: dict[str, Any] = {name: change(value) for name, value in values.items() if isinstance(value, Tensor)}
    return replace(record, **changed)
