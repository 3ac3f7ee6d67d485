"""Contract 12 for bytes: activations are what autograd keeps, the cache is what decoding holds."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from architectures import BOS, EOS, Sentence, any_architecture, draws, right_padded
from haltings import never_halting
from loops import LOOPS, looped
from ostinato.budget import count_bytes
from ostinato.config.model import LanguageModelConfig, ModelConfig, Seq2SeqConfig
from ostinato.config.training import RoundLossConfig
from ostinato.data.batch import Batch
from ostinato.kernels import Dispatch
from ostinato.kernels.native import library
from ostinato.models import build_model
from ostinato.models.losses import loss_of_rounds, requested
from ostinato.nn.cache import Cache, ColumnWindow, KeyValues
from ostinato.nn.experts import Decision, Routed
from running import run_as

Config = Seq2SeqConfig | LanguageModelConfig
UNCOUNTED = 0.02
"""Tensors of one number are not counted."""


def _batch(config: Config, n_sentences: int, source_length: int, target_length: int) -> Batch:
    source = [3] * (source_length - 1) + [EOS] if isinstance(config, Seq2SeqConfig) else None
    n_prefix = 1 if source is None else None
    return right_padded([Sentence(source, [BOS] + [3] * (target_length - 1), n_prefix) for _ in range(n_sentences)])


LAST = RoundLossConfig()


def kept_by_autograd(
    config: ModelConfig,
    batch: Batch,
    precision: str = "float32",
    *,
    recompute: bool = False,
    smoothing: float = 0.1,
    round_loss: RoundLossConfig = LAST,
) -> int:
    """Return the bytes of all storages that a training pass saves for its backward pass, parameters aside."""
    if precision == "float32" and library() is None:
        pytest.skip("what compiled kernels keep is counted, and no C compiler is here")
    model = never_halting(build_model(config)).train()  # what is counted is the pass in which all rounds run
    run_as(model, recompute=recompute)
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}  # alive, so that none has the place of one that was freed
    held: list[Dispatch] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.nbytes() and storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage
        return tensor

    def decide(module: Routed, *args: Any, **named: Any) -> Decision:
        # Nodes of the graph hold the order of the rows themselves, where hooks do not see it.
        decision = chosen(module, *args, **named)
        held.append(decision.to)
        return decision

    chosen = Routed.decide
    autocast = torch.autocast("cpu", dtype=torch.bfloat16) if precision == "bfloat16" else nullcontext()
    with autocast:
        model(batch)  # kernels are tried once, at their first call
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), patch.object(Routed, "decide", decide):
        with autocast:
            output = model(batch, request=requested(round_loss))
        loss = loss_of_rounds(model.read, output, batch, round_loss, smoothing).loss
        del output
    assert loss.requires_grad
    for to in [] if recompute else held:
        for tensor in (to.slots_M, to.rows_M, to.experts_M, to.ends_E):
            pack(tensor)
    return sum(storage.nbytes() for storage in kept.values())


def _larger(config: Config, dropout: float, inner_dropout: float) -> Config:
    """Return a drawn model at eight times its widths, with dropout."""

    def grow(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        grown = {key: grow(inner) for key, inner in value.items()}
        grown |= {key: 8 * grown[key] for key in ("d_model", "d_embedding", "d_ff", "d_head") if grown.get(key)}
        drops = {"share", "n_layers"} & grown.keys() and "gate_width" not in grown
        return grown | ({"dropout": inner_dropout} if drops else {})

    return type(config).model_validate(grow(config.model_dump()) | {"dropout": dropout})


@draws(20, quick=6)
@given(any_architecture(), st.sampled_from([(0.0, 0.0), (0.1, 0.0), (0.1, 0.2)]), st.integers(1, 4))
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_activations_of_every_model_are_what_autograd_keeps(
    precision: Any, drawn: Config, dropouts: tuple[float, float], n_sentences: int
) -> None:
    config = _larger(drawn, *dropouts)
    counted = count_bytes(config, 9, 12, batch_size=n_sentences, precision=precision)
    kept = kept_by_autograd(config, _batch(config, n_sentences, 9, 12), precision)
    assert counted.activations == pytest.approx(kept, rel=UNCOUNTED)
    assert counted.activations == sum(counted.by_part["activations"].values())


@pytest.mark.parametrize("share", [[None, 0, None], [None, None, 0], [0, None, None], [None, None, None]], ids=str)
@pytest.mark.parametrize("halting", ["act", "stick_breaking", "exit", "select", "token_choice"])
@pytest.mark.parametrize("positions", ["none", "coordinates"])
def test_states_that_a_round_without_sub_layers_leaves_as_they_were_are_counted_once(
    share: list[int | None], halting: str, positions: str
) -> None:
    stack = {"n_steps": 3, "halting": {"kind": halting}, "positions": {"kind": positions}}
    stack |= {"self_attention": {"share": "none"}, "ffn": {"share": share, "d_ff": 20}}
    config = LanguageModelConfig.model_validate({"d_model": 32, "vocab_size": 9, "dropout": 0.0, "decoder": stack})
    kept = kept_by_autograd(config, _batch(config, 2, 9, 12))
    assert count_bytes(config, 9, 12, batch_size=2).activations == pytest.approx(kept, rel=0.005)


STEPS: dict[str, Any] = {"n_steps": 3, "self_attention": {"n_heads": 4}, "ffn": {"d_ff": 96}}
CROSS: dict[str, Any] = {"cross_attention": {"n_heads": 4}}
DROPPED: dict[str, Any] = {"self_attention": {"n_heads": 4, "dropout": 0.1}, "ffn": {"d_ff": 96, "dropout": 0.1}}
PRE: dict[str, Any] = {"norm": {"kind": "rms", "placement": "pre"}}
WINDOW: dict[str, Any] = {"relative": {"kind": "window", "window": 5}}
ROTARY: dict[str, Any] = {"relative": {"kind": "rotary"}}
GEGLU: dict[str, Any] = {"ffn": {"d_ff": 96, "activation": "geglu", "share": "all"}}
CONV: dict[str, Any] = {"ffn": {"kind": "separable_conv", "d_ff": 96}}
ALL: dict[str, Any] = {"n_heads": 4, "share": "all"}
EXPERTS: dict[str, Any] = {"kind": "experts", "n_experts": 6, "top_k": 3}
SPARSE: dict[str, Any] = {
    "self_attention": EXPERTS | {"n_heads": 2, "d_head": 8, "share": "all", "router": {"kind": "mlp", "dropout": 0.1}},
    "ffn": EXPERTS | {"d_ff": 48, "share": "all", "router": {"kind": "hypersphere"}, "gate": {"kind": "sigmoid"}},
}
SPARSE_DROPPED: dict[str, Any] = {"self_attention": EXPERTS | {"n_heads": 1, "d_head": 8, "dropout": 0.1}}
CROSS_EXPERTS: dict[str, Any] = {"cross_attention": EXPERTS | {"n_heads": 2, "d_head": 8, "share": "all"}}
SPARSE_LAYER: dict[str, Any] = {"sparse_layer": {"after": 2, "n_experts": 4, "top_k": 1, "n_layers": 2, "d_ff": 64}}
SCORES: dict[str, Any] = {"norm": {"placement": "scores"}}
OF_HEADS = {"kind": "head_experts", "n_heads": 4, "n_kv_heads": 2, "d_head": 8, "n_experts": 6, "top_k": 3}
HEADS: dict[str, Any] = {"self_attention": OF_HEADS}
HEADS_DROPPED: dict[str, Any] = {"self_attention": OF_HEADS | {"top_k": 1, "dropout": 0.1, "share": "all"}}
UNIVERSAL: dict[str, Any] = {"self_attention": ALL, "ffn": {"d_ff": 96, "share": "all"}}

MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "post-norm": ({}, {}),
    "dropped weights": (DROPPED, DROPPED | {"cross_attention": {"n_heads": 4, "dropout": 0.1}}),
    "pre-norm, window": (PRE | WINDOW, PRE | WINDOW),
    "rotary, geglu": (ROTARY | GEGLU, ROTARY | GEGLU),
    "universal": (UNIVERSAL, UNIVERSAL | {"cross_attention": ALL, "positions": {"kind": "coordinates"}}),
    "convolution": (CONV, CONV),
    "no feed-forward": (STEPS, {"ffn": {"share": "none"}}),
    "experts": (SPARSE | WINDOW, SPARSE | CROSS_EXPERTS),
    "rotary experts, dropped weights": (ROTARY | SPARSE_DROPPED, ROTARY | SPARSE_DROPPED),
    "norms of scores": (SCORES, SCORES | WINDOW | {"norm": {"kind": "rms", "placement": "scores"}}),
    "experts of heads": (HEADS | WINDOW, HEADS | ROTARY),
    "experts of heads, norms of scores": (SCORES | HEADS | ROTARY, SCORES | HEADS_DROPPED | {"ffn": SPARSE["ffn"]}),
    "sparse layer": (SPARSE_LAYER | {"ffn": {"d_ff": 96, "share": "all"}}, {}),
}


def _model(name: str) -> Seq2SeqConfig:
    if name in LOOPS:
        return looped(name)
    encoder, decoder = MODELS[name]
    return Seq2SeqConfig.model_validate(
        {
            "d_model": 32,
            "source_vocab_size": 30,
            "target_vocab_size": 30,
            "encoder": STEPS | encoder,
            "decoder": STEPS | CROSS | decoder,
        }
    )


@pytest.mark.sampled
@pytest.mark.parametrize("name", [*MODELS, *LOOPS])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_activations_of_seq2seq_models_are_what_autograd_keeps(name: str, precision: Any) -> None:
    config = _model(name)
    counted = count_bytes(config, 40, 30, batch_size=4, precision=precision).activations
    assert counted == pytest.approx(kept_by_autograd(config, _batch(config, 4, 40, 30), precision), rel=0.005)


@pytest.mark.parametrize("kernels", [(1, 1), (3, 1), (1, 5), (3, 5)])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_kernel_of_one_column_needs_no_other_layout(kernels: tuple[int, int], precision: Any) -> None:
    ffn = {"kind": "separable_conv", "d_ff": 96, "kernel_in": kernels[0], "kernel_out": kernels[1]}
    decoder = {"n_steps": 4, "self_attention": {"share": "none"}, "ffn": ffn}
    config = LanguageModelConfig.model_validate({"d_model": 64, "vocab_size": 9, "decoder": decoder})
    counted = count_bytes(config, 1, 9, batch_size=2, precision=precision).activations
    assert counted == pytest.approx(kept_by_autograd(config, _batch(config, 2, 1, 9), precision), rel=0.0005)


@pytest.mark.sampled
@pytest.mark.parametrize("name", MODELS)
def test_recomputed_steps_keep_the_states_between_them_and_one_step_at_a_time(name: str) -> None:
    config = _model(name)
    parts = count_bytes(config, 40, 30, batch_size=4, checkpoint_activations=True).by_part["activations"]
    # Keys and values of the memory, and turns, belong to the pass and not to autograd, whose hooks do not see them.
    sets = {use.weights for use in config.plans()["decoder"].uses() if use.kind == "cross_attention"}
    cross = config.decoder.cross_attention
    keys_values = 4 * 2 * 4 * 40 * cross.n_heads * cross.head_width(32)
    seen = kept_by_autograd(config, _batch(config, 4, 40, 30), recompute=True)
    held = len(sets) * keys_values + 4 * sum(_turns(config, *side) for side in (("encoder", 40), ("decoder", 30)))
    assert sum(parts.values()) - parts["recomputed"] - held == pytest.approx(seen, rel=0.005)
    # What is recomputed is what one more step would have kept.
    plain = count_bytes(config, 40, 30, batch_size=4).activations
    more = {
        side: count_bytes(_with_a_step_more(config, side), 40, 30, batch_size=4).activations - plain
        for side in ("encoder", "decoder")
    }
    own_set = keys_values if len(sets) > 1 else 0
    without = config.encoder.model_copy(update={"sparse_layer": None})
    sparse = plain - count_bytes(config.model_copy(update={"encoder": without}), 40, 30, batch_size=4).activations
    assert parts["recomputed"] == max(more["encoder"], more["decoder"] - own_set, sparse)


@pytest.mark.sampled
@pytest.mark.parametrize("name", LOOPS)
def test_loops_keep_as_much_beside_their_steps_where_they_are_recomputed(name: str) -> None:
    config = looped(name)
    parts = count_bytes(config, 40, 30, batch_size=4, checkpoint_activations=True).by_part["activations"]
    seen = kept_by_autograd(config, _batch(config, 4, 40, 30), recompute=True)
    assert sum(parts.values()) - parts["recomputed"] - _held_by_the_pass(config) == pytest.approx(seen, rel=0.005)


LOSSES = {
    "none": (RoundLossConfig(kind="window"), RoundLossConfig(kind="weights", weights=[0.25, 0.75])),
    "exit": (RoundLossConfig(kind="exit"),),
}


@pytest.mark.sampled
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("name", LOOPS)
def test_every_prediction_that_has_a_gradient_is_counted_and_what_follows_the_loop_for_each(
    name: str, recompute: bool
) -> None:
    config = looped(name)
    for round_loss in LOSSES.get(config.decoder.halting.kind, ()):
        n_predictions = round_loss.n_predictions(config.plans())
        assert n_predictions > 1
        found = count_bytes(
            config, 40, 30, batch_size=4, checkpoint_activations=recompute, n_predictions=n_predictions
        ).by_part["activations"]
        counted = sum(found.values()) - found.pop("recomputed", 0) - (_held_by_the_pass(config) if recompute else 0)
        kept = kept_by_autograd(config, _batch(config, 4, 40, 30), recompute=recompute, round_loss=round_loss)
        # What leaves a round may be what the next one saves, too: it is counted for both.
        shared = (n_predictions - 1) * 4 * 4 * 30 * config.d_model
        assert (1 - 0.005) * kept <= counted <= (1 + 0.005) * kept + shared


def _turns(config: Seq2SeqConfig, name: str, length: int) -> int:
    """Return the cosines and sines of rotary positions that all steps of a stack share."""
    stack = config.stacks()[name]
    if stack.relative.kind != "rotary":
        return 0
    return (
        length
        * stack.self_attention.head_width(config.d_model)
        * len({use.position for use in config.plans()[name].uses()} - {None})
    )


def _held_by_the_pass(config: Seq2SeqConfig) -> int:
    """Return the bytes of what a pass over 4 sentences of 40 and 30 tokens holds for its steps, and not autograd, whose
    hooks do not see it: keys and values of the memory, sums of states under stick-breaking, tables, turns."""
    sets = {use.weights for use in config.plans()["decoder"].uses() if use.kind == "cross_attention"}
    numbers = len(sets) * 2 * 4 * 40 * 32
    for name, length in (("encoder", 40), ("decoder", 30)):
        stack, plan = config.stacks()[name], config.plans()[name]
        if stack.halting.kind == "stick_breaking":
            numbers += (plan.n_rounds - 1) * 4 * length * 32
        tables = {use.values for use in plan.uses()} - {None}
        numbers += len(tables) * 4 * length * 32
        if stack.relative.kind == "alibi":
            numbers += 2 * length**2
        numbers += _turns(config, name, length)
    return 4 * numbers


def _with_a_step_more(config: Seq2SeqConfig, side: str) -> Seq2SeqConfig:
    return config.model_copy(update={side: getattr(config, side).model_copy(update={"n_steps": 4})})


def _held(cache: Cache) -> int:
    """Return the bytes of every tensor a cache holds, each storage once."""
    found: dict[int, int] = {}

    def visit(value: object) -> None:
        if isinstance(value, torch.Tensor):
            found[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
        elif isinstance(value, dict):
            for inner in value.values():
                visit(inner)
        elif isinstance(value, tuple):
            for inner in value:
                visit(inner)
        elif isinstance(value, KeyValues | ColumnWindow):
            visit(vars(value))

    for name in Cache.__dataclass_fields__:
        visit(getattr(cache, name))
    return sum(found.values())


def check_cache(config: Config, n_sentences: int, beam: int, target_length: int, first: int = 1) -> None:
    """Compare what is counted with what a cache holds after steps of one column, behind `first` ones at once."""
    # Weights of rounds that no token reaches would not look at the memory.
    model, batch = never_halting(build_model(config)).eval(), _batch(config, n_sentences, 7, target_length)
    with torch.inference_mode():
        cache = model.encode(batch)
        model.step(batch.target.ids_BT[:, :first], cache)
        cache.expand(beam, n_sentences)
        for column in batch.target.ids_BT[:, first:].repeat_interleave(beam, 0).split(1, 1):
            if beam > 1:  # until both buffers are as long as they get
                cache.reorder(torch.arange(n_sentences * beam))
            model.step(column, cache)
    counted = count_bytes(config, 7, target_length, batch_size=n_sentences, beam=beam)
    assert counted.cache == _held(cache)
    assert counted.cache == sum(counted.by_part["cache"].values())


@draws(30, quick=8)
@given(any_architecture(), st.integers(1, 3), st.integers(1, 3), st.sampled_from([4, 5, 32, 36]))
def test_the_cache_counted_is_the_one_decoding_holds(
    config: Config, n_sentences: int, beam: int, target_length: int
) -> None:
    check_cache(config, n_sentences, beam, target_length)


@draws(15)
@given(any_architecture())
def test_the_weights_counted_are_the_parameters_in_float32(config: Config) -> None:
    for precision in ("float32", "bfloat16"):
        counted = count_bytes(config, 3, 3, precision=precision)
        assert counted.weights == sum(p.numel() * p.element_size() for p in build_model(config).parameters())
