"""The study of a GPU runs every part on a CPU, judges what it is given, and skips with one line where there is none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

Script = Callable[[str], ModuleType]


@pytest.mark.slow
def test_every_part_runs_on_a_cpu(script: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = script("gpu")
    study.main(["--device", "cpu", "--tiny", "--out", str(tmp_path)])
    for section in study.SECTIONS:
        rows = [json.loads(line) for line in (tmp_path / f"{section}.jsonl").read_text().splitlines()]
        timed = [row for row in rows if "median_s" in row]
        assert {row["name"] for row in timed} >= {"ours"}
        assert all(0 < row["low_s"] <= row["median_s"] <= row["high_s"] for row in timed)
        assert all(row["environment"]["device"] == "cpu" and row["peak_bytes"] >= 0 for row in timed)
        assert all(row.get("reason") for row in rows if "median_s" not in row)  # who is absent says why
    assert "ours" in capsys.readouterr().out


def test_without_a_gpu_it_says_so_in_one_line(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    script("gpu").main([])
    [line] = capsys.readouterr().out.splitlines()
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
