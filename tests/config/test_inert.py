"""Settings that another one makes useless: errors where a person wrote them, left out where they are inherited."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ostinato.config.load import check_recipe, dump_recipe, load_recipe_config
from ostinato.config.recipe import Recipe
from ostinato.errors import ConfigError
from ostinato.tasks.recipes import load_recipe

FACTS = {"kind": "encoder", "head": {"kind": "classification"}}


@pytest.mark.parametrize(
    ("settings", "key", "reason"),
    [
        ({"decoding": {"temperature": 0.5}}, "decoding.temperature", "without decoding.strategy=sample"),
        ({"decoding": {"top_k": 5}}, "decoding.top_k", "without decoding.strategy=sample"),
        ({"decoding": {"stopping": "count"}}, "decoding.stopping", "without decoding.strategy=beam"),
        (
            {"decoding": {"length_penalty": {"kind": "none", "alpha": 1.0}}},
            "decoding.length_penalty.alpha",
            "kind=none",
        ),
        ({"training": {"schedule": {"final_fraction": 0.1}}}, "training.schedule.final_fraction", "kind=inverse_sqrt"),
        ({"model": {"encoder": {"ffn": {"n_unique": 2}}}}, "model.encoder.ffn.n_unique", "share=individual"),
        ({"model": {"encoder": {"ffn": {"share_norm": False}}}}, "model.encoder.ffn.share_norm", "no two steps share"),
        ({"model": {"encoder": {"ffn": {"share": "none", "d_ff": 9}}}}, "model.encoder.ffn.d_ff", "no step has"),
        ({"model": FACTS, "decoding": {"max_length": 9}}, "decoding.max_length", "writes no text"),
        (
            {"model": {"encoder": {"self_attention": {"kind": "head_experts", "share": "none", "gate": {}}}}},
            "model.encoder.self_attention.gate.kind",
            "no step has",
        ),
        (
            {"model": {"dropout": 0.0}, "training": {"dropout_draws": "torch"}},
            "training.dropout_draws",
            "dropout of this",
        ),
        ({"data": {"masking": {"rate": 0.3}}}, "data.masking.rate", "without model.head.kind=masked"),
        (
            {"model": {"kind": "lstm_seq2seq"}, "training": {"checkpoint_activations": True}},
            "training.checkpoint_activations",
            "without steps of depth",
        ),
    ],
)
def test_a_setting_without_an_effect_is_an_error_of_one_line(settings: dict[str, Any], key: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_recipe(settings)
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{key} is ")
    assert reason in line


def test_draws_of_dropout_are_taken_where_any_part_of_the_model_drops() -> None:
    for model in ({}, {"dropout": 0.0, "encoder": {"ffn": {"dropout": 0.1}}}):
        assert check_recipe({"model": model, "training": {"dropout_draws": "torch"}}).training.dropout_draws == "torch"


def test_what_a_change_makes_useless_is_left_out_unless_it_is_part_of_the_change(tmp_path: Path) -> None:
    base = {"decoding": {"strategy": "beam", "beam": 4, "stopping": "count"}}
    changed = load_recipe_config(base, ["decoding.strategy=greedy", "decoding.beam=1"])
    assert (changed.decoding.strategy, changed.decoding.stopping) == ("greedy", "bound")
    recomputed = {"training": {"checkpoint_activations": True}}
    assert not load_recipe_config(recomputed, ["model.kind=lstm_seq2seq"]).training.checkpoint_activations
    with pytest.raises(ConfigError, match=r"decoding\.stopping is 'count': has no effect"):
        load_recipe_config({}, ["decoding.stopping=count"])
    with pytest.raises(ConfigError, match=r"decoding\.stopping is 'count': has no effect"):
        load_recipe_config({"decoding": {"stopping": "count"}}, ["seed=2"])
    (tmp_path / "base.yaml").write_text(json.dumps(base))
    greedy = {"base": "base.yaml", "decoding": {"strategy": "greedy", "beam": 1}}
    (tmp_path / "greedy.yaml").write_text(json.dumps(greedy))
    assert load_recipe(tmp_path / "greedy.yaml").decoding.stopping == "bound"


@pytest.mark.parametrize(
    ("base", "overrides", "key"),
    [
        (
            {"model": {"encoder": {"ffn": {"kind": "experts"}}}, "training": {"balance": {"z": 0.1}}},
            ["model.encoder.ffn.kind=dense"],
            "training.balance.z",
        ),
        (
            {"model": {"encoder": {"halting": {"kind": "act"}}}, "training": {"halting": {"weight": 0.1}}},
            ["model.encoder.halting.kind=none"],
            "training.halting.weight",
        ),
        ({"decoding": {"strategy": "beam", "beam": 4}}, ["decoding.strategy=greedy"], "decoding.beam"),
        ({"training": {"freeze": ["*"], "freeze_except": ["*.halting.*"]}}, ["training.freeze=[]"], "freeze_except"),
        (
            {"training": {"init_from": "runs/a", "init_except": ["head.*"]}},
            ["training.init_from=null"],
            "training.init_except",
        ),
    ],
)
def test_weights_of_losses_and_what_needs_another_setting_stay_and_are_errors(
    base: dict[str, Any], overrides: list[str], key: str
) -> None:
    load_recipe_config(base)
    with pytest.raises(ConfigError) as caught:
        load_recipe_config(base, overrides)
    assert [key in str(problem) for problem in caught.value.problems] == [True]


def test_what_a_run_has_stored_without_an_effect_is_left_out(tmp_path: Path) -> None:
    recipe = Recipe.model_validate({"decoding": {"stopping": "count"}, "model": {"kind": "seq2seq"}})
    dump_recipe(recipe, tmp_path / "recipe.yaml")
    with pytest.raises(ConfigError, match=r"decoding\.stopping"):
        load_recipe(tmp_path / "recipe.yaml")
    (tmp_path / "versions.json").write_text("{}")
    assert load_recipe(tmp_path).decoding.stopping == "bound"


@pytest.mark.parametrize("kind", ["words", "characters", "bpe"])
def test_a_vocabulary_size_that_runs_stored_by_default_is_none(tmp_path: Path, kind: str) -> None:
    settings = Recipe().model_dump(mode="json")
    settings["data"]["tokenizer"] = {"kind": kind, "vocab_size": 8000, "min_count": 1, "path": None}
    (tmp_path / "versions.json").write_text("{}")
    (tmp_path / "recipe.yaml").write_text(json.dumps(settings))
    assert load_recipe(tmp_path).data.tokenizer.vocab_size == 8000
    del settings["model"]["special_ids"]  # as before words had a size
    (tmp_path / "recipe.yaml").write_text(json.dumps(settings))
    assert load_recipe(tmp_path).data.tokenizer.vocab_size is None


def test_another_kind_of_tokenizer_keeps_the_size_only_where_it_means_the_same() -> None:
    base = {"data": {"tokenizer": {"kind": "bpe", "vocab_size": 4000}}}
    assert load_recipe_config(base, ["data.tokenizer={kind: words}"]).data.tokenizer.vocab_size is None
    assert load_recipe_config(base, ["data.tokenizer.kind=unigram"]).data.tokenizer.vocab_size == 4000
    words = {"data": {"tokenizer": {"vocab_size": 60_000}}}
    assert load_recipe_config(words, ["data.tokenizer.kind=characters"]).data.tokenizer.vocab_size == 60_000
    assert load_recipe_config(words, ["data.tokenizer.kind=bpe"]).data.tokenizer.vocab_size is None
