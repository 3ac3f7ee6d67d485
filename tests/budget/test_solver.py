from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from architectures import any_architecture, draws
from ostinato.budget import Assumptions, count_macs, count_parameters
from ostinato.budget.free import FreeVariable, WithoutEffect, all_settings, free_variable, with_settings
from ostinato.budget.solver import OutOfReach, Solution, counts, solve, solve_measured, stored_parameters
from ostinato.config.lstm import LstmLanguageModelConfig, LstmSeq2SeqConfig
from ostinato.config.model import EncoderConfig, LanguageModelConfig, ModelConfig, Seq2SeqConfig
from ostinato.errors import ConfigError


def language_model(d_model: int = 64, **stack: Any) -> LanguageModelConfig:
    settings = {"d_model": d_model, "vocab_size": 200, "decoder": {"n_steps": 4, "ffn": {"d_ff": 256}} | stack}
    return LanguageModelConfig.model_validate(settings)


def pair(encoder: dict[str, Any] | None = None, decoder: dict[str, Any] | None = None) -> Seq2SeqConfig:
    rows = {"source_vocab_size": 90, "target_vocab_size": 110}
    return Seq2SeqConfig.model_validate({"d_model": 64, **rows, "encoder": encoder or {}, "decoder": decoder or {}})


# --- what is found ---------------------------------------------------------------------------------------------------


def test_a_shared_model_is_widened_to_the_size_of_an_unshared_one() -> None:
    shared = {"self_attention": {"share": "all"}, "ffn": {"share": "all", "d_ff": 256}}
    reference = stored_parameters(language_model())
    found = solve(language_model(**shared), reference, "d_ff")
    assert found.values == {"decoder.ffn.d_ff": found.value}
    assert found.achieved == stored_parameters(found.config)
    assert found.residual == found.achieved - reference
    assert abs(found.residual) <= (2 * 64 + 1) / 2
    assert found.config.stacks()["decoder"].self_attention.share == "all"


@pytest.mark.sampled
@pytest.mark.parametrize("free", ["d_ff", "d_attn", "d_model", "n_steps", "d_ff+d_attn", "decoder.n_steps"])
@pytest.mark.parametrize("name", counts(Assumptions(9, 12)))
def test_the_configuration_itself_is_found_again_by_every_free_variable(free: str, name: str) -> None:
    cost = counts(Assumptions(9, 12))[name]
    for config in (language_model(), pair({}, {"ffn": {"d_ff": 1024}})):
        if name == "cache" and "d_ff" in free.split("+")[0]:  # no width of a feed-forward is cached
            with pytest.raises(ConfigError, match="changes nothing of what is to be matched"):
                solve(config, cost(config), free, cost)
        else:
            assert solve(config, cost(config), free, cost).residual == 0


def test_width_and_attention_grow_together_at_their_ratio() -> None:
    base = language_model()
    found = solve(base, 2 * stored_parameters(base), "d_ff+d_attn")
    assert list(found.values) == ["decoder.ffn.d_ff", "decoder.self_attention.d_head"]
    d_ff, d_head = found.values.values()
    assert d_head == round(d_ff * 8 / 256)
    assert abs(found.residual) < 0.02 * found.target


def test_stacks_of_different_width_keep_their_ratio() -> None:
    base = pair({"ffn": {"d_ff": 300}}, {"ffn": {"d_ff": 100}})
    found = solve(base, 1.5 * stored_parameters(base), "d_ff")
    assert list(found.values) == ["encoder.ffn.d_ff", "decoder.ffn.d_ff"]
    assert found.value == pytest.approx(3 * found.values["decoder.ffn.d_ff"], abs=2)


def test_one_stack_is_named_by_its_path() -> None:
    found = solve(pair(), 1.2 * stored_parameters(pair()), "decoder.ffn.d_ff")
    assert list(found.values) == ["decoder.ffn.d_ff"]
    same = solve(pair(), 1.2 * stored_parameters(pair()), "model.decoder.ffn.d_ff")
    assert same.config == found.config


def test_the_model_width_stays_divisible_by_heads_whose_width_follows_from_it() -> None:
    rotary = {"relative": {"kind": "rotary"}, "self_attention": {"n_heads": 6}}
    base = language_model(d_model=60, **rotary)
    found = solve(base, 3 * stored_parameters(base), "d_model")
    assert found.value % 12 == 0
    fixed_heads = language_model(d_model=60, self_attention={"n_heads": 7, "d_head": 8})
    assert solve(fixed_heads, 3 * stored_parameters(fixed_heads), "d_model").value % 2 == 0


