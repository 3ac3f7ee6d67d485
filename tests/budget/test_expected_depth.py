"""What tokens pay that halt early: formulas by hand, and sentences of known depths."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from architectures import any_architecture, draws
from ostinato.budget import MacCounter, count_macs, expected_depths
from ostinato.config.model import LanguageModelConfig, ModelConfig, Seq2SeqConfig

D, I, F, V, R, S, T = 8, 12, 10, 9, 4, 5, 7
ACT, STICK = {"kind": "act"}, {"kind": "stick_breaking"}
ASKED = {"act": D, "stick_breaking": D**2 + 2 * D}


def _lm(halting: dict[str, Any], *, share: object = "all", **stack: Any) -> LanguageModelConfig:
    attention = {"n_heads": 2, "d_head": I // 2, "share": share}
    steps = {"n_steps": R, "self_attention": attention, "ffn": {"d_ff": F, "share": share}, "halting": halting}
    return LanguageModelConfig.model_validate({"d_model": D, "vocab_size": V, "decoder": steps | stack})


def _seq2seq(encoder: dict[str, Any], decoder: dict[str, Any], cross: object = "all") -> Seq2SeqConfig:
    attention = {"n_heads": 2, "d_head": I // 2, "share": "all"}
    steps = {"n_steps": R, "self_attention": attention, "ffn": {"d_ff": F, "share": "all"}}
    return Seq2SeqConfig.model_validate(
        {
            "d_model": D,
            "source_vocab_size": V,
            "target_vocab_size": V,
            "encoder": steps | {"halting": encoder},
            "decoder": steps | {"halting": decoder, "cross_attention": attention | {"share": cross}},
        }
    )


def _token(config: ModelConfig, depth: float) -> int:
    return count_macs(config, S, T, expected_depth={"decoder": depth}).per_target_token


@pytest.mark.parametrize("rule", [ACT, STICK])
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_a_token_pays_its_rounds_and_keys_and_values_once_more(rule: dict[str, Any], depth: int) -> None:
    round_ = 2 * D * I + 2 * I * T + 2 * D * F
    keys_values = min(depth + 1, R) * 2 * D * I
    gates = ASKED[rule["kind"]] * (depth if rule is ACT else min(depth, R - 1))
    assert _token(_lm(rule), depth) == depth * round_ + keys_values + gates + D * V


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize(
    ("capacities", "routers"),
    [(None, [1, 2, 3, 4]), ([None, 0.5, 0.5, 0.5], [2, 3, 4]), ([1, None, 0.5, None], [1, 3])],
)
def test_a_token_is_asked_about_by_the_routers_of_one_round_more_than_it_takes_part_in(
    capacities: list[float | None] | None, routers: list[int], depth: int
) -> None:
    config = _lm({"kind": "select", "capacities": capacities})
    found = count_macs(config, S, T, expected_depth={"decoder": depth}).by_part["decoder.halting"]
    assert found == T * D * sum(number <= min(depth + 1, R) for number in routers)


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_where_later_rounds_have_other_weights_keys_and_values_are_made_in_each(depth: int) -> None:
    round_ = 2 * D * I + 2 * I * T + 2 * D * F
    found = _token(_lm(ACT, share="individual"), depth)
    assert found == depth * round_ + R * 2 * D * I + depth * D + D * V


@pytest.mark.parametrize(
    ("share", "sets"), [([0, 0, 1, 1], 2), ([0, 1, 0, 1], 2), ([0, 0, 0, 1], 2), ([0, 1, 1, 1], 1)]
)
def test_a_set_projects_a_halted_token_once_however_often_it_comes_back(share: list[int], sets: int) -> None:
    after_one_round = _token(_lm(STICK, share=share), 1)
    keys_values = (1 + sets) * 2 * D * I
    assert after_one_round == 2 * D * I + 2 * I * T + 2 * D * F + keys_values + ASKED["stick_breaking"] + D * V


def test_norms_of_every_step_make_other_keys_only_where_they_come_before() -> None:
    attention = {"n_heads": 2, "d_head": I // 2, "share": "all", "share_norm": False}
    pre, post = (_lm(ACT, self_attention=attention, norm={"placement": placement}) for placement in ("pre", "post"))
    assert pre.plans()["decoder"].names("self_attention") == ("decoder_0",)
    # In pre-norm stacks a halted token is projected at each of the three later rounds, else once for all.
    assert _token(pre, 1) - _token(post, 1) == 2 * 2 * D * I


def test_between_whole_rounds_macs_lie_on_a_line() -> None:
    config = _seq2seq(STICK, ACT)
    whole = [count_macs(config, S, T, expected_depth={"encoder": 2, "decoder": d}) for d in (2, 3)]
    found = count_macs(config, S, T, expected_depth={"encoder": 2, "decoder": 2.25})
    assert found.total == pytest.approx(0.75 * whole[0].total + 0.25 * whole[1].total, abs=len(found.by_part))
    assert sum(found.by_part.values()) == found.total
    assert found.per_source_token == whole[0].per_source_token


def test_an_encoder_that_halts_saves_source_tokens_and_not_what_the_decoder_reads_of_them() -> None:
    config = _seq2seq(STICK, {"kind": "none"}, cross="individual")
    full, found = count_macs(config, S, T), count_macs(config, S, T, expected_depth={"encoder": 2})
    assert full.per_target_token == found.per_target_token
    # Two rounds of queries and output, scores, feed-forward; keys and values of one; the gate of round 3.
    saved = 2 * (2 * D * I + 2 * I * S + 2 * D * F) + 2 * D * I + ASKED["stick_breaking"]
    assert full.per_source_token - found.per_source_token == saved


def test_cross_attention_and_experts_are_of_the_rounds_a_token_takes_part_in() -> None:
    experts = {"kind": "experts", "n_experts": 5, "top_k": 2, "d_ff": F, "share": "all"}
    config = _seq2seq({"kind": "none"}, ACT)
    decoder = config.decoder.model_dump() | {"ffn": experts}
    config = Seq2SeqConfig.model_validate(config.model_dump() | {"decoder": decoder})
    shallow, deep = (count_macs(config, S, T, expected_depth={"decoder": d}).by_part for d in (1, 3))
    for part in ("cross_attention.scores", "ffn", "ffn.router", "self_attention.scores", "halting"):
        assert 3 * shallow[f"decoder.{part}"] == deep[f"decoder.{part}"], part
    memory = S * 2 * D * I
    cross = [found["decoder.cross_attention.projections"] - memory for found in (shallow, deep)]
    assert 3 * cross[0] == cross[1] == 3 * T * 2 * D * I


def test_a_stack_with_a_convolution_costs_all_rounds_because_it_reads_every_column() -> None:
    ffn = {"kind": "separable_conv", "d_ff": F}
    config = _lm(ACT, ffn=ffn | {"share": "all"})
    assert _token(config, 1) == _token(config, R)
    assert expected_depths(config, {"decoder": 2})["decoder"].counted == R
    absent = _lm(ACT, ffn=ffn | {"share": "none"})
    assert expected_depths(absent, {"decoder": 2})["decoder"].counted == 2


def test_halted_tokens_that_go_on_changing_cost_all_rounds_whatever_is_assumed() -> None:
    config = _lm(ACT | {"freeze_halted_state": False})
    assert _token(config, 1.5) == _token(config, R)
    depth = expected_depths(config, {"decoder": 1.5})["decoder"]
    assert (depth.expected, depth.counted) == (1.5, 4.0)
    assert str(depth) == "1.5 of 4 rounds (act halting, assumed; halted tokens are computed: all rounds are counted)"
    counted = MacCounter(config).count({"decoder": [3, 2, 1, 1]})
    assert counted.realised == counted.full == count_macs(config, 1, T).total


@draws(60)
@given(any_architecture(), st.integers(1, 6), st.integers(1, 6))
def test_sentences_in_which_every_token_runs_every_round_cost_what_is_counted_for_their_lengths(
    config: ModelConfig, source_length: int, target_length: int
) -> None:
    lengths = {"encoder": source_length, "decoder": target_length}
    found = expected_depths(config, source_length=source_length)  # all rounds, or those that the length gives
    rows = {name: [0] * one.rounds for name, one in found.items()}
    for name, one in found.items():
        rows[name][one.deepest - 1] = lengths[name]
    total, counted = count_macs(config, source_length, target_length).total, MacCounter(config).count(rows)
    assert counted.realised == total
    assert counted.full == total or any(one.halting == "length" for one in found.values())


def decides_by_token(config: ModelConfig) -> bool:
    return all(stack.halting.kind != "length" for stack in config.stacks().values())


@draws(60)
@given(any_architecture().filter(decides_by_token), st.data())
def test_a_sentence_costs_what_its_tokens_would_each_be_expected_to(config: ModelConfig, data: st.DataObject) -> None:
    depths, total = {}, 0
    for name, plan in config.plans().items():
        # Some token runs every round, as expectations assume.
        found = data.draw(st.lists(st.integers(0, 3), min_size=plan.n_rounds, max_size=plan.n_rounds))
        depths[name] = [*found[:-1], found[-1] + 1]
    lengths = {name: sum(found) for name, found in depths.items()}
    source, target = lengths.get("encoder", 1), lengths["decoder"]
    halting = {name for name, stack in config.stacks().items() if stack.halting.kind != "none"}
    depths = {n: d if n in halting else [0] * (len(d) - 1) + [lengths[n]] for n, d in depths.items()}
    memory = count_macs(config, source, target)
    for name, found in depths.items():
        for depth, n in enumerate(found, 1):
            counted = count_macs(config, source, target, expected_depth={name: depth} if name in halting else None)
            total += n * (counted.per_source_token if name == "encoder" else counted.per_target_token)
    counted = MacCounter(config).count(depths)
    if "encoder" in depths:
        # A source token's price holds the decoder's keys and values of it, which no depth of its own changes.
        assert counted.full == memory.total
    assert counted.realised == total
    assert counted.realised <= counted.full


def test_rounds_that_no_token_of_a_sentence_takes_part_in_do_not_run() -> None:
    config = _seq2seq(STICK, ACT, cross="individual")
    alone = MacCounter(config).count({"encoder": [0, S, 0, 0], "decoder": [T, 0, 0, 0]})
    expected = count_macs(config, S, T, expected_depth={"encoder": 2, "decoder": 1})
    # Nobody is left to look at halted tokens, and the sets of later rounds never see the memory.
    keys_values = (S + T) * 2 * D * I
    assert alone.full == count_macs(config, S, T).total
    assert alone.realised == expected.total - keys_values - (R - 1) * S * 2 * D * I


@pytest.mark.parametrize("n_steps", [1, R, R + 3])
def test_a_token_is_given_no_more_rounds_than_its_router_has_vectors_for(n_steps: int) -> None:
    config = _lm({"kind": "token_choice"})
    found = expected_depths(config, n_steps=n_steps)["decoder"]
    assert found.rounds == found.deepest == found.counted == min(n_steps, R)
    counted = count_macs(config, 1, T, n_steps=n_steps)
    assert counted.by_part["decoder.halting"] == T * R * D  # all of its vectors are multiplied, whatever is called for
    assert counted.by_part["decoder.ffn"] == T * min(n_steps, R) * 2 * D * F
    assert expected_depths(config, n_steps=n_steps, exits=["decoder"])["decoder"].rounds == n_steps
