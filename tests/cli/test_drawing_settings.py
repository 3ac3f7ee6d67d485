"""Every setting of a model that is not at its default is named in the drawing of its plan."""

from __future__ import annotations

import contextlib
import copy
import io
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from architectures import any_architecture, draws
from ostinato.budget import Assumptions, Budget, count_budget
from ostinato.cli.drawing import draw_recipe
from ostinato.cli.drawing_settings import drawn_settings, lines_of, other_settings
from ostinato.cli.output import READABLE_WIDTH
from ostinato.config.base import Config, all_problems
from ostinato.config.experts import RoutedConfig
from ostinato.config.lstm import LstmLanguageModelConfig, LstmSeq2SeqConfig
from ostinato.config.model import EncoderConfig, ModelConfig, Seq2SeqConfig
from ostinato.config.sub_layers import AttentionConfig
from ostinato.config.training import TrainingConfig
from ostinato.errors import ConfigError, Inert
from ostinato.experiments.compare.plans import PlannedRecipe
from ostinato.tasks.vocabulary import SizedModel

Path = tuple[str | int, ...]


def _drawn(config: ModelConfig, budget: Budget) -> str:
    sizes = [size for name in config.vocabulary_sizes(1, 1) if (size := getattr(config, name)) is not None]
    sized = SizedModel(config, sizes[0] if len(sizes) > 1 else None, sizes[-1] if sizes else 0, "given")
    with contextlib.redirect_stdout(io.StringIO()) as text:
        draw_recipe(PlannedRecipe("drawn", sized, TrainingConfig(), budget, (32, 32)))
    return text.getvalue()


