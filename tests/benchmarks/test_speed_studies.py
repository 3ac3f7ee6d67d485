from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from ostinato.experiments.studies import decoding_study


def test_the_decoding_study_runs_from_the_command_line(
    script: Callable[[str], ModuleType], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script("decoding_speed").main(["--quick", "--threads", "1", "--out", str(tmp_path / "docs" / "speed")])
    said = capsys.readouterr().out
    assert "decoding, batch 3, beam 5: 2 rounds, about" in said
    rows = [json.loads(line) for line in (tmp_path / "docs" / "speed.jsonl").read_text().splitlines()]
    assert len(rows) == 2 * 5 + 2 * 2
    assert {row["environment"]["threads"] for row in rows} == {1}
    text = (tmp_path / "docs" / "speed.md").read_text()
    assert said.endswith(text + "\n")
    assert text.count("| one-wide |") == 2


def test_the_update_time_study_runs_from_the_command_line(
    script: Callable[[str], ModuleType], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "update"
    script("update_time_vs_depth").main(["--quick", "--recipe", "lm/transformer", "--figure", "--out", str(out)])
    rows = [json.loads(line) for line in out.with_suffix(".jsonl").read_text().splitlines()]
    assert [row["stacks"]["decoder"]["n_steps"] for row in rows] == [1, 2, 3]
    text = out.with_suffix(".md").read_text()
    assert text in capsys.readouterr().out
    assert "R^2 = " in text
    assert out.with_suffix(".png").stat().st_size > 1000
    assert out.with_suffix(".svg").exists()


def test_a_figure_needs_a_place(script: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        script("update_time_vs_depth").main(["--quick", "--figure"])
    assert stop.value.code == 2
    assert "--figure needs --out" in capsys.readouterr().err


def test_rounds_are_as_many_as_asked_for_or_fill_the_minutes(script: Callable[[str], ModuleType]) -> None:
    arguments, effort = script("decoding_speed").arguments, script("common").effort
    study = decoding_study([1, 64], 5, 20, 20, effort=effort(arguments(["--minutes", "2"]), most=15))
    assert script("common").plan(study) == "4 workloads in 2 minutes, unless 6 rounds of each take longer"
    assert effort(arguments(["--rounds", "7"]), most=15).n_rounds(1e9) == 7
    planned = effort(arguments(["--minutes", "2"]), most=15)
    assert (planned.n_rounds(10.0), planned.n_rounds(0.1), planned.n_rounds(1000.0)) == (11, 15, 6)
