"""What `ostinato settings` says of the whole schema."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from ostinato.config.recipe import Recipe
from ostinato.config.settings import PLACE, SettingInfo, find_settings, list_settings
from ostinato.errors import ConfigError
from ostinato.tasks.recipes import list_recipes, load_recipe
from ostinato.tasks.registry import TASKS

NO_UNIT = (
    *("share", "pattern", "seed", "dev_seed", "number", "word_column", "tag_column"),
    *("pad", "bos", "eos", "mask", "source_separator_id"),
)
"""Settings that may be integers and count nothing."""


@cache
def all_settings() -> list[SettingInfo]:
    return list_settings(Recipe, {"task": {kind: task.config_type for kind, task in TASKS.items()}})


def keys(found: list[SettingInfo]) -> list[str]:
    return list(dict.fromkeys(setting.key for setting in found))


def entries(key: str) -> list[SettingInfo]:
    return [setting for setting in all_settings() if setting.key == key]


def test_every_setting_and_every_kind_has_a_meaning() -> None:
    assert len(all_settings()) > 400
    assert [setting.key for setting in all_settings() if not setting.meaning.strip()] == []
    assert [(s.key, kind) for s in all_settings() for kind, text in s.kinds.items() if not text.strip()] == []


def test_every_setting_that_counts_something_has_a_unit() -> None:
    counts = [setting for setting in all_settings() if "an integer" in setting.accepts]
    assert {s.key.rpartition(".")[2] for s in counts if s.unit is None} == set(NO_UNIT)
    assert all(setting.unit is None for setting in all_settings() if setting.accepts in ("true or false", "text"))


def _leaves(settings: dict[str, Any], path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, dict) and value:
            found |= _leaves(value, f"{path}{key}.")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for item in value:
                found |= _leaves(item, f"{path}{key}.{PLACE}.")
        else:
            found[f"{path}{key}"] = value
    return found


@pytest.mark.sampled
@pytest.mark.parametrize("name", [info.name for info in list_recipes()])
def test_every_key_of_every_recipe_is_listed(name: str) -> None:
    listed = set(keys(all_settings()))
    free = ("reference.N.by", "reference.N.task", "task.languages")  # names are the user's, or a task's
    found = [key for key in _leaves(load_recipe(name).model_dump(mode="json")) if not key.startswith(free)]
    assert [key for key in found if key not in listed] == []


def test_defaults_are_those_of_a_recipe_that_sets_nothing() -> None:
    given = _leaves(Recipe().model_dump(mode="json"))
    for key, value in given.items():
        shown = value if isinstance(value, str) and value else json.dumps(value)
        assert shown in {setting.default for setting in entries(key)}, key


def test_a_setting_that_kinds_have_with_other_meanings_is_there_for_each() -> None:
    widths = {tuple(s.only_with["model.encoder.ffn.kind"]): s.default for s in entries("model.encoder.ffn.d_ff")}
    assert widths == {("dense",): "2048", ("separable_conv",): "2048", ("experts",): "512"}
    (n_steps,) = entries("model.decoder.n_steps")
    assert n_steps.only_with == {"model.kind": ["seq2seq", "language_model"]}
    (d_model,) = entries("model.d_model")
    assert (d_model.only_with, d_model.default, d_model.unit) == ({}, "512", "units")
    (kind,) = entries("model.encoder.halting.kind")
    rules = ["none", "length", "act", "stick_breaking", "exit", "select", "token_choice"]
    assert (list(kind.kinds), kind.default) == (rules, "none")


def test_settings_of_lists_and_optional_groups_and_tasks_are_listed() -> None:
    (pattern,) = entries("training.optimizer.lr_scales.N.pattern")
    assert pattern.default is None
    (tokenizer,) = entries("data.target_tokenizer")
    assert (tokenizer.accepts, tokenizer.default) == ("a group of settings, or null", "null")
    assert entries("data.target_tokenizer.vocab_size")[0].default == "null"
    assert ["scan"] in [setting.only_with["task.kind"] for setting in entries("task.split")]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("seed", ["seed"]),
        ("training.schedule", ["training.schedule", *(f"training.schedule.{n}" for n in ("kind", "warmup"))]),
        ("reference.0.value", ["reference.N.value"]),
        ("ffn.d_ff", ["model.encoder.ffn.d_ff", "model.decoder.ffn.d_ff"]),
        ("epochs", ["training.n_updates"]),
        ("batch_size", ["data.tokens_per_batch"]),
        ("Adaptive Computation", ["model.encoder.halting.kind", "model.decoder.halting.kind"]),
    ],
)
def test_a_key_a_part_of_one_and_a_word_find_settings(wanted: str, expected: list[str]) -> None:
    assert keys(find_settings(all_settings(), wanted))[: len(expected)] == expected


def test_an_unknown_key_names_the_nearest() -> None:
    with pytest.raises(ConfigError) as caught:
        find_settings(all_settings(), "model.encoder.n_stps")
    assert str(caught.value).startswith(
        "KEY is 'model.encoder.n_stps': no setting has this name; nearest: model.encoder.n_steps, "
    )
    with pytest.raises(ConfigError, match="`ostinato settings` lists all"):
        find_settings(all_settings(), "§§§§§§§§§")
