"""Stores at an address: machines that share no folder train the runs of a sweep, and find what one machine finds."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from tiny_sweeps import LONGER, LOSS, Recorder, tiny

from ostinato.config.sweep import SweepConfig
from ostinato.errors import ConfigError
from ostinato.experiments.sweep import cluster_executor
from ostinato.experiments.sweep.cluster_executor import ClusterExecutor, attempt_on_node
from ostinato.experiments.sweep.executors import InProcess, Job, Status, attempt
from ostinato.experiments.sweep.import_runs import import_runs
from ostinato.experiments.sweep.locks import BusyError
from ostinato.experiments.sweep.remote import RemoteError, RemoteStore, working_folder
from ostinato.experiments.sweep.runs import PlannedRun, plan_runs
from ostinato.experiments.sweep.schedule import SweepError, run_sweep
from ostinato.training.rundir import RunDirectory
from ostinato.version import __version__

RESULTS = "sweeps/tiny/results.jsonl"
LONG = ["training.n_updates=12", "training.evaluate_every=4", "training.save_every=2"]


@pytest.fixture(params=["local", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("OSTINATO_CACHE", str(tmp_path / "cache"))
    return f"{request.param}://{tmp_path}/place"


def run_there(sweep: SweepConfig, url: str, **how: Any) -> list[tuple[str, str]]:
    """Run a sweep in a store at an address; return how its runs ended."""
    watcher = how.pop("watcher", None) or Recorder()
    run_sweep(sweep, working_folder(url), remote=RemoteStore(url), watcher=watcher, **how)
    return watcher.results


def forget(url: str) -> None:
    """Make this another machine, which has nothing of the store."""
    shutil.rmtree(working_folder(url))


def longer_sweep(**changes: Any) -> SweepConfig:
    sweep = tiny(**changes)
    return sweep.model_copy(update={"overrides": [*sweep.overrides, *LONG]})


def first_run(sweep: SweepConfig, url: str) -> PlannedRun:
    working_folder(url).mkdir(parents=True, exist_ok=True)
    return plan_runs(sweep, working_folder(url))[0]


def job_of(run: PlannedRun, url: str) -> Job:
    return Job(run.name, run.recipe, run.directory, remote=url)


def weights(directory: Path) -> dict[str, Any]:
    (path,) = directory.glob("checkpoints/update-000012/model.safetensors")
    return {name: tensor.tolist() for name, tensor in load_file(path).items()}


def test_results_are_those_of_a_folder_and_another_machine_trains_nothing(url: str, tmp_path: Path) -> None:
    run_sweep(tiny(), tmp_path / "plain")
    expected = (tmp_path / "plain" / RESULTS).read_bytes()
    assert run_there(tiny(), url) == [(f"{arm}, seed {seed}", "done") for arm in ("base", "slow") for seed in (1, 2)]
    assert RemoteStore(url).read(RESULTS) == expected
    forget(url)
    assert run_there(tiny(), url) == []
    assert (working_folder(url) / RESULTS).read_bytes() == expected
    assert not list(working_folder(url).rglob("*.safetensors")), "rows need none"
    # What is measured later needs weights.
    more = tiny(measures=[LOSS, LONGER])
    assert [status for _, status in run_there(more, url)] == ["done"] * 4
    run_sweep(more, tmp_path / "plain")
    assert RemoteStore(url).read(RESULTS) == (tmp_path / "plain" / RESULTS).read_bytes()
    forget(url)
    assert run_there(more, url) == []


def test_results_of_other_rows_are_kept_on_another_machine_too(url: str) -> None:
    run_there(tiny(seeds=[1]), url)
    before = RemoteStore(url).read(RESULTS)
    forget(url)
    run_there(tiny(seeds=[2]), url)
    assert RemoteStore(url).read("sweeps/tiny/earlier-1/results.jsonl") == before


class Killed(BaseException):
    """Ends a run as a kill does: nothing of it is caught."""


def trained_with_kill(sweep: SweepConfig, url: str, at: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Train the first run, killed before the n-th operation on the place, and end it elsewhere; return how many."""
    n = 0

    def counted(operation: Callable[..., Any]) -> Callable[..., Any]:
        def counts(self: RemoteStore, *given: Any) -> Any:
            nonlocal n
            n += 1
            if n == at:
                raise Killed
            return operation(self, *given)

        return counts

    run = first_run(sweep, url)
    files = RemoteStore(url)._files
    with monkeypatch.context() as patch:
        for name in ("put_file", "rm_file"):
            patch.setattr(type(files), name, counted(getattr(type(files), name)))
        with suppress(Killed):
            attempt(job_of(run, url), lambda event: None)
    forget(url)
    assert attempt(job_of(first_run(sweep, url), url), lambda event: None).status == "done"
    return n


