"""Looking inside a run on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import yaml

from halting_runs import plain_run


@pytest.mark.slow
def test_the_command_writes_what_applies_and_says_what_does_not(run, tmp_path: Path) -> None:
    folder = plain_run(tmp_path / "plain")
    outcome = run("analyze", folder, "--only", "spectra", "--only", "depth", "--device", "cpu", "--max-examples", 3)
    assert outcome.code == 0, outcome.err
    assert "made spectra" in outcome.out
    assert "left out depth: plain: no token of its model can halt" in outcome.out
    assert (folder / "analysis" / "report.html").is_file()
    outcome = run("analyze", folder, "--only", "spectra", "--device", "cpu", "--out", tmp_path / "out", "--json")
    found = json.loads(outcome.out)
    assert found["found"] == ["spectra"]
    assert all(Path(path).parent == tmp_path / "out" for path in found["files"])


def test_an_unknown_analysis_is_refused_before_anything_is_read(run, tmp_path: Path) -> None:
    outcome = run("analyze", tmp_path / "nowhere", "--only", "everything")
    assert outcome.code == 2
    assert outcome.err.startswith("only is 'everything': must be one of budget, learning, categories")


@pytest.mark.slow
def test_it_runs_on_as_many_threads_as_the_run_was_trained_with(run, tmp_path: Path) -> None:
    folder, before = plain_run(tmp_path / "plain"), torch.get_num_threads()
    path = folder / "recipe.yaml"
    recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    recipe["training"]["n_threads"] = before + 1
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    outcome = run("analyze", folder, "--only", "budget", "--device", "cpu", "--max-examples", 3)
    assert outcome.code == 0, outcome.err
    (found,) = (folder / "analysis").glob("budget-*.json")
    assert f"on CPU, {before + 1} threads" in json.loads(found.read_text(encoding="utf-8"))["note"]
    assert torch.get_num_threads() == before


@pytest.mark.slow
def test_the_example_that_is_shown_may_be_named(run, tmp_path: Path) -> None:
    folder = plain_run(tmp_path / "plain")
    few = ("--only", "attention-example", "--device", "cpu", "--max-examples", 3)
    outcome = run("analyze", folder, *few, "--example", 2)
    assert outcome.code == 0, outcome.err
    (found,) = (folder / "analysis").glob("attention-example-*.json")
    assert json.loads(found.read_text(encoding="utf-8"))["example"] == 1
    outcome = run("analyze", folder, *few, "--example", 4)
    assert outcome.code == 2
    assert outcome.err.startswith("example is 4: must be from 1 to 3, the examples that are read")
