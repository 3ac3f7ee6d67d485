from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from filelock import SoftFileLease
from tiny_sweeps import LOSS, Recorder, tiny

from ostinato.cluster.ray_connection import check_fits, resources
from ostinato.errors import ConfigError
from ostinato.experiments.sweep import cluster_executor, locks, ray_cluster
from ostinato.experiments.sweep.choose import ExecutorChoice
from ostinato.experiments.sweep.cluster_executor import (
    EVENTS,
    ClusterExecutor,
    EventFile,
    RefusedError,
    attempt_on_node,
)
from ostinato.experiments.sweep.executors import Job, Status
from ostinato.experiments.sweep.locks import LOCKS, BusyError, run_lock
from ostinato.experiments.sweep.schedule import SweepError, run_sweep
from ostinato.experiments.sweep.slurm_cluster import SlurmCluster, read_parameters
from ostinato.experiments.sweep.watch import Event
from ostinato.tasks.recipes import load_recipe
from ostinato.version import __version__

Outcome = Callable[[Job, Path], tuple[Status, str]]


class FakeTask:
    """Works, and ends, at the second look."""

    def __init__(self, job: Job, events: Path, outcome: Outcome) -> None:
        self.job, self.events, self.outcome, self.looks, self.cancelled = job, events, outcome, 0, False

    def done(self) -> bool:
        self.looks += 1
        if self.looks == 2:
            try:
                self.found: tuple[Status, str] | Exception = self.outcome(self.job, self.events)
            except RuntimeError as error:
                self.found = error
        return self.looks > 1

    def result(self) -> tuple[Status, str]:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found

    def cancel(self) -> None:
        self.cancelled = True


class FakeCluster:
    """Does jobs in this process, when they are asked for; the first `n_deaths` of them die."""

    def __init__(self, outcome: Outcome, n_deaths: int = 0) -> None:
        self.outcome, self.n_deaths, self.stopped = outcome, n_deaths, False
        self.tasks: list[FakeTask] = []

    def start(self, job: Job, events: Path) -> FakeTask:
        def die(job: Job, events: Path) -> tuple[Status, str]:
            raise RuntimeError("the node\n is gone")

        self.tasks.append(FakeTask(job, events, die if len(self.tasks) < self.n_deaths else self.outcome))
        return self.tasks[-1]

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_executor, "_LOOK_EVERY_S", 0.001)


def ended_well(job: Job, events: Path) -> tuple[Status, str]:
    return "done", ""


def a_job(tmp_path: Path, name: str = "one") -> Job:
    return Job(name, load_recipe("digits/transformer"), tmp_path / name)


@pytest.mark.slow
def test_a_cluster_finds_what_this_process_finds_and_tells_what_happens(tmp_path: Path) -> None:
    sweep = tiny(seeds=[1], measures=[LOSS])
    here, there = Recorder(), Recorder()
    run_sweep(sweep, tmp_path / "here", watcher=here)
    cluster = FakeCluster(lambda job, events: attempt_on_node(job, events, __version__, str(tmp_path)))
    run_sweep(sweep, tmp_path / "there", watcher=there, executor=ClusterExecutor(cluster))
    results = [(tmp_path / name / "sweeps/tiny/results.jsonl").read_bytes() for name in ("here", "there")]
    assert results[0] == results[1]
    assert len(results[0].splitlines()) == 2
    assert there.results == here.results
    assert not list((tmp_path / "there" / EVENTS).iterdir())
    assert cluster.stopped


@pytest.mark.slow
def test_a_run_that_a_node_did_elsewhere_is_looked_at_again_and_not_taken_for_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_executor, "_BUSY_AGAIN_S", 0.01)
    cluster = FakeCluster(ended_well)
    with pytest.raises(SweepError, match="failed: it is done, but not there: not trained"):
        run_sweep(tiny(seeds=[1]), tmp_path, executor=ClusterExecutor(cluster))
    assert len(cluster.tasks) == 4


