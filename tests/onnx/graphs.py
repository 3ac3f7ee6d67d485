"""What graphs are compared with: the model itself, over the same sentences, whole and in pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from architectures import Sentence, left_padded
from ostinato.config.halting import NoHaltingConfig
from ostinato.config.model import LanguageModelConfig, ModelConfig, Seq2SeqConfig
from ostinato.data.batch import Batch
from ostinato.models import Model
from ostinato.nn.why_not import repeats_one_round
from ostinato.onnx.graphs import Graph, Tensors

Run = Callable[[Tensors], Tensors]
"""A graph, whatever runs it: tensors by name in, tensors by name out."""


def expected_logits(model: Model, batch: Batch, n_steps: int | None = None) -> Tensor:
    """Return the model's logits of the real tokens, by its own way to run.

    Args:
        n_steps: rounds of the stacks that take any number; a source that no graph reads may have a fixed one.
    """
    if n_steps is None:
        with torch.no_grad():
            return model(batch).logits_BTV
    free = [name for name, stack in model.stacks.items() if repeats_one_round(stack)]
    with torch.no_grad(), model.execution(rounds=dict.fromkeys(free, n_steps)):
        return model(batch).logits_BTV


def decoder_logits(
    graphs: Sequence[Graph], runs: Sequence[Run], batch: Batch, pieces: Sequence[int], rounds: int | None = None
) -> Tensor:
    """Return the logits that the graphs of a model that writes give over `pieces` of so many columns each."""
    graph, run = graphs[-1], runs[-1]
    fixed: Tensors = {}
    if len(graphs) == 2:
        assert batch.source is not None
        source: Tensors = {"ids": batch.source.ids_BT, "keep": batch.source.keep_BT}
        fixed = {"memory_keep": batch.source.keep_BT} | runs[0](source | _rounds(graphs[0], rounds))
    if "prefix_lengths" in graph.inputs:
        assert batch.prefix_lengths_B is not None
        fixed["prefix_lengths"] = batch.prefix_lengths_B
    fixed |= _rounds(graph, rounds)
    n, n_rounds = len(batch.target.ids_BT), int(fixed["rounds"]) if "rounds" in fixed else 1
    empty = graph.example(batch=n, cached=0, rounds=n_rounds)
    past = {name: one for name, one in empty.items() if name.startswith("past_")}
    logits, first = [], 0
    for width in pieces:
        columns = slice(first, first + width)
        made = run({"ids": batch.target.ids_BT[:, columns], "keep": batch.target.keep_BT[:, columns], **fixed, **past})
        past = {f"past_{name[8:]}": one for name, one in made.items() if name.startswith("present_")}
        logits.append(made["logits"])
        first += width
    return torch.cat(logits, dim=1)


def encoder_logits(graph: Graph, run: Run, batch: Batch, rounds: int | None = None) -> Tensor:
    """Return the logits that the graph of an encoder-only model gives, of its first token type."""
    ids_BT, keep_BT = batch.target.ids_BT, batch.target.keep_BT
    given: Tensors = {"ids": ids_BT, "keep": keep_BT, "token_types": torch.zeros_like(ids_BT), **_rounds(graph, rounds)}
    if batch.prefix_lengths_B is not None:
        given["prefix_lengths"] = batch.prefix_lengths_B
    return run({name: given[name] for name in graph.inputs})["logits"]


def numbers_of_rounds(graphs: Sequence[Graph]) -> list[int | None]:
    """Return numbers of rounds to compare: the plan's, and others where the graphs take any."""
    return [None, 1, 4] if all(graph.rounds is not None for graph in graphs) else [None]


def knows_its_rounds(config: Seq2SeqConfig | LanguageModelConfig) -> bool:
    """Whether a graph can be made: that of a decoder without cross-attention has no source, to give its rounds."""
    uses = config.plans()["decoder"].uses()
    return config.decoder.halting.kind != "length" or any(use.kind == "cross_attention" for use in uses)


def without_cross_attention(config: Seq2SeqConfig) -> Seq2SeqConfig:
    """Return a pair whose decoder reads nothing of the source."""
    none = {"share": "none", "n_unique": None}
    decoder = config.decoder
    if decoder.halting.kind == "length":
        decoder = decoder.model_copy(update={"halting": NoHaltingConfig()})
    cross = decoder.cross_attention.model_copy(update=none)
    return config.model_copy(update={"decoder": decoder.model_copy(update={"cross_attention": cross})})


def _rounds(graph: Graph, rounds: int | None) -> Tensors:
    if graph.rounds is None:
        return {}
    return {"rounds": torch.tensor(graph.rounds if rounds is None else rounds)}


def pieces_of(config: ModelConfig, sentences: Sequence[Sentence], n_columns: int) -> list[int]:
    """Return a first piece, with the whole prefix where there is one, one column, and the rest."""
    first = n_columns - min(len(one.target) - (one.n_prefix or 0) for one in sentences)
    first = max(1, min(first, n_columns))
    rest = n_columns - first
    return [first] + ([1] if rest else []) + ([rest - 1] if rest > 1 else [])


def of_sentences(sentences: Sequence[Sentence]) -> Batch:
    """Return a batch with padding on the left."""
    return left_padded(sentences)