def test_heads_stay_even_for_rotary_positions() -> None:
    base = language_model(relative={"kind": "rotary"})
    for factor in (0.9, 1.1, 1.3, 1.7):
        found = solve(base, factor * stored_parameters(base), "d_attn")
        assert found.values["decoder.self_attention.d_head"] % 2 == 0


def test_depth_is_solved_in_whole_rounds_and_with_the_steps_its_scheme_needs() -> None:
    base = language_model(n_steps=6, steps_per_round=3)
    assert solve(base, 2.3 * stored_parameters(base), "n_steps").value % 3 == 0
    cycle = language_model(n_steps=6, ffn={"share": "cycle", "n_unique": 3})
    assert solve(cycle, 0.96 * stored_parameters(cycle), "n_steps").value == 4
    with pytest.raises(OutOfReach, match=r"model\.decoder\.n_steps is 6: even the smallest value, 3, costs"):
        solve(cycle, 10, "n_steps")


def test_a_setting_with_a_largest_value_is_solved_up_to_it() -> None:
    cycle = language_model(n_steps=7, ffn={"share": "cycle", "n_unique": 2})
    largest = stored_parameters(with_settings(cycle, {"decoder.ffn.n_unique": 7}))
    assert solve(cycle, largest, "n_unique").value == 7
    assert solve(cycle, largest - 1, "n_unique", rounding="down").value == 6
    assert solve(cycle, largest + 1000, "n_unique").value == 7
    listed = language_model(ffn={"share": [0, 0, 1, 1]})
    assert solve(listed, stored_parameters(listed), "n_steps").residual == 0
    expected = (
        rf"n_unique is 2: the largest value, 7, costs {largest:,}, not 10,000,000.*\n.*needs n_unique in \[1, 7\]"
    )
    with pytest.raises(OutOfReach, match=expected):
        solve(cycle, 10**7, "n_unique")
    for target in (10, 10**7):
        with pytest.raises(OutOfReach):
            solve(listed, target, "n_steps")


def test_any_integer_setting_is_free_by_its_name() -> None:
    base = language_model(relative={"kind": "window", "window": 4}, self_attention={"d_head": 8})
    window = solve(base, stored_parameters(base) + 4 * 64 * 2 * 7, "window")
    assert (window.values, window.residual) == ({"decoder.relative.window": 11}, 0)
    heads = solve(base, 1.4 * stored_parameters(base), "n_heads")
    assert list(heads.values) == ["decoder.self_attention.n_heads"]
    buckets = language_model(relative={"kind": "buckets", "n_buckets": 8})
    assert solve(buckets, stored_parameters(buckets) + 8 * 6, "n_buckets").values == {"decoder.relative.n_buckets": 14}
    vocabulary = solve(base, stored_parameters(base) + 64 * 5, "vocab_size")
    assert vocabulary.values == {"vocab_size": 205}


def lstm(d_model: int = 8, *, bidirectional: bool = True) -> LstmSeq2SeqConfig:
    return LstmSeq2SeqConfig(d_model=d_model, bidirectional=bidirectional, source_vocab_size=9, target_vocab_size=7)


def test_the_width_of_an_encoder_that_reads_both_ways_stays_even() -> None:
    target = stored_parameters(lstm(52))
    for residual in (-300, 0, 300):
        found = solve(lstm(), target + residual, "d_model")
        assert (found.value, found.residual) == (52, -residual)
    assert solve(lstm(), 10, "d_model", lambda config: config.d_model).value == 10
    assert solve(lstm(), 1, "d_model", lambda config: config.d_model).value == 2
    one_way = solve(lstm(bidirectional=False), stored_parameters(lstm(7 * 3, bidirectional=False)), "d_model")
    assert one_way.value == 21


def test_heads_stay_a_multiple_of_those_of_keys() -> None:
    base = language_model(self_attention={"n_heads": 4, "n_kv_heads": 2, "d_head": 16})
    for factor in (0.9, 1.1, 1.3, 1.7):
        assert solve(base, factor * stored_parameters(base), "n_heads").value % 2 == 0
    wider = stored_parameters(with_settings(base, {"decoder.self_attention.n_heads": 10}))
    assert solve(base, wider, "n_heads").values == {"decoder.self_attention.n_heads": 10}


