"""Tuning a run's threshold on the command line, and the commands that use what was chosen."""

from __future__ import annotations

import errno
import json
import shutil
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

from halting_runs import halting_run, plain_run
from ostinato.models import build_model
from ostinato.tasks.recipes import load_recipe
from ostinato.tasks.vocabulary import size_model

FAST = ["--thresholds", "0.2,0.6", "--metric", "token_accuracy", "--max-drop", "1", "--device", "cpu"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return halting_run(tmp_path_factory.mktemp("halting") / "run")


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.mark.slow
def test_a_table_names_the_choice_and_what_was_written(run, folder: Path) -> None:
    outcome = run("tune-threshold", folder, *FAST)
    assert outcome.code == 0
    rows = [" ".join(line.split()) for line in outcome.out.splitlines()]
    heading = "threshold token_accuracy encoder skipped decoder skipped MACs of full depth seconds"
    assert heading in rows
    assert [row.split()[0] for row in rows if row.split()[:1] in (["trained"], ["0.6"], ["0.2"])] == [
        *("trained", "0.6", "0.2")
    ]
    assert any(row.startswith("0.2 * ") for row in rows)
    assert any(row.startswith("oracle (no bound) ") for row in rows)  # stick-breaking mixes rounds
    assert any(row.startswith("chosen: 0.2, with token_accuracy") for row in rows)
    for name in ("halting-threshold.json", "threshold-curve.json", "threshold-curve.svg", "threshold-curve.png"):
        assert f"wrote {folder / name}" in rows


@pytest.mark.slow
def test_json_holds_the_curve_and_the_choice(run, folder: Path) -> None:
    found = json.loads(run("tune-threshold", folder, *FAST, "--max-examples", 5, "--json").out)
    assert (found["split"], found["n"], found["chosen"]["threshold"]) == ("dev", 5, 0.2)
    assert [point["threshold"] for point in found["points"]] == [None, 0.6, 0.2]
    assert found["points"][0].keys() >= {"score", "skipped", "macs", "seconds", "thresholds"}
    assert found["files"][0] == str(folder / "halting-threshold.json")


@pytest.mark.slow
def test_evaluate_uses_the_choice_and_says_so_unless_told_otherwise(run, folder: Path) -> None:
    run("tune-threshold", folder, *FAST)
    short = ["evaluate", folder, "--split", "test", "--device", "cpu", "--max-examples", 4]
    (tuned,) = json.loads(run(*short, "--json").out).values()
    (trained,) = json.loads(run(*short, "--json", "--halting-threshold", "trained").out).values()
    (given,) = json.loads(run(*short, "--json", "--halting-threshold", "0.4").out).values()
    assert [r["halting_threshold_from"] for r in (tuned, trained, given)] == ["tuned", "trained", "given"]
    assert tuned["halting_threshold"] == pytest.approx({"encoder": 0.2, "decoder": 0.2})
    assert trained["halting_threshold"] == pytest.approx({"encoder": 0.9, "decoder": 0.95})
    assert tuned["macs"]["realised"] < given["macs"]["realised"] < trained["macs"]["realised"]
    out = run(*short).out
    assert "test: halting threshold tuned after training (--halting-threshold trained: as trained)" in out
    assert "macs.realised" in out
    assert "test: halting threshold trained" in run(*short, "--halting-threshold", "trained").out


@pytest.mark.slow
def test_generate_uses_the_choice_and_says_so_beside_its_output(
    run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def generate(*options: object) -> tuple[str, str]:
        monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(b"1 2 3\n4 5\n")))
        outcome = run("generate", folder, "--device", "cpu", *options)
        assert outcome.code == 0
        return outcome.out, outcome.err

    before, silence = generate()
    assert silence == ""
    run("tune-threshold", folder, *FAST)
    out, err = generate()
    assert err == "halting threshold 0.2, tuned after training (--halting-threshold trained: as trained)\n"
    assert len(out.splitlines()) == 2
    assert generate("--halting-threshold", "trained") == (before, "")


@pytest.mark.slow
def test_comparing_runs_says_that_a_tuned_threshold_was_used(run, folder: Path) -> None:
    run("tune-threshold", folder, *FAST)
    outcome = run("compare", folder, folder, "--split", "test", "--device", "cpu", "--samples", 100)
    assert outcome.code == 0
    assert outcome.err.count("at the halting threshold that was tuned for the run") == 2


@pytest.mark.parametrize("is_json", [False, True])
def test_what_was_measured_is_shown_where_it_cannot_be_written(
    run, folder: Path, monkeypatch: pytest.MonkeyPatch, is_json: bool
) -> None:
    def full(path: Path, content: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("ostinato.experiments.compare.thresholds.write_json", full)
    outcome = run("tune-threshold", folder, *FAST, "--max-examples", 3, *["--json"] * is_json)
    assert outcome.code == 1
    assert outcome.err.startswith(f"{folder / 'threshold-curve.json'}: No space left on device; the disk is full")
    if is_json:
        found = json.loads(outcome.out)
        assert ([point["threshold"] for point in found["points"]], found["files"]) == ([None, 0.6, 0.2], [])
    else:
        assert any(line.split()[:2] == ["0.2", "*"] for line in outcome.out.splitlines())
        assert "chosen: " not in outcome.out  # nothing was stored that evaluate could use


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--thresholds", "0.5,high"], "'0.5,high' is no list of numbers: 0.9,0.5"),
        (["--thresholds", "0.5,2"], "thresholds is 2.0: must lie in [0, 1]"),
        (["--max-drop", "-1"], "max_drop is -1.0: must be at least 0"),
        (["--split", "gen"], "split is 'gen': the task algorithmic has the splits train, dev, test"),
        (["--metric", "loss"], "metric is 'loss': must be one of token_accuracy"),
    ],
)
def test_wrong_use_is_told_with_what_is_valid(run, folder: Path, options: list[str], reason: str) -> None:
    outcome = run("tune-threshold", folder, "--device", "cpu", *options)
    assert outcome.code == 2
    assert reason in " ".join(outcome.err.split())
    assert not (folder / "halting-threshold.json").exists()


def test_the_help_names_the_rules_that_no_criterion_replaces(run) -> None:
    told = " ".join(run("tune-threshold", "--help").out.split())
    for kind in ("select", "token_choice"):
        stacks = [
            f"model.{stack}.{key}" for stack in ("encoder", "decoder") for key in ("n_steps=3", f"halting.kind={kind}")
        ]
        model = build_model(size_model(load_recipe("digits/universal", stacks), source=14, target=14).model)
        assert kind in told
        assert model.possible_criteria() == []


@pytest.mark.slow
def test_a_threshold_that_is_none_is_told(run, folder: Path, tmp_path: Path) -> None:
    outcome = run("evaluate", folder, "--split", "test", "--halting-threshold", "low")
    assert (outcome.code, "'low' must be a number in [0, 1], or trained" in outcome.err) == (2, True)
    plain = plain_run(tmp_path / "plain")
    outcome = run("tune-threshold", plain, "--device", "cpu")
    assert outcome.code == 2
    assert f"no token of {plain} can halt by a threshold, so that there is none to choose" in outcome.err