def test_what_a_node_writes_is_passed_on_as_it_comes_and_half_a_line_waits(tmp_path: Path) -> None:
    cluster = FakeCluster(ended_well)
    executor, found = ClusterExecutor(cluster), []
    executor.submit(a_job(tmp_path))
    events = [Event("one", "start", 0, "begins"), Event("one", "update", 1, "goes on"), Event("one", "end", 2, "é")]
    lines = [json.dumps(asdict(event)).encode() + b"\n" for event in events]
    task = cluster.tasks[0]
    task.events.write_bytes(lines[0] + lines[1][:9])
    assert executor.collect(found.append, timeout=0) is None
    assert found == events[:1]
    # A line whose writer died is not ended before the next one's, and neither is an event.
    torn = lines[1] + lines[1][:9] + lines[2]
    task.events.write_bytes(lines[0] + torn + lines[2])
    result = executor.collect(found.append)
    assert result is not None
    assert (result.status, result.job) == ("done", a_job(tmp_path))
    assert found == events


def test_a_job_whose_node_dies_is_started_again_and_named_when_it_dies_too_often(tmp_path: Path) -> None:
    cluster, events = FakeCluster(ended_well, n_deaths=2), []
    executor = ClusterExecutor(cluster)
    executor.submit(a_job(tmp_path))
    result = executor.collect(events.append)
    assert result is not None
    assert (result.status, len(cluster.tasks)) == ("done", 3)
    assert [event.text for event in events] == [
        "its process or node has died, the run is started again: the node is gone"
    ] * 2
    executor = ClusterExecutor(FakeCluster(ended_well, n_deaths=2), n_retries=1)
    executor.submit(a_job(tmp_path))
    result = executor.collect(events.append)
    assert result is not None
    assert (result.status, result.reason) == ("died", "the node is gone (started 2 times)")


class FullCluster(FakeCluster):
    """Refuses a job while `is_full` says so."""

    def __init__(self, is_full: Callable[[FullCluster], bool]) -> None:
        super().__init__(ended_well)
        self.is_full, self.n_refused = is_full, 0

    def start(self, job: Job, events: Path) -> FakeTask:
        if self.is_full(self):
            self.n_refused += 1
            raise RefusedError("QOSMaxSubmitJobPerUserLimit")
        return super().start(job, events)

    @property
    def n_going(self) -> int:
        return sum(task.looks < 2 for task in self.tasks)


def test_a_job_that_a_full_cluster_refuses_waits_until_others_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_executor, "_REFUSED_AGAIN_S", 0.0005)
    cluster = FullCluster(lambda cluster: cluster.n_going == 2)
    executor = ClusterExecutor(cluster)
    for name in "abcde":
        executor.submit(a_job(tmp_path, name))
    told: list[Event] = []
    ended = [executor.collect(told.append) for _ in range(5)]
    assert {event.text for event in told} == {"waits, as the cluster takes no job: QOSMaxSubmitJobPerUserLimit"}
    assert sorted(result.job.name for result in ended if result is not None and result.status == "done") == [*"abcde"]
    assert cluster.n_refused > 2
    assert not list((tmp_path / EVENTS).iterdir())


def test_jobs_that_are_refused_again_and_again_have_failed_and_the_others_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_executor, "_REFUSED_AGAIN_S", 0.0005)
    cluster = FullCluster(lambda cluster: len(cluster.tasks) == 2)
    executor = ClusterExecutor(cluster)
    for name in "abcd":
        executor.submit(a_job(tmp_path, name))
    ended = [executor.collect(lambda event: None) for _ in range(4)]
    found = sorted((result.job.name, result.status, result.reason) for result in ended if result is not None)
    refused = ("failed", "QOSMaxSubmitJobPerUserLimit")
    assert found == [("a", "done", ""), ("b", "done", ""), ("c", *refused), ("d", *refused)]
    # Each was tried three times when nothing else was going on.
    assert cluster.n_refused >= 6


