"""Several `ostinato train` that start together: no two write into one directory, and no run is written by two."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from ostinato.tasks.recipes import load_recipe

TINY = [
    *("digits/transformer", "task.n_train=60", "task.n_eval=8", "training.n_updates=6", "training.device=cpu"),
    *("training.n_threads=1", "training.log_every=1", "training.save_every=1", "model.d_model=16"),
    *("decoding.max_length=4", "decoding.max_length_ratio=0"),
]


def together(folder: Path, commands: Sequence[Sequence[str]]) -> list[tuple[int, str]]:
    """Return exit code and standard error of `ostinato` commands that run at the same time in a folder."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OSTINATO_CACHE": str(folder / "cache")}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "ostinato", *command],
            cwd=folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for command in commands
    ]
    errors = [process.communicate(timeout=1800)[1] for process in started]
    return [(process.returncode, error) for process, error in zip(started, errors, strict=True)]


def check_run(run: Path, n_updates: int = 6) -> int:
    """Check that a run was written by one process, and return its seed."""
    results = json.loads((run / "results.json").read_text())
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [r["update"] for r in records if r["kind"] == "training"] == list(range(1, n_updates + 1))
    assert results["seed"] == load_recipe(run).seed
    assert results["n_updates"] == n_updates
    return int(results["seed"])


@pytest.mark.slow
@pytest.mark.parametrize("burst", range(10))
def test_six_trainings_into_the_default_directory_are_six_runs(tmp_path: Path, burst: int) -> None:
    seeds = [str(seed) for seed in range(6 * burst, 6 * burst + 6)]
    ended = together(tmp_path, [["train", *TINY, f"seed={seed}"] for seed in seeds])
    assert [code for code, _ in ended] == [0] * 6, ended
    runs = sorted((tmp_path / "runs").iterdir())
    assert len(runs) == 6
    assert sorted(str(check_run(run)) for run in runs) == sorted(seeds)


@pytest.mark.slow
def test_of_two_that_train_or_resume_one_run_one_is_told_who_is_at_work(tmp_path: Path) -> None:
    run = ["--run-dir", "run"]
    for commands in (
        [["train", *TINY, "seed=1", *run], ["train", *TINY, "seed=2", *run]],
        [["train", "run", "--resume", "training.n_updates=40"]] * 2,
    ):
        ended = together(tmp_path, commands)
        assert sorted(code for code, _ in ended) == [0, 2], ended
        (message,) = [error for code, error in ended if code]
        assert "is at work on this run" in message or "already holds a run" in message
        check_run(tmp_path / "run", 40 if "--resume" in commands[0] else 6)
