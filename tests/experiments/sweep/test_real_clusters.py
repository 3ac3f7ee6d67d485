"""Sweeps on a Ray cluster of this machine, one of whose nodes is killed, and through submitit's local cluster."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tiny_sweeps import LONGER, LOSS, SEEN, Recorder, settings

from ostinato.cli.sweep import with_seeds
from ostinato.config.files import write_yaml
from ostinato.experiments.sweep import cluster_executor
from ostinato.experiments.sweep.choose import ExecutorChoice
from ostinato.experiments.sweep.files import load_sweep
from ostinato.experiments.sweep.rows import results_folder
from ostinato.experiments.sweep.schedule import run_sweep
from ostinato.experiments.sweep.watch import Event

PROGRAM = Path(__file__).with_name("ray_cluster_sweep.py")
RESULTS = "sweeps/tiny/results.jsonl"

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs pip install 'ostinato[ray]'")
needs_submitit = pytest.mark.skipif(
    importlib.util.find_spec("submitit") is None, reason="needs pip install 'ostinato[slurm]'"
)
pytestmark = pytest.mark.slow


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A sweep of two arms and two seeds, whose runs save every 20 of 400 updates: with fewer, a run whose node is to be
    killed after 50 may be over before it is."""
    changes = ["training.n_updates=400", "training.evaluate_every=200", "training.save_every=20"]
    content = settings(measures=[LOSS, SEEN, LONGER])
    write_yaml(content | {"overrides": [*content["overrides"], *changes]}, tmp_path / "clusters.yaml")
    return tmp_path / "clusters.yaml"


@pytest.fixture
def expected(file: Path, tmp_path: Path) -> bytes:
    """What one process finds."""
    run_sweep(load_sweep(file), tmp_path / "plain")
    return (tmp_path / "plain" / RESULTS).read_bytes()


@pytest.fixture
def ray_folder() -> Iterator[Path]:
    """A folder for Ray's files: the names of sockets are short."""
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def run_in_session(command: list[str], environment: dict[str, str], timeout: float) -> tuple[int, str, str]:
    """Run a program in a session of its own, and end all processes of that session."""
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=timeout)
    finally:
        end_session(process.pid)
    return process.returncode, out, err


def end_session(session: int) -> None:
    """Kill what is left of a session, whose processes may be of groups of their own."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError):
            if int(path.read_text().rpartition(")")[2].split()[3]) == session:
                os.kill(int(path.parent.name), signal.SIGKILL)


def on_ray(way: str, file: Path, store: Path | str, after: int, ray_folder: Path) -> dict[str, Any]:
    """Return the report of the program with the cluster."""
    command = [sys.executable, str(PROGRAM), way, str(file), str(store), str(after)]
    environment = os.environ | {"RAY_TMPDIR": str(ray_folder), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    code, out, err = run_in_session(command, environment, timeout=1800)
    assert code == 0, err[-3000:]
    report: dict[str, Any] = json.loads(out.splitlines()[-1])
    return report


@needs_ray
def test_a_node_of_ray_that_is_killed_leaves_no_trace_in_the_results(
    file: Path, expected: bytes, tmp_path: Path, ray_folder: Path
) -> None:
    report = on_ray("python", file, tmp_path / "ray", 50, ray_folder)
    assert (tmp_path / "ray" / RESULTS).read_bytes() == expected
    assert len(expected.splitlines()) == 4
    assert sorted(report["results"]) == [[f"{arm}, seed {seed}", "done"] for arm in ("base", "slow") for seed in (1, 2)]
    assert any(text.startswith("its process or node has died, the run is started again") for text in report["warnings"])
    # It went on from a checkpoint, on another node: no update was done anew that was saved.
    assert report["killed"]["went on with"] >= 40


@needs_ray
def test_a_node_that_is_killed_leaves_no_trace_in_a_store_at_an_address(
    file: Path, expected: bytes, tmp_path: Path, ray_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSTINATO_CACHE", str(tmp_path / "cache"))
    report = on_ray("python", file, f"local://{tmp_path}/place", 50, ray_folder)
    assert (tmp_path / "place" / RESULTS).read_bytes() == expected
    assert sorted(report["results"]) == [[f"{arm}, seed {seed}", "done"] for arm in ("base", "slow") for seed in (1, 2)]
    # Whoever goes on makes its folder what was published: this is where the run went on.
    assert report["killed"]["went on with"] >= 20
    assert not list((tmp_path / "place" / "events").iterdir())


@needs_ray
def test_the_command_goes_on_where_a_node_of_ray_is_killed(
    file: Path, expected: bytes, tmp_path: Path, ray_folder: Path
) -> None:
    report = on_ray("command", file, tmp_path / "ray", 20, ray_folder)
    assert report["code"] == 0, report["said"]
    assert report["killed"]
    assert report["said"].count("its process or node has died, the run is started again") >= 1
    assert (tmp_path / "ray" / RESULTS).read_bytes() == expected


@needs_submitit
def test_jobs_of_submitit_find_what_this_process_finds(file: Path, expected: bytes, tmp_path: Path) -> None:
    watcher, store = Recorder(), tmp_path / "slurm"
    executor = ExecutorChoice("slurm", workers=2, slurm=("cluster=local",)).make(store)
    run_sweep(load_sweep(file), store, executor=executor, watcher=watcher)
    assert (store / RESULTS).read_bytes() == expected
    assert [status for _, status in watcher.results] == ["done"] * 4
    assert {event.kind for event in watcher.events} == {"start", "update", "evaluation", "end"}


@needs_submitit
def test_so_does_the_command(file: Path, expected: bytes, tmp_path: Path) -> None:
    options = ["--executor", "slurm", "--store", str(tmp_path / "slurm"), "--workers", "2", "--slurm", "cluster=local"]
    command = [sys.executable, "-m", "ostinato", "sweep", str(file), *options]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    code, _, err = run_in_session(command, environment, timeout=1800)
    assert code == 0, err[-3000:]
    assert (tmp_path / "slurm" / RESULTS).read_bytes() == expected


@needs_submitit
def test_a_job_of_submitit_that_is_killed_is_started_again(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = with_seeds(load_sweep(file), "1")
    run_sweep(sweep, tmp_path / "plain")
    monkeypatch.setattr(cluster_executor, "_LOOK_EVERY_S", 0.02)  # a run is over soon
    store = tmp_path / "slurm"

    class KillsJob(Recorder):
        """Kills the first process that is found at an update: it holds a run's lease."""

        killed = False

        def on_event(self, event: Event) -> None:
            super().on_event(event)
            if event.kind == "update" and event.update >= 50 and not self.killed:
                for lease in (store / "locks").glob("*.lease"):
                    pid = next(line for line in lease.read_text().splitlines() if line.startswith("pid="))
                    os.kill(int(pid.removeprefix("pid=")), signal.SIGKILL)
                    self.killed = True

    watcher = KillsJob()
    executor = ExecutorChoice("slurm", workers=1, slurm=("cluster=local",)).make(store)
    run_sweep(sweep, store, executor=executor, watcher=watcher)
    assert watcher.killed
    found, alone = (results_folder(sweep, one) / "results.jsonl" for one in (store, tmp_path / "plain"))
    assert found.read_bytes() == alone.read_bytes()
    assert any("started again" in event.text for event in watcher.events)