def test_a_job_that_a_cluster_can_never_do_has_failed_at_once(tmp_path: Path) -> None:
    class Small(FakeCluster):
        def start(self, job: Job, events: Path) -> FakeTask:
            if job.name == "b":
                raise ConfigError("a job takes 8 CPUs, this Ray has 2")
            return super().start(job, events)

    executor = ClusterExecutor(Small(ended_well))
    for name in "abc":
        executor.submit(a_job(tmp_path, name))
    ended = [executor.collect(lambda event: None) for _ in range(3)]
    found = sorted((result.job.name, result.status, result.reason) for result in ended if result is not None)
    assert found == [("a", "done", ""), ("b", "failed", "a job takes 8 CPUs, this Ray has 2"), ("c", "done", "")]


def test_a_job_that_goes_on_when_nobody_reads_its_events_makes_no_file(tmp_path: Path) -> None:
    file = EventFile(tmp_path / EVENTS / "one.jsonl")
    file.make()
    file.append(Event("one", "start", 0, "begins"))
    file.append(Event("one", "update", 1, "goes on"))
    assert file.read(0).count(b"\n") == 2
    file.remove()
    file.append(Event("one", "update", 2, "goes on"))
    assert not list((tmp_path / EVENTS).iterdir())


def test_a_run_that_another_process_has_is_not_tried_again_at_once(tmp_path: Path) -> None:
    executor = ClusterExecutor(FakeCluster(lambda job, events: ("busy", "another")))
    executor.submit(a_job(tmp_path))
    result = executor.collect(lambda event: None)
    assert result is not None
    assert (result.status, result.again_after) == ("busy", 30.0)


def test_the_cluster_has_no_more_jobs_than_it_may_and_none_after_the_stop(tmp_path: Path) -> None:
    cluster = FakeCluster(ended_well)
    executor = ClusterExecutor(cluster, most=2)
    for name in ("a", "b", "c"):
        executor.submit(a_job(tmp_path, name))
    assert len(cluster.tasks) == 2
    ended = [executor.collect(lambda event: None) for _ in range(2)]
    assert [result.job.name for result in ended if result is not None] == ["a", "b"]
    assert [task.job.name for task in cluster.tasks] == ["a", "b", "c"]
    executor.stop()
    assert [task.cancelled for task in cluster.tasks] == [False, False, True]
    assert cluster.stopped
    assert not list((tmp_path / EVENTS).iterdir())


def test_jobs_that_have_ended_are_collected_in_one_look_at_all(tmp_path: Path) -> None:
    cluster = FakeCluster(ended_well)
    executor = ClusterExecutor(cluster)
    names = [f"job {i}" for i in range(20)]
    for name in ["goes on", *names]:
        executor.submit(a_job(tmp_path, name))
    cluster.tasks[0].looks = -1000
    ended = [executor.collect(lambda event: None) for _ in names]
    assert [result.job.name for result in ended if result is not None] == names
    assert cluster.tasks[0].looks == -998


def test_a_node_says_what_it_lacks(tmp_path: Path) -> None:
    job = a_job(tmp_path)
    status, reason = attempt_on_node(job, tmp_path / EVENTS / "x.jsonl", __version__, ".")
    assert status == "failed"
    assert f"{tmp_path} is another folder on" in reason
    (tmp_path / "x.jsonl").touch()
    (tmp_path / "x.jsonl").touch()
    status, reason = attempt_on_node(job, tmp_path / "x.jsonl", __version__, str(tmp_path / "gone"))
    assert status == "failed"
    assert re.search(r"gone, which paths of data are relative to, is not there on ", reason)
    status, reason = attempt_on_node(job, tmp_path / "x.jsonl", "0.0.1", ".")
    assert (status, reason.endswith(f"has ostinato {__version__}, and not 0.0.1")) == ("failed", True)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "local", "address": "auto"}, "--address: belongs to --executor ray, not to local"),
        ({"name": "ray", "slurm": ("a=1",)}, "--slurm: belongs to --executor slurm, not to ray"),
        ({"name": "local", "n_gpus": 1}, "--gpus: belongs to --executor ray or slurm, not to local"),
        ({"name": "slurm", "n_gpus": 0.5}, "--gpus: 0.5 is no whole number, as SLURM needs"),
        ({"name": "slurm", "n_gpus": math.inf}, "--gpus: inf is no whole number, as SLURM needs"),
    ],
)
def test_settings_of_another_executor_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ExecutorChoice(**settings)
    assert str(caught.value) == message


