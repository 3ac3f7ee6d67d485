"""Measures that name nothing are found before anything is trained, and those that name something are let through."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ostinato.errors import ConfigError
from ostinato.experiments.sweep.files import load_sweep, shipped_sweeps


def sweep_of(*measures: dict[str, Any]) -> dict[str, Any]:
    named = [{"name": f"m{i}", **measure} for i, measure in enumerate(measures)]
    arms = [{"name": "a"}, {"name": "b", "set": {"seed": 3}}]
    return {"name": "x", "recipe": "demo/transformer", "seeds": [1], "arms": arms, "measures": named}


@pytest.mark.parametrize(
    ("measure", "message"),
    [
        (
            {"kind": "result", "split": "test", "path": "exact_mach"},
            "measures.m0.path is 'exact_mach': there will be no 'exact_mach': algorithmic is scored by exact_match, "
            "token_accuracy_free; did you mean exact_match?",
        ),
        ({"kind": "result", "split": "test", "path": "bleu"}, "there will be no 'bleu'"),
        ({"kind": "result", "path": "training_second"}, "did you mean training_seconds?"),
        (
            {"kind": "evaluate", "split": "gen", "path": "loss"},
            "m0.split is 'gen': the task algorithmic has",
        ),
        ({"kind": "result", "split": "test", "path": "by.lenght.3.loss"}, "there will be no 'lenght': evaluation.by"),
        ({"kind": "result", "split": "test", "path": "by.length_bucket.3.los"}, "there will be no 'los'"),
        ({"kind": "result", "split": "test", "path": "halting.middle.mean"}, "the model has the stacks decoder, enc"),
        ({"kind": "evaluate", "split": "long", "path": "bleu"}, "there will be no 'bleu'"),
        ({"kind": "analysis", "study": "dept", "table": {"column": "x"}}, "m0.study is 'dept': must be one of"),
    ],
)
def test_a_measure_that_names_nothing_is_refused_once(measure: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_sweep(sweep_of(measure))
    assert message in str(caught.value)
    assert len(caught.value.problems) == 1, "of two arms"


def test_a_measure_that_names_something_is_let_through() -> None:
    sweep = load_sweep(
        sweep_of(
            {"kind": "result", "split": "test", "path": "by.*.*.exact_match"},
            {"kind": "result", "split": "test", "path": "macro.length_bucket.loss"},
            {"kind": "result", "split": "test", "path": "halting.encoder.mean"},
            {"kind": "result", "path": "splits.test.loss"},
            {"kind": "evaluate", "split": "long", "path": "bleu", "metrics": ["bleu"]},
            {"kind": "budget"},
        )
    )
    assert [measure.name for measure in sweep.measures] == [f"m{i}" for i in range(6)]


@pytest.mark.parametrize("name", shipped_sweeps())
def test_shipped_sweeps_measure_what_there_will_be(name: str, tmp_path: Path) -> None:
    inputs = {}
    for own in re.findall(r"input:(\w+)", shipped_sweeps()[name].read_text(encoding="utf-8")):
        inputs[own] = str(tmp_path / f"{own}.jsonl")
        Path(inputs[own]).write_text('{"text": "a b", "label": "x"}\n', encoding="utf-8")
    assert load_sweep(name, inputs).measures
