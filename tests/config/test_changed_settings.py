"""Which settings of a configuration are not at their defaults."""

from __future__ import annotations

from typing import Any

import pytest

from ostinato.config.base import changed_settings
from ostinato.config.experts import HeadExpertAttentionConfig
from ostinato.config.model import LanguageModelConfig
from ostinato.config.norm import NormalisationConfig
from ostinato.config.positions import RotaryConfig
from ostinato.config.stack import StackConfig


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {}),
        ({"dropout": 0.1, "decoder": {"ffn": {"d_ff": 2048}}}, {}),
        ({"dropout": 0.2, "decoder": {"norm": {"eps": 1e-6}}}, {"dropout": 0.2, "decoder.norm.eps": 1e-6}),
        (
            {"decoder": {"relative": {"kind": "rotary", "scaling": {"kind": "linear"}, "base": 10_000.0}}},
            {"decoder.relative.kind": "rotary", "decoder.relative.scaling.kind": "linear"},
        ),
        ({"decoder": {"halting": {"kind": "select", "scale": 0.1}}}, {"halting.kind": "select", "halting.scale": 0.1}),
        ({"output": {"transform": {}}}, {"output.transform": {}}),
        ({"output": {"transform": {"norm": None}}}, {"output.transform.norm": None}),
        (
            {"decoder": {"n_steps": 2, "segments": [{}, {"repeats": 3, "inject": {"kind": "add"}}]}},
            {"n_steps": 2, "segments.0": {}, "segments.1.repeats": 3, "segments.1.inject.kind": "add"},
        ),
        (
            {"decoder": {"relative": {"kind": "by_step", "pattern": [0], "settings": [{"kind": "none", "reach": 2}]}}},
            {
                "relative.kind": "by_step",
                "relative.settings.0.kind": "none",
                "relative.settings.0.reach": 2,
                "relative.pattern": [0],
            },
        ),
    ],
)
def test_what_differs_is_found_as_a_recipe_would_set_it(settings: dict[str, Any], expected: dict[str, Any]) -> None:
    found = dict(changed_settings(LanguageModelConfig.model_validate(settings)))
    assert {key.removeprefix("decoder.") for key in found} == {key.removeprefix("decoder.") for key in expected}
    assert list(found.values()) == list(expected.values())


def test_a_group_is_compared_with_what_it_is_by_default_there() -> None:
    assert list(changed_settings(HeadExpertAttentionConfig())) == []
    gate = HeadExpertAttentionConfig.model_validate({"kind": "head_experts", "gate": {"kind": "softmax"}})
    assert list(changed_settings(gate)) == [("gate.kind", "softmax")]


def test_what_is_left_out_of_a_group_is_only_that_it_is_there() -> None:
    stack = StackConfig(relative=RotaryConfig(fraction=0.5))
    but = {StackConfig: {"relative"}}
    assert list(changed_settings(stack, "decoder.", but=but)) == [("decoder.relative.fraction", 0.5)]
    of_subclass = {NormalisationConfig: {"eps"}}
    norm = {"norm": {"eps": 1e-6, "bias": False}}
    assert list(changed_settings(StackConfig.model_validate(norm), but=of_subclass)) == [("norm.bias", False)]