def other_machines_lease(path: Path) -> None:
    """Write the lease of a process of another machine, which is not touched."""
    path.parent.mkdir(parents=True, exist_ok=True)
    own = path.with_name("own.lease")
    with SoftFileLease(own, lease_duration=locks.LEASE_S):
        text = own.read_text()
    host = next(line for line in text.splitlines() if line.startswith("host="))
    path.write_text(text.replace(host, "host=another-machine"))


def test_a_run_of_a_machine_that_is_gone_is_taken_over_when_its_lease_has_run_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "LEASE_S", 0.3)
    other_machines_lease(tmp_path / LOCKS / "run.lease")
    began = time.monotonic()
    with run_lock(tmp_path / "run") as check_held:
        assert time.monotonic() - began >= 0.3
        check_held()
    assert not (tmp_path / LOCKS / "run.lease").exists()


def test_a_lease_that_another_process_took_ends_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "LEASE_S", 0.15)
    path = tmp_path / LOCKS / "run.lease"
    with run_lock(tmp_path / "run") as check_held:
        path.unlink()
        other_machines_lease(path)

        def look_for_a_while() -> None:
            for _ in range(3000):
                check_held()
                time.sleep(0.01)

        with pytest.raises(BusyError, match="held up, and another one has taken the run over"):
            look_for_a_while()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[("10:00:00", "10:00:00"), ("1-12", "1-12"), ("007", "007"), ("1e5", "1e5"), ("1_000", "1_000"), ("é", "é")],
        *[("gpu", "gpu"), ("16GB", "16GB"), ("a=b", "a=b"), ("no", "no"), ("'7'", "7"), ("600", 600), ("0", 0)],
        *[("4.5", 4.5), ("true", True), ("null", None), ("{signal: 9}", {"signal": 9}), ("[a, b]", ["a", "b"])],
    ],
)
def test_only_plain_decimal_numbers_of_slurm_are_numbers(text: str, value: object) -> None:
    assert read_parameters([f"slurm_setting={text}"]) == {"slurm_setting": value}


@pytest.mark.parametrize(
    ("key", "instead"),
    [
        *[("cpus_per_task", "--threads"), ("slurm_cpus_per_task", "training.n_threads"), ("gpus_per_node", "--gpus")],
        *[("slurm_array_parallelism", "--workers"), ("name", "name of its run"), ("slurm_job_name", "name of its run")],
        *[("nodes", "one node"), ("tasks_per_node", "one process"), ("slurm_ntasks_per_node", "one process")],
    ],
)
def test_a_setting_of_slurm_without_effect_is_refused(key: str, instead: str, tmp_path: Path) -> None:
    pytest.importorskip("submitit", reason="needs pip install 'ostinato[slurm]'")
    with pytest.raises(ConfigError, match=f"^--slurm: {key} cannot be given: .*{instead}"):
        SlurmCluster(tmp_path, parameters={"cluster": "local", key: 2})


def test_a_job_that_slurm_refuses_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    submitit = pytest.importorskip("submitit", reason="needs pip install 'ostinato[slurm]'")

    def refuse(*_: object) -> None:
        raise submitit.core.utils.FailedJobError("sbatch: error:\n invalid partition")

    cluster = SlurmCluster(tmp_path, parameters={"cluster": "local"})
    monkeypatch.setattr(cluster._executor, "submit", refuse)
    with pytest.raises(ConfigError, match="--slurm: the job was refused: sbatch: error: invalid partition"):
        ClusterExecutor(cluster).submit(a_job(tmp_path))


