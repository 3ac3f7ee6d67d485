from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from architectures import any_architecture, draws
from ostinato.budget import count_macs, count_parameters
from ostinato.budget.family import (
    Counting,
    Family,
    make_family,
    matrix_parameters,
    usual_counting,
)
from ostinato.budget.free import with_settings
from ostinato.config.model import LanguageModelConfig, ModelConfig, Seq2SeqConfig
from ostinato.config.stack import DecoderConfig, StackConfig
from ostinato.errors import ConfigError

# Petty et al. 2024: the three size classes, with gated feed-forwards and a vocabulary of 32,128 (d_model, heads, base
# depth, base width, total in millions), and the width at every depth.
CLASSES = {
    "41M": (512, 8, 2, 2048, 41.3),
    "134M": (768, 12, 12, 2048, 134.3),
    "374M": (1024, 16, 24, 2816, 374.1),
}
WIDTHS: dict[str, dict[int, int]] = {
    "41M": {1: 4779, 2: 2048, 3: 1138, 4: 683, 5: 410, 6: 228, 7: 98},
    "134M": {1: 35840, 2: 17408, 3: 11264, 4: 8192, 6: 5120, 8: 3584, 10: 2662, 12: 2048, 14: 1609, 16: 1280}
    | {18: 1024, 20: 819, 21: 731, 24: 512, 28: 293, 32: 128},
    "374M": {1: 98987, 2: 48811, 4: 23723, 6: 15360, 8: 11179, 10: 8670, 12: 6997, 16: 4907, 20: 3652, 24: 2816}
    | {28: 2219, 32: 1771, 36: 1422, 42: 1024, 48: 725, 64: 203},
}


def decoder(d_model: int, n_heads: int, n_steps: int, d_ff: int, vocab_size: int = 32_128) -> LanguageModelConfig:
    """Return a language model as in the depth paper."""
    stack: dict[str, Any] = {
        "n_steps": n_steps,
        "self_attention": {"n_heads": n_heads, "bias": False},
        "ffn": {"d_ff": d_ff, "activation": "geglu", "bias": False},
        "norm": {"kind": "rms", "placement": "pre"},
        "positions": {"kind": "none"},
        "relative": {"kind": "buckets"},
    }
    settings = {"d_model": d_model, "vocab_size": vocab_size, "tie_embeddings": "none", "decoder": stack}
    return LanguageModelConfig.model_validate(settings)


def widths(family: Family) -> dict[int, int]:
    return {arm.n_steps: arm.d_ff for arm in family.arms}


@pytest.mark.parametrize("name", CLASSES)
def test_the_formula_gives_the_widths_of_the_three_size_classes(name: str) -> None:
    d_model, _, n0, f0, total = CLASSES[name]
    # d_ff(n) = C / n - A / beta with C = n0 (f0 + A / beta), of two equally near integers the smaller.
    attention = Fraction(4 * d_model**2, 3 * d_model)
    found = {n: math.ceil(n0 * (f0 + attention) / n - attention - Fraction(1, 2)) for n in WIDTHS[name]}
    assert found == WIDTHS[name]

    def size(n: int, d_ff: int) -> int:
        return n * (3 * d_model * d_ff + 4 * d_model**2) + 2 * d_model * 32_128

    assert size(n0, f0) / 1e6 == pytest.approx(total, abs=0.05)
    for n, d_ff in found.items():
        assert size(n, d_ff) == pytest.approx(size(n0, f0), rel=1e-3)


@pytest.mark.sampled
@pytest.mark.parametrize("name", CLASSES)
def test_families_of_real_models_have_the_published_widths_within_a_thousandth_of_the_base(name: str) -> None:
    *sizes, total = CLASSES[name]
    base = decoder(*sizes)
    family = make_family(base, WIDTHS[name])
    assert family.counting == "paper"
    assert widths(family) == WIDTHS[name]
    assert family.infeasible == ()
    assert family.parameters / 1e6 == pytest.approx(total, abs=0.05)
    for arm in family.arms:
        assert arm.parameters == count_parameters(arm.config).stored
        assert abs(arm.residual) < 0.001 * family.parameters


def test_with_norms_counted_the_widths_are_those_the_paper_is_remembered_to_print() -> None:
    family = make_family(decoder(512, 8, 2, 2048), range(1, 8), counting="exact")
    assert list(widths(family).values()) == [4779, 2048, 1138, 682, 409, 227, 97]
    assert max(abs(arm.residual) for arm in family.arms) <= 3 * 512 * 7 / 2


def test_rounding_down_never_costs_more_than_the_base() -> None:
    down = make_family(decoder(512, 8, 2, 2048), range(1, 8), counting="exact", rounding="down")
    assert list(widths(down).values()) == [4779, 2048, 1137, 682, 409, 227, 97]
    assert all(arm.residual <= 0 for arm in down.arms)


def test_depths_that_do_not_fit_are_named_with_what_they_would_need() -> None:
    family = make_family(decoder(512, 8, 2, 2048), [7, 8, 9])
    assert [arm.n_steps for arm in family.arms] == [7]
    assert [(one.n_steps, one.reason) for one in family.infeasible] == [
        (8, "41M cannot hold 8 layers at d_model 512: attention and embeddings alone are 41.3M"),
        (9, "41M cannot hold 9 layers at d_model 512: attention and embeddings alone are 42.3M"),
    ]


