"""The command under torchrun and `accelerate launch`: as users start it, on their machine's CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

TINY = [
    "task.n_train=40",
    "task.n_eval=8",
    "training.n_updates=4",
    "training.log_every=2",
    "training.device=cpu",
    "model.d_model=16",
]
TORCHRUN = ["torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
ACCELERATE = ["accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--main_process_port", "0"]


KILLED = [str(Path(__file__).parent / "killed_command.py")]


def _launch(
    launcher: list[str], *arguments: str, program: Sequence[str] = ("-m", "ostinato")
) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", *launcher, *program, "train", "digits/universal", *TINY, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=1800, env=environment)


@pytest.mark.parametrize("kind", ["none", "ddp", "fsdp"])
@pytest.mark.parametrize("launcher", [TORCHRUN, ACCELERATE], ids=["torchrun", "accelerate"])
def test_a_launcher_trains_one_run_in_two_processes_and_the_first_one_speaks(
    tmp_path: Path, launcher: list[str], kind: str
) -> None:
    if launcher is ACCELERATE:
        pytest.importorskip("accelerate")
    done = _launch(launcher, f"training.parallel.kind={kind}", "--run-dir", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("run directory:") == done.stdout.count("2 processes on cpu") == 1
    assert done.stdout.count("results:") == 1
    assert json.loads((tmp_path / "run" / "results.json").read_text(encoding="utf-8"))["processes"] == 2
    assert len((tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()) == 3


def test_a_directory_that_is_taken_ends_both_processes(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.yaml").write_text("name: taken\n", encoding="utf-8")
    done = _launch(TORCHRUN, "--run-dir", str(tmp_path / "run"))
    assert done.returncode != 0
    assert "already holds a run" in done.stderr
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["recipe.yaml"]


@pytest.mark.parametrize("kind", ["none", "ddp", "fsdp"])
def test_a_process_that_is_killed_ends_the_others_with_one_message_and_the_run_goes_on(
    tmp_path: Path, kind: str
) -> None:
    run = tmp_path / "run"
    settings = [f"training.parallel.kind={kind}", "training.save_every=2", "--run-dir", str(run)]
    done = _launch(TORCHRUN, *settings, program=KILLED)
    assert done.returncode != 0
    assert done.stderr.count("the other processes of this run cannot be reached") == 1
    assert "Signal 9 (SIGKILL)" in done.stderr  # the launcher says who failed first
    assert not (run / "results.json").exists()
    assert [path.name for path in (run / "checkpoints").glob("update-*")] == ["update-000002"]
    done = _launch(TORCHRUN, *settings, "--resume")
    assert done.returncode == 0, done.stderr
    results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    assert (results["n_updates"], results["processes"]) == (4, 2)