def test_heads_of_keys_are_solved_among_the_numbers_that_divide_the_heads() -> None:
    base = language_model(self_attention={"n_heads": 12, "n_kv_heads": 2, "d_head": 16})
    key = "decoder.self_attention.n_kv_heads"
    costs = {n: stored_parameters(with_settings(base, {key: n})) for n in (1, 2, 3, 4, 6, 12)}
    for n, cost in costs.items():
        assert (solve(base, cost, "n_kv_heads").values, cost) == ({key: n}, costs[n])
    assert solve(base, costs[12] - 1, "n_kv_heads").value == 12
    assert solve(base, costs[12] - 1, "n_kv_heads", rounding="down").value == 6
    # As elsewhere, half a step beyond the last value is still nearest to it.
    assert solve(base, costs[12] + 1, "n_kv_heads").value == 12
    assert solve(base, costs[1] - 1, "n_kv_heads").value == 1
    one_of = (
        r"of the values it may have \(1, 2, 3, 4, 6, 12, which divide model\.decoder\.self_attention\.n_heads = 12\)"
    )
    with pytest.raises(
        OutOfReach, match=rf"n_kv_heads is 2: {one_of} 12 costs the most, {costs[12]:,}, not 10,000,000"
    ):
        solve(base, 10**7, "n_kv_heads")
    for target, rounding in ((10, "nearest"), (costs[1] - 1, "down")):
        with pytest.raises(OutOfReach, match=rf"{one_of} 1 costs the least, {costs[1]:,}, more than the {target:,}"):
            solve(base, target, "n_kv_heads", rounding=rounding)  # type: ignore[arg-type]


def test_heads_whose_width_follows_from_the_models_are_solved_among_those_that_divide_it() -> None:
    base = language_model(d_model=24, relative={"kind": "rotary"}, self_attention={"n_heads": 4, "n_kv_heads": 2})
    key = "decoder.self_attention.n_heads"
    # Wider heads of keys: fewer heads cost more.
    costs = {n: stored_parameters(with_settings(base, {key: n})) for n in (2, 4, 6, 12)}
    assert costs[2] > costs[12]
    for n, cost in costs.items():
        assert solve(base, cost, "n_heads").values == {key: n}


def test_steps_of_a_round_are_solved_among_the_numbers_that_divide_the_steps() -> None:
    base = language_model(n_steps=6, steps_per_round=2, halting={"kind": "act"})
    macs = counts(Assumptions(9, 12))["macs"]
    target = macs(with_settings(base, {"decoder.steps_per_round": 3}))
    assert solve(base, target, "steps_per_round", macs).values == {"decoder.steps_per_round": 3}


def test_a_setting_and_one_that_must_divide_it_cannot_vary_together() -> None:
    base = language_model(self_attention={"n_heads": 4, "n_kv_heads": 2, "d_head": 16})
    reason = "n_kv_heads must divide model.decoder.self_attention.n_heads, so that they cannot vary together"
    with pytest.raises(ConfigError, match=rf"free is 'n_heads\+n_kv_heads': model\.decoder\.self_attention\.{reason}"):
        solve(base, 10**5, "n_heads+n_kv_heads")


def test_embeddings_stay_even_for_sinusoids() -> None:
    base = Seq2SeqConfig.model_validate(
        pair().model_dump() | {"d_embedding": 16, "output": {"transform": {"activation": "none"}}}
    )
    for n in (4, 10, 22):
        target = stored_parameters(with_settings(base, {"d_embedding": n}))
        for residual in (-250, 0, 250):
            assert solve(base, target + residual, "d_embedding").values == {"d_embedding": n}
    # The width of the states is then free of them.
    odd = language_model(d_model=30, self_attention={"n_heads": 2, "d_head": 4}).model_dump()
    odd |= {"d_embedding": 16, "output": {"transform": {"activation": "none"}}}
    narrow = LanguageModelConfig.model_validate(odd)
    target = stored_parameters(with_settings(narrow, {"d_model": 37}))
    assert solve(narrow, target, "d_model").values == {"d_model": 37}


