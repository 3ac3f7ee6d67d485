"""Examples as token ids, and batches of them under a budget of padded tokens.

The length of a row is the width it has in a batch: that of its longer side with its one extra symbol (end or begin),
or, where a decoder-only model reads the pair as one sequence, of both sides with both symbols. A batch of rows costs
``rows * longest length`` padded tokens, which stays within the budget; a single row that is longer than the budget is a
batch of its own.

Training draws rows of similar length together: lengths are put into buckets whose bounds grow by a tenth, rows are
shuffled inside their bucket, cut into batches, and the batches are shuffled. Everything follows from the seed and the
number of the epoch, so that a place in the middle of an epoch is two numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import torch

from ostinato.data.batch import Batch, TextSize, Tokens
from ostinato.data.labelled import LabelledRow, collate_labelled
from ostinato.data.mixture import Mixture
from ostinato.data.objectives import Objective
from ostinato.data.pad import pad
from ostinato.data.tokenizer import BOS_ID, EOS_ID, PAD_ID, Tokenizer, Tokenizers
from ostinato.errors import CheckpointError, DataError

if TYPE_CHECKING:
    from ostinato.config.data import DataConfig, MixtureConfig
    from ostinato.data.example import Example

_FIRST_BOUND, _BOUND_GROWTH = 8, 1.1
_EVALUATION_WINDOW = 4096


@dataclass(frozen=True, slots=True)
class Row:
    """One example as token ids, without begin and end symbols.

    Args:
        source_ids: None for texts.
        index: 0-based number of the example in its split.
        is_joined: source and target are one sequence.
        size: of a text that is whole.
    """

    source_ids: list[int] | None
    target_ids: list[int]
    columns: dict[str, object] = field(default_factory=dict)
    index: int = 0
    is_joined: bool = False
    size: TextSize | None = None

    @property
    def length(self) -> int:
        """Columns the row needs: its longer side and one symbol, or both sides and their symbols where joined."""
        n_source, n_target = 1 + len(self.source_ids or ()), 1 + len(self.target_ids)
        return n_source + n_target if self.is_joined else max(n_source, n_target)


def encode_examples(
    examples: Iterable[Example],
    tokenizers: Tokenizers,
    data: DataConfig,
    *,
    training: bool,
    name: str,
    joins_pairs: bool = False,
    first: int = 0,
) -> Iterator[Row]:
    """Turn examples into rows, one at a time.

    Args:
        training: whether ``data.over_length = "drop"`` may drop rows; in evaluation such a row is an error, because a
            score over fewer rows would be another score.
        name: what the examples are called in errors, usually the split.
        joins_pairs: make one sequence of source and target, for a decoder-only model (`LanguageModelConfig`); the
            longest lengths are still those of each side.
        first: number of the first example.

    Raises:
        DataError: an example is longer than its limit, or holds an unknown symbol; names the example (from 1), the
            limit and the setting to change.
    """
    for index, example in enumerate(examples, first):
        where = f"{name}: example {index + 1}"
        source = None
        if example.source is not None:
            ids = _encode(tokenizers.source, example.source, data, f"{where}, source")
            source = _fit(ids, data.max_source_length, "source", data, training, where)
        ids = _encode(tokenizers.target, example.target, data, f"{where}, target")
        target = _fit(ids, data.max_target_length, "target", data, training, where)
        if target is not None and (source is not None or example.source is None):
            is_whole = not training and example.source is None and len(target) == len(ids)
            size = TextSize.of(example.target) if is_whole else None
            is_joined = joins_pairs and source is not None
            yield Row(source, target, example.columns, index, is_joined=is_joined, size=size)


def _encode(tokenizer: Tokenizer, text: str, data: DataConfig, where: str) -> list[int]:
    try:
        return tokenizer.encode(text, unknown=data.unknown)
    except DataError as error:
        raise DataError(f"{where}: {error}") from error


def _fit(ids: list[int], limit: int, side: str, data: DataConfig, training: bool, where: str) -> list[int] | None:
    """Return ids that leave room for the end symbol, or None for a row that is dropped."""
    if len(ids) < limit:
        return ids
    if data.over_length == "truncate":
        return ids[: limit - 1]
    if data.over_length == "drop" and training:
        return None
    key = f"data.max_{side}_length"
    fix = "'truncate' or 'drop'" if training else "'truncate' (evaluation drops nothing)"
    raise DataError(
        f"{where}: the {side} has {len(ids) + 1} tokens with its end symbol, but {key} is {limit}: "
        f"raise {key}, or set data.over_length to {fix}"
    )


AnyRow = Row | LabelledRow


def collate(rows: Sequence[AnyRow]) -> Batch:
    """Put rows side by side, padded on the right.

    Source: ids and the end symbol. Target: the begin symbol and ids. Labels: ids and the end symbol. Of joined rows the
    target is the source followed by that, and the labels begin where the begin symbol stands.

    Raises:
        DataError: there are no rows, or they are not of one kind: only some have a source, are joined or labelled.
    """
    if not rows:
        raise DataError("a batch needs at least one row")
    labelled = [row for row in rows if isinstance(row, LabelledRow)]
    if len(labelled) == len(rows):
        return collate_labelled(labelled)
    return _collate([row for row in rows if isinstance(row, Row)], len(rows))


def _collate(rows: Sequence[Row], n_rows: int) -> Batch:
    if len(rows) != n_rows:
        raise DataError(f"{n_rows - len(rows)} of {n_rows} rows have labels of their own: a batch needs all or none")
    sources = [[*row.source_ids, EOS_ID] for row in rows if row.source_ids is not None]
    if sources and len(sources) != len(rows):
        raise DataError(f"{len(sources)} of {len(rows)} rows have a source: a batch needs all or none")
    n_joined = sum(row.is_joined for row in rows)
    if n_joined and n_joined != len(rows):
        raise DataError(f"{n_joined} of {len(rows)} rows are one sequence: a batch needs all or none")
    targets = [[BOS_ID, *row.target_ids] for row in rows]
    labels = [[*row.target_ids, EOS_ID] for row in rows]
    names = dict.fromkeys(name for row in rows for name in row.columns)
    batch = _joined(sources, targets, labels) if n_joined else _apart(sources, targets, labels)
    return replace(
        batch,
        indices=tuple(row.index for row in rows),
        sizes=tuple(row.size for row in rows),
        columns={name: [row.columns.get(name) for row in rows] for name in names},
    )


def _apart(sources: list[list[int]], targets: list[list[int]], labels: list[list[int]]) -> Batch:
    """Return sources, where there are any, beside targets."""
    wanted = _pad(labels)
    return Batch(_pad(targets), wanted.ids_BT, wanted.keep_BT, _pad(sources) if sources else None)


def _joined(sources: list[list[int]], targets: list[list[int]], labels: list[list[int]]) -> Batch:
    """Return every source with its target as one sequence; a source's own tokens are no labels."""
    prefix_lengths_B = torch.tensor([len(source) for source in sources])
    sequences = _pad([[*source, *target] for source, target in zip(sources, targets, strict=True)])
    wanted = _pad([[PAD_ID] * len(source) + ids for source, ids in zip(sources, labels, strict=True)])
    is_target_BT = torch.arange(sequences.ids_BT.shape[1]) >= prefix_lengths_B[:, None]
    return Batch(sequences, wanted.ids_BT, wanted.keep_BT & is_target_BT, prefix_lengths_B=prefix_lengths_B)


