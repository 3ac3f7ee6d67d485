"""One teacher-forced pass over a run's examples, for the collectors of all its analyses.

Every collector names the captures that it needs of the forward pass (`request`, see `ostinato.nn.types.CaptureKey`),
and is given one batch at a time. Only the captures of one batch of `TOKENS` padded tokens are in memory, and what the
collectors keep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ostinato.data.batch import Batch
from ostinato.data.batching import evaluation_batches
from ostinato.data.example import Example
from ostinato.data.rows import encode_rows
from ostinato.decoding import inference
from ostinato.evaluation.depth import real_tokens
from ostinato.evaluation.loading import LoadedRun
from ostinato.models.build import Model
from ostinato.models.output import ModelOutput

TOKENS = 2048
"""Padded tokens of a batch. Captures of one kind take 80 MB at 12 rounds of three sub-layers of width 128."""


@dataclass(frozen=True, slots=True)
class CapturedBatch:
    """One batch, and the model's output for it with the captures that were requested."""

    model: Model
    batch: Batch
    output: ModelOutput

    def ids(self, stack: str) -> Tensor:
        """Return the token ids that a stack reads, `[B, T]`; where a position is a fact `[B, T, W]`."""
        batch = self.batch
        return batch.source.ids_BT if stack == "encoder" and batch.source is not None else batch.target.ids_BT

    def keep(self, stack: str) -> Tensor:
        """Return which of a stack's tokens are real, `[B, T]`."""
        return real_tokens(stack, self.batch)

    def ran(self, stack: str, round_: int) -> Tensor:
        """Return which real tokens took part in a 0-based round, `[B, T]`; none in a round that did not run."""
        keep_BT, trace = self.keep(stack), self.output.stacks[stack].halting
        if trace is None:
            return keep_BT
        if round_ >= trace.executed_BTR.shape[-1]:
            return torch.zeros_like(keep_BT)
        return keep_BT & trace.executed_BTR[..., round_]


class Collector(Protocol):
    """Is given batches one by one, and keeps what an analysis needs of them."""

    request: frozenset[str] = frozenset()
    """Captures that the forward pass has to return: "input", "output", "residual", "weights", "seconds"."""

    def add(self, captured: CapturedBatch) -> None:
        """Take in one batch."""


def stream(
    run: LoadedRun,
    examples: Iterable[Example],
    collectors: Sequence[Collector],
    *,
    model: Model | None = None,
    tokens_per_batch: int = TOKENS,
    on_progress: Callable[[int], None] | None = None,
) -> None:
    """Run a model over examples once, and give every batch to all collectors.

    Batches are the same for the same examples, whatever the model. The model's mode is left as it was.

    Args:
        run: whose tokenizers and data settings are used. model: in place of the run's.
        on_progress: called with the number of further examples done.

    Raises:
        DataError: an example that cannot be encoded, or is too long.
    """
    model = run.model if model is None else model
    request = frozenset[str]().union(*(collector.request for collector in collectors))
    with inference(model):
        for batch in batches(run, examples, tokens_per_batch=tokens_per_batch):
            on_device = batch.to(model.device)
            captured = CapturedBatch(model, on_device, model(on_device, request=request))
            for collector in collectors:
                collector.add(captured)
            if on_progress is not None:
                on_progress(batch.n_sentences)


def batches(run: LoadedRun, examples: Iterable[Example], *, tokens_per_batch: int = TOKENS) -> Iterator[Batch]:
    """Return examples as batches of a run's model, on the host; every text by itself, also where training packs them,
    and then cut where they are longer than a row may be.

    Raises:
        DataError: an example that cannot be encoded, or is too long.
    """
    data = run.recipe.data_by_text()
    rows = encode_rows(examples, run.tokenizers, data, run.model.config, training=False, name="examples")
    return evaluation_batches(rows, min(tokens_per_batch, data.eval_tokens_per_batch))
