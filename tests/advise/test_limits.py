from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ostinato.advise.limits import LatencyLimit, Limits, read_bytes, read_count, read_latency
from ostinato.budget import Assumptions, count_budget, count_macs
from ostinato.errors import ConfigError
from ostinato.tasks.recipes import load_recipe
from ostinato.tasks.vocabulary import size_model


@pytest.mark.parametrize(("text", "value"), [("5M", 5e6), ("1.5G", 1.5e9), ("500k", 5e5), ("1200", 1200.0)])
def test_counts_are_read_with_their_units(text: str, value: float) -> None:
    assert read_count("--params", text) == value


@pytest.mark.parametrize(("text", "value"), [("200MB", 2e8), ("1KiB", 1024.0), ("2 GiB", 2.0**31), ("7", 7.0)])
def test_sizes_are_read_with_their_units(text: str, value: float) -> None:
    assert read_bytes("--memory", text) == value


def test_a_latency_has_a_batch() -> None:
    assert read_latency("--latency", "20ms@batch4") == LatencyLimit(0.02, 4)
    assert read_latency("--latency", "1.5s") == LatencyLimit(1.5, 1)


@pytest.mark.parametrize(
    ("read", "option", "text"),
    [
        (read_count, "--params", "5X"),
        (read_count, "--params", "0"),
        (read_count, "--params", "-3M"),
        (read_bytes, "--memory", "much"),
        (read_latency, "--latency", "20"),
        (read_latency, "--latency", "0ms"),
        (read_latency, "--latency", "20ms@batch0"),
    ],
)
def test_a_wrong_budget_is_one_line_with_what_is_valid(
    read: Callable[[str, str], object], option: str, text: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read(option, text)
    assert str(caught.value).startswith(f"{option} is {text!r}: must be a ")
    assert "\n" not in str(caught.value)


def test_the_share_is_that_of_the_budget_that_binds() -> None:
    model = size_model(load_recipe("digits/transformer"), source=14, target=14).model
    figures = Limits().figures(model)
    assert figures["macs"] == count_macs(model, 32, 32).total
    assert Limits(parameters=2 * figures["parameters"]).share(model) == 0.5
    assert Limits(parameters=2 * figures["parameters"], macs=figures["macs"] / 3).share(model) == 3.0


def test_one_sequence_is_counted_with_both_sides() -> None:
    model = size_model(load_recipe("lm/transformer"), target=100).model
    assert Limits(source_length=5, target_length=7).figures(model)["macs"] == count_macs(model, 5, 12).total


def test_a_language_model_of_texts_reads_no_source() -> None:
    recipe = load_recipe("lm/transformer")
    model = size_model(recipe, target=100).model
    limits = Limits(source_length=5, target_length=7)
    assert limits.of_recipe(recipe).figures(model)["macs"] == count_macs(model, 5, 7).total
    assert limits.of_recipe(load_recipe("digits/transformer")) == limits


def test_bytes_are_those_of_models_that_train_and_search_as_the_recipe_does() -> None:
    settings = ["training.checkpoint_activations=true", "training.precision=bfloat16"]
    settings += ["decoding.strategy=beam", "decoding.beam=8"]
    whole, less = load_recipe("digits/transformer"), load_recipe("digits/transformer", settings)
    model = size_model(whole, source=14, target=14).model
    asked: dict[str, Any] = {"checkpoint_activations": True, "precision": "bfloat16", "beam": 8}
    assert Limits().of_recipe(whole).figures(model)["bytes"] == count_budget(model, Assumptions()).figure("bytes")
    assert Limits().of_recipe(less).figures(model)["bytes"] == count_budget(model, Assumptions(**asked)).figure("bytes")