def test_a_family_costs_the_published_operations_per_layer() -> None:
    # Forward FLOPs per token: 2 N + 2 n_layers n_ctx d_attn, attention seen causally, half of the full square.
    two, three = make_family(decoder(512, 8, 2, 2048), [2, 3], n_ctx=1024).arms
    scores = {
        arm.n_steps: count_macs(arm.config, 1024, 1024).by_part["decoder.self_attention.scores"] for arm in (two, three)
    }
    assert (scores[3] - scores[2]) // 1024 == 2 * 1024 * 512
    embedding = 512 * 32_128
    assert two.macs == matrix_parameters(two.config) - embedding + scores[2] // 1024
    assert three.macs - two.macs == pytest.approx(2 * 1024 * 512, rel=0.01)


def test_biases_are_exact_and_the_papers_own_models_are_counted_as_in_the_paper() -> None:
    base = decoder(512, 8, 2, 2048)
    assert usual_counting(base) == "paper"
    assert usual_counting(base.model_copy(update={"tie_embeddings": "output"})) == "exact"
    assert usual_counting(LanguageModelConfig(tie_embeddings="none", vocab_size=32_128)) == "exact"
    # In a small model norms are too much of the whole to be left out.
    assert usual_counting(decoder(128, 4, 3, 512, 4000)) == "exact"
    assert matrix_parameters(base) == 41_287_680


def seq2seq(encoder: dict[str, Any], decoder: dict[str, Any]) -> Seq2SeqConfig:
    return Seq2SeqConfig(
        d_model=64,
        source_vocab_size=100,
        target_vocab_size=100,
        encoder=StackConfig.model_validate({"n_steps": 3} | encoder),
        decoder=DecoderConfig.model_validate({"n_steps": 3} | decoder),
    )


def test_both_stacks_of_a_pair_deepen_together_or_one_by_choice() -> None:
    base = seq2seq({}, {})
    both = make_family(base, [1, 3, 6])
    assert [(len(p.steps) for p in arm.config.plans().values()) for arm in both.arms]
    assert [[s.n_steps for s in arm.config.stacks().values()] for arm in both.arms] == [[1, 1], [3, 3], [6, 6]]
    assert both.arms[1].config == base
    assert all(abs(arm.residual) <= 6 * 2 * (2 * 64 + 1) / 2 for arm in both.arms)
    encoder = make_family(base, [6], stack="encoder")
    assert [s.n_steps for s in encoder.arms[0].config.stacks().values()] == [6, 3]
    assert encoder.arms[0].settings.keys() == {"encoder.n_steps", "encoder.ffn.d_ff", "decoder.ffn.d_ff"}


def test_stacks_of_different_depth_ask_which_one_varies() -> None:
    base = seq2seq({"n_steps": 4}, {"n_steps": 2})
    with pytest.raises(ConfigError, match=r"model\.encoder\.n_steps=4 and model\.decoder\.n_steps=2.*which one varies"):
        make_family(base, [1])
    with pytest.raises(ConfigError, match="stack is 'middle': this model has the stacks encoder, decoder"):
        make_family(base, [1], stack="middle")
    assert make_family(base, [4], stack="encoder").arms[0].config == base


def test_one_layer_repeated_keeps_its_width_at_every_depth() -> None:
    shared = {"self_attention": {"share": "all"}, "ffn": {"share": "all", "d_ff": 300}}
    base = LanguageModelConfig.model_validate({"d_model": 64, "vocab_size": 50, "decoder": shared})
    assert set(widths(make_family(base, [1, 2, 6, 12])).values()) == {300}


def test_a_depth_that_the_plan_does_not_allow_is_infeasible() -> None:
    rounds = {"n_steps": 4, "steps_per_round": 2}
    base = LanguageModelConfig.model_validate({"d_model": 64, "vocab_size": 50, "decoder": rounds})
    family = make_family(base, [2, 3])
    assert [arm.n_steps for arm in family.arms] == [2]
    assert family.infeasible[0].reason == "model.decoder.steps_per_round is 2: must divide model.decoder.n_steps = 3"


def test_a_model_without_feed_forwards_has_no_family() -> None:
    base = LanguageModelConfig.model_validate({"d_model": 64, "vocab_size": 50, "decoder": {"ffn": {"share": "none"}}})
    with pytest.raises(ConfigError, match=r"free is 'd_ff': changes nothing .*model\.decoder\.ffn\.d_ff"):
        make_family(base, [1, 2])


def can_vary_width(config: ModelConfig) -> bool:
    return any(part.endswith(".ffn") for part in count_parameters(config).by_part)


@pytest.mark.slow
@draws(60)
@given(any_architecture().filter(can_vary_width), st.integers(1, 4), st.sampled_from(["exact", "paper"]))
def test_the_arms_of_any_family_are_as_large_as_integers_allow(
    base: ModelConfig, n_steps: int, counting: Counting
) -> None:
    stack = list(base.stacks())[-1]
    cost = {"exact": lambda config: count_parameters(config).stored, "paper": matrix_parameters}[counting]
    family = make_family(base, [n_steps], stack=stack, counting=counting)
    for arm in family.arms:
        assert arm.config.stacks()[stack].n_steps == n_steps
        assert arm.parameters == count_parameters(arm.config).stored == family.parameters + arm.residual
        ffns = [path for path in arm.settings if path.endswith("d_ff")]
        if len({arm.settings[path] for path in ffns}) == 1:
            residual = abs(cost(arm.config) - cost(base))
            for d_ff in {max(arm.d_ff - 1, 1), arm.d_ff + 1}:
                assert residual <= abs(cost(with_settings(arm.config, dict.fromkeys(ffns, d_ff))) - cost(base))
    assert len(family.arms) + len(family.infeasible) == 1
