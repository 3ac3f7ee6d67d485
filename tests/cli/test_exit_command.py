"""Tokens that stop by a criterion, in the commands: of runs that were trained without halting."""

from __future__ import annotations

import json
import shutil
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

import ostinato
from halting_runs import DEEP, TINY
from ostinato.evaluation.threshold import read_curve, read_tuned
from ostinato.tasks.recipes import load_recipe
from ostinato.training import train

SHORT = ["--device", "cpu", "--max-examples", 6]
CHOOSE = ["--exit", "change", "--thresholds", "0.3,0.6", "--metric", "token_accuracy", "--max-drop", "1"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("looped") / "run"
    train(load_recipe("digits/universal", [*TINY, *DEEP]), folder)
    return folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.mark.slow
def test_evaluate_records_criterion_thresholds_depth_and_cost(run, folder: Path) -> None:
    short = ["evaluate", folder, "--split", "test", *SHORT]
    plain = json.loads(run(*short, "--json").out)["test"]
    assert "exit" not in plain
    assert "halting" not in plain
    found = json.loads(run(*short, "--json", "--exit", "change", "--halting-threshold", 0.3).out)["test"]
    both = {"encoder": False, "decoder": False}
    assert found["exit"] == {"criterion": "change", "scope": "token", "needs_predictions": both}
    assert found["halting_threshold"] == {"encoder": 0.3, "decoder": 0.3}
    assert found["halting_threshold_from"] == "given"
    assert found["depth"]["decoder"] < plain["depth"]["decoder"] == 4
    assert found["macs"]["realised"] < found["macs"]["full"] == plain["macs"]["full"]
    assert found["exact_match"] >= 0  # decoded, too
    first = json.loads(run(*short, "--json", "--exit", "change", "--halting-threshold", 0).out)["test"]
    once = json.loads(run(*short, "--json", "--n-steps", 1).out)["test"]
    assert first["loss"] == pytest.approx(once["loss"], rel=1e-6)
    assert first["exact_match"] == once["exact_match"]
    # Predictions are made after every round but the last, of a decoder's tokens only.
    never = json.loads(run(*short, "--json", "--exit", "margin", "--halting-threshold", 1).out)["test"]
    assert never["loss"] == pytest.approx(plain["loss"], rel=1e-6)
    assert never["macs"]["realised"] > never["macs"]["full"]
    assert never["halting_threshold"] == {"decoder": 1.0}
    out = run(*short, "--exit", "change", "--halting-threshold", 0.3).out
    assert "test: halting threshold given; tokens of the encoder and decoder stop by change" in out


def test_sentences_stop_together_where_tokens_see_each_other(run, folder: Path) -> None:
    short = ["evaluate", folder, "--split", "test", *SHORT, "--metric", "token_accuracy", "--json"]
    options = ["--exit", "change", "--exit-scope", "sequence", "--halting-threshold", 0.3]
    outcome = run("evaluate", folder, "--split", "test", *SHORT, "--json", *options)
    found = json.loads(outcome.out)["test"]
    assert found["exit"]["needs_predictions"] == {"encoder": False}
    assert set(found["halting"]) == {"encoder"}
    assert run(*short[:-1], "--exit-scope", "sequence").code == 2


def test_a_choice_is_stored_with_its_criterion_and_used(run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = json.loads(run("tune-threshold", folder, *CHOOSE, *SHORT, "--json").out)
    assert [point["threshold"] for point in found["points"]] == [None, 0.6, 0.3]
    assert found["points"][0]["skipped"] == {"encoder": 0.0, "decoder": 0.0}
    assert found["points"][0]["thresholds"] == {}
    assert found["points"][2]["skipped"]["encoder"] > 0
    assert (found["exit"], found["exit_scope"], found["chosen"]["threshold"]) == ("change", "token", 0.3)
    tuned, loaded = read_tuned(folder), ostinato.load(folder, device="cpu")
    assert tuned is not None
    assert (tuned.exit, tuned.threshold) == ("change", 0.3)
    assert loaded.halting_threshold_from == "tuned"
    assert (loaded.model.current_execution.exit, loaded.model.current_execution.halting_threshold) == ("change", 0.3)
    curve = read_curve(loaded)
    assert curve is not None
    assert curve.exit == "change"
    short = ["evaluate", folder, "--split", "test", *SHORT, "--json"]
    used = json.loads(run(*short).out)["test"]
    assert (used["exit"]["criterion"], used["halting_threshold_from"]) == ("change", "tuned")
    given = json.loads(run(*short, "--exit", "change", "--halting-threshold", 0.3).out)["test"]
    assert given["loss"] == used["loss"]
    trained = json.loads(run(*short, "--halting-threshold", "trained").out)["test"]
    assert "exit" not in trained
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(b"1 2 3\n4 5\n")))
    outcome = run("generate", folder, "--device", "cpu")
    assert outcome.code == 0
    assert len(outcome.out.splitlines()) == 2
    assert "halting threshold of change 0.3, tuned after training" in outcome.err


