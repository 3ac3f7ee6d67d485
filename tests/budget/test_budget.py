from __future__ import annotations

from typing import Any

import pytest

from ostinato.budget import (
    Assumptions,
    count_budget,
    count_macs,
    count_parameters,
    expected_depths,
    kaplan_forward_flops,
)
from ostinato.budget.compare import differing_plans, differing_settings, match_figures, summarise_row
from ostinato.config.model import LanguageModelConfig, ModelConfig, Seq2SeqConfig
from ostinato.errors import ConfigError
from ostinato.tasks.recipes import load_recipe


def _seq2seq(variant: str | None = None, **ffn: Any) -> Seq2SeqConfig:
    steps: dict[str, Any] = {"n_steps": 3, "self_attention": {"n_heads": 2}, "ffn": {"d_ff": 10} | ffn}
    settings = {"d_model": 8, "source_vocab_size": 9, "target_vocab_size": 9, "ffn_variant": variant}
    decoder = steps | {"cross_attention": {"n_heads": 2}}
    return Seq2SeqConfig.model_validate(settings | {"encoder": steps, "decoder": decoder})


def _language_model() -> LanguageModelConfig:
    return LanguageModelConfig.model_validate({"d_model": 8, "vocab_size": 9, "decoder": {"n_steps": 2}})


def test_without_halting_every_token_runs_all_rounds_and_nothing_else_can_be_assumed() -> None:
    depths = expected_depths(_seq2seq())
    assert {name: str(depth) for name, depth in depths.items()} == {
        "encoder": "3 of 3 rounds (no halting)",
        "decoder": "3 of 3 rounds (no halting)",
    }
    assert count_macs(_seq2seq(), 5, 5, expected_depth={"encoder": 3.0}) == count_macs(_seq2seq(), 5, 5)
    with pytest.raises(ConfigError) as error:
        count_macs(_seq2seq(), 5, 5, expected_depth={"encoder": 2.5, "decoder": 4, "middle": 1})
    lines = str(error.value).splitlines()
    assert lines == [
        "expected_depth.middle is 1: the model's stacks are encoder, decoder",
        "expected_depth.encoder is 2.5: no token halts (model.encoder.halting.kind is none), so every token runs all 3 "
        "rounds",
        "expected_depth.decoder is 4: must lie in [1, 3], its rounds",
    ]


def test_depth_follows_the_rounds_at_call_time() -> None:
    shared: dict[str, Any] = {"n_steps": 4, "steps_per_round": 2, "ffn": {"d_ff": 10, "share": "all"}}
    attention = {"self_attention": {"n_heads": 2, "share": "all"}}
    config = LanguageModelConfig.model_validate({"d_model": 8, "vocab_size": 9, "decoder": shared | attention})
    assert str(expected_depths(config)["decoder"]) == "2 of 2 rounds (no halting)"
    assert expected_depths(config, n_steps=5)["decoder"].expected == 5.0


@pytest.mark.parametrize("kind", ["act", "stick_breaking"])
def test_where_tokens_halt_a_depth_is_assumed_and_changes_macs_alone(kind: str) -> None:
    steps: dict[str, Any] = {"n_steps": 4, "self_attention": {"n_heads": 2}, "ffn": {"d_ff": 10}}
    decoder = steps | {"halting": {"kind": kind}}
    config = LanguageModelConfig.model_validate({"d_model": 8, "vocab_size": 9, "decoder": decoder})
    assert str(expected_depths(config)["decoder"]) == f"4 of 4 rounds ({kind} halting, assumed)"
    assumed = Assumptions(1, 7, expected_depth={"decoder": 2.5})
    found, full = count_budget(config, assumed), count_budget(config, Assumptions(1, 7))
    assert str(found.depth["decoder"]) == f"2.5 of 4 rounds ({kind} halting, assumed)"
    stated = {"expected": 2.5, "counted": 2.5, "rounds": 4, "halting": kind}
    assert found.as_dict()["assumptions"]["depth"] == {"decoder": stated}
    assert (found.parameters, found.bytes) == (full.parameters, full.bytes)
    assert found.macs.total < full.macs.total
    products = {"act": 4 * 8, "stick_breaking": 3 * (8 * 8 + 2 * 8)}[kind]
    assert full.macs.by_part["decoder.halting"] == 7 * products
    with pytest.raises(ConfigError, match=r"expected_depth\.decoder is 4\.5: must lie in \[1, 4\], its rounds"):
        expected_depths(config, {"decoder": 4.5})


def test_a_budget_holds_all_counts_and_what_was_assumed() -> None:
    assumed = Assumptions(source_length=6, target_length=7, batch_size=2, beam=3)
    found = count_budget(_seq2seq(), assumed).as_dict()
    assert found.keys() == {"parameters", "macs", "kaplan_flops", "bytes", "assumptions"}
    assert found["kaplan_flops"] is None
    assert found["parameters"].keys() == {"stored", "active", "executed", "by_part"}
    assert {"per_source_token", "per_target_token", "per_generated_token", "by_part", "total"} < found["macs"].keys()
    assert found["bytes"].keys() == {"weights", "activations", "cache"}
    assert found["assumptions"] == {
        "depth": {
            name: {"expected": 3.0, "counted": 3.0, "rounds": 3, "halting": "none"} for name in ("encoder", "decoder")
        },
        "experts": {},
        "source_length": 6,
        "target_length": 7,
        "batch_size": 2,
        "beam": 3,
        "precision": "float32",
        "checkpoint_activations": False,
        "cached_rounds": None,
        "n_predictions": 1,
    }
    assert found["macs"]["total"] == sum(found["macs"]["by_part"].values())