def _pad(sequences: Sequence[Sequence[int]]) -> Tokens:
    return Tokens(*pad(sequences))


class TrainingBatches:
    """Batches without end, epoch after epoch; without a mixture every row is in exactly one batch of an epoch.

    Args:
        rows: held in memory.
        tokens_per_batch: padded tokens, rows times the longest row (`Row.length`).
        seed: with the number of the epoch, it decides everything; the process's own generators are not touched.
        objective: hides parts of labelled rows, others in every epoch.
        mixture: how often rows of each data set are drawn; then some are in no batch of an epoch, and some in several.

    Raises:
        DataError: there are no rows.
    """

    def __init__(
        self,
        rows: Iterable[AnyRow],
        tokens_per_batch: int,
        seed: int,
        objective: Objective | None = None,
        mixture: MixtureConfig | None = None,
    ) -> None:
        self.rows = list(rows)
        self._objective = objective
        self._mixture = None if mixture is None else Mixture(mixture, [row.columns for row in self.rows])
        if not self.rows:
            raise DataError("there are no training examples (data.over_length=drop may have dropped them all)")
        self.tokens_per_batch = tokens_per_batch
        self.seed = seed
        self._lengths = np.array([row.length for row in self.rows])
        self._buckets = np.searchsorted(_bounds(int(self._lengths.max())), self._lengths)
        self._open(0)

    def _open(self, epoch: int) -> None:
        self.epoch = epoch
        self._next = 0
        self._plan = self._cut(np.random.default_rng([self.seed, epoch]))

    def _cut(self, generator: np.random.Generator) -> list[list[int]]:
        """Return the row numbers of every batch of an epoch."""
        n = len(self.rows)
        order = generator.permutation(n) if self._mixture is None else self._mixture.draw(generator)
        order = order[np.argsort(self._buckets[order], kind="stable")]
        batches = list(_cut_by_budget(order.tolist(), self._lengths.tolist(), self.tokens_per_batch))
        return [batches[i] for i in generator.permutation(len(batches))]

    @property
    def n_batches(self) -> int:
        """Batches in the present epoch; it may differ by a few from epoch to epoch."""
        return len(self._plan)

    def __iter__(self) -> TrainingBatches:
        return self

    def __next__(self) -> Batch:
        if self._next == len(self._plan):
            self._open(self.epoch + 1)
        numbers = self._plan[self._next]
        self._next += 1
        return collate([self._row(i) for i in numbers])

    def _row(self, number: int) -> AnyRow:
        row = self.rows[number]
        if self._objective is None or not isinstance(row, LabelledRow):
            return row
        return self._objective(row, np.random.default_rng([self.seed, self.epoch, number]))

    def state(self) -> dict[str, int]:
        """Return the place after the last batch given out, and what it depends on."""
        return {"epoch": self.epoch, "batch": self._next, **self._identity()}

    def restore(self, state: dict[str, int]) -> None:
        """Go on after the place `state` names, with exactly the batches that would have followed there.

        Raises:
            CheckpointError: the state was taken with other data, another budget or another seed.
        """
        for key, value in self._identity().items():
            if state.get(key) != value:
                raise CheckpointError(
                    f"cannot go on in the middle of an epoch: {key} was {state.get(key)} when the checkpoint was "
                    f"written, and is {value} now; resume with the data and settings of the run"
                )
        self._open(state["epoch"])
        self._next = state["batch"]

    def _identity(self) -> dict[str, int]:
        return {
            "seed": self.seed,
            "tokens_per_batch": self.tokens_per_batch,
            "n_rows": len(self.rows),
            "n_tokens": int(self._lengths.sum()),
        }


