"""The order of rows in training and evaluation, and their batches under a budget of padded tokens.

The length of a row is the width it has in a batch: that of its longer side with its one extra symbol (end or begin),
or, where a decoder-only model reads the pair as one sequence, of both sides with both symbols. A batch of rows costs
``rows * longest length`` padded tokens, which stays within the budget; a single row that is longer than the budget is a
batch of its own.

Training draws rows of similar length together: lengths are put into buckets whose bounds grow by a tenth, rows are
shuffled inside their bucket, cut into batches, and the batches are shuffled. The order depends on the seed and the
number of the epoch alone, so that a position in the middle of an epoch is two numbers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ostinato.data.batch import Batch
from ostinato.data.collate import AnyRow, LabelledRow, collate
from ostinato.data.mixture import Mixture, data_sets_of
from ostinato.data.objectives import Objective
from ostinato.errors import CheckpointError, DataError

if TYPE_CHECKING:
    from ostinato.config.data import MixtureConfig

_FIRST_BOUND, _BOUND_GROWTH = 8, 1.1
_EVALUATION_WINDOW = 4096
_AT_ONCE = 1 << 16


class StoredRows(ABC):
    """Rows that are not held: read one by one, when a batch needs them."""

    lengths: NDArray[np.integer[Any]]
    """Columns that every row needs (`Row.length`)."""

    @abstractmethod
    def data_sets(self) -> Mapping[str, NDArray[np.int64]]:
        """Return the numbers of the rows of every data set of a mixture."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, index: int) -> AnyRow: ...


class TrainingBatches:
    """Batches without end, epoch after epoch; without a mixture every row is in exactly one batch of an epoch.

    Args:
        rows: held in memory, but for `StoredRows`.
        tokens_per_batch: padded tokens, rows times the longest row (`Row.length`).
        seed: of the order and of the objective, with the number of the epoch; global generators are not used.
        objective: masks parts of labelled rows, different ones in every epoch.
        mixture: how often rows of each data set are drawn; then some are in no batch of an epoch, and some in several.

    Raises:
        DataError: there are no rows.
    """

    def __init__(
        self,
        rows: Iterable[AnyRow] | StoredRows,
        tokens_per_batch: int,
        seed: int,
        objective: Objective | None = None,
        mixture: MixtureConfig | None = None,
    ) -> None:
        self.rows: list[AnyRow] | StoredRows
        if isinstance(rows, StoredRows):
            self.rows, self._lengths = rows, rows.lengths
        else:
            self.rows = list(rows)
            self._lengths = np.array([row.length for row in self.rows])
        if not len(self.rows):
            raise DataError("there are no training examples (data.over_length=drop may have dropped them all)")
        self._objective = objective
        self._mixture = None
        if mixture is not None:
            stored = self.rows.data_sets() if isinstance(self.rows, StoredRows) else data_sets_of(mixture, self.rows)
            self._mixture = Mixture(mixture, stored)
        self.tokens_per_batch = tokens_per_batch
        self.seed = seed
        bounds = [_FIRST_BOUND]
        while bounds[-1] < self._lengths.max():
            bounds.append(max(bounds[-1] + 1, int(bounds[-1] * _BOUND_GROWTH)))
        # There are hundreds of buckets at most: a number for every row takes two bytes.
        self._buckets = np.searchsorted(bounds, self._lengths).astype(np.uint16)
        self._start_epoch(0)

    def _start_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self._next = 0
        generator = np.random.default_rng([self.seed, epoch])
        order = generator.permutation(len(self.rows)) if self._mixture is None else self._mixture.draw(generator)
        # A stable sort keeps the drawn order inside each bucket.
        self._order = order[np.argsort(self._buckets[order], kind="stable")]
        self._n_before = None if self._mixture is None else _times_before(self._order)
        cuts = _cut_by_budget(self._lengths, self._order, self.tokens_per_batch)
        self._ends = np.fromiter(cuts, dtype=np.int64)
        self._batches = generator.permutation(len(self._ends))

    @property
    def n_batches(self) -> int:
        """Batches in the present epoch; it may differ by a few from epoch to epoch."""
        return len(self._batches)

    def __iter__(self) -> TrainingBatches:
        return self

    def __next__(self) -> Batch:
        if self._next == len(self._batches):
            self._start_epoch(self.epoch + 1)
        chosen: list[AnyRow] = []
        batch = self._batches[self._next]
        start = self._ends[batch - 1] if batch else 0
        for place, number in enumerate(self._order[start : self._ends[batch]].tolist(), start):
            row = self.rows[number]
            if self._objective is not None and isinstance(row, LabelledRow):
                # One generator a row: what is masked does not depend on the other rows of the batch. A row that a
                # mixture draws again has others.
                again = self._n_before[place] if self._n_before is not None else 0
                of_row = [self.seed, self.epoch, number, *([again] if again else [])]
                row = self._objective(row, np.random.default_rng(of_row))
            chosen.append(row)
        self._next += 1
        return collate(chosen)

    def state(self) -> dict[str, int]:
        """Return the position after the last batch, and the data and settings it depends on."""
        return {"epoch": self.epoch, "batch": self._next, **self._identity()}

    def restore(self, state: dict[str, int]) -> None:
        """Continue at the position of `state`, with exactly the batches that would have followed there.

        Raises:
            CheckpointError: the state was taken with other data, another budget or another seed.
        """
        for key, value in self._identity().items():
            if state.get(key) != value:
                raise CheckpointError(
                    f"cannot go on in the middle of an epoch: {key} was {state.get(key)} when the checkpoint was "
                    f"written, and is {value} now; resume with the data and settings of the run"
                )
        self._start_epoch(state["epoch"])
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
    fit into memory fails early.
    """
    stream = iter(rows)
    while held := list(islice(stream, window)):
        lengths = np.array([row.length for row in held])
        order = np.argsort(-lengths, kind="stable")
        start = 0
        for end in _cut_by_budget(lengths, order, tokens_per_batch):
            yield collate([held[i] for i in order[start:end]])
            start = end


def _cut_by_budget(lengths: NDArray[np.integer[Any]], order: NDArray[np.int64], tokens_per_batch: int) -> Iterator[int]:
    """Yield where each batch of `order` ends: its number of rows times their greatest length is within the budget."""
    n_rows = longest = 0
    for start in range(0, len(order), _AT_ONCE):
        # Lists of numbers are read faster than arrays, and take ten times the memory.
        for place, length in enumerate(lengths[order[start : start + _AT_ONCE]].tolist(), start):
            grown = max(longest, length)
            if n_rows and (n_rows + 1) * grown > tokens_per_batch:
                yield place
                n_rows, grown = 0, length
            n_rows += 1
            longest = grown
    if n_rows:
        yield len(order)


def _times_before(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how often each number stands before its place."""
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    is_first = np.r_[True, ordered[1:] != ordered[:-1]]
    places = np.arange(len(numbers))
    found = np.empty(len(numbers), dtype=np.int64)
    found[order] = places - np.maximum.accumulate(np.where(is_first, places, 0))
    return found
