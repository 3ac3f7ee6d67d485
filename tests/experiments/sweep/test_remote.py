"""Stores at an address: machines that share no folder train the runs of a sweep, and find what one machine finds."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from tiny_sweeps import LONGER, LOSS, Recorder, tiny

from ostinato.config.sweep import SweepConfig
from ostinato.errors import ConfigError
from ostinato.experiments.sweep import cluster_executor
from ostinato.experiments.sweep.cluster_executor import EVENTS, ClusterExecutor, EventFile, attempt_on_node
from ostinato.experiments.sweep.executors import InProcess, Job, Status, attempt
from ostinato.experiments.sweep.import_runs import import_runs
from ostinato.experiments.sweep.locks import BusyError
from ostinato.experiments.sweep.remote import RemoteError, RemoteStore, working_folder
from ostinato.experiments.sweep.runs import PlannedRun, plan_runs
from ostinato.experiments.sweep.schedule import SweepError, run_sweep
from ostinato.experiments.sweep.watch import Event
from ostinato.training.rundir import RunDirectory
from ostinato.version import __version__

RESULTS = "sweeps/tiny/results.jsonl"
LONG = ["training.n_updates=12", "training.evaluate_every=4", "training.save_every=2"]


@pytest.fixture(params=[pytest.param("local", marks=pytest.mark.slow), "memory"])
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
    run = first_run(longer_sweep(), url)
    assert attempt(job_of(run, url), lambda event: None).status == "done"
    known = RemoteStore(url).read(f"{run.directory.name}/checkpoints/last.json")
    (run.directory / "results.json").unlink()
    (run.directory / "checkpoints" / "last.json").write_text('{"directory": "update-000002", "update": 2}')
    with pytest.raises(BusyError, match="another process has taken the run over"):
        RemoteStore(url).publish(run.directory)
    assert RemoteStore(url).read(f"{run.directory.name}/checkpoints/last.json") == known


def test_what_is_further_here_than_there_is_kept_and_published(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = first_run(longer_sweep(), url)
    published = RemoteStore.publish

    def failing(remote: RemoteStore, directory: Path) -> None:
        last = RunDirectory(directory).last_update()
        if last == 10:
            raise Killed
        if last > 2:
            raise RemoteError("the network is down")
        published(remote, directory)

    with monkeypatch.context() as patch:
        patch.setattr(RemoteStore, "publish", failing)
        with pytest.raises(Killed):
            attempt(job_of(run, url), lambda event: None)
    assert b"update-000002" in RemoteStore(url).read(f"{run.directory.name}/checkpoints/last.json")
    starts: list[int] = []
    ended = attempt(job_of(run, url), lambda event: starts.append(event.update) if event.kind == "start" else None)
    assert (ended.status, starts) == ("done", [10])


def test_a_run_that_is_finished_here_only_is_published_by_the_next_command(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    after = {"name": "after", "after": "base"}
    sweep = tiny(seeds=[1], arms=[{"name": "base"}, after])
    run = first_run(sweep, url)
    with monkeypatch.context() as patch:
        patch.setattr(RemoteStore, "publish", lambda *_: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            attempt(job_of(run, url), lambda event: None)
        attempt(replace(job_of(run, url), remote=None), lambda event: None)
    assert RunDirectory(run.directory).results() is not None
    assert run_there(sweep, url) == [("after, seed 1", "done")]
    forget(url)
    assert run_there(sweep, url) == []


@pytest.mark.parametrize("name", ["metrics.jsonl", "checkpoints/last.json", "results.json", "recipe.yaml"])
def test_a_file_that_is_cut_off_while_it_is_written_is_not_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("OSTINATO_CACHE", str(tmp_path / "cache"))
    url = f"local://{tmp_path}/place"
    sweep = longer_sweep()
    run = first_run(sweep, url)
    files = type(RemoteStore(url)._files)
    put, seen = files.put_file, []

    def cut(self: Any, path: str, target: str, **named: Any) -> None:
        if name in target:
            seen.append(target)
            if len(seen) == (1 if name in ("results.json", "recipe.yaml") else 2):
                Path(target).parent.mkdir(parents=True, exist_ok=True)
                Path(target).write_bytes(Path(path).read_bytes()[:7])
                raise Killed
        put(self, path, target, **named)

    with monkeypatch.context() as patch:
        patch.setattr(files, "put_file", cut)
        with pytest.raises(Killed):
            attempt(job_of(run, url), lambda event: None)
    forget(url)
    assert attempt(job_of(first_run(sweep, url), url), lambda event: None).status == "done"
    forget(url)
    assert run_there(tiny(seeds=[1], arms=[{"name": "base"}], overrides=sweep.overrides), url) == []
    assert len(weights(tmp_path / "place" / run.directory.name)) > 3


def test_a_place_that_does_not_answer_is_no_empty_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSTINATO_CACHE", str(tmp_path / "cache"))
    (tmp_path / "file").write_text("no folder")
    # webhdfs answers every question whether a file is there, and needs requests.
    unreachable = ["webhdfs://127.0.0.1:1/x"] if find_spec("requests") is not None else []
    for url in (*unreachable, f"local://{tmp_path}/file"):
        with pytest.raises(RemoteError, match="cannot be "):
            run_there(tiny(), url)
    assert not list(tmp_path.glob("cache/stores/*/*/recipe.yaml")), "nothing was trained"
    url = f"local://{tmp_path}/place"
    assert attempt(job_of(first_run(tiny(), url), url), lambda event: None).status == "done"
    forget(url)

    def fails(self: Any, path: str, **named: Any) -> Any:
        raise OSError("the network is down")

    monkeypatch.setattr(type(RemoteStore(url)._files), "info", fails)
    outcome = attempt(job_of(first_run(tiny(), url), url), lambda event: None)
    assert (outcome.status, "cannot be read: the network is down" in outcome.reason) == ("failed", True)


def test_results_of_machines_that_take_turns_are_all_kept(url: str, tmp_path: Path) -> None:
    folders = tmp_path / "a", tmp_path / "b"
    for seed, other in ((1, 0), (2, 1), (3, 0)):
        if folders[other].exists():
            folders[other].rename(working_folder(url))
        run_there(tiny(seeds=[seed]), url)
        working_folder(url).rename(folders[other])
    there = [RemoteStore(url).read(f"sweeps/tiny/{name}results.jsonl") for name in ("", "earlier-1/", "earlier-2/")]
    assert [[json.loads(line)["seed"] for line in text.splitlines()] for text in there] == [[3, 3], [1, 1], [2, 2]]


def test_why_a_run_failed_is_published_and_the_first_error_is_told(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = {"name": "broken", "set": {"training.optimizer.lr": 1e30, "training.schedule.warmup": 0}}
    sweep = longer_sweep(seeds=[1], arms=[{"name": "base"}, broken])
    monkeypatch.setattr(RemoteStore, "publish_results", lambda *_: (_ for _ in ()).throw(RemoteError("down")))
    with pytest.raises((SweepError, RemoteError)) as caught:
        run_there(sweep, url)
    assert isinstance(caught.value, SweepError)
    _, run = plan_runs(sweep, working_folder(url))
    names = RemoteStore(url)._names(run.directory.name)
    assert any("failed-update" in name for name in names)


def test_more_that_is_measured_sends_no_weights_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = tiny(seeds=[1], arms=[{"name": "base"}])
    run_there(sweep, url)
    files, sent = type(RemoteStore(url)._files), []
    put = files.put_file

    def noted(self: Any, path: str, target: str, **named: Any) -> None:
        sent.append(Path(path).name)
        put(self, path, target, **named)

    monkeypatch.setattr(files, "put_file", noted)
    assert run_there(tiny(seeds=[1], arms=[{"name": "base"}], measures=[LOSS, LONGER]), url) == [
        ("base, seed 1", "done")
    ]
    assert sent
    assert not [name for name in sent if name.endswith(".safetensors")]


def test_a_name_that_leads_out_of_the_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSTINATO_CACHE", str(tmp_path / "cache"))
    remote = RemoteStore(f"memory://{tmp_path}/place")
    monkeypatch.setattr(
        type(remote._files), "walk", lambda *_, **__: iter([(f"{remote._root}/key", {}, {"../../evil": {}})])
    )
    with pytest.raises(RemoteError, match=r"holds a file '\.\./\.\./evil', which is none of a run"):
        remote._names("key")


def test_events_at_an_address_do_not_grow_with_every_update(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = RemoteStore(url)
    file = EventFile(working_folder(url) / EVENTS / "x.jsonl", remote)
    file.append(Event("run", "start", 0, "begins"))
    for update in range(1, 200):
        file.append(Event("run", "update", update, ""))
    file.append(Event("run", "evaluation", 200, "done"))
    file.flush()
    lines = [json.loads(line) for line in EventFile(file.path, remote).read(0, is_last=True).splitlines()]
    assert [(line["kind"], line["update"]) for line in lines] == [("start", 0), ("update", 199), ("evaluation", 200)]


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
    with pytest.raises(SweepError, match="cannot be written: the place is full"):
        run_there(other, url, executor=InProcess())
    fails.clear()
    assert run_there(other, url, executor=InProcess()) == []
    assert b"update-000012" in RemoteStore(url).read(f"{first_run(other, url).directory.name}/checkpoints/last.json")


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
        remote.fetch_rows(run.directory)
        ((taken,), _) = import_runs([tmp_path / "plain" / run.directory.name], [run])
        remote.agree(taken.directory)
        forget(url)
    assert run_there(sweep, url) == []
    RemoteStore(url).fetch(run.directory)
    assert list(run.directory.glob("checkpoints/*/model.safetensors"))
    assert RunDirectory(run.directory).results() is not None


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("nowhere://x", "Protocol not known"),
        ("memory://", "names no folder"),
        ("ftp://me:secret@127.0.0.1:1/x", "refused"),
        ("reference://x", "."),
    ],
)
def test_an_address_that_cannot_be_used_is_one_line_without_passwords(address: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        RemoteStore(address)
    assert str(caught.value).startswith(f"--store: {address.replace('me:secret@', '')}")
    assert "\n" not in str(caught.value)
    assert "secret" not in str(working_folder(address))
    assert working_folder(address) == working_folder(f"{address}/")


def test_a_checkpoint_that_was_pruned_after_a_kill_is_deleted_there_too(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = first_run(longer_sweep(), url)
    published = RemoteStore.publish

    def killed(remote: RemoteStore, directory: Path) -> None:
        published(remote, directory)
        if RunDirectory(directory).last_update() == 6:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(RemoteStore, "publish", killed)
        with pytest.raises(Killed):
            attempt(job_of(run, url), lambda event: None)
    there = RemoteStore(url)
    assert any("update-000006" in name for name in there._names(run.directory.name))
    assert attempt(job_of(run, url), lambda event: None).status == "done"
    here = {path.relative_to(run.directory).as_posix() for path in run.directory.glob("checkpoints/update-*/*")}
    assert here == {name for name in there._names(run.directory.name) if name.startswith("checkpoints/update-")}
