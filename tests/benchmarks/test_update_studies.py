"""The studies of updates and of start-up run, count what they say they count, and judge what they measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

Script = Callable[[str], ModuleType]
CPU = torch.device("cpu")


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def macs(call: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops() // 2


@pytest.mark.slow
def test_the_study_of_updates_runs_without_peers_and_names_them(
    script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(script("layers").importlib.util, "find_spec", lambda name: None)
    study = script("train_step")
    monkeypatch.setattr("ostinato.kernels.large_products.has_slow_products", lambda: True)
    study.main(["--quick", "--threads", "1", "--dropouts", "0.1", "--profile", "--out", str(tmp_path / "x")])
    rows = rows_of(tmp_path / "x.jsonl")
    absent = {row["name"]: row["reason"] for row in rows if row["kind"] == "absent"}
    assert set(absent) == {"torch.nn", "HF Bart", "HF Marian", "HF T5", "x-transformers"}
    assert absent["HF T5"] == "transformers is not installed"
    timed = {(row["cell"]["family"], row["name"]) for row in rows if row["kind"] == "time"}
    assert timed == {
        ("dense", "matrix products"),
        ("dense", "ours"),
        ("dense", "ours, torch's products"),
        ("dense", "ours, torch's draws"),
        ("sparse", "ours"),
        ("sparse", "ours, sparse universal"),
    }
    products = {
        row["direction"]: row["operations"]
        for row in rows
        if row["kind"] == "part" and row["cell"]["family"] == "dense" and row["part"] == "matrix products"
    }
    # A product has two gradients, however they are computed.
    assert products["backward"] == 2 * products["forward"] > 0
    assert all(row["live_bytes"] > 0 for row in rows if row["kind"] == "memory")
    verdicts = [row["target"] for row in rows if row["kind"] == "verdict"]
    assert verdicts == [
        "dense, dropout 0.1: ours / matrix products",
        "sparse, dropout 0.1: time / dense",
        "sparse, dropout 0.1: memory / dense",
    ]
    assert "Where the time of ours, sparse universal goes" in capsys.readouterr().out


@pytest.mark.slow
def test_runs_that_are_read_back_stand_beside_each_other(script: Script, tmp_path: Path) -> None:
    study = script("train_step")
    study.main(["--quick", "--threads", "1", "--dropouts", "0", "--families", "sparse", "--out", str(tmp_path / "one")])
    study.main(["--read", *[str(tmp_path / "one.jsonl")] * 2, "--out", str(tmp_path / "two")])
    text = (tmp_path / "two.md").read_text()
    assert " / " in next(line for line in text.splitlines() if line.startswith("| ours, sparse universal |"))


@pytest.mark.slow
def test_a_loop_of_ones_own_is_timed_beside_train_and_a_plain_one(script: Script, tmp_path: Path) -> None:
    study = script("train_step")
    given = ["--quick", "--threads", "1", "--dropouts", "0", "--families", "loops", "--fresh-memory"]
    study.main([*given, "--out", str(tmp_path / "x")])
    timed = [row["name"] for row in rows_of(tmp_path / "x.jsonl") if row["kind"] == "time"]
    assert timed == ["matrix products", "ours", study.OWN_LOOP, study.PLAIN_LOOP]


def test_a_loop_of_ones_own_has_the_loss_and_the_gradient_of_a_plain_one(script: Script) -> None:
    study = script("train_step")
    sizes = {"n_steps": 1, "d_model": 16, "d_ff": 24, "n_heads": 2, "vocabulary": 20, "n_sentences": 3}
    cell = study.Cell("loops", 0.0, **sizes, source_length=5, target_length=4)
    batch = study.random_batch(study.model(cell), cell.workload, 1)
    own = study.build_model(study.model(cell))
    found = []
    for loss_of in (study._own_loss, study._plain_loss):
        loss = loss_of(own, batch)
        found.append([loss, *torch.autograd.grad(loss, list(own.parameters()))])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_the_limit_has_the_matrix_products_of_our_update(script: Script) -> None:
    study = script("train_step")
    sizes = {"n_steps": 2, "d_model": 16, "d_ff": 24, "n_heads": 2, "vocabulary": 20, "n_sentences": 3}
    cell = study.Cell("dense", 0.1, **sizes, source_length=5, target_length=4)
    update = script("update_peers").UPDATE
    ours = macs(study.ours(cell, CPU).calls[update])
    assert macs(study.limit(cell, CPU).calls[update]) == ours


def test_the_sparse_model_has_as_many_active_numbers_a_token(script: Script) -> None:
    study = script("train_step")
    cell = study.Cell("sparse", 0.1)
    dense, sparse = study.model(cell), study.model(cell, sparse=True)
    ffn, attention = sparse.encoder.ffn, sparse.encoder.self_attention
    assert ffn.top_k * ffn.d_ff == dense.encoder.ffn.d_ff
    assert attention.top_k * attention.n_heads == dense.encoder.self_attention.n_heads


def test_torchs_model_is_as_large_as_ours(script: Script) -> None:
    study, peers = script("train_step"), script("update_peers")
    sizes = {"n_steps": 1, "d_model": 16, "d_ff": 24, "n_heads": 2, "vocabulary": 20, "n_sentences": 3}
    cell = study.Cell("dense", 0.1, **sizes, source_length=5, target_length=4)
    batch = study.random_batch(study.model(cell), cell.workload, 1)
    theirs = sum(parameter.numel() for parameter in peers.torch_nn(cell, batch).parameters)
    ours = sum(parameter.numel() for parameter in study.ours(cell, CPU).parameters)
    # torch ends each stack with a norm more, gain and bias.
    assert theirs - ours == 2 * 2 * 16


def row(name: str, seconds: float) -> dict[str, Any]:
    many = {"seconds": [seconds] * 5, "is_disturbed": [False] * 5}
    return {"kind": "time", "name": name, "median_s": seconds, "low_s": seconds, "high_s": seconds} | many


def test_start_up_is_judged_by_seconds_and_against_the_script(script: Script) -> None:
    study = script("startup")
    run = [row(study.HELP, 0.31), row(study.IMPORT, 0.05), row(study.SCRIPT, 2.0), row(study.TRAIN, 2.1)]
    found = {verdict.target.split(":")[0]: (verdict.measured, verdict.word) for verdict in study.verdicts([run])}
    assert found["ostinato --help"] == (0.31, "missed")
    assert found["import ostinato"] == (0.05, "holds")
    assert found["start to the end of the first update"] == (pytest.approx(1.05), "holds")
    other = [row(study.SCRIPT, 2.0), row(study.TRAIN, 2.4)]
    judged = study.verdicts([run, other, run])[-1]
    assert (judged.measured, judged.word) == (pytest.approx(1.05), "not decided"), "a run lies above the bound"
    assert judged.note == "runs: 1.05, 1.20, 1.05"


def test_a_process_that_ends_early_says_so(script: Script) -> None:
    study = script("startup")
    study.until(["-c", "print('ready now')\nimport time\ntime.sleep(60)"], "ready")
    with pytest.raises(RuntimeError, match="ended with 3: no"):
        study.until(["-c", "print('no')\nraise SystemExit(3)"], "ready")


@pytest.mark.slow
def test_the_command_and_the_script_reach_their_first_updates(script: Script, tmp_path: Path) -> None:
    study = script("startup")
    calls = study.calls(tmp_path, "quick", 1)
    assert {study.SCRIPT, study.TRAIN} <= calls.keys()
    for call in calls.values():  # one that ends before its line is an error
        call()


@pytest.mark.slow
def test_the_document_shows_what_its_results_say(script: Script, tmp_path: Path) -> None:
    document, study = script("speed_document"), script("train_step")
    (tmp_path / "docs" / "results").mkdir(parents=True)
    out = tmp_path / "docs" / "results" / "train-step"
    study.main(["--quick", "--threads", "1", "--dropouts", "0", "--families", "sparse", "--out", str(out)])
    text = "# Speed\n\n<!-- begin train-step -->\nold\n<!-- end train-step -->\nAfter.\n"
    (tmp_path / "docs" / "speed.md").write_text(text)
    with pytest.raises(SystemExit, match="not what its results say"):
        document.main(["--check", "--root", str(tmp_path)])
    document.main(["--root", str(tmp_path)])
    document.main(["--check", "--root", str(tmp_path)])
    written = (tmp_path / "docs" / "speed.md").read_text()
    assert "old" not in written
    assert "| sparse, dropout 0: time / dense | 1.45 |" in written
    assert written.endswith("<!-- end train-step -->\nAfter.\n")


def test_the_tables_of_the_speed_document_are_up_to_date(script: Script) -> None:
    script("speed_document").main(["--check"])