@pytest.mark.parametrize(
    ("n_cpus", "n_gpus", "message"),
    [
        (2, 0, "--executor ray: a job takes 2 CPUs, this Ray has 1: --workers or fewer --threads"),
        (1, 1, "--executor ray: a job takes 1 GPUs, this Ray has 0: a cluster: --address"),
    ],
)
def test_what_a_ray_of_our_own_will_never_have_is_refused(n_cpus: int, n_gpus: float, message: str) -> None:
    class Ray:
        def cluster_resources(self) -> dict[str, float]:
            return {"CPU": 1.0}

    with pytest.raises(ConfigError) as error:
        check_fits(Ray(), None, n_cpus, n_gpus)
    assert str(error.value) == message
    check_fits(Ray(), None, 1, 0)
    check_fits(Ray(), "10.0.0.1:6379", n_cpus, n_gpus)  # a cluster may grow


@pytest.mark.parametrize(
    ("n_jobs", "n_gpus", "fits"),
    [
        *[(2, 1, True), (3, 1, False), (1, 2, True), (2, 2, False), (99, 0, True)],
        *[(4, 0.5, True), (5, 0.5, False), (2, 0.6, True), (3, 0.6, False), (20, 0.1, True), (21, 0.1, False)],
    ],
)
def test_jobs_that_are_there_at_once_need_their_gpus_at_once(n_jobs: int, n_gpus: float, fits: bool) -> None:
    class Ray:
        def cluster_resources(self) -> dict[str, float]:
            return {"CPU": 99.0, "GPU": 2.0}

    with nullcontext() if fits else pytest.raises(ConfigError, match=f"{n_jobs} jobs take, each, {n_gpus:g} GPUs"):
        check_fits(Ray(), None, 1, n_gpus, n_jobs)


def test_a_job_of_ray_has_its_cpus_and_gpus_and_without_gpus_sees_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    class Ray:
        """What the library is asked for when jobs are started."""

        def remote(self, **settings: Any) -> Any:
            assert settings == {"max_retries": 0}
            return lambda function: self

        def options(self, **settings: Any) -> Any:
            asked.append(settings)
            return SimpleNamespace(remote=lambda *given: given)

        def cluster_resources(self) -> dict[str, float]:
            return {"CPU": 8.0, "GPU": 2.0}

    monkeypatch.setattr(ray_cluster, "connect", lambda address, n_cpus: (Ray(), lambda: None))
    job = a_job(tmp_path)
    for n_threads, n_gpus in ((None, 0), (3, 0.5)):
        training = job.recipe.training.model_copy(update={"n_threads": n_threads})
        given = replace(job, n_threads=2, recipe=job.recipe.model_copy(update={"training": training}))
        ray_cluster.RayCluster(n_gpus=n_gpus).start(given, tmp_path / "events")
    hidden = {"runtime_env": {"env_vars": {"CUDA_VISIBLE_DEVICES": ""}}}
    assert asked == [
        {"name": job.name, "num_cpus": 2, "num_gpus": 0, **hidden},
        {"name": job.name, "num_cpus": 3, "num_gpus": 0.5},
    ]
    assert resources(2, 0) == {"num_cpus": 2, "num_gpus": 0, **hidden}


@pytest.mark.parametrize(("workers", "n_cpus"), [(None, 4), (1, 4), (6, 6)])
def test_a_ray_of_our_own_has_the_cpus_of_the_machine_whatever_a_run_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int | None, n_cpus: int
) -> None:
    asked: list[int] = []
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    monkeypatch.setattr(
        ray_cluster.RayCluster, "__init__", lambda self, address, *, n_cpus, n_gpus: asked.append(n_cpus)
    )
    ExecutorChoice("ray", workers).make(tmp_path)
    assert asked == [n_cpus]
