"""A model as graphs of tensors, each traced once by torch.export for every batch, length and number of rounds.

    encoder-only model          model       ids, keep -> logits
    language model              model       ids, keep, past_* -> logits, present_*
    encoder and decoder         encoder     ids, keep -> cross_*
                                decoder     ids, keep, memory_keep, cross_*, past_* -> logits, present_*
                                model       of a decoder without cross-attention: as of a language model

A graph reads and returns tensors by name. T new columns follow the S that are cached: with S = 0 and a whole text it is
a full pass, with T = 1 a step of decoding, whose `present_*` are the next one's `past_*`. Where rounds are alike their
number is one more input, `rounds`, and they are one loop over the same weights (`ostinato.nn.graph`).
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.fx.experimental.symbolic_shapes import is_concrete_int

from ostinato.data.batch import Batch, Tokens
from ostinato.errors import CheckpointError, see
from ostinato.models import Encoder, LanguageModel, Model, Seq2Seq
from ostinato.nn.attention import Visibility
from ostinato.nn.by_length import ByLength
from ostinato.nn.cache import ColumnWindow
from ostinato.nn.choosing import Chooser
from ostinato.nn.context import Pass
from ostinato.nn.cross_attention import CrossAttention
from ostinato.nn.execution import DEFAULT_EXECUTION, Execution, RoundsBySentence
from ostinato.nn.graph import WINDOWS, GivenKeyValues, GraphCache, Slot
from ostinato.nn.loops import POSITIONS_OF_A_GRAPH, NoiseState
from ostinato.nn.positions import positions_from_keep
from ostinato.nn.program import Rounds
from ostinato.nn.self_attention import SelfAttention
from ostinato.nn.separable import SeparableConvSubLayer
from ostinato.nn.shapes import Tensor
from ostinato.nn.sub_layer import Parallel, SubLayer
from ostinato.nn.why_not import repeats_one_round

Tensors = dict[str, Tensor]
Sizes = dict[str, tuple[str | int, ...]]
"""Of every tensor its sizes: numbers, or the names of those that are free."""


@dataclass(frozen=True)
class Graph:
    """One graph of a model.

    Args:
        module: called with a dictionary of tensors, returns one.
        inputs, outputs: their names and sizes. rounds: of the loop where nothing else is said; None: they are fixed.
    """

    name: str
    module: GraphModule
    inputs: Sizes
    outputs: Sizes
    rounds: int | None

    def example(self, **sizes: int) -> Tensors:
        """Return inputs of some size: no token is padding, nothing is cached but zeros."""
        sizes = {"batch": 2, "columns": 3, "cached": 2, "source": 4, "words": 3, "rounds": 2} | sizes
        found: Tensors = {}
        for name, shape in self.inputs.items():
            numbers = [size if isinstance(size, int) else sizes[size] for size in shape]
            found[name] = torch.zeros(numbers, dtype=dtype_of(name))
            if name.endswith("keep"):
                found[name] = ~found[name]
        if "rounds" in found:
            found["rounds"] += sizes["rounds"]
        return found

    def exported(self) -> torch.export.ExportedProgram:
        """Return the graph as torch.export traces it.

        Raises:
            CheckpointError: the graph would hold for one size of an input only.
        """
        free = {
            name: {place: torch.export.Dim.AUTO for place, size in enumerate(shape) if isinstance(size, str)}
            for name, shape in self.inputs.items()
        }
        self.module.eval()
        self.module.sizes = self.inputs
        with torch.no_grad():
            for module in self.module.modules():
                if isinstance(module, NoiseState):  # what it draws is a constant of the graph
                    module(torch.zeros(1, 1, module.d_model), torch.tensor([[POSITIONS_OF_A_GRAPH - 1]]))
            program = torch.export.export(self.module, (self.example(),), dynamic_shapes=(free,))
        # `Dim.AUTO` silently fixes a free size to its value in the example where code uses it as a Python number.
        read = set(program.graph_signature.user_inputs)
        traced = [node.meta["val"] for node in program.graph.find_nodes(op="placeholder") if node.name in read]
        for (name, shape), tensor in zip(self.inputs.items(), traced, strict=True):
            for size, found in zip(shape, tensor.shape, strict=True):
                if isinstance(size, str) and is_concrete_int(found):
                    raise CheckpointError(f"{self.name}: its graph would hold for {size} = {found} only (input {name})")
        _sum_in_pairs(program)
        return program


def _sum_in_pairs(program: torch.export.ExportedProgram) -> None:
    """Write sums of sizes as sums of two: files of torch.export know no others."""
    for module in program.graph_module.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        for node in module.graph.find_nodes(op="call_function", target=torch.sym_sum):
            [(total, *others)] = node.args
            with module.graph.inserting_before(node):
                for one in others:
                    value = sum(part.meta["val"] if isinstance(part, torch.fx.Node) else part for part in (total, one))
                    total = module.graph.call_function(operator.add, (total, one))
                    total.meta["val"] = value
            node.replace_all_uses_with(total)
            module.graph.erase_node(node)
        module.recompile()


def dtype_of(name: str) -> torch.dtype:
    """Return the type of an input."""
    if name.endswith("keep") or name.startswith("past_took_part"):
        return torch.bool
    return torch.float32 if name.startswith(("past_", "cross_")) else torch.long


def graphs_of(model: Model) -> list[Graph]:
    """Return the graphs of a model, which share its weights.

    Raises:
        CheckpointError: a model that is no graph of this kind; a decoder whose rounds follow from the length of a
            source of which it reads nothing.
    """
    if isinstance(model, Encoder):
        return [_encoder_graph(model)]
    if isinstance(model, LanguageModel):
        return [_decoder_graph("model", model, {})]
    if isinstance(model, Seq2Seq):
        sources = _cross_sizes(model)
        # Of a source nothing is read but by cross-attention.
        if not sources and _runs_by_length(model):
            reason = (
                "its decoder has no cross-attention, so that its graph has no source, whose length gives its rounds"
            )
            raise CheckpointError(f"this model cannot be exported: {reason}")
        read = [_source_graph(model, sources)] if sources else []
        return [*read, _decoder_graph("decoder" if sources else "model", model, sources)]
    raise CheckpointError(f"a model of kind {model.config.kind} cannot be exported: only Transformers can{see('onnx')}")


def _runs_by_length(model: Seq2Seq) -> bool:
    """Return whether the decoder runs as many rounds as the length of the source says."""
    program = model.stacks["decoder"].program(None, model.current_execution)
    return any(isinstance(segment.rule, ByLength) for segment in program)


def _execution_of(model: Model) -> Execution:
    """Return how a model runs now, as a graph."""
    given = model.current_execution
    if any(isinstance(rounds, RoundsBySentence) for rounds in given.rounds.values()):
        raise CheckpointError("rounds by sentence are for training: a model that runs so cannot be exported")
    if given.cached_rounds is not None:
        raise CheckpointError("a model that caches only some rounds (cached_rounds) cannot be exported: leave it out")
    return replace(
        given, as_graph=True, compaction="never", expert_backend="dense", gradient_rounds=None, gradient_repeats=None
    )


def _rounds_of(model: Model, name: str) -> int | None:
    """Return the number of rounds of a stack whose number is an input; None where it is fixed."""
    execution = model.current_execution
    is_given = name in execution.rounds or name in execution.paths
    return model.n_rounds()[name] if repeats_one_round(model.stacks[name]) and not is_given else None


class GraphModule(nn.Module, ABC):
    """What a graph computes: the model, and how it runs.

    Args:
        model: of which it is a part.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.execution = _execution_of(model)
        self.sizes: Sizes = {}

    def forward(self, given: Tensors) -> Tensors:
        """Run the graph; where it is traced, sizes of one name are one symbol."""
        known: dict[str, int] = {}
        for name, sizes in self.sizes.items():
            for size, found in zip(sizes, given[name].shape, strict=True):
                if isinstance(size, str):
                    torch._check(found == known.setdefault(size, found))  # type: ignore[no-untyped-call]
        return self.compute(given)

    @abstractmethod
    def compute(self, given: Tensors) -> Tensors:
        """Return the outputs."""