def _paths(value: Any, path: Path = ()) -> Iterator[tuple[Path, bool]]:
    """Yield where settings and groups of settings are, and whether it is a group."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*path, key), isinstance(inner, dict)
            yield from _paths(inner, (*path, key))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            if isinstance(inner, dict):
                yield from _paths(inner, (*path, place))


def _without(config: ModelConfig, path: Path) -> ModelConfig | None:
    """Return the configuration as it is where a setting is not given; None where it must be given."""
    settings = copy.deepcopy(config.model_dump())
    group: Any = settings
    for part in path[:-1]:
        group = group[part]
    del group[path[-1]]
    try:
        return type(config).model_validate(settings)
    except (ConfigError, ValidationError):
        return None


def _meaning(config: ModelConfig) -> object:
    """Return what settings that are written differently may come to."""
    found: list[object] = [config.plans()]
    for stack in config.stacks().values():
        subs = [sub for _, sub in stack.sub_layers() if any(number is not None for number in sub.sets(stack.n_steps))]
        for part in (*subs, stack.sparse_layer):
            if isinstance(part, AttentionConfig):
                found += [part.head_width(config.d_model), part.n_key_heads]
            if isinstance(part, RoutedConfig) and part.has_router:
                found += [part.is_renormalised, part.router_width]
    return found


class _Checked:
    """Checks drawings.

    `seen`: settings that were seen to change what other lines draw, or that cannot be left out, by class and name.
    """

    def __init__(self) -> None:
        self.seen = set[tuple[str, str]]()

    def check(self, config: ModelConfig) -> None:
        budget = count_budget(config, Assumptions(4, 4))
        text = _drawn(config, budget)
        of_model, *of_stacks = re.split(r"^(encoder|decoder): ", text, flags=re.MULTILINE)
        sections = {name: " ".join(lines.split()) for name, lines in zip(of_stacks[::2], of_stacks[1::2], strict=True)}
        inert = [f"{problem.key}." for problem in all_problems(config) if isinstance(problem, Inert)]
        for path, is_group in _paths(config.model_dump()):
            key = ".".join(map(str, path))
            other = _without(config, path)
            if other == config or any(f"{key}.".startswith(one) for one in inert):
                continue
            name, _, own = key.partition(".")
            section = sections[name] if own and name in sections else " ".join(of_model.split())
            if own and name in sections:
                key = own
            if f" {key}=" in section or f" {key}." in section:
                continue
            owners = [owner for owner in self._owners(config, path) if path[-1] in drawn_settings()[owner]]
            if other is None:
                assert owners or path[-1] == "kind" or is_group, f"{key} is not named:\n{text}"
            if other is None or _drawn(other, budget) != text:
                self.seen |= {(owner.__name__, str(path[-1])) for owner in owners}
            else:
                assert _meaning(other) == _meaning(config), f"{key} is not drawn:\n{text}"

    @staticmethod
    def _owners(config: Config, path: Path) -> list[type[Config]]:
        group: Any = config
        for part in path[:-1]:
            group = group[part] if isinstance(part, int) else getattr(group, part)
        return [owner for owner in drawn_settings() if isinstance(group, owner)]


KINDS = st.sampled_from(["seq2seq", "language_model", "encoder"])


@draws(12)
@given(st.data())
def test_every_setting_that_is_not_at_its_default_is_named(data: st.DataObject) -> None:
    _Checked().check(data.draw(any_architecture(kind=data.draw(KINDS))))


_VALUES = {"share": "all", "gate_width": 32}
_LOOP = [{"n_steps": 6, "repeats": 2, "state": {"kind": "learned", "std": 0.5}, "inject": {"kind": "add"}}]
MADE: list[ModelConfig] = [
    LstmSeq2SeqConfig(source_vocab_size=9, target_vocab_size=8, n_layers=3, bidirectional=False, attention="dot"),
    LstmLanguageModelConfig(vocab_size=9, n_layers=3, embedding_scale=False),
    Seq2SeqConfig.model_validate(
        {
            "source_vocab_size": 9,
            "target_vocab_size": 8,
            "encoder": {"halting": {"kind": "length", "per_token": 2.0, "extra": 1.0}, "value_embeddings": _VALUES},
            "decoder": {"segments": _LOOP},
        }
    ),
    EncoderConfig.model_validate({"vocab_size": 9, "encoder": {"halting": {"kind": "act", "scope": "global"}}}),
]
"""What no model of the strategy has, or few."""


@pytest.mark.parametrize("config", MADE, ids=["lstm", "lstm_lm", "by_length", "act"])
def test_every_setting_of_models_that_are_not_drawn_at_random_is_named(config: ModelConfig) -> None:
    _Checked().check(config)


@pytest.mark.slow
def test_every_setting_that_other_lines_are_said_to_draw_is_seen_to_be_drawn() -> None:
    checked = _Checked()

    def check(data: st.DataObject) -> None:
        checked.check(data.draw(any_architecture(kind=data.draw(KINDS))))

    draws(200, quick=200)(given(st.data())(check))()
    for config in MADE:
        checked.check(config)
    said = {(owner.__name__, name) for owner, names in drawn_settings().items() for name in names}
    assert said - checked.seen == set()


PARTS = {
    "dense/qwen3-0.6b": [
        "other settings: dropout=0, init=normal, embedding_scale=false",
        "other settings: self_attention.qk_norm=rms, self_attention.bias=false, ffn.bias=false, norm.eps=1e-06, "
        "relative.base=1000000",
    ],
    "dense/modernbert-base": [
        "output.transform.bias=false, output.transform.norm.bias=false, output.bias=true",
        "norm.bias=false, norm.embedding=true, norm.first=false, relative.settings.0.kind=rotary, "
        "relative.settings.0.base=160000, relative.settings.1.kind=rotary, relative.settings.1.reach=64, "
        "relative.pattern=[0, 1, 1]",
    ],
    "dense/t5-small": ["embedding_scale=false, output.scale=true", "self_attention.scale=1, self_attention.bias=false"],
    "dense/albert-base": ["output.bias=true, d_embedding=128, n_token_types=2"],
    "looped/hrm-text-1b": ["self_attention.output_gate=true", "norm.weight=false, norm.final=false"],
    "looped/mor-360m": ["self_attention.bias=false, ffn.bias=false, halting.scale=0.1"],
    "dense/gpt2-124m": ["positions.max_length=1024"],
}


@pytest.mark.parametrize("recipe", PARTS)
def test_a_drawing_names_what_a_published_model_has_beside_its_plan(run: Any, recipe: str) -> None:
    drawn = " ".join(run("plan", recipe).out.split())
    for part in PARTS[recipe]:
        assert part in drawn


def test_a_model_of_default_settings_has_no_others() -> None:
    assert other_settings(EncoderConfig(vocab_size=9)) == {"": [], "encoder": []}


def test_other_settings_are_no_wider_than_a_screen() -> None:
    settings = [f"relative.settings.{place}.kind=rotary" for place in range(40)]
    lines = list(lines_of(settings, "  ", READABLE_WIDTH))
    assert max(map(len, lines)) <= READABLE_WIDTH
    assert " ".join(" ".join(lines).split()) == f"other settings: {', '.join(settings)}"
    assert list(lines_of([], "  ", READABLE_WIDTH)) == []
