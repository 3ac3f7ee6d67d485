from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="memory is read as Linux tells it")
def test_a_small_text_takes_every_step_and_little_memory(
    script: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, arguments = tmp_path / "rows.jsonl", ["--gigabytes", "0.002", "--tokenizer", "words"]
    monkeypatch.setattr(sys, "argv", ["data_memory.py", *arguments, "--folder", str(tmp_path), "--out", str(out)])
    script("data_memory").main()
    rows = {row["step"]: row for row in map(json.loads, out.read_text(encoding="utf-8").splitlines())}
    assert list(rows) == ["pack", "model", "first", "second", "epoch"]
    assert all(row["bytes"] >= 2_000_000 for row in rows.values())
    assert all(row["peak_mb"] >= max(row["peak_private_mb"], row["peak_mapped_mb"]) > 0 for row in rows.values())
    assert rows["pack"]["seconds_to_first_update"] is None
    for name in ("first", "second"):
        assert 0 < rows[name]["seconds_to_first_update"] <= rows[name]["seconds"]
        assert rows[name]["above_model_mb"] < 100
    epoch = rows["epoch"]
    assert epoch["n_labels"] == epoch["n_words"] + epoch["n_lines"]
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]  # text, packs and runs are deleted