def _tokens(given: Tensors) -> Tokens:
    """Return tokens that may be padded on either side."""
    return Tokens(given["ids"], given["keep"], positions_from_keep(given["keep"]))


class EncoderModule(GraphModule):
    """What the head of an encoder-only model says."""

    def compute(self, given: Tensors) -> Tensors:
        """Return the logits."""
        tokens = _tokens(given)
        batch = Batch(tokens, tokens.ids_BT, tokens.keep_BT, prefix_lengths_B=given.get("prefix_lengths"))
        run = {"n_steps": given.get("rounds"), "execution": self.execution}
        return {"logits": self.model(batch, token_types=given.get("token_types"), **run).logits_BTV}


def _encoder_graph(model: Encoder) -> Graph:
    config = model.config
    words = () if config.max_words is None else ("words",)
    inputs: Sizes = {"ids": ("batch", "columns", *words), "keep": ("batch", "columns")}
    if config.n_token_types:
        inputs["token_types"] = ("batch", "columns")
    outputs = model.target_weight.shape[0] if model.head is None else model.head.out_features
    logits: tuple[str | int, ...] = ("batch", "columns", outputs)
    if config.head.kind == "classification":
        logits = ("batch", 1, outputs)
    elif config.head.kind == "span":
        inputs["prefix_lengths"], logits = ("batch",), ("batch", outputs, "columns")
    rounds = _rounds_of(model, "encoder")
    return Graph("model", EncoderModule(model), inputs | _rounds_input(rounds), {"logits": logits}, rounds)