def test_a_language_model_has_one_kind_of_token_and_no_source() -> None:
    found = count_budget(_language_model(), Assumptions(target_length=7)).as_dict()
    assert found["macs"]["per_token"] * 7 == found["macs"]["total"]
    assert "per_source_token" not in found["macs"]
    assert found["assumptions"]["source_length"] is None


def test_figures_are_matched_against_the_first() -> None:
    found = match_figures({"a": 200, "b": 202, "c": 203, "d": 197}, 0.01)
    assert {name: (round(m.difference, 4), m.is_within) for name, m in found.items()} == {
        "a": (0.0, True),
        "b": (0.01, True),
        "c": (0.015, False),
        "d": (-0.015, False),
    }


def test_a_row_of_a_plan_is_told_in_few_words() -> None:
    assert summarise_row(("e_0", "e_1", "e_2")) == "e 0-2"
    assert summarise_row(("both_0",) * 6) == "both 0 x6"
    assert summarise_row((None,) * 4) == "- x4"
    assert summarise_row(("e_0", "e_0", "e_1", None, "e_1")) == "e 0 x2, 1 x1, - x1, 1 x1"
    assert summarise_row(("e_0", "e_1", "e_0", "e_1")) == "e 0 1 0 1"


def test_only_what_differs_is_listed_by_dotted_key_and_as_it_is_built() -> None:
    models: dict[str, ModelConfig] = {"plain": _seq2seq(), "shared": _seq2seq("shared-enc"), "wide": _seq2seq(d_ff=12)}
    settings = differing_settings(models)
    assert settings == {
        "model.ffn_variant": {"plain": None, "shared": "shared-enc", "wide": None},
        "model.encoder.ffn.share": {"plain": "individual", "shared": "all", "wide": "individual"},
        "model.encoder.ffn.d_ff": {"plain": 10, "shared": 10, "wide": 12},
        "model.decoder.ffn.d_ff": {"plain": 10, "shared": 10, "wide": 12},
    }
    rows = differing_plans(models)
    assert rows == {"encoder.ffn": {"plain": "encoder 0-2", "shared": "encoder 0 x3", "wide": "encoder 0-2"}}
    assert differing_settings({"a": _seq2seq(), "b": _seq2seq()}) == {}


def test_a_setting_that_a_model_does_not_have_is_left_out_of_its_row() -> None:
    rows = differing_settings({"pair": _seq2seq(), "single": _language_model()})
    assert rows["model.kind"] == {"pair": "seq2seq", "single": "language_model"}
    assert rows["model.encoder"] == rows["model.decoder.cross_attention"] == {"pair": "there"}
    assert rows["model.vocab_size"] == {"single": 9}
    assert rows["model.decoder.n_steps"] == {"pair": 3, "single": 2}
    assert not any(key.startswith("model.encoder.") for key in rows)
    assert "encoder.ffn" in differing_plans({"pair": _seq2seq(), "single": _language_model()})


@pytest.mark.parametrize(("name", "n_layers", "d_model"), [("41m", 2, 512), ("134m", 12, 768)])
def test_the_forward_cost_of_the_scaling_laws_stands_beside_ours(name: str, n_layers: int, d_model: int) -> None:
    """C_forward = 2 N + 2 n_layer n_ctx d_attn (Petty et al. 2024, section 2: per layer 1.05 and 1.57 MFLOP)."""
    model = load_recipe(f"depth/{name}").model
    model = model.model_copy(update=model.vocabulary_sizes(32128, 32128))
    budget = count_budget(model, Assumptions(target_length=1024))
    by_part = budget.parameters.by_part
    n = budget.parameters.stored - by_part["embeddings"] - by_part.get("output", 0)
    # The matrices of a layer: 3 d_model d_ff and 4 d_model^2, d_ff = 2048; norms and the table of positions are few.
    assert n == pytest.approx(n_layers * (3 * d_model * 2048 + 4 * d_model**2), rel=0.001)
    per_layer = 2 * 1024 * d_model
    assert round(per_layer / 1e6, 2) == {512: 1.05, 768: 1.57}[d_model]
    # The table of positions is one, which every layer uses.
    again = (n_layers - 1) * budget.parameters.by_part["positions"]
    assert budget.kaplan_flops == 2 * (n + again) + n_layers * per_layer
    assert budget.as_dict()["kaplan_flops"] == budget.kaplan_flops


def test_the_forward_cost_of_the_scaling_laws_counts_shared_weights_at_every_use_and_is_for_one_sequence_only() -> None:
    model = load_recipe("lm/universal").model
    model = model.model_copy(update=model.vocabulary_sizes(500, 500))
    (stack,) = model.stacks().values()
    once, twice = (kaplan_forward_flops(model, 64, n_steps=n) for n in (1, 2))
    assert once is not None
    assert twice is not None
    own = count_parameters(model)
    shared = (
        own.by_part["decoder.self_attention"] + own.by_part["decoder.ffn"] + 2 * 2 * model.d_model
    )  # two LayerNorms
    assert twice - once == 2 * shared + 2 * 64 * model.d_model
    assert kaplan_forward_flops(load_recipe("scan/transformer").model, 64) is None
    assert kaplan_forward_flops(load_recipe("agreement/lstm").model, 64) is None
    assert stack.n_steps > 1
