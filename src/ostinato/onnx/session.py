"""Exported graphs in onnxruntime: as they are called, and what they lose on held-out data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import onnxruntime
import torch

from ostinato.data.batch import Batch, Tokens
from ostinato.data.batching import evaluation_batches
from ostinato.data.example import Example
from ostinato.data.rows import encode_rows
from ostinato.errors import DataError
from ostinato.evaluation.loading import LoadedRun
from ostinato.onnx.graphs import Graph, Tensors, graphs_of


class GraphSession:
    """One graph in onnxruntime: called with tensors by name, returns tensors by name.

    Args:
        file: of `ostinato export onnx`. n_threads: None: as many as onnxruntime takes.
    """

    def __init__(self, file: str | Path, n_threads: int | None = None) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        if n_threads is not None:
            options.intra_op_num_threads = n_threads
        self._session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        self._inputs = [one.name for one in self._session.get_inputs()]
        self._outputs = [one.name for one in self._session.get_outputs()]

    def __call__(self, given: Tensors) -> Tensors:
        """Run the graph; inputs that it does not know are left out."""
        feeds = {name: given[name].numpy() for name in self._inputs}
        made: list[Any] = self._session.run(None, feeds)
        return {name: torch.from_numpy(one) for name, one in zip(self._outputs, made, strict=True)}


def whole_pass(graphs: Sequence[Graph], sessions: Sequence[GraphSession], batch: Batch) -> torch.Tensor:
    """Return the logits of a teacher-forced batch: a decoder's pass with nothing cached.

    Args:
        graphs: of the model. sessions: that run them.
    """
    given = _given(graphs[-1], batch.target)
    if len(graphs) == 2:
        assert batch.source is not None  # the batch is such a model's
        given |= {"memory_keep": batch.source.keep_BT, **sessions[0](_given(graphs[0], batch.source))}
    if batch.prefix_lengths_B is not None:
        given["prefix_lengths"] = batch.prefix_lengths_B
    logits = sessions[-1](given)["logits"]
    if batch.places_BL is not None:
        logits = logits.gather(1, batch.places_BL[..., None].expand(-1, -1, logits.shape[-1]))
    return logits


def held_out_batches(run: LoadedRun, examples: Iterable[Example], name: str) -> list[Batch]:
    """Return examples as a run's graphs read them.

    Args:
        name: of their split, for errors.

    Raises:
        DataError: an example cannot be encoded, or no label of them counts.
    """
    # A graph has no input that keeps the texts of a block apart: every text is a row of its own.
    data = run.recipe.data
    if data.block_length is not None:
        longest = min(data.max_target_length, data.block_length)  # a block has positions, if learned ones
        cut = {"block_length": None, "max_target_length": longest, "over_length": "truncate"}
        data = data.model_copy(update=cut)
    rows = encode_rows(examples, run.tokenizers, data, run.model.config, training=False, name=name)
    batches = list(evaluation_batches(rows, data.eval_tokens_per_batch))
    if not any(batch.n_labels for batch in batches):
        raise DataError(f"{name}: no label of these examples counts: a loss would be a mean over nothing")
    return batches


def held_out_loss(run: LoadedRun, files: Sequence[Path], batches: Sequence[Batch]) -> float:
    """Return the loss of exported graphs on batches (`held_out_batches`), in nats a label."""
    graphs, sessions = graphs_of(run.model), [GraphSession(file) for file in files]
    total = 0.0
    for batch in batches:
        logs = torch.log_softmax(whole_pass(graphs, sessions, batch).double(), -1)
        chosen = logs.gather(-1, batch.labels_BT[..., None]).squeeze(-1)
        total -= float(chosen[batch.loss_mask_BT].sum())
    return total / sum(batch.n_labels for batch in batches)


def _given(graph: Graph, tokens: Tokens) -> Tensors:
    """Return a graph's inputs for tokens: nothing is cached, and rounds are the plan's."""
    rounds = {} if graph.rounds is None else {"rounds": graph.rounds}
    n, width = tokens.ids_BT.shape[:2]
    given = graph.example(batch=n, columns=width, cached=0, words=tokens.ids_BT.shape[-1], **rounds)
    return given | {"ids": tokens.ids_BT, "keep": tokens.keep_BT}
