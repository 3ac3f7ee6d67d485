"""What halting keeps for the backward pass: counted, and measured on small models of which no token halts."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from architectures import BOS, EOS, Sentence, right_padded
from ostinato.budget import count_bytes
from ostinato.config.model import LanguageModelConfig, Seq2SeqConfig
from ostinato.data.batch import Batch
from ostinato.kernels import Dispatch
from ostinato.models import build_model
from ostinato.models.losses import label_smoothed_loss
from ostinato.nn.act import ActPass
from ostinato.nn.experts import Decision, Routed
from ostinato.nn.halting import Visible
from ostinato.nn.stick_breaking import StickBreakingPass
from running import run_as

Config = Seq2SeqConfig | LanguageModelConfig
N_SENTENCES, SOURCE, TARGET = 4, 40, 30

# Gates that stay shut, so that all rounds run, as is counted.
STICKS: dict[str, Any] = {"kind": "stick_breaking", "threshold": 1.0}
DROPPED_STICKS = STICKS | {"dropout": 0.1, "initial_bias": -3.0}
ACT: dict[str, Any] = {"kind": "act", "epsilon": 1e-3, "initial_bias": -9.0}
LISTED = ACT | {"mix": "interpolate", "freeze_halted_state": False, "force_remainder_at_max": False}
GLOBAL = ACT | {"mix": "interpolate", "scope": "global"}
RULES = {"sticks": STICKS, "dropped sticks": DROPPED_STICKS, "act": ACT, "listed act": LISTED}

PRE: dict[str, Any] = {"norm": {"kind": "rms", "placement": "pre"}}
COORDINATES: dict[str, Any] = {"positions": {"kind": "coordinates"}}
WINDOW: dict[str, Any] = {"relative": {"kind": "window", "window": 5}}
ROTARY: dict[str, Any] = {"relative": {"kind": "rotary"}}
UNIVERSAL: dict[str, Any] = {
    "n_steps": 3,
    "self_attention": {"n_heads": 4, "share": "all"},
    "ffn": {"d_ff": 96, "share": "all"},
}
CROSS: dict[str, Any] = {"cross_attention": {"n_heads": 4, "share": "all"}}
DROPPED: dict[str, Any] = {"self_attention": {"n_heads": 4, "share": "all", "dropout": 0.1}}
EXPERTS: dict[str, Any] = {"kind": "experts", "n_experts": 6, "top_k": 3, "share": "all"}
SPARSE: dict[str, Any] = {
    "self_attention": EXPERTS | {"n_heads": 2, "d_head": 8},
    "ffn": EXPERTS | {"d_ff": 48, "router": {"kind": "mlp"}},
}
STEPS: dict[str, Any] = {"self_attention": {"n_heads": 4}, "ffn": {"d_ff": 96}}
TWO_A_ROUND = STEPS | {"n_steps": 4, "steps_per_round": 2}
CONVOLUTION: dict[str, Any] = {"ffn": {"kind": "separable_conv", "d_ff": 96, "share": "all"}}
MODELS: dict[str, dict[str, Any]] = {
    "post-norm": {},
    "pre-norm": PRE,
    "coordinates": COORDINATES,
    "pre-norm, coordinates": PRE | COORDINATES,
    "experts": SPARSE | WINDOW,
    "experts, pre-norm, rotary": SPARSE | ROTARY | PRE,
    "dropped weights": DROPPED | WINDOW,
    "steps of their own": STEPS,
    "two steps a round": TWO_A_ROUND,
    "convolution": CONVOLUTION,
    "one round": {"n_steps": 1},
}


def _model(rule: dict[str, Any], stack: dict[str, Any], decoder: dict[str, Any] | None = None) -> Seq2SeqConfig:
    halting = {"halting": rule}
    own = {"halting": rule | ({"scope": "token"} if rule["kind"] == "act" else {})}
    rows = {"d_model": 32, "source_vocab_size": 30, "target_vocab_size": 30}
    encoder = UNIVERSAL | stack | halting
    return Seq2SeqConfig.model_validate(
        rows | {"encoder": encoder, "decoder": UNIVERSAL | CROSS | (stack if decoder is None else decoder) | own}
    )


def _batch(config: Config) -> Batch:
    source = [3] * (SOURCE - 1) + [EOS] if isinstance(config, Seq2SeqConfig) else None
    target = [BOS] + [3] * (TARGET - 1)
    return right_padded([Sentence(source, target, 1 if source is None else None)] * N_SENTENCES)


def _kept(config: Config, precision: str = "float32", *, recompute: bool = False) -> int:
    """Return the bytes of all storages that a training pass saves or holds for its backward pass, parameters aside."""
    model, batch = build_model(config).train(), _batch(config)
    run_as(model, recompute=recompute)
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.nbytes() and storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage
        return tensor

    def note_dispatch(to: Dispatch) -> None:
        # Nodes of the graph hold the order of the rows themselves, where hooks do not see it.
        if not recompute:
            for tensor in (to.slots_M, to.rows_M, to.experts_M, to.ends_E):
                pack(tensor)

    def note_round(visible: Visible) -> None:
        # Recomputed steps hold what visible states are made of.
        if isinstance(visible, partial):
            held = visible.args
        else:
            held = tuple(cell.cell_contents for cell in getattr(visible, "__closure__", None) or ())
        for tensor in held if recompute else ():
            if isinstance(tensor, torch.Tensor):
                pack(tensor)

    autocast = torch.autocast("cpu", dtype=torch.bfloat16) if precision == "bfloat16" else nullcontext()
    with autocast:
        model(batch)  # kernels are tried once, at their first call
    with ExitStack() as stack:
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor))
        route = Routed.route

        def routed(module: Routed, *args: Any, **named: Any) -> Decision:
            decision = route(module, *args, **named)
            note_dispatch(decision.to)
            return decision

        stack.enter_context(patch.object(Routed, "route", routed))
        for state in (StickBreakingPass, ActPass):
            stack.enter_context(patch.object(state, "enter", _noting(state.enter, note_round)))
        with autocast:
            output = model(batch)
        loss = label_smoothed_loss(output.logits_BTV, batch.labels_BT, batch.loss_mask_BT, 0.1).loss
    assert loss.requires_grad
    for name, ran in output.stacks.items():
        assert ran.halting is not None
        assert bool(ran.halting.executed_BTR.all())
        assert ran.halting.executed_BTR.shape[-1] == config.plans()[name].n_rounds
    return sum(storage.nbytes() for storage in kept.values())


def _noting(enter: Any, note: Any) -> Any:
    def noted(self: Any, *args: Any) -> tuple[torch.Tensor | None, Visible]:
        weight_N, visible = enter(self, *args)
        note(visible)
        return weight_N, visible

    return noted


def _counted(config: Config, precision: Any = "float32", *, recompute: bool = False) -> int:
    """Return the bytes counted for the same pass, without those that live while one step is recomputed."""
    found = count_bytes(
        config, SOURCE, TARGET, batch_size=N_SENTENCES, precision=precision, checkpoint_activations=recompute
    )
    parts = found.by_part["activations"]
    assert found.activations == sum(parts.values())
    return found.activations - parts.get("recomputed", 0) - (_keys_values(config, precision) if recompute else 0)


def _keys_values(config: Config, precision: str) -> int:
    """Return the bytes of keys and values of the memory, which belong to the pass and not to autograd."""
    sub = config.stacks()["decoder"].cross_attention
    sets = {use.weights for use in config.plans()["decoder"].uses() if use.kind == "cross_attention"}
    width = 2 if precision == "bfloat16" else 4
    return len(sets) * width * 2 * N_SENTENCES * SOURCE * sub.n_heads * sub.head_width(config.d_model)


@pytest.mark.sampled
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("rule", RULES)
def test_activations_of_models_whose_tokens_halt_are_what_autograd_keeps(rule: str, name: str, precision: str) -> None:
    config = _model(RULES[rule], MODELS[name])
    assert _counted(config, precision) == pytest.approx(_kept(config, precision), rel=0.005)


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["post-norm", "pre-norm, coordinates", "experts", "two steps a round"])
@pytest.mark.parametrize("rule", RULES)
def test_recomputed_steps_hold_the_states_between_them_and_those_of_halted_tokens(rule: str, name: str) -> None:
    config = _model(RULES[rule], MODELS[name])
    assert _counted(config, recompute=True) == pytest.approx(_kept(config, recompute=True), rel=0.005)


def test_one_probability_a_sentence_keeps_its_mask() -> None:
    config = _model(GLOBAL, {})
    assert _counted(config) == pytest.approx(_kept(config), rel=0.005)


@settings(max_examples=8)
@given(st.sampled_from(list(RULES)), st.sampled_from(list(MODELS)), st.sampled_from(list(MODELS)), st.booleans())
def test_activations_of_drawn_pairs_of_stacks_are_what_autograd_keeps(
    rule: str, encoder: str, decoder: str, is_mixed: bool
) -> None:
    config = _model(RULES[rule], MODELS[encoder], MODELS[decoder])
    precision = "bfloat16" if is_mixed else "float32"
    assert _counted(config, precision) == pytest.approx(_kept(config, precision), rel=0.005)


def test_of_halting_the_gates_and_what_is_mixed_are_a_part_of_their_own() -> None:
    n, width, rounds = N_SENTENCES * SOURCE, 32, 3
    states = 4 * n * width

    def part(rule: dict[str, Any], **settings: Any) -> int:
        found = count_bytes(_model(rule, settings), SOURCE, TARGET, batch_size=N_SENTENCES)
        return found.by_part["activations"].get("encoder.halting", 0)

    assert part({"kind": "none"}) == 0
    # Two gates' hidden layers and four numbers each, what is left before three rounds, the last states.
    assert part(STICKS) == 2 * (2 * states + 4 * 4 * n) + 3 * 4 * n + states
    assert part(DROPPED_STICKS) == part(STICKS) + 2 * states
    # Coordinates are added after a gate was asked.
    assert part(STICKS, **COORDINATES) == part(STICKS) + 2 * states
    # Three probabilities and weights with five masks, and the states that left the last round.
    assert part(ACT) == 3 * 2 * 4 * n + 5 * n + states
    assert part(ACT, **COORDINATES) == part(ACT) + (rounds - 1) * states
    assert part(LISTED) == part(ACT) + 2 * (states + 4 * n)
    assert part(GLOBAL) == part(ACT) + 2 * (states + 4 * n) + 3 * 4 * n


def _held(config: Config) -> int:
    """Return the bytes of keys, values and memory that decoding holds."""
    model, batch = build_model(config).eval(), _batch(config)
    with torch.inference_mode():
        cache = model.encode(batch)
        model.step(batch.target.ids_BT, cache)
    assert cache.memory_BSD is not None
    held = [cache.memory_BSD]
    for pair in (*(vars(own).values() for own in cache.self_kv.values()), *cache.cross_kv.values()):
        held += [tensor for tensor in pair if isinstance(tensor, torch.Tensor)]
    return sum(
        tensor.untyped_storage().nbytes() for tensor in {t.untyped_storage().data_ptr(): t for t in held}.values()
    )


@pytest.mark.parametrize(
    "rule", [{"kind": "none"}, STICKS, STICKS | {"threshold": 0.0}, ACT, ACT | {"initial_bias": 9}]
)
def test_a_cache_holds_every_round_whoever_halts(rule: dict[str, Any]) -> None:
    config = _model(rule, {})
    counted = count_bytes(config, SOURCE, TARGET, batch_size=N_SENTENCES)
    assert counted.cache == _held(config)
    assert (
        counted.by_part["cache"]
        == count_bytes(_model({"kind": "none"}, {}), SOURCE, TARGET, batch_size=N_SENTENCES).by_part["cache"]
    )
