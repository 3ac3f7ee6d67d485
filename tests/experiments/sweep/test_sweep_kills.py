from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("killable_sweep.py")
FOLDER = "sweeps/killed"

pytestmark = pytest.mark.skipif(not hasattr(os, "fork") or not Path("/proc/self/stat").exists(), reason="needs Linux")


def run_and_kill(
    how: str, folder: Path, n_kills: int, seed: int, n_updates: int = 40, n_seeds: int = 2
) -> dict[str, Any]:
    command = [sys.executable, str(PROGRAM), how, str(folder), *map(str, (n_kills, seed, n_updates, n_seeds))]
    found = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert found.returncode == 0, found.stderr
    report: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    assert set(report["codes"]) == {0}, [path.read_text() for path in folder.glob("*.log")]
    assert [kill["code"] for kill in report["kills"]] == [-9] * n_kills
    return report


def check_same_results(folder: Path, n_runs: int = 6) -> None:
    undisturbed = folder / "undisturbed"
    written = (undisturbed / FOLDER / "results.jsonl").read_bytes()
    assert len(written.splitlines()) == n_runs
    runs = sorted(path.parent.name for path in undisturbed.glob("*/recipe.yaml"))
    stores = list(folder.glob("killed-[0-9]"))
    assert stores
    for killed in stores:
        assert (killed / FOLDER / "results.jsonl").read_bytes() == written
        assert sorted(path.parent.name for path in killed.glob("*/recipe.yaml")) == runs
        for run in runs:
            assert (killed / run / "metrics.jsonl").read_bytes() == (undisturbed / run / "metrics.jsonl").read_bytes()
        assert not list(killed.rglob(".partial-*"))


@pytest.mark.slow
def test_a_sweep_that_is_killed_and_started_again_ends_with_the_same_results(tmp_path: Path) -> None:
    report = run_and_kill("fork", tmp_path, n_kills=1, seed=3, n_updates=9, n_seeds=1)
    assert report["kills"][0]["finished"] < 3
    check_same_results(tmp_path, n_runs=3)


@pytest.mark.slow
def test_five_kills_of_the_command_leave_no_trace_in_the_results_and_no_worker_behind(tmp_path: Path) -> None:
    report = run_and_kill("command", tmp_path, n_kills=5, seed=5)
    assert max(report["outlived"]) < 1
    check_same_results(tmp_path)


@pytest.mark.slow
def test_kills_at_many_random_moments_leave_no_trace_in_the_results(tmp_path: Path) -> None:
    run_and_kill("fork", tmp_path, n_kills=8, seed=1, n_updates=24)
    check_same_results(tmp_path)