class SourceModule(GraphModule):
    """What a decoder reads in a source: keys and values of cross-attention, by parameter set."""

    def compute(self, given: Tensors) -> Tensors:
        """Return keys and values, `[2, B, H, S, K]`."""
        tokens = _tokens(given)
        found = self.model.encoded(tokens, given.get("rounds"), (), self.execution)
        return {f"cross_{name}": one for name, one in _cross_keys(self.model, found.states_BTD).items()}


def _cross_keys(model: Seq2Seq, memory_BSD: Tensor) -> Tensors:
    positions = torch.zeros(1, 1, dtype=torch.long)
    run = Pass(Visibility(), positions, positions, DEFAULT_EXECUTION, memory_BSD=memory_BSD)
    for segment in model.stacks["decoder"].program(None, run.execution):
        for sub_layer in _sub_layers(segment.rounds):
            if isinstance(sub_layer, CrossAttention):
                sub_layer.prepare(run)
    return run.cross_kv


def _source_graph(model: Seq2Seq, sources: Sizes) -> Graph:
    rounds = _rounds_of(model, "encoder")
    inputs: Sizes = {"ids": ("batch", "columns"), "keep": ("batch", "columns")}
    outputs = {name: tuple("columns" if size == "source" else size for size in shape)
               for name, shape in sources.items()}  # fmt: skip
    return Graph("encoder", SourceModule(model), inputs | _rounds_input(rounds), outputs, rounds)


def _cross_sizes(model: Seq2Seq) -> Sizes:
    with torch.no_grad():
        made = _cross_keys(model, model.target_weight.new_zeros(1, 1, model.config.d_model))
    return {f"cross_{name}": (2, "batch", one.shape[2], "source", one.shape[4]) for name, one in made.items()}


@dataclass(frozen=True)
class Slots:
    """What a decoder caches, by the names of its tensors without "past_" or "present_".

    Args:
        keys, windows, took_part: by step; the window "first" or "second"; by round. of_rounds: of a loop.
    """

    keys: dict[str, int]
    windows: dict[str, tuple[int, int]]
    took_part: dict[str, int]
    of_rounds: dict[str, Slot]


class DecoderModule(GraphModule):
    """Columns that follow cached ones.

    Args:
        names: of what is cached, in the order in which it is returned.
    """

    def __init__(self, model: Any, slots: Slots, names: Sequence[str]) -> None:
        super().__init__(model)
        self.slots, self.names = slots, names

    def compute(self, given: Tensors) -> Tensors:
        """Return the logits of the new columns, and what is cached after them."""
        cache = self._cache(given)
        embedded = self.model.embed(given["ids"], self.model.target_embedding)
        output = self.model.stacks["decoder"].step(embedded, cache, ids_BT=given["ids"])
        logits = self.model.logits(output.states_BTD)
        return {"logits": logits, "present_keep": cache.keep_BS, **self._present(cache)}

    def _cache(self, given: Tensors) -> GraphCache:
        past, slots = given["past_keep"], self.slots
        cache = GraphCache(
            length=past.shape[1],
            keep_BS=torch.cat([past, given["keep"]], dim=1),
            prefix_lengths_B=given.get("prefix_lengths"),
            memory_keep_BS=given.get("memory_keep"),
            cross_kv={name[6:]: one for name, one in given.items() if name.startswith("cross_")},
            took_part={number: given[f"past_{name}"] for name, number in slots.took_part.items()},
            n_steps=given.get("rounds"),
            execution=self.execution,
            of_rounds={slot: given[f"past_{name}"] for name, slot in slots.of_rounds.items()},
        )
        for name, step in slots.keys.items():
            cache.self_kv[step] = GivenKeyValues(given[f"past_{name}"])  # type: ignore[assignment]
        windows = {place: ColumnWindow(given[f"past_{name}"]) for name, place in slots.windows.items()}
        cache.windows = {step: (one, windows[step, 1]) for (step, which), one in windows.items() if not which}
        return cache

    def _present(self, cache: GraphCache) -> Tensors:
        slots, keys, windows = self.slots, cache.self_kv, cache.windows
        found: Tensors = {name: keys[step].all_2BHNK for name, step in slots.keys.items()}  # type: ignore[attr-defined]
        found |= {name: windows[step][which].last_BWC for name, (step, which) in slots.windows.items()}
        found |= {name: cache.took_part[number] for name, number in slots.took_part.items()}
        found |= {name: cache.of_rounds[slot] for name, slot in slots.of_rounds.items()}
        return {f"present_{name}": found[name] for name in self.names}