def evaluation_batches(
    rows: Iterable[AnyRow], tokens_per_batch: int, *, window: int = _EVALUATION_WINDOW
) -> Iterator[Batch]:
    """Yield every row once, holding at most `window` of them; rows are sorted by length inside the window.

    `Batch.indices` says where each row belongs. The longest rows of a window come first, so that a batch that does not
    fit into memory is met early.
    """
    stream = iter(rows)
    while held := list(islice(stream, window)):
        lengths = [row.length for row in held]
        order = sorted(range(len(held)), key=lambda i: -lengths[i])
        for numbers in _cut_by_budget(order, lengths, tokens_per_batch):
            yield collate([held[i] for i in numbers])


def _cut_by_budget(order: Iterable[int], lengths: Sequence[int], tokens_per_batch: int) -> Iterator[list[int]]:
    """Cut `order` into runs whose number times their greatest length is within the budget."""
    batch: list[int] = []
    longest = 0
    for i in order:
        grown = max(longest, lengths[i])
        if batch and (len(batch) + 1) * grown > tokens_per_batch:
            yield batch
            batch, grown = [], lengths[i]
        batch.append(i)
        longest = grown
    if batch:
        yield batch


def _bounds(longest: int) -> list[int]:
    """Return the greatest length of every bucket: 8, 9, 10, ... each a tenth more than the last, but at least one."""
    bounds = [_FIRST_BOUND]
    while bounds[-1] < longest:
        bounds.append(max(bounds[-1] + 1, int(bounds[-1] * _BOUND_GROWTH)))
    return bounds
