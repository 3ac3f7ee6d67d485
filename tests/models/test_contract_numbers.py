"""Contract 12: parameters counted from a configuration are the built model's; MACs agree with torch's flop counter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from architectures import BOS, EOS, Model, Sentence, any_architecture, draws, random_model, right_padded
from haltings import never_halting
from ostinato.budget import MacCounter, count_macs, count_parameters, expected_depths
from ostinato.budget.depth import ExpectedDepth
from ostinato.budget.macs import SentenceMacs
from ostinato.budget.products import sentence_macs
from ostinato.budget.sizes import choosing_heads, planned_uses
from ostinato.config.experts import RoutedConfig
from ostinato.config.model import LanguageModelConfig, ModelConfig, Seq2SeqConfig
from ostinato.kernels import combine, dispatch
from ostinato.models import build_model
from ostinato.nn.types import StackOutput
from running import run_as


@draws(60)
@given(any_architecture())
def test_parameters_from_the_configuration_are_the_built_models(config: Seq2SeqConfig | LanguageModelConfig) -> None:
    model = build_model(config)
    count = count_parameters(config)
    assert count.stored == sum(p.numel() for p in model.parameters())
    assert sum(count.by_part.values()) == count.stored
    kinds = ("self_attention", "cross_attention", "ffn", "halting")
    banks = {part: part.split(".")[1].replace("sparse_layer", "ffn") for part in count.by_part if "." in part}
    parts = {kind: sum(count.by_part[part] for part, bank in banks.items() if bank == kind) for kind in kinds}
    parts |= {"norm": count.by_part.get("norms", 0), "relative": count.by_part.get("positions", 0)}
    for bank, size in parts.items():
        assert size == sum(p.numel() for p in getattr(model.banks, bank).parameters()), bank


def _batch(source_length: int, target_length: int, is_seq2seq: bool) -> Any:
    source = [3] * (source_length - 1) + [EOS] if is_seq2seq else None
    n_prefix = None if is_seq2seq else 1
    return right_padded([Sentence(source, [BOS] + [3] * (target_length - 1), n_prefix)])


def _counted(model: Model, run: Callable[[], object]) -> float:
    """Count what runs with plain attention and plain experts, the only ones the counter sees on a CPU."""
    run_as(model, expert_backend="loop")
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops() / 2


def _measured_macs(model: Model, source_length: int, target_length: int, n_steps: int | None = None) -> float:
    """Count a forward pass over one sentence, less the sums weighted by gates: element-wise in a budget."""
    batch = _batch(source_length, target_length, model.config.has_two_sides)
    if (n_words := model.config.max_words) is not None:
        ids_BTW = batch.target.ids_BT[..., None].expand(-1, -1, n_words)
        batch = replace(batch, target=replace(batch.target, ids_BT=ids_BTW))
    lengths = {"encoder": source_length, "decoder": target_length}
    found = expected_depths(model.config, n_steps=n_steps, source_length=source_length)
    depths = {name: [0] * (one.deepest - 1) + [lengths[name]] for name, one in found.items()}
    return _counted(model, lambda: model(batch, n_steps=n_steps)) - _sums_by_gates(model, lengths, n_steps, depths)


def _sums_by_gates(
    model: Model,
    lengths: Mapping[str, int],
    n_steps: int | None = None,
    depths: Mapping[str, Sequence[int]] | None = None,
) -> float:
    """Count those of all uses of experts, for as many tokens as every stack has, or as are computed by their depths."""
    found = 0.0
    for planned in planned_uses(model.config, n_steps):
        rows = lengths[planned.stack] if depths is None else sum(depths[planned.stack][planned.round :])
        if isinstance(planned.sub, RoutedConfig) and rows:
            k = planned.sub.top_k * choosing_heads(planned.sub)
            to = dispatch(torch.arange(k).expand(rows, k), k)
            # What a round adds to feed-forwards of experts is summed where it is of low rank.
            added = planned.delta_rank if planned.use.kind == "ffn" else 0
            for width in (model.config.d_model, added):
                sums = partial(combine, torch.ones(rows * k, width), torch.ones(rows, k), to)
                found += _counted(model, sums) if width else 0
    return found


def check_macs(config: ModelConfig, source_length: int, target_length: int) -> None:
    """Compare what is counted with the flop counter; an encoder by itself needs both lengths to be that of its text."""
    count = count_macs(config, source_length, target_length)
    # In float64, because the counter does not see into the kernel that runs LSTMs in float32.
    model = never_halting(build_model(config).double(), keeps_lengths=True)
    assert count.total == pytest.approx(_measured_macs(model, source_length, target_length), rel=0.01)
    assert sum(count.by_part.values()) == count.total
    n_source = source_length if config.has_two_sides else 0
    of_tokens = count.per_source_token * n_source + count.per_target_token * target_length
    assert count.total == sentence_macs(config) + of_tokens


@draws(40, quick=12)
@given(any_architecture(), st.integers(2, 9), st.integers(2, 9))
def test_macs_of_every_model_agree_with_the_flop_counter(
    config: Seq2SeqConfig | LanguageModelConfig, source_length: int, target_length: int
) -> None:
    check_macs(config, source_length, target_length)


STACK: dict[str, Any] = {"n_steps": 3, "self_attention": {"n_heads": 4}, "ffn": {"d_ff": 64}}
CROSS: dict[str, Any] = {"cross_attention": {"n_heads": 4}}
SHARED: dict[str, Any] = {
    "n_steps": 4,
    "self_attention": {"n_heads": 4, "share": "all"},
    "ffn": {"d_ff": 64, "share": "all"},
}
WIDE: dict[str, Any] = STACK | {"ffn": {"d_ff": 200, "share": "all", "activation": "geglu"}}
CONV: dict[str, Any] = {"ffn": {"kind": "separable_conv", "d_ff": 64}}
STICK_BREAKING: dict[str, Any] = {"halting": {"kind": "stick_breaking", "initial_bias": -3.0}}
BY_LENGTH: dict[str, Any] = {"halting": {"kind": "length", "per_token": 0.0, "extra": 2.0}}  # convolutions run them all
NO_FFN: dict[str, Any] = STACK | CROSS | {"ffn": {"share": "none"}}
CHOICE: dict[str, Any] = {"n_experts": 4, "top_k": 2, "share": "all"}
SPARSE: dict[str, Any] = {
    "n_steps": 4,
    "self_attention": CHOICE | {"kind": "experts", "n_heads": 2, "d_head": 8},
    "ffn": CHOICE | {"kind": "experts", "d_ff": 32},
}
OF_HEADS: dict[str, Any] = {"kind": "head_experts", "n_heads": 2, "d_head": 8}

SEQ2SEQ = {
    "transformer": (STACK, STACK | CROSS),
    "universal": (SHARED, SHARED | {"cross_attention": {"n_heads": 4, "share": "all"}}),
    "one wide ffn": (WIDE, NO_FFN),
    "separable convolution": (STACK | CONV, STACK | CROSS | CONV),
    "by length": (STACK | CONV | BY_LENGTH, STACK | CROSS | CONV | BY_LENGTH),
    "window": (STACK | {"relative": {"kind": "window", "window": 5}}, STACK | CROSS),
    "act": (SHARED | {"halting": {"kind": "act"}}, SHARED | CROSS | {"halting": {"kind": "act"}}),
    "stick-breaking": (SHARED | STICK_BREAKING, SHARED | CROSS | STICK_BREAKING),
    "experts": (SPARSE, SPARSE | CROSS),
    "experts of heads": (SPARSE | {"self_attention": CHOICE | OF_HEADS}, SPARSE | CROSS),
    "experts and stick-breaking": (SPARSE | STICK_BREAKING, SPARSE | CROSS | STICK_BREAKING),
    "buckets and rotary": (STACK | {"relative": {"kind": "buckets"}}, STACK | CROSS | {"relative": {"kind": "rotary"}}),
}


@pytest.mark.parametrize("name", SEQ2SEQ)
def test_macs_agree_where_attention_is_a_large_part(name: str) -> None:
    encoder, decoder = SEQ2SEQ[name]
    config = Seq2SeqConfig.model_validate(
        {"d_model": 32, "source_vocab_size": 20, "target_vocab_size": 20, "encoder": encoder, "decoder": decoder}
    )
    count = count_macs(config, source_length=70, target_length=60)
    assert count.total - count.without_attention >= count.total / 5
    model = never_halting(build_model(config).eval())
    assert count.total == pytest.approx(_measured_macs(model, 70, 60), rel=0.01)
    if any("halting" in stack for stack in SEQ2SEQ[name]):
        check_realised_macs(config, 70, 60)


def check_macs_of_a_generated_token(config: Seq2SeqConfig | LanguageModelConfig, context: int) -> None:
    """Compare what is counted for a cached step with the flop counter."""
    model = never_halting(build_model(config).eval(), keeps_lengths=True)  # experts run no halted token
    batch = _batch(5, context, isinstance(config, Seq2SeqConfig))
    with torch.no_grad():
        run_as(model, expert_backend="loop")  # a cache keeps how its search runs
        cache = model.encode(batch)
        model.step(batch.target.ids_BT[:, :-1], cache)
        measured = _counted(model, lambda: model.step(batch.target.ids_BT[:, -1:], cache))
    count = count_macs(config, 5, 2 * context, context=context)
    depths = {name: [0] * (one.deepest - 1) + [1] for name, one in expected_depths(config, source_length=5).items()}
    measured -= _sums_by_gates(model, {"encoder": 0, "decoder": 1}, depths={**depths, "encoder": [0]})
    assert count.per_generated_token == pytest.approx(measured, rel=0.01)


@draws(30, quick=10)
@given(any_architecture(), st.integers(2, 9))
def test_macs_of_a_generated_token_are_those_of_a_cached_step(
    config: Seq2SeqConfig | LanguageModelConfig, context: int
) -> None:
    check_macs_of_a_generated_token(config, context)


@draws(20)
@given(any_architecture(fully_shared=True), st.integers(1, 4))
def test_counts_follow_the_number_of_rounds_at_call_time(
    config: Seq2SeqConfig | LanguageModelConfig, n_rounds: int
) -> None:
    model = never_halting(build_model(config).eval(), keeps_lengths=True)
    measured = _measured_macs(model, 4, 6, n_rounds)
    assert count_macs(config, 4, 6, n_steps=n_rounds).total == pytest.approx(measured, rel=0.01)
    assert count_parameters(config, n_steps=n_rounds).stored == count_parameters(config).stored


def realised_depths(
    found: Mapping[str, ExpectedDepth], stacks: Mapping[str, StackOutput], lengths: Mapping[str, int]
) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Return by stack how many tokens of a sentence took part in so many rounds, and how many were computed in them.

    Where halted tokens are computed all the same, they are as long as any token of the sentence takes part.
    """
    took_part, computed = {}, {}
    for name, one in found.items():
        trace = stacks[name].halting
        rounds = [one.rounds] * lengths[name] if trace is None else trace.executed_BTR[0].sum(-1).tolist()
        took_part[name] = [rounds.count(n) for n in range(1, one.rounds + 1)]
        rounds = rounds if one.skips_halted else [max(rounds)] * lengths[name]
        computed[name] = [rounds.count(n) for n in range(1, one.rounds + 1)]
    return took_part, computed