def test_a_number_that_is_zero_can_grow() -> None:
    encoder = EncoderConfig.model_validate({"d_model": 16, "vocab_size": 50, "encoder": {"n_steps": 1}})
    found = solve(encoder, stored_parameters(encoder) + 16 * 3, "n_token_types")
    assert (found.values, found.residual) == ({"n_token_types": 3}, 0)
    learned = {"positions": {"kind": "learned", "max_length": 9}}
    both = solve(pair(learned, learned), stored_parameters(pair(learned, learned)) + 2 * 64 * 3, "offset")
    assert both.values == {"encoder.positions.offset": 3, "decoder.positions.offset": 3}
    assert both.residual == 0
    clock = NoisyClock(0.0)
    gates = language_model(ffn=EXPERTS | {"d_ff": 64, "gate": {"kind": "softmax"}})
    with pytest.raises(ConfigError, match="changes nothing"):
        solve_measured(gates, clock(gates), "n_sampled", clock)


def test_settings_in_lists_are_said_to_stand_there() -> None:
    looped = language_model(segments=[{"n_steps": 2}, {"n_steps": 2, "repeats": 3, "delta_rank": 4}])
    for name, found in (("repeats", "0.repeats"), ("segments.1.repeats", "1.repeats"), ("delta_rank", "0.delta_rank")):
        reason = (
            rf"stands in a list \(model\.decoder\.segments\.{found}\): only settings outside lists can be solved for"
        )
        with pytest.raises(ConfigError, match=rf"free is '{name}': {reason}"):
            solve(looped, 10**6, name)


EXPERTS: dict[str, Any] = {"kind": "experts", "n_experts": 8, "top_k": 2}


def sparse(**stack: Any) -> LanguageModelConfig:
    return language_model(
        self_attention=EXPERTS | {"n_heads": 2, "d_head": 16}, ffn=EXPERTS | {"d_ff": 64, "share": "all"}, **stack
    )


def test_the_number_of_experts_is_solved_and_no_smaller_than_the_experts_of_a_token() -> None:
    base = sparse()
    found = solve(base, stored_parameters(with_settings(base, {"decoder.ffn.n_experts": 23})), "ffn.n_experts")
    assert (found.values, found.residual) == ({"decoder.ffn.n_experts": 23}, 0)
    both = solve(base, 3 * stored_parameters(base), "n_experts")
    assert both.values == dict.fromkeys(("decoder.self_attention.n_experts", "decoder.ffn.n_experts"), both.value)
    assert abs(both.residual) < 0.05 * both.target
    with pytest.raises(OutOfReach, match="even the smallest value, 2, costs"):
        solve(base, 1000, "n_experts")


@pytest.mark.parametrize("router", [{"kind": "linear"}, {"kind": "mlp"}, {"kind": "hypersphere"}])
def test_a_sparse_model_of_a_dense_ones_size_is_found_whatever_its_router(router: dict[str, Any]) -> None:
    target = stored_parameters(language_model(ffn={"d_ff": 2048}))
    base = language_model(ffn=EXPERTS | {"d_ff": 64, "router": router})
    found = solve(base, target, "n_experts")
    assert abs(found.residual) <= stored_parameters(with_settings(base, {"decoder.ffn.n_experts": 9})) / 4
    assert abs(found.residual) < 0.02 * target


def test_the_width_of_experts_is_solved_by_its_name_or_its_path() -> None:
    base = sparse(sparse_layer={"after": 2, "d_ff": 32, "n_experts": 4, "top_k": 1})
    widths = ["decoder.ffn.d_ff", "decoder.sparse_layer.d_ff", "decoder.self_attention.d_head"]
    every = solve(base, 2 * stored_parameters(base), "expert_width")
    assert list(every.values) == widths
    assert every.values["decoder.sparse_layer.d_ff"] == pytest.approx(every.value / 2, abs=1)
    assert list(solve(base, every.target, "d_ff").values) == widths[:2]
    assert list(solve(base, every.target, "sparse_layer.expert_width").values) == widths[1:2]
    assert list(solve(base, every.target, "self_attention.d_head").values) == widths[2:]
    with pytest.raises(ConfigError, match="free is 'expert_width': no integer setting of this model has that name"):
        solve(language_model(), 10**6, "expert_width")


def test_equal_multiply_accumulates_leave_the_number_of_experts_to_the_router() -> None:
    base, macs = sparse(), counts(Assumptions(9, 12))["macs"]
    found = solve(base, macs(base) + 12 * 64 * 4 * 5, "ffn.n_experts", macs)
    assert (found.value, found.residual) == (8 + 5, 0)


