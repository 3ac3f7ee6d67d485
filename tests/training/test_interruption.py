from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import last_checkpoint, weights

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the killed sessions are forked processes")


def _run(folder: Path, n_updates: int, n_kills: int, n_in_save: int, seed: int) -> list[dict[str, Any]]:
    """Return how every session of the killed run ended, the last one undisturbed."""
    script = Path(__file__).parent / "killable_run.py"
    arguments = [str(folder), *map(str, (n_updates, n_kills, n_in_save, seed))]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script), *arguments], capture_output=True, text=True, timeout=300, env=environment
    )
    assert done.returncode == 0, done.stderr
    report: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return report


def _assert_equal_runs(
    folder: Path, report: list[dict[str, Any]], n_updates: int, n_kills: int, n_in_save: int
) -> None:
    *kills, last = report
    assert [kill["code"] for kill in kills] == [-9] * n_kills
    assert sum(kill["wait"] == "saving" for kill in kills) == n_in_save
    assert last == {"wait": "ended", "code": 0, "saved": n_updates}
    saved = [kill["saved"] for kill in report]
    assert saved[0] > 0
    assert all(earlier < later for earlier, later in itertools.pairwise(saved)), saved
    undisturbed, killed = folder / "undisturbed", folder / "killed"
    assert weights(killed) == weights(undisturbed)
    for name in ("metrics.jsonl", "recipe.yaml", "data.json", "checkpoints/best.json", "checkpoints/last.json"):
        assert (killed / name).read_bytes() == (undisturbed / name).read_bytes(), name
    # The optimiser's state and the random states too: not only the past but the future would be the same.
    name = "state.safetensors"
    assert (last_checkpoint(killed) / name).read_bytes() == (last_checkpoint(undisturbed) / name).read_bytes()
    left, expected = (sorted(p.name for p in (run / "checkpoints").iterdir()) for run in (killed, undisturbed))
    assert left == expected
    scores = [json.loads((run / "results.json").read_text())["splits"]["test"] for run in (killed, undisturbed)]
    for result in scores:
        del result["seconds"], result["decoding_seconds"]
    assert scores[0] == scores[1]


def test_a_run_killed_once_ends_like_an_undisturbed_one_bit_for_bit(tmp_path: Path) -> None:
    report = _run(tmp_path, n_updates=8, n_kills=1, n_in_save=1, seed=1)
    _assert_equal_runs(tmp_path, report, 8, 1, 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
def test_a_run_killed_twelve_times_ends_like_an_undisturbed_one_bit_for_bit(tmp_path: Path, seed: int) -> None:
    report = _run(tmp_path, n_updates=90, n_kills=12, n_in_save=4, seed=seed)
    _assert_equal_runs(tmp_path, report, 90, 12, 4)
