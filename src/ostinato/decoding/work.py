"""Work on batches, and where it is done: in this process, or by several (`ostinato.evaluation.workers`).

Batches are made, and their results used, by one process in one order, whoever does the work between: so nothing of a
result depends on that.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar, runtime_checkable

from ostinato.data.batch import Batch, Tokens

Item = TypeVar("Item")
Result = TypeVar("Result")
InItem = TypeVar("InItem", contravariant=True)


@runtime_checkable
class Work(Protocol[InItem, Result]):
    """What is done with a batch: a value that can be pickled."""

    def __call__(self, model: Any, item: InItem) -> Result:
        """Do it, inside `ostinato.decoding.inference`."""

    def pack(self, result: Result) -> Any:
        """Return a result as what JSON can hold."""

    def unpack(self, packed: Any) -> Result:
        """Return the result that was packed, exactly."""

    def key(self, item: InItem) -> str:
        """Return what tells an item from others."""


@runtime_checkable
class BatchRunner(Protocol):
    """Does work on batches.

    `n_ahead`: items that may be submitted before the result of the first one is waited for; 0: one after the other.
    """

    n_ahead: int

    def submit(self, work: Work[Item, Result], item: Item) -> Callable[[], Result]:
        """Take an item; return a function that waits for its result. It is called in the order of submission."""


class InThisProcess:
    """Does work when its result is asked for, inside the caller's `ostinato.decoding.inference`."""

    n_ahead: int = 0

    def __init__(self, model: Any) -> None:
        self.model = model

    def submit(self, work: Work[Item, Result], item: Item) -> Callable[[], Result]:
        """Return the function that does it."""
        return lambda: work(self.model, item)


def in_order(runner: BatchRunner, work: Work[Item, Result], items: Iterable[Item]) -> Iterator[tuple[Item, Result]]:
    """Yield every item with its result, in order, holding at most `runner.n_ahead` items beyond it."""
    submitted: deque[tuple[Item, Callable[[], Result]]] = deque()
    for item in items:
        submitted.append((item, runner.submit(work, item)))
        if len(submitted) > runner.n_ahead:
            first, wait = submitted.popleft()
            yield first, wait()
    for item, wait in submitted:
        yield item, wait()


def batch_key(batch: Batch, prefix: Tokens | None = None, *, asked: object) -> str:
    """Return a hash of all that a model reads of a batch, of the places of its examples, and of what is asked of it.

    Args:
        asked: the settings of the work, whose `repr` tells them apart.
    """
    digest = hashlib.sha256(repr((batch.indices, asked)).encode())
    tensors = [batch.labels_BT, batch.loss_mask_BT, batch.places_BL, batch.prefix_lengths_B]
    for tokens in (batch.source, batch.target, prefix):
        if tokens is not None:
            tensors += [tokens.ids_BT, tokens.keep_BT, tokens.positions_BT, tokens.texts_BT]
    for place, tensor in enumerate(tensors):
        if tensor is not None:
            digest.update(repr((place, tuple(tensor.shape))).encode("ascii"))
            digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
