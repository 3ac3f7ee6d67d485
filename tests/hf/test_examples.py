"""The scripts in examples/ run offline and print what they are for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="needs the extra hf")
pytest.importorskip("accelerate", reason="needs the extra hf")

EXAMPLES = Path(__file__).parents[2] / "examples"
EXPECTED = {
    "serve_with_transformers": "4 ['",
    "train_with_trainer": "[5, 6, 7, 8, 9, 10, 11]",
    "loop_a_llama": "healed ",
    "score_with_lm_eval": "3 rounds: lm-eval ",
}


@pytest.mark.parametrize("name", [*EXPECTED, "onnx_in_ten_lines"])
def test_an_example_is_short(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text(encoding="utf-8").splitlines()) < 40


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    if name == "score_with_lm_eval":
        pytest.importorskip("lm_eval", reason="needs the extra lm-eval")
    file = EXAMPLES / f"{name}.py"
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(file), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stderr
    assert EXPECTED[name] in done.stdout
    if name == "score_with_lm_eval":
        for line in done.stdout.splitlines():
            if "rounds: lm-eval" in line:
                theirs, ours = (part.rstrip(",").split()[-1] for part in line.split(", "))
                assert theirs == ours
    if name == "loop_a_llama":
        found = dict(line.split() for line in done.stdout.splitlines() if line.startswith(("healed ", "looped ")))
        assert float(found["healed"]) < float(found["looped"])
        again = [sys.executable, str(file), str(tmp_path / "new" / "again"), str(tmp_path / "out" / "llama")]
        done = subprocess.run(again, capture_output=True, text=True, timeout=600, env=environment)
        assert done.returncode == 0, done.stderr
        assert dict(line.split() for line in done.stdout.splitlines())["healed"] == found["healed"], "of a MODEL"
