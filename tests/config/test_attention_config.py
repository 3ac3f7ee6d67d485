"""What attention and its positions refuse, and what they say."""

from __future__ import annotations

from typing import Any

import pytest

from ostinato.config.load import check_recipe
from ostinato.config.model import EncoderConfig, LanguageModelConfig, Seq2SeqConfig
from ostinato.errors import ConfigError


def stack(**settings: Any) -> LanguageModelConfig:
    given = {"d_model": 16, "decoder": {"n_steps": 4, "self_attention": {"n_heads": 2}} | settings}
    return LanguageModelConfig.model_validate(given)


ROTARY: dict[str, Any] = {"kind": "rotary"}
TWO = [{"kind": "rotary"}, {"kind": "none", "reach": 4}]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"self_attention": {"n_heads": 4, "n_kv_heads": 3}}, "n_kv_heads is 3: must divide n_heads = 4"),
        ({"self_attention": {"kind": "experts", "output_gate": True}}, "output_gate is True: experts have gates"),
        ({"self_attention": {"kind": "experts", "bias": "qk"}}, "bias is 'qk': experts have biases everywhere"),
        (
            {"relative": ROTARY | {"fraction": 0.3}},
            "decoder.self_attention.d_head is 8: rotary positions need an even number of components to turn, not 0.3",
        ),
        (
            {"relative": ROTARY | {"scaling": {"kind": "llama3", "low": 4.0}}},
            "high is 4.0: must be larger than low",
        ),
        (
            {"relative": {"kind": "by_step", "settings": TWO, "pattern": [0, 2]}},
            "settings has 2: numbers must be",
        ),
        (
            {"value_embeddings": {"share": [None, 0]}},
            "value_embeddings.share is [None, 0]: the list has 2 entries but there are 4 steps",
        ),
        ({"value_embeddings": {"share": [None] * 4}}, "no step reads a table: leave out value_embeddings"),
        (
            {"self_attention": {"share": "none"}, "value_embeddings": {"share": "all"}},
            "value_embeddings.share is 'all': a step without self-attention",
        ),
        ({"value_embeddings": {"gate_width": 64}}, "gate_width is 64: must be at most model.d_model = 16"),
        ({"relative": {"kind": "by_step", "settings": TWO, "pattern": [0]}}, "no step has settings [1] of settings"),
        (
            {"relative": {"kind": "by_step", "settings": TWO, "pattern": [0, 1, 0, 1, 0]}},
            "relative.pattern is [0, 1, 0, 1, 0]: has more numbers than n_steps = 4",
        ),
    ],
)
def test_what_cannot_be_is_an_error_that_says_what_is_valid(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        stack(**settings)
    assert expected in str(caught.value)


def test_a_recipe_whose_steps_name_settings_that_are_not_there_is_told_so() -> None:
    model = {"kind": "language_model", "decoder": {"relative": {"kind": "by_step", "settings": TWO, "pattern": [0, 2]}}}
    with pytest.raises(ConfigError) as caught:
        check_recipe({"task": {"model_kind": "language_model"}, "model": model})
    key = "model.decoder.relative"
    assert f"{key}.pattern is [0, 2]: {key}.settings has 2: numbers must be below that" in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "key", "reason"),
    [
        ({"self_attention": {"qk_norm_at": "after"}}, "self_attention.qk_norm_at", "with"),
        (
            {"self_attention": {"qk_norm": "rms", "qk_norm_at": "after"}},
            "self_attention.qk_norm_at",
            "without rotary positions",
        ),
    ],
)
def test_an_order_of_what_is_not_there_is_an_error_in_a_recipe(settings: dict[str, Any], key: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_recipe({"model": {"kind": "language_model", "decoder": settings}, "task": {"kind": "files"}})
    (line,) = [line for line in str(caught.value).splitlines() if "qk_norm_at" in line]
    assert line.startswith(f"model.decoder.{key} is 'after': has no effect")
    assert reason in line


def test_facts_have_no_tables_of_values() -> None:
    facts = {"embedder": {"kind": "facts"}, "head": {"kind": "classification", "pooling": "mean"}}
    with pytest.raises(ConfigError, match="belong to single tokens, and a position is a fact of several"):
        EncoderConfig.model_validate({"d_model": 64, **facts, "encoder": {"value_embeddings": {}}})


def test_a_pattern_is_repeated_over_the_steps_and_a_step_without_positions_names_none() -> None:
    given = {"kind": "by_step", "settings": [{"kind": "rotary", "base": 50.0}, {"kind": "none"}], "pattern": [0, 1, 1]}
    decoder = stack(relative=given).decoder
    uses = [use for use in decoder.plan("decoder").uses() if use.kind == "self_attention"]
    assert [use.position for use in uses] == ["decoder_0", None, None, "decoder_0"]
    assert [decoder.relative_of(use).kind for use in uses] == ["rotary", "none", "none", "rotary"]


def test_a_bank_of_two_stacks_has_one_eps_in_its_norms_of_queries_and_keys() -> None:
    attention = {"n_heads": 2, "bank": "both", "qk_norm": "rms", "share_norm": False, "share": "all"}
    stacks = {
        "encoder": {"n_steps": 2, "self_attention": attention, "norm": {"eps": 1e-5}},
        "decoder": {"n_steps": 2, "self_attention": attention, "norm": {"eps": 1e-6}},
    }
    with pytest.raises(ConfigError, match=r"decoder\.norm\.eps is 1e-06: the self_attention bank 'both' serves both"):
        Seq2SeqConfig.model_validate({"d_model": 16, **stacks})
