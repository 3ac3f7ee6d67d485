"""The decoding study: that it runs, whom it compares, and how it judges."""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from ostinato.kernels.native import library

Script = Callable[[str], ModuleType]


@pytest.mark.slow
def test_the_papers_models_are_timed_and_counted(
    script: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study, out = script("decode"), tmp_path / "decode"
    study.main(["--quick", "--threads", "1", "--studies", "papers", "--out", str(out)])
    rows = [json.loads(line) for line in out.with_suffix(".jsonl").read_text().splitlines()]
    timed = {row["name"] for row in rows if row["kind"] == "time"}
    assert timed == {"dense", "NoDec", "One Wide FFN", "universal", script("decode_report").HALF, "MoMHA + MoE"}
    macs = {row["name"]: row["per_target_token"] for row in rows if row["kind"] == "macs"}
    assert macs["universal"] == macs["dense"]
    assert macs["NoDec"] < macs["dense"]
    assert macs[script("decode_report").HALF] < macs["universal"]
    assert out.with_suffix(".md").read_text() in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ctranslate2") is None, reason="ctranslate2 is not installed")
def test_ctranslate2_gives_our_outputs_on_our_weights(script: Script) -> None:
    study = script("decode")
    args = study.arguments(["--quick", "--studies", "peers"])
    (cell,) = study.cells(args)
    present = [one for one in study.contestants(cell, torch.device("cpu")) if hasattr(one, "calls")]
    equal = [row for row in study.more(args, cell, present) if row["kind"] == "equal"]
    assert {row["phase"] for row in equal} == {"1:1", "3:2"}
    assert all(row["equal"] == row["sentences"] for row in equal)


@pytest.mark.slow
def test_the_parts_of_our_time_are_named_and_shown(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script("layers").importlib.util, "find_spec", lambda name: None)
    study, out, others = script("decode"), tmp_path / "decode", set[str]()

    def noted(operation: str, *given: object) -> str:
        part: str = script("decode_profile").purpose(operation, *given)
        if part == "other operations":
            others.add(operation)
        return part

    monkeypatch.setattr(study, "purpose", noted)
    given = ["--quick", "--threads", "1", "--studies", "peers", "--profile", "--without", "matmul limit"]
    study.main([*given, "--out", str(out)])
    rows = [json.loads(line) for line in out.with_suffix(".jsonl").read_text().splitlines()]
    assert {row["name"] for row in rows if row["kind"] == "time"} == {"ours"}
    for phase in ("1:1", "3:2"):
        shares = {row["part"]: row["share"] for row in rows if row["kind"] == "part" and row["phase"] == phase}
        kernels = {"sub-layers in one call"} if library() is not None else {"attention", "norms", "caches"}
        assert {"products", "scores and choices"} | kernels <= set(shares)
        assert sum(shares.values()) == pytest.approx(1.0)
    # What is left over is made room, changes of type and small arithmetic of masks; how long it takes is the machine's.
    known = ("mm", "linear", "attention", "softmax", "norm", "index", "gather", "topk", "sort", "cat", "relu", "gelu")
    assert others
    assert [name for name in others if any(part in name for part in known)] == []
    assert "Where the time of ours goes" in out.with_suffix(".md").read_text()


def test_targets_are_judged_against_the_faster_model_of_transformers(script: Script) -> None:
    report = script("decode_report")
    cell = {"study": "peers", "vocabulary": 2000, "loads": [[1, 1]], "target_length": 64}

    def row(name: str, seconds: float) -> dict[str, object]:
        times = {"seconds": [seconds] * 6, "is_disturbed": [False] * 6, "median_s": seconds}
        return {"kind": "time", "cell": cell, "phase": "1:1", "name": name, **times}

    rows = [row("ours", 0.9), row("HF Marian", 2.0), row("HF T5", 1.0), row("CTranslate2", 0.5)]
    first, second = report.verdicts([rows])
    assert (first.measured, first.word, first.note) == (pytest.approx(0.9), "missed", "HF T5")
    assert (second.measured, second.word) == (pytest.approx(1.8), "missed")
