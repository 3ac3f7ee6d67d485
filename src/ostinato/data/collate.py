"""Rows of token ids, and rows side by side as a batch.

A `Row` is a pair or a text whose labels are its own target, shifted. A `LabelledRow` is one sequence with labels of its
own: what encoder-only models read, blocks of text, and texts of which only a part is scored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from ostinato.config.special_ids import SpecialIds
from ostinato.data.batch import Batch, TextSize, Tokens
from ostinato.errors import DataError

IGNORED_LABEL = -1
"""A label that does not count in any loss or score."""

_SPECIAL = SpecialIds()


@dataclass(frozen=True, slots=True)
class Row:
    """One example as token ids, without begin and end symbols.

    Args:
        source_ids: None for texts.
        index: 0-based number of the example in its split.
        is_joined: source and target are one sequence.
        size: words and bytes of a text in an evaluation; None where they are not known (see `TextSize`), of pairs, and
            in training.
        special_ids: the tokenizer's; those of a batch are the same.
        next_id: of a text that was cut, the token that follows: the text does not end there. None: the end symbol.
    """

    source_ids: list[int] | None
    target_ids: list[int]
    columns: dict[str, object] = field(default_factory=dict)
    index: int = 0
    is_joined: bool = False
    size: TextSize | None = None
    special_ids: SpecialIds = _SPECIAL
    next_id: int | None = None

    @property
    def labels(self) -> list[int]:
        """The target's ids, and what follows them."""
        return [*self.target_ids, self.special_ids.eos if self.next_id is None else self.next_id]

    @property
    def length(self) -> int:
        """Columns the row needs: its longer side and one symbol, or both sides and their symbols where joined."""
        n_source, n_target = 1 + len(self.source_ids or ()), 1 + len(self.target_ids)
        return n_source + n_target if self.is_joined else max(n_source, n_target)


@dataclass(frozen=True, slots=True)
class LabelledRow:
    """One sequence with labels of its own.

    Args:
        ids: of all columns, special symbols included.
        labels: `IGNORED_LABEL` where a label does not count.
        places: the column of every label; None where labels have no columns, or every column has one.
        n_prefix: leading tokens that are no passage (span), or that see each other (prefix language models).
        index: 0-based number of the example in its split.
        size: words and bytes of a text whose every token is a label; None otherwise.
        facts: ids of every column, where a column is a fact; `ids` is then empty.
        positions: of every column in its text, where the sequence holds texts that see nothing of each other; a text
            begins where it is 0. None: one text.
        special_ids: the tokenizer's: shorter facts are padded with its padding id.
    """

    ids: list[int]
    labels: list[int]
    places: list[int] | None = None
    n_prefix: int | None = None
    columns: dict[str, object] = field(default_factory=dict)
    index: int = 0
    size: TextSize | None = None
    facts: list[list[int]] | None = None
    positions: list[int] | None = None
    special_ids: SpecialIds = _SPECIAL

    @property
    def length(self) -> int:
        """Columns the row needs."""
        return len(self.ids if self.facts is None else self.facts)


AnyRow = Row | LabelledRow


def collate(rows: Sequence[AnyRow]) -> Batch:
    """Put rows side by side, padded on the right.

    Of a `Row`: the source is its ids and the end symbol, the target the begin symbol and its ids, the labels its
    target's ids and the end symbol, or of a text that was cut its next token. Of joined rows the target is the source
    followed by the target, and the labels begin at the column of the begin symbol. Of a `LabelledRow` the target is its
    ids, and `IGNORED_LABEL` is masked.

    Raises:
        DataError: there are no rows, or they are not of one kind: only some have a source, are joined, are labelled,
            or have places, prefixes, facts or positions.
    """
    if not rows:
        raise DataError("a batch needs at least one row")
    plain = [row for row in rows if isinstance(row, Row)]
    labelled = [row for row in rows if isinstance(row, LabelledRow)]
    if plain and labelled:
        raise DataError(f"{len(labelled)} of {len(rows)} rows have labels of their own: a batch needs all or none")
    names = dict.fromkeys(name for row in rows for name in row.columns)
    return replace(
        _collate_labelled(labelled) if labelled else _collate_plain(plain),
        indices=tuple(row.index for row in rows),
        sizes=tuple(row.size for row in rows),
        columns={name: [row.columns.get(name) for row in rows] for name in names},
    )


def _collate_plain(rows: Sequence[Row]) -> Batch:
    sources = [row.source_ids for row in rows if row.source_ids is not None]
    if sources and len(sources) != len(rows):
        raise DataError(f"{len(sources)} of {len(rows)} rows have a source: a batch needs all or none")
    n_joined = sum(row.is_joined for row in rows)
    if n_joined and n_joined != len(rows):
        raise DataError(f"{n_joined} of {len(rows)} rows are one sequence: a batch needs all or none")
    targets = [row.target_ids for row in rows]
    special = rows[0].special_ids
    batch = Batch.from_lists(targets, sources or None, joins_pairs=n_joined > 0, special_ids=special)
    for number, row in enumerate(rows):
        if row.next_id is not None:
            batch.labels_BT[number, len(row.target_ids)] = row.next_id
    return batch


def _collate_labelled(rows: Sequence[LabelledRow]) -> Batch:
    places = [row.places for row in rows if row.places is not None]
    prefixes = [row.n_prefix for row in rows if row.n_prefix is not None]
    facts = [row.facts for row in rows if row.facts is not None]
    positions = [row.positions for row in rows if row.positions is not None]
    if any(len(found) not in (0, len(rows)) for found in (places, prefixes, facts, positions)):
        raise DataError(
            "a batch needs rows of one kind: labels at places, prefixes, facts, or positions, in all of them or in none"
        )
    labels = Tokens.from_lists([row.labels for row in rows])
    tokens = _pad_facts(facts, rows[0].special_ids.pad) if facts else Tokens.from_lists([row.ids for row in rows])
    return Batch(
        _with_texts_apart(tokens, positions) if positions else tokens,
        labels.ids_BT.clamp_min(0),
        labels.keep_BT & (labels.ids_BT != IGNORED_LABEL),
        places_BL=Tokens.from_lists(places).ids_BT if places else None,
        prefix_lengths_B=torch.tensor(prefixes, device="cpu") if prefixes else None,
        continues=True,
    )


def _with_texts_apart(tokens: Tokens, positions: Sequence[list[int]]) -> Tokens:
    """Return tokens with their positions and the numbers of their texts; as they are where every row is one text."""
    positions_BT = Tokens.from_lists(positions, pad=0).ids_BT
    begins_BT = (positions_BT == 0) & tokens.keep_BT
    if int(begins_BT.sum()) == len(positions):
        return tokens
    return replace(tokens, positions_BT=positions_BT, texts_BT=begins_BT.cumsum(1))


def _pad_facts(stories: Sequence[list[list[int]]], pad: int) -> Tokens:
    """Return stories side by side, `[B, T, W]`: facts padded to the longest, stories to the one with most facts."""
    words_NW = Tokens.from_lists([fact for story in stories for fact in story], pad=pad).ids_BT
    keep_BT = Tokens.from_lists([[1] * len(story) for story in stories]).keep_BT
    ids_BTW = words_NW.new_full((*keep_BT.shape, words_NW.shape[1]), pad)
    ids_BTW[keep_BT] = words_NW
    return Tokens(ids_BTW, keep_BT)
