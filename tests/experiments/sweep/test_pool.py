from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
from filelock import FileLock
from tiny_sweeps import LOSS, Recorder, tiny

from ostinato.experiments.sweep.executors import InProcess, Job, JobResult
from ostinato.experiments.sweep.locks import LOCKS, BusyError, run_lock
from ostinato.experiments.sweep.pool import LocalPool, death_text
from ostinato.experiments.sweep.runs import plan_runs
from ostinato.experiments.sweep.schedule import SweepError, run_sweep, sweep_rows
from ostinato.experiments.sweep.watch import Event


class KillsFirst(Recorder):
    """Kills the worker that trains a run, at its first update."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def on_event(self, event: Event) -> None:
        super().on_event(event)
        if event.name == self.name and event.kind == "update":
            (worker,) = multiprocessing.active_children()
            os.kill(worker.pid, signal.SIGKILL)


@pytest.mark.slow
def test_a_worker_that_is_killed_is_reported_and_another_one_does_the_rest(tmp_path: Path) -> None:
    arms = [{"name": "long", "set": {"training.n_updates": 200}}, {"name": "next", "after": "long"}, {"name": "base"}]
    watcher, sweep = KillsFirst("long, seed 1"), tiny(seeds=[1], arms=arms)
    with pytest.raises(SweepError) as error:
        run_sweep(sweep, tmp_path, executor=LocalPool(1), watcher=watcher)
    assert watcher.results == [("long, seed 1", "died"), ("base, seed 1", "done")]
    assert "its process was killed by SIGKILL; the system does that when memory runs out" in str(error.value)
    assert [run.name for run, _ in error.value.failures] == ["long, seed 1", "next, seed 1"]
    assert [event.kind for event in watcher.events if event.name == "base, seed 1"][-1] == "end"
    assert not multiprocessing.active_children()
    assert [row["arm"] for row in sweep_rows(sweep, tmp_path)[0]] == ["base"]


@pytest.mark.slow
def test_workers_find_what_this_process_finds(tmp_path: Path) -> None:
    sweep = tiny(seeds=[1])
    here = run_sweep(sweep, tmp_path / "here")
    there = run_sweep(sweep, tmp_path / "there", executor=LocalPool(2))
    assert [row["values"] for row in there] == [row["values"] for row in here]
    weights = [
        [(store / row["key"][:16] / "metrics.jsonl").read_bytes() for row in here]
        for store in (tmp_path / "here", tmp_path / "there")
    ]
    assert weights[0] == weights[1]


def test_a_pool_that_waits_no_longer_says_so(tmp_path: Path) -> None:
    pool = LocalPool(1)
    assert pool.collect(lambda event: None, timeout=0.05) is None
    pool.stop()


def test_a_pool_waits_for_longer_than_the_system_waits_at_once(tmp_path: Path) -> None:
    run = plan_runs(tiny(seeds=[1]), tmp_path)[0]
    result = JobResult(Job(run.name, run.recipe, run.directory), "done")
    pool, (ours, theirs) = LocalPool(1), multiprocessing.Pipe()
    pool._workers.append(SimpleNamespace(pipe=ours, job=result.job))  # type: ignore[arg-type]
    with ours, theirs:
        theirs.send(result)
        assert pool.collect(lambda event: None, timeout=1e9) == result


def test_the_end_of_a_process_is_put_into_words(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SIGRTMIN", "SIGRTMAX", "valid_signals"):  # not every system has them
        monkeypatch.delattr(signal, name, raising=False)
    assert death_text(3) == "its process ended with exit code 3"
    assert death_text(-11) == "its process was killed by SIGSEGV"
    assert death_text(-35) == "its process was killed by signal 35"


def test_the_lock_of_a_run_is_held_by_one_and_given_back(tmp_path: Path) -> None:
    with run_lock(tmp_path / "run"):
        with pytest.raises(BusyError, match="another process is at work on this run"), run_lock(tmp_path / "run"):
            pass
        with run_lock(tmp_path / "other"):
            pass
    with run_lock(tmp_path / "run"):
        pass


class FreesLater(InProcess):
    """Gives a lock back once a job has found it held."""

    def __init__(self, lock: FileLock) -> None:
        super().__init__()
        self.lock = lock
        self.found: list[tuple[str, str]] = []

    def collect(self, on_event: object, timeout: float | None = None) -> JobResult:
        result = super().collect(lambda event: None)
        self.found.append((result.job.name, result.status))
        if result.status == "busy":
            self.lock.release()
        return result


@pytest.mark.slow
def test_a_run_that_another_process_is_at_work_on_is_left_to_it_and_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ostinato.experiments.sweep.schedule._PAUSE_S", 0.01)
    sweep = tiny(seeds=[1])
    first, _ = plan_runs(sweep, tmp_path)
    lock = FileLock(tmp_path / LOCKS / f"{first.directory.name}.lock")
    lock.acquire()
    executor, watcher = FreesLater(lock), Recorder()
    rows = run_sweep(sweep, tmp_path, executor=executor, watcher=watcher)
    assert executor.found[0] == ("base, seed 1", "busy")
    assert sorted(executor.found[1:]) == [("base, seed 1", "done"), ("slow, seed 1", "done")]
    assert len(rows) == len(watcher.results) == 2


@pytest.mark.slow
def test_two_sweeps_at_once_on_one_store_train_every_run_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    changes = {"measures": [LOSS], "seeds": [1, 2, 3]}
    processes = [context.Process(target=_sweep, args=(tmp_path, changes)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(240)
        assert process.exitcode == 0
    rows, missing = sweep_rows(tiny(**changes), tmp_path)
    assert len(rows) == 6
    assert not missing
    for row in rows:  # an update that was done twice would be recorded twice
        lines = (tmp_path / row["key"][:16] / "metrics.jsonl").read_text().splitlines()
        assert len(lines) == len(set(lines)) == 4


def _sweep(store: Path, changes: dict[str, object]) -> None:
    run_sweep(tiny(**changes), store)