def macs_of(config: ModelConfig, depths: Mapping[str, Sequence[int]], exits: Mapping[str, bool]) -> SentenceMacs:
    """Count tokens that cost no round but those that are given, also of stacks that compute halted ones."""

    def as_given(*args: Any, **options: Any) -> dict[str, ExpectedDepth]:
        return {name: replace(one, skips_halted=True) for name, one in expected_depths(*args, **options).items()}

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("ostinato.budget.macs.expected_depths", as_given)
        return MacCounter(config, exits=exits).count(depths)


def check_realised_macs(config: Seq2SeqConfig | LanguageModelConfig, source_length: int, target_length: int) -> None:
    """Compare what is counted for a sentence whose tokens halt with the flop counter."""
    check_realised_macs_of(random_model(config), source_length, target_length)


def check_realised_macs_of(model: Model, source_length: int, target_length: int) -> None:
    """Compare what is counted for a sentence whose tokens halt, or stop by a criterion, with the flop counter."""
    config, exits = model.config, model.exits()
    run_as(model, compaction="always")  # also where it would not pay
    batch = _batch(source_length, target_length, isinstance(config, Seq2SeqConfig))
    lengths = {"encoder": source_length, "decoder": target_length}
    with torch.no_grad():
        stacks = model(batch).stacks
    found = expected_depths(config, exits=exits)
    depths, computed = realised_depths(found, stacks, lengths)
    measured = _counted(model, lambda: model(batch)) - _sums_by_gates(model, lengths, depths=computed)
    counted = MacCounter(config, exits=exits).count(depths)
    if not any(stack.halting.kind == "length" for stack in config.stacks().values()):
        assert counted.full == count_macs(config, source_length, target_length).total
    assert macs_of(config, computed, exits).realised == pytest.approx(measured, rel=0.01)
    # How long a stack runs that computes halted tokens is known of its batch only: all rounds are counted.
    everyone = {name: [0] * (one.rounds - 1) + [lengths[name]] for name, one in found.items() if not one.skips_halted}
    assert counted.realised == macs_of(config, depths | everyone, exits).realised


def test_rounds_for_which_no_token_is_chosen_cost_their_routers() -> None:
    loop = {"segments": [{"n_steps": 1, "repeats": 4}], "n_steps": 1}
    chosen = {"kind": "select", "among": "all", "capacities": [None, 0.5], "threshold": 0.0}
    decoder = STACK | loop | {"halting": chosen}
    check_realised_macs(LanguageModelConfig.model_validate({"d_model": 32, "vocab_size": 9, "decoder": decoder}), 4, 6)


@draws(30, quick=10)
@given(any_architecture(), st.integers(2, 9), st.integers(2, 9))
def test_realised_macs_of_a_sentence_agree_with_the_flop_counter(
    config: Seq2SeqConfig | LanguageModelConfig, source_length: int, target_length: int
) -> None:
    check_realised_macs(config, source_length, target_length)