@pytest.mark.parametrize(
    "share", [pytest.param(1, marks=pytest.mark.slow), *(pytest.param(n, id=f"every {n}th") for n in (23,))]
)
def test_a_publication_killed_at_any_operation_goes_on_elsewhere_to_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: int
) -> None:
    monkeypatch.setenv("OSTINATO_CACHE", str(tmp_path / "cache"))
    sweep = longer_sweep()
    whole = f"local://{tmp_path}/whole"
    n = trained_with_kill(sweep, whole, 0, monkeypatch)
    assert n > 60
    directory = first_run(sweep, whole).directory
    expected = weights(tmp_path / "whole" / directory.name)
    for at in range(1, n + 1, share):
        place = tmp_path / f"killed-{at}"
        trained_with_kill(sweep, f"local://{place}", at, monkeypatch)
        assert weights(place / directory.name) == expected
        names = {path.name for path in (place / directory.name / "checkpoints").iterdir()}
        assert names >= {"last.json", "best.json", "update-000012"}
        shutil.rmtree(place)
        forget(f"local://{place}")


class Disks:
    """A cluster whose nodes have disks of their own: while a job is done the working folder is the node's."""

    def __init__(self, folder: Path, place: Path, n: int = 2) -> None:
        self.folder, self.place, self.n, self.n_started = folder, place, n, 0
        self.dies: set[int] = set()
        """Numbers of jobs whose node dies in them, after a checkpoint."""

    def start(self, job: Job, events: Path) -> Any:
        number, self.n_started = self.n_started, self.n_started + 1
        mine, node = self.place / "command", self.place / f"node-{number % self.n}"
        self.place.mkdir(exist_ok=True)
        self.folder.rename(mine)
        if node.exists():
            node.rename(self.folder)
        found: tuple[Status, str] | Exception
        try:
            with pytest.MonkeyPatch.context() as patch:
                if number in self.dies:
                    publish = RemoteStore.publish

                    def dying(remote: RemoteStore, directory: Path) -> None:
                        publish(remote, directory)
                        raise Killed

                    patch.setattr(RemoteStore, "publish", dying)
                found = attempt_on_node(job, events, __version__, str(self.place))
        except Killed:
            found = RuntimeError("the node is gone")
        self.folder.rename(node)
        mine.rename(self.folder)
        return _Ended(found)

    def stop(self) -> None:
        pass


class _Ended:
    def __init__(self, found: tuple[Status, str] | Exception) -> None:
        self.found = found

    def done(self) -> bool:
        return True

    def result(self) -> tuple[Status, str]:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found

    def cancel(self) -> None:
        pass


