"""The study of a GPU runs every part on a CPU, judges what it is given, and skips with one line where there is none."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).parents[2]
Script = Callable[[str], ModuleType]


@pytest.mark.slow
def test_every_part_runs_on_a_cpu(script: Script, tmp_path: Path) -> None:
    study = script("gpu")
    # A process of its own: torch cannot compile the checks of shapes that the suite puts around every call.
    command = [sys.executable, study.__file__, "--device", "cpu", "--tiny", "--minutes", "60", "--out", str(tmp_path)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for section in study.SECTIONS:
        rows = [json.loads(line) for line in (tmp_path / f"{section}.jsonl").read_text().splitlines()]
        timed = [row for row in rows if "median_s" in row]
        assert {row["name"] for row in timed} >= ({"ours", "ours, compiled"} if section == "compiled" else {"ours"})
        assert all(0 < row["low_s"] <= row["median_s"] <= row["high_s"] for row in timed)
        assert all(row["environment"]["device"] == "cpu" and row["peak_bytes"] >= 0 for row in timed)
        assert all(row["reason"].endswith("is not installed") for row in rows if "median_s" not in row)  # none failed
    assert "ours" in said


def test_who_fails_is_absent_and_a_table_is_kept_whatever_comes_after_it(
    script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    study = script("gpu")

    def compiled() -> None:
        raise RuntimeError("backend raised:\nno compiler")

    def tables(device: torch.device, *, tiny: bool) -> Iterator[tuple[str, Iterator[object]]]:
        plain = study.Contestant("ours", "ours", {"update": lambda: None})
        yield "one", iter([plain, study.Contestant("ours, compiled", "ours", {"update": compiled})])
        yield "none", iter([study.Contestant("ours, compiled", "ours", {"update": compiled})])
        raise SystemExit("a crash")

    monkeypatch.setattr(study, "SECTIONS", {"update": tables})
    with pytest.raises(SystemExit, match="a crash"):
        study.main(["--device", "cpu", "--tiny", "--out", str(tmp_path)])
    rows = [json.loads(line) for line in (tmp_path / "update.jsonl").read_text().splitlines()]
    assert [(row["section"], row["name"], row.get("reason")) for row in rows] == [
        ("one", "ours", None),
        ("one", "ours, compiled", "RuntimeError: backend raised: no compiler"),
        ("none", "ours, compiled", "RuntimeError: backend raised: no compiler"),
    ]


def test_what_is_not_done_in_time_is_said_to_be_absent_and_what_was_done_stays(script: Script, tmp_path: Path) -> None:
    study = script("gpu")
    (tmp_path / "update.jsonl").write_text("{}\n")  # of another time
    command = ["--device", "cpu", "--tiny", "--out", str(tmp_path), "--sections", "update", "experts", "--minutes", "0"]
    with pytest.raises(SystemExit, match="these sections ended early: update, experts"):
        study.main(command)
    for section in ("update", "experts"):
        [row] = [json.loads(line) for line in (tmp_path / f"{section}.jsonl").read_text().splitlines()]
        assert (row["kind"], row["name"], row["reason"]) == ("absent", section, "not done within 0 minutes")


def test_without_a_gpu_it_says_so_in_one_line(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    script("gpu").main([])
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("no GPU here")


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_without_a_gpu_its_tests_say_so_in_one_line() -> None:
    # -o: the environment that runs this is taken as it is, nothing is installed.
    make = ["make", "--no-print-directory", "-o", f"{sys.prefix}/dev", f"VENV={sys.prefix}", "DEVICE=cuda", "test-gpu"]
    no_gpu = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    found = subprocess.run(make, cwd=ROOT, env=no_gpu, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr[-2000:]
    [line] = found.stdout.splitlines()
    assert line.startswith("no GPU here")


def test_goals_are_judged_by_the_best_peer_and_by_the_ideal(script: Script) -> None:
    def row(section: str, name: str, role: str, seconds: float) -> dict[str, object]:
        return {"section": section, "name": name, "role": role, "median_s": seconds}

    judged = script("gpu").judged
    rows = [row("update", *one) for one in (("ours", "ours", 1.2), ("ours, compiled", "ours", 1.1), ("A", "peer", 1.0))]
    verdict = judged([*rows, row("update", "B", "peer", 2.0)])
    assert (verdict["ratio"], verdict["holds"]) == (pytest.approx(1.1), True)
    verdict = judged([row("experts 8:2", "ours", "ours", 1.3), row("experts 8:2", "dense", "dense", 1.0)])
    assert (verdict["at_most"], verdict["holds"]) == (1.25, False)
    rows = [row("halting, update", "ours", "ours", 0.8), row("halting, update", "nobody halted", "reference", 1.0)]
    assert judged(rows)["ratio"] == pytest.approx(0.8 / 0.75)
    assert judged([row("decoding, batch 1", "ours", "ours", 1.0)]) is None
    rows = [row("halting, update", "nobody halted", "reference", 1.0)]
    assert judged(rows) is None  # ours has failed