def test_multiply_accumulates_are_matched_at_given_lengths() -> None:
    base, reference = pair({"ffn": {"share": "none"}}), pair()
    cost = counts(Assumptions(20, 30))["macs"]
    found = solve(base, cost(reference), "d_ff", cost)
    assert list(found.values) == ["decoder.ffn.d_ff"]
    assert found.achieved == count_macs(found.config, 20, 30).total
    assert abs(found.residual) <= 6 * 2 * 64 * 30 / 2
    shared = language_model(ffn={"share": "all", "d_ff": 256})
    assert solve(shared, 3 * cost(language_model()), "n_steps", cost).value == 12


def test_of_two_equally_near_values_the_smaller_is_taken() -> None:
    base = language_model(ffn={"d_ff": 10, "bias": False})
    halfway = stored_parameters(base) + 4 * 64
    assert solve(base, halfway, "d_ff").value == 10
    assert solve(base, halfway + 1, "d_ff").value == 11
    assert solve(base, halfway + 1, "d_ff", rounding="down").value == 10


# --- what is refused -------------------------------------------------------------------------------------------------


def test_a_target_below_the_smallest_value_is_out_of_reach_unless_zero_would_be_further() -> None:
    base = language_model(ffn={"d_ff": 10, "bias": False})
    least, one = stored_parameters(with_settings(base, {"decoder.ffn.d_ff": 1})), 4 * 2 * 64
    assert solve(base, least - one // 2, "d_ff").value == 1
    expected = rf"model\.decoder\.ffn\.d_ff is 10: even the smallest value, 1, costs {least:,}, more than the 5,000 to"
    with pytest.raises(OutOfReach, match=expected):
        solve(base, 5000, "d_ff")
    with pytest.raises(OutOfReach):
        solve(base, least - 1, "d_ff", rounding="down")


def test_a_setting_that_changes_nothing_is_refused() -> None:
    shared = language_model(self_attention={"share": "all"}, ffn={"share": "all"})
    with pytest.raises(ConfigError, match=r"free is 'n_steps': changes nothing .*\(model\.decoder\.n_steps\)"):
        solve(shared, 10**6, "n_steps")
    with pytest.raises(ConfigError, match="free is 'n_heads': changes nothing"):
        solve(language_model(), 10**6, "n_heads")


def test_an_unknown_name_is_refused_with_those_that_exist() -> None:
    with pytest.raises(ConfigError, match=r"free is 'dff': no integer setting .* has that name; did you mean d_ff"):
        solve(language_model(), 10**6, "dff")
    with pytest.raises(ConfigError, match=r"free is 'experts': .*; there are d_attn, d_ff, d_head, d_model, n_heads"):
        solve(language_model(), 10**6, "experts")


def test_a_setting_without_a_value_asks_for_one_to_start_from() -> None:
    with pytest.raises(
        ConfigError, match=r"free is 'shared_d_ff': has no value to start from: .*model\.shared_d_ff=64"
    ):
        solve(pair(), 10**6, "shared_d_ff")
    wide = Seq2SeqConfig.model_validate(pair().model_dump() | {"ffn_variant": "one-wide", "shared_d_ff": 100})
    found = solve(wide, stored_parameters(pair()), "shared_d_ff")
    # As wide as twelve feed-forwards of 2048, and a little for their norms and biases.
    assert 12 * 2048 <= found.value < 12 * 2048 + 30
    assert abs(found.residual) <= (2 * 64 + 1) / 2


def test_values_that_the_configuration_refuses_are_named_in_full() -> None:
    with pytest.raises(ConfigError, match=r"model\.decoder\.ffn\.d_ff is 0"):
        with_settings(language_model(), {"decoder.ffn.d_ff": 0})
    listed = language_model(ffn={"share": [0, 0, 1, 1]})
    with pytest.raises(ConfigError, match=r"model\.decoder\.ffn\.share is .*4 entries but there are 5 steps"):
        solve(listed, 10**6, "n_steps")


# --- any architecture ------------------------------------------------------------------------------------------------


def neighbours(config: ModelConfig, found: Solution, variable: FreeVariable) -> list[ModelConfig]:
    """Return the configurations beside a solution that the rest of the configuration allows."""
    near, lead = [], variable.lead
    for value in lead.choices or (found.value - lead.multiple, found.value + lead.multiple):
        try:
            near.append(with_settings(config, variable.at(value)))
        except ConfigError:
            continue
    return near


@st.composite
def recurrences(draw: st.DrawFn) -> ModelConfig:
    """Draw an LSTM."""
    common = {"n_layers": draw(st.integers(1, 3)), "tie_embeddings": draw(st.sampled_from(["none", "output"]))}
    if draw(st.integers(0, 3)) == 0:
        return LstmLanguageModelConfig.model_validate(common | {"d_model": draw(st.integers(1, 9)), "vocab_size": 7})
    is_two_way = draw(st.booleans())
    width = draw(st.integers(1, 5)) * (2 if is_two_way else 1)
    rows = {"d_model": width, "source_vocab_size": 9, "target_vocab_size": 7}
    score = draw(st.sampled_from(["general", "dot", "additive", "none"]))
    return LstmSeq2SeqConfig.model_validate(common | rows | {"bidirectional": is_two_way, "attention": score})


def fixes_depth(config: ModelConfig) -> bool:
    """Return whether a list with an entry a step holds the depth of some stack where it is."""
    return any(
        stack.segments
        or any(isinstance(sub.share, list) for _, sub in stack.sub_layers())
        or (stack.value_embeddings is not None and isinstance(stack.value_embeddings.share, list))
        for stack in config.stacks().values()
    )


FREE = ["d_ff", "d_attn", "d_model", "d_ff+d_attn", "n_steps", "n_experts", "expert_width"]
FREE += ["n_heads", "n_kv_heads", "d_embedding", "steps_per_round", "n_layers"]


@draws(240, quick=24)
@given(
    st.one_of(any_architecture(), any_architecture(), any_architecture(), recurrences()),
    st.sampled_from(FREE),
    st.sampled_from(sorted(counts(Assumptions(3, 4)))),
    st.floats(0.4, 4.0),
)
def test_the_solution_is_the_best_integer_for_any_architecture(
    config: ModelConfig, free: str, name: str, factor: float
) -> None:
    settings = list(all_settings(config))
    named = [part.replace("d_attn", "d_head").split(".") for part in free.split("+")]
    assume(all(any(setting.has_name(part) for setting in settings) for part in named))
    assume(free != "n_steps" or not fixes_depth(config))
    cost = counts(Assumptions(3, 4))[name]
    target = int(factor * cost(config))
    try:
        variable = free_variable(config, free, cost)
        found = solve(config, target, free, cost)
    except (OutOfReach, WithoutEffect):  # each has tests of its own
        assume(False)
    assert found.achieved == cost(found.config)
    assert found.values == variable.at(found.value)
    for other in neighbours(config, found, variable):
        assert abs(found.residual) <= abs(cost(other) - target)


@draws(40)
@given(st.one_of(any_architecture(), any_architecture(kind="encoder"), recurrences()))
def test_every_integer_setting_of_any_architecture_can_be_set_to_what_it_is(config: ModelConfig) -> None:
    settings = list(all_settings(config))
    assert {"d_model"} < {setting.path for setting in settings}
    same = with_settings(config, {setting.path: setting.value for setting in settings})
    assert count_parameters(same) == count_parameters(config)
    assert all(setting.near(setting.value) == setting.value for setting in settings)


# --- measured costs --------------------------------------------------------------------------------------------------


class NoisyClock:
    """Seconds that grow with the MACs, each reading up to `noise` off; counts its readings."""

    def __init__(self, noise: float, seed: int = 0) -> None:
        self.noise, self.n_readings, self._random = noise, 0, random.Random(seed)

    def __call__(self, config: ModelConfig) -> float:
        self.n_readings += 1
        return (1 + count_macs(config, 8, 8).total * 1e-7) * (1 + self._random.uniform(-self.noise, self.noise))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("factor", [1.0, 1.6, 5.0])
def test_a_noisy_target_is_met_within_the_tolerance_in_few_measurements(seed: int, factor: float) -> None:
    clock, base = NoisyClock(0.04, seed), language_model()
    target = factor * NoisyClock(0.0)(base)
    found = solve_measured(base, target, "d_ff", clock, tolerance=0.05)
    assert abs(found.residual) <= 0.05 * target
    assert NoisyClock(0.0)(found.config) == pytest.approx(target, rel=0.1)
    assert clock.n_readings <= 16


def test_a_reading_that_misleads_the_search_is_taken_again() -> None:
    base, calls = language_model(), itertools.count()
    clock = NoisyClock(0.0)
    target = 1.5 * clock(base)

    def disturbed(config: ModelConfig) -> float:
        # The machine is busy while the first value is read: it seems too slow, and the search goes down.
        return clock(config) * (2.0 if next(calls) == 0 else 1.0)

    found = solve_measured(base, target, "d_ff", disturbed, tolerance=0.02)
    assert abs(clock(found.config) - target) <= 0.02 * target


def test_a_smaller_target_is_found_downwards() -> None:
    base = language_model(ffn={"d_ff": 4096})
    target = NoisyClock(0.0)(language_model(ffn={"d_ff": 300}))
    found = solve_measured(base, target, "d_ff", NoisyClock(0.0), tolerance=0.001)
    assert found.value == pytest.approx(300, abs=10)
    assert found.target == target


def test_a_latency_that_no_width_reaches_is_out_of_reach_after_few_measurements() -> None:
    clock = NoisyClock(0.0)
    with pytest.raises(OutOfReach, match=r"model\.decoder\.ffn\.d_ff is 256: costs .* is to be matched: out of reach"):
        solve_measured(language_model(), 1000.0, "d_ff", clock)
    with pytest.raises(OutOfReach):
        solve_measured(language_model(), 0.1, "d_ff", clock)
    assert clock.n_readings <= 2 * 8


def test_readings_that_never_agree_still_end() -> None:
    endless = itertools.cycle([1.0, 9.0])
    readings = itertools.count()

    def unsteady(_: ModelConfig) -> float:
        next(readings)
        return next(endless)

    with pytest.raises(OutOfReach):
        solve_measured(language_model(), 5.0, "d_ff", unsteady, tolerance=0.01)
    assert next(readings) < 100


@pytest.mark.slow
def test_a_target_beyond_the_deepest_model_is_out_of_reach_and_says_what_bounds_the_depth() -> None:
    shared = {"self_attention": {"share": "all"}, "ffn": {"share": "all", "d_ff": 256}}
    macs = counts(Assumptions(9, 12))["macs"]
    with pytest.raises(OutOfReach, match=r"(?s)the largest value, 10000, costs .* less than or equal to 10000"):
        solve(language_model(**shared), 1e15, "n_steps", macs)


def test_a_latency_is_met_among_listed_values() -> None:
    base = language_model(self_attention={"n_heads": 12, "n_kv_heads": 2, "d_head": 16})
    clock, key = NoisyClock(0.0), "decoder.self_attention.n_kv_heads"
    for n in (1, 2, 4, 12):
        found = solve_measured(base, clock(with_settings(base, {key: n})), "n_kv_heads", clock, tolerance=1e-6)
        assert found.values == {key: n}
    between = (clock(with_settings(base, {key: 6})) + 2 * clock(with_settings(base, {key: 12}))) / 3
    assert solve_measured(base, between, "n_kv_heads", clock, tolerance=1e-6).values == {key: 12}
    with pytest.raises(OutOfReach, match="out of reach by this setting"):
        solve_measured(base, 100.0, "n_kv_heads", clock, tolerance=1e-6)


def test_of_a_few_values_all_are_measured_unless_the_own_one_is_met() -> None:
    base = language_model(self_attention={"n_heads": 12, "n_kv_heads": 2, "d_head": 16})
    clock = NoisyClock(0.0)
    costs = {n: clock(with_settings(base, {"decoder.self_attention.n_kv_heads": n})) for n in (1, 2, 3, 4, 6, 12)}
    for n in (4, 12, 1):
        assert solve_measured(base, costs[n], "n_kv_heads", clock, tolerance=1e-6).value == n
    clock.n_readings = 0
    assert solve_measured(base, costs[2], "n_kv_heads", clock, tolerance=1e-6).value == 2
    assert clock.n_readings == 1
    with pytest.raises(OutOfReach, match="out of reach by this setting"):
        solve_measured(base, 2 * costs[12], "n_kv_heads", clock)


@pytest.mark.parametrize("share", ["none", [None, None]])
def test_a_sub_layer_that_no_step_has_binds_no_width(share: str | list[None]) -> None:
    attention = {"n_heads": 8, "share": share}
    config = LanguageModelConfig.model_validate(
        {"d_model": 20, "decoder": {"n_steps": 2, "self_attention": attention, "positions": {"kind": "none"}}}
    )
    (width,) = (setting for setting in all_settings(config) if setting.path == "d_model")
    assert width.multiple == 1