def test_generate_stops_by_a_criterion(run, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("1 2 3\n4 5\n", encoding="utf-8")
    options = ["--device", "cpu", "--max-length", 4]
    first = run("generate", folder, tmp_path / "lines", *options, "--exit", "certainty", "--halting-threshold", 1)
    plain = run("generate", folder, tmp_path / "lines", *options)
    assert first.code == plain.code == 0
    assert first.out == plain.out


@pytest.mark.slow
def test_an_oracle_is_evaluated_and_stands_beside_the_thresholds(run, folder: Path) -> None:
    short = ["evaluate", folder, "--split", "test", *SHORT]
    plain = json.loads(run(*short, "--json").out)["test"]
    found = json.loads(run(*short, "--json", "--oracle", "token").out)["test"]
    assert found["oracle"] == {"stack": "decoder", "scope": "token"}
    assert found["token_accuracy"] >= plain["token_accuracy"]
    assert "exact_match" not in found  # nothing is decoded
    assert found["macs"]["full"] == plain["macs"]["full"]
    assert (
        "test: every label in the first round of the decoder that has it right" in run(*short, "--oracle", "token").out
    )
    outcome = run(*short, "--oracle", "token", "--metric", "exact_match")
    assert (outcome.code, "oracle is 'token': reads the right answers" in outcome.err) == (2, True)
    assert "'batch' is not one of 'token', 'sequence'" in run(*short, "--oracle", "batch").err

    table = run("tune-threshold", folder, *CHOOSE, *SHORT).out
    assert any(line.split()[:1] == ["oracle"] for line in table.splitlines())
    curve = read_curve(ostinato.load(folder, device="cpu"))
    assert curve is not None
    assert curve.oracle is not None
    assert (curve.oracle_metric, curve.oracle.skipped["encoder"]) == ("token_accuracy", 0.0)
    assert curve.oracle.score >= curve.trained.score
    assert curve.oracle.macs["realised"] <= curve.trained.macs["realised"] == curve.trained.macs["full"]
    written = [*CHOOSE[:4], "--metric", "exact_match", "--max-drop", "1", *SHORT]
    assert "oracle (sequence_accuracy_forced)" in run("tune-threshold", folder, *written).out
    stored = json.loads((folder / "threshold-curve.json").read_text(encoding="utf-8"))
    without = {key: value for key, value in stored.items() if not key.startswith("oracle")}
    (folder / "threshold-curve.json").write_text(json.dumps(without), encoding="utf-8")  # as it was before oracles
    assert read_curve(ostinato.load(folder, device="cpu")).oracle is None  # type: ignore[union-attr]


@pytest.mark.slow
def test_comparing_counts_what_stopped_tokens_cost(run, folder: Path) -> None:
    run("tune-threshold", folder, *CHOOSE, *SHORT)
    outcome = run("compare", folder, folder, "--split", "test", "--device", "cpu", "--samples", 100, "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.err.count("at the halting threshold that was tuned for the run") == 2
    for row in json.loads(outcome.out):
        assert row["halting_threshold"] == {"encoder": 0.3, "decoder": 0.3}
        assert (row["halting_threshold_from"], row["exit"]["criterion"]) == ("tuned", "change")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--exit", "change"], "exit is 'change': needs a halting_threshold, in [0, 1]"),
        (["--exit", "gate", "--halting-threshold", 0.5], "exit is 'gate': must be one of change, cosine"),
        (["--exit", "change", "--halting-threshold", "trained"], "there is no trained threshold"),
        (["--halting-threshold", 0.5], "with exit they stop by a criterion: change, cosine"),
        (["--exit-scope", "batch"], "'batch' is not one of 'token', 'sequence'"),
        (["--exit-scope", "sequence"], "exit_scope is 'sequence': needs an exit"),
    ],
)
def test_wrong_use_is_told_with_what_is_valid(run, folder: Path, options: list[object], reason: str) -> None:
    outcome = run("evaluate", folder, "--split", "test", *SHORT, *options)
    assert outcome.code == 2
    assert reason in " ".join(outcome.err.split())


def test_tuning_without_halting_names_the_criteria(run, folder: Path) -> None:
    outcome = run("tune-threshold", folder, "--device", "cpu")
    assert outcome.code == 2
    told = " ".join(outcome.err.split())
    assert "--exit CRITERION stops tokens by change, cosine, agreement, certainty, settled, margin, stable" in told
    outcome = run("tune-threshold", folder, "--device", "cpu", "--exit", "gate")
    assert "exit is 'gate': must be one of change" in " ".join(outcome.err.split())


def test_a_model_without_rounds_has_no_exits(run, tmp_path: Path) -> None:
    recurrent = "model={kind: lstm_seq2seq, d_model: 8}"
    folder = tmp_path / "lstm"
    train(load_recipe("digits/universal", [*TINY, recurrent]), folder)
    outcome = run("evaluate", folder, "--split", "test", *SHORT, "--exit", "change", "--halting-threshold", 0.5)
    assert (outcome.code, "exit is 'change': this model has no rounds" in outcome.err) == (2, True)


@pytest.mark.slow
def test_analyses_of_depth_apply_to_a_run_whose_tokens_stop_by_a_criterion(run, folder: Path, tmp_path: Path) -> None:
    run("tune-threshold", folder, *CHOOSE, *SHORT)
    (folder / "threshold-curve.json").unlink()  # it is measured anew
    only = ["--only", "thresholds", "--only", "depth", "--only", "budget"]
    outcome = run("analyze", folder, *only, "--max-examples", 6, "--out", tmp_path / "out", "--device", "cpu")
    assert outcome.code == 0, outcome.err
    curve = json.loads(next((tmp_path / "out").glob("thresholds-*.json")).read_text(encoding="utf-8"))
    assert (curve["exit"], curve["points"][0]["threshold"]) == ("change", None)
    assert curve["points"][-1]["skipped"]["encoder"] > 0
    assert curve["oracle"]["score"] >= curve["points"][0]["score"]
    assert ">oracle<" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    depth = json.loads(next((tmp_path / "out").glob("depth-*.json")).read_text(encoding="utf-8"))
    assert depth["thresholds"] == {"encoder": 0.3, "decoder": 0.3}