def test_nodes_that_share_no_folder_find_what_one_process_finds(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_executor, "_LOOK_EVERY_S", 0.001)
    monkeypatch.chdir(tmp_path)
    after = {"name": "after", "after": "base", "set": {"training.optimizer.lr": 1e-3}}
    sweep = longer_sweep(arms=[{"name": "base"}, after], measures=[LOSS, LONGER])
    run_sweep(sweep, tmp_path / "plain")
    cluster, watcher = Disks(working_folder(url), tmp_path / "disks"), Recorder()
    cluster.dies = {0, 3}
    results = run_there(sweep, url, executor=ClusterExecutor(cluster, most=1), watcher=watcher)
    assert sorted(results) == [(f"{arm}, seed {seed}", "done") for arm in ("after", "base") for seed in (1, 2)]
    assert RemoteStore(url).read(RESULTS) == (tmp_path / "plain" / RESULTS).read_bytes()
    assert (working_folder(url) / RESULTS).read_bytes() == (tmp_path / "plain" / RESULTS).read_bytes()
    warnings = [event.text for event in watcher.events if event.kind == "warning"]
    assert warnings == ["its process or node has died, the run is started again: the node is gone"] * 2
    # What died had published a checkpoint, and another node went on from it.
    starts = [event.update for event in watcher.events if event.kind == "start"]
    assert starts.count(2) == 2
    assert {event.kind for event in watcher.events} == {"start", "update", "warning", "evaluation", "end"}


def test_a_process_that_was_held_up_does_not_write_over_another_one(url: str) -> None:
    sweep = longer_sweep()
    run = first_run(sweep, url)
    late = RemoteStore(url)
    assert attempt(job_of(run, url), lambda event: None).status == "done"
    known = RemoteStore(url).read(f"{run.directory.name}/checkpoints/last.json")
    (run.directory / "checkpoints" / "last.json").write_text('{"directory": "update-000002", "update": 2}')
    with pytest.raises(BusyError, match="another process has taken the run over"):
        late.publish(run.directory)
    assert RemoteStore(url).read(f"{run.directory.name}/checkpoints/last.json") == known


def test_a_place_that_fails_once_costs_a_warning_and_one_that_fails_at_the_end_is_said(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = longer_sweep(seeds=[1], arms=[{"name": "base"}])
    files = type(RemoteStore(url)._files)
    put, fails = files.put_file, {"update-000004": 1}

    def put_file(self: Any, path: str, target: str, **named: Any) -> None:
        for name in fails:
            if name in target and fails[name]:
                fails[name] -= 1
                raise OSError("the place is\nfull")
        put(self, path, target, **named)

    monkeypatch.setattr(files, "put_file", put_file)
    watcher = Recorder()
    assert run_there(sweep, url, watcher=watcher, executor=InProcess()) == [("base, seed 1", "done")]
    (warning,) = (event for event in watcher.events if event.kind == "warning")
    assert (warning.update, f"--store: {url}: cannot be written: the place is full" in warning.text) == (4, True)
    fails["results.json"] = 100
    other = longer_sweep(seeds=[2], arms=[{"name": "base"}])
    with pytest.raises((SweepError, RemoteError), match="cannot be written: the place is full"):
        run_there(other, url, executor=InProcess())


def test_a_start_that_is_not_there_is_said(url: str) -> None:
    after = {"name": "after", "after": "base"}
    sweep = tiny(seeds=[1], arms=[{"name": "base"}, after])
    working_folder(url).mkdir(parents=True)
    _, run = plan_runs(sweep, working_folder(url))
    outcome = attempt(job_of(run, url), lambda event: None)
    assert (outcome.status, "is not there, and after, seed 1 starts from it" in outcome.reason) == ("failed", True)


def test_runs_that_are_taken_are_published_and_their_weights_stay(url: str, tmp_path: Path) -> None:
    sweep = tiny(seeds=[1], arms=[{"name": "base"}])
    run_sweep(sweep, tmp_path / "plain")
    run = first_run(sweep, url)
    for _ in range(2):
        remote = RemoteStore(url)
        remote.fetch_finished(run.directory, with_weights=False)
        (taken,) = import_runs([tmp_path / "plain" / run.directory.name], [run])
        remote.publish(taken.directory)
        forget(url)
    assert run_there(sweep, url) == []
    assert RemoteStore(url).fetch_finished(run.directory, with_weights=True)
    assert list(run.directory.glob("checkpoints/*/model.safetensors"))
    assert RunDirectory(run.directory).results() is not None


def test_an_address_of_no_known_kind_is_one_line() -> None:
    with pytest.raises(ConfigError, match="--store: nowhere://x: Protocol not known"):
        RemoteStore("nowhere://x")