def _decoder_graph(name: str, model: LanguageModel | Seq2Seq, sources: Sizes) -> Graph:
    rounds = _rounds_of(model, "decoder")
    slots, cached = _slots_of(model, rounds)
    inputs: Sizes = {"ids": ("batch", "columns"), "keep": ("batch", "columns")}
    if sources:
        inputs |= {"memory_keep": ("batch", "source")} | sources
    elif model.config.sees_prefix:
        inputs["prefix_lengths"] = ("batch",)
    inputs |= _rounds_input(rounds) | {"past_keep": ("batch", "cached")}
    inputs |= {f"past_{one}": shape for one, shape in cached.items()}
    outputs: Sizes = {"logits": ("batch", "columns", model.target_weight.shape[0]), "present_keep": ("batch", "all")}
    outputs |= {
        f"present_{one}": tuple("all" if size == "cached" else size for size in shape) for one, shape in cached.items()
    }
    return Graph(name, DecoderModule(model, slots, tuple(cached)), inputs, outputs, rounds)


def _rounds_input(rounds: int | None) -> Sizes:
    return {} if rounds is None else {"rounds": ()}


def _slots_of(model: LanguageModel | Seq2Seq, rounds: int | None) -> tuple[Slots, Sizes]:
    """Return what the decoder caches, and the sizes of that."""
    stack, execution = model.stacks["decoder"], _execution_of(model)
    slots, sizes = Slots({}, {}, {}, {}), Sizes()
    for segment in stack.program(None if rounds is None else torch.tensor(2), execution):
        is_repeated, first = segment.n_rounds is not None, segment.segment.steps[0].index
        # The second of two rounds stands for all others, and caches what the first does.
        runnables = segment.rounds[:1] if is_repeated else segment.rounds
        for sub_layer in _sub_layers(runnables):
            number = sub_layer.step - first if is_repeated else sub_layer.step
            for what, shape in _cached_by(sub_layer).items():
                name = f"loop_{number}_{what}" if is_repeated else f"{number}_{what}"
                sizes[name] = ("rounds", *shape) if is_repeated else shape
                if is_repeated:
                    slots.of_rounds[name] = number, what
                elif what == "keys":
                    slots.keys[name] = number
                else:
                    slots.windows[name] = number, WINDOWS.index(what)
        if isinstance(segment.rule, Chooser):
            for number in segment.rule.rounds_that_leave_out(len(segment.rounds)):
                slots.took_part[f"took_part_{number}"] = number
                sizes[f"took_part_{number}"] = ("batch", "cached")
    return slots, sizes


def _sub_layers(rounds: Rounds) -> Iterator[SubLayer]:
    for runnable in chain.from_iterable(chain.from_iterable(rounds)):
        yield from runnable.sub_layers if isinstance(runnable, Parallel) else (runnable,)  # type: ignore[misc]


def _cached_by(sub_layer: SubLayer) -> dict[str, tuple[str | int, ...]]:
    """Return the sizes of what a sub-layer caches, by what it is."""
    module = sub_layer.module
    if isinstance(sub_layer, SelfAttention) and sub_layer.makes_keys:
        return {"keys": (2, "batch", module.n_kv_heads, "cached", module.d_head)}
    if isinstance(sub_layer, SeparableConvSubLayer):
        taps = module.taps_in_KD, module.taps_out_KF
        sizes = [("batch", one.shape[0] - 1, one.shape[1]) for one in taps]
        return dict(zip(WINDOWS, sizes, strict=True))
    return {}
