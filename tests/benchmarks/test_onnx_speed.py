from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_every_call_is_timed_beside_ours(tmp_path: Path) -> None:
    for name in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(name, reason="needs the extra onnx")
    out = tmp_path / "rows.jsonl"
    sizes = ["--width", "32", "--rounds", "1", "--models", "looped", "--out", str(out)]
    program = Path(__file__).parents[2] / "benchmarks" / "onnx_speed.py"
    done = subprocess.run([sys.executable, str(program), *sizes], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = {(row["by"], row["call"]): row for row in map(json.loads, out.read_text().splitlines())}
    kinds = ("ours", "onnxruntime", "onnxruntime int8")
    assert found.keys() == {(by, call) for by in kinds for call in ("text", "token")}
    assert all(0 < row["least_ms"] <= row["median_ms"] <= row["most_ms"] for row in found.values())
    ours, plain, small = (found[by, "text"]["bytes"] for by in kinds)
    assert small < ours < plain < 1.2 * ours
