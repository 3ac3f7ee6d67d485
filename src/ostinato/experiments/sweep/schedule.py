"""Sweeps: every arm with every seed, trained once, measured, and written as rows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ostinato.config.measures import AnyMeasure
from ostinato.config.sweep import SweepConfig
from ostinato.data.registry import DataAccess
from ostinato.errors import CheckpointError, TrainingError, without_middle_lines
from ostinato.experiments.sweep.executors import Executor, InProcess, Job, JobResult
from ostinato.experiments.sweep.measure_checks import check_measurable
from ostinato.experiments.sweep.remote import RemoteError, RemoteStore
from ostinato.experiments.sweep.rows import SweepResults, collect_rows, results_folder
from ostinato.experiments.sweep.runs import PlannedRun, arm_budgets, check_equal, plan_runs
from ostinato.experiments.sweep.watch import Watcher

_PAUSE_S = 1.0
"""Seconds between two looks at whether a run that another process works on is to be tried again."""


class SweepError(TrainingError):
    """Some runs of a sweep have failed; the others are done. `failures`: the runs and why, in the sweep's order."""

    def __init__(self, failures: Sequence[tuple[PlannedRun, str]]) -> None:
        self.failures = list(failures)
        lines = [f"{run.name} ({run.directory}): {without_middle_lines(reason)}" for run, reason in failures]
        super().__init__("\n".join([f"{len(failures)} of the sweep's runs failed", *lines]))


def sweep_rows(
    sweep: SweepConfig, store: Path, *, access: DataAccess | None = None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the rows of the runs that are there, and what is missing; nothing is trained or evaluated.

    Returns:
        Rows as `run_sweep` returns them; and for every run that is not there: arm, seed, key, directory, why.

    Raises:
        ConfigError: a recipe that cannot be used. DataError: data that cannot be read, whose hash is part of the key.
    """
    return collect_rows(sweep, plan_runs(sweep, store, access), access)


def run_sweep(
    sweep: SweepConfig,
    store: Path,
    *,
    access: DataAccess | None = None,
    executor: Executor | None = None,
    watcher: Watcher | None = None,
    n_threads: int | None = 1,
    remote: RemoteStore | None = None,
) -> list[dict[str, Any]]:
    """Train what is not there yet, measure it, and write results.jsonl and timings.jsonl.

    Args:
        store: directory of runs; every one is in a directory of its own, named by its content address.
        access: where published data comes from; None: the default cache and mirror.
        executor: what does the work; None: this process.
        watcher: shows progress. n_threads: CPU threads of a run whose recipe names none.
        remote: address where runs and results are published; `store` is then this machine's working folder of it.

    Returns:
        Rows (`ostinato.experiments.sweep.rows.sweep_row`) in the order of arms, then seeds.

    Raises:
        ConfigError: budgets that are said to be equal and are not, recipes or metrics that cannot be used; before any
            training.
        SweepError: runs have failed; the others are done and written.
        RemoteError: the address cannot be read, or written in the end.
    """
    runs = plan_runs(sweep, store, access)
    if sweep.equal is not None:
        check_equal(sweep, arm_budgets(sweep, runs, access))
    store.mkdir(parents=True, exist_ok=True)

    if remote is not None:
        remote.check()
        remote.fetch_results(results_folder(sweep, store), store)
        for directory in dict.fromkeys(run.directory for run in runs):
            with suppress(CheckpointError):  # what is damaged here is said of its run
                remote.agree(directory)

    watcher = watcher or Watcher()
    results = SweepResults(sweep, runs, store, access)
    if results.kept is not None:
        watcher.on_kept(results.kept)
    if results.missing:
        check_measurable(sweep.measures)
    own = executor or InProcess()
    schedule = _Schedule(sweep, runs, results, own, watcher, n_threads, access, remote)
    try:
        schedule.run()
        if failed := [(run, schedule.failures[run.key]) for run in runs if run.key in schedule.failures]:
            raise SweepError(failed)
    except BaseException:  # what is finished is published, and the first error is the one to be told
        if remote is not None:
            with suppress(RemoteError):
                remote.publish_results(results.folder, store)
        raise
    finally:
        own.stop()
        watcher.close()
    if remote is not None:
        remote.publish_results(results.folder, store)
    return results.rows


def _keeping_for(run: PlannedRun, other: PlannedRun) -> PlannedRun:
    """Return a run that keeps as many checkpoints as another one asks for, too."""
    both = run.recipe.training, other.recipe.training
    most = {name: max(getattr(one, name) for one in both) for name in ("keep_last", "keep_best")}
    training = run.recipe.training.model_copy(update=most)
    return replace(run, recipe=run.recipe.model_copy(update={"training": training}))


class _Schedule:
    """The runs of a sweep that are not there yet, given to an executor as soon as what they start from is.

    Attributes:
        failures: keys of runs that have failed, and why.
    """

    def __init__(
        self,
        sweep: SweepConfig,
        runs: Sequence[PlannedRun],
        results: SweepResults,
        executor: Executor,
        watcher: Watcher,
        n_threads: int | None,
        access: DataAccess | None,
        remote: RemoteStore | None,
    ) -> None:
        self._results, self._executor, self._watcher = results, executor, watcher
        self._n_threads, self._access, self._address = n_threads, access, None if remote is None else remote.url
        # Arms that come to the same recipe share a run, the first one's, which keeps checkpoints for all of them.
        by_key: dict[str, PlannedRun] = {}
        for run in runs:
            by_key[run.key] = _keeping_for(by_key.get(run.key, run), run)
        self._waiting = {run.key: by_key[run.key] for run in runs if run.key in results.missing}
        self._n_there = len(by_key) - len(self._waiting)
        # Of a run what all arms that share it measure.
        self._measures: dict[str, list[AnyMeasure]] = {run.key: [] for run in runs}
        for run in runs:
            own = self._measures[run.key]
            own += [measure for measure in sweep.measures_of(run.arm) if measure not in own]
        self._submitted: dict[Path, PlannedRun] = {}
        self._busy: list[tuple[float, PlannedRun]] = []  # runs that another process has, and when they are tried again
        self._unseen: set[str] = set()  # keys of runs that were done once, and whose results were not there
        self.failures: dict[str, str] = {}

    def run(self) -> None:
        """Return when all runs are done or have failed."""
        self._watcher.on_plan(list(self._waiting.values()), self._n_there)
        self._submit_ready()
        while self._submitted or self._busy:
            now, tried = time.monotonic(), self._busy
            self._busy = [(due, run) for due, run in tried if due > now]
            for run in (run for due, run in tried if due <= now):
                self._submit(run)
            if not self._submitted:  # other processes do all that is left
                time.sleep(_PAUSE_S)
            elif (
                result := self._executor.collect(self._watcher.on_event, _PAUSE_S if self._busy else None)
            ) is not None:
                self._take(result)

    def _submit_ready(self) -> None:
        """Submit what does not wait for another run; what starts from a run that failed is no longer waiting."""
        for run in list(self._waiting.values()):
            if run.start is None or (run.start.is_finished and run.start.key not in self._results.refused):
                self._submit(run)

    def _submit(self, run: PlannedRun) -> None:
        self._waiting.pop(run.key, None)
        self._submitted[run.directory] = run
        measures = tuple(self._measures[run.key])
        self._executor.submit(
            Job(run.name, run.recipe, run.directory, measures, self._n_threads, self._access, self._address)
        )

    def _take(self, result: JobResult) -> None:
        """Note how a run has ended; one that another process has, or whose results are not seen yet, is tried again."""
        run = self._submitted.pop(result.job.directory)
        kept = self._results.kept
        self._results.update(run.key)
        if (moved := self._results.kept) is not None and moved != kept:  # another sweep of the name wrote its rows
            self._watcher.on_kept(moved)
        status, reason = result.status, result.reason
        is_unseen = status == "done" and run.key in self._results.missing
        if status == "busy" or (is_unseen and run.key not in self._unseen):
            # A network file system may show what another machine wrote half a minute later.
            self._unseen |= {run.key} if is_unseen else set()
            self._busy.append((time.monotonic() + result.again_after, run))
            return
        if is_unseen:  # the source that measured it on another machine is another one
            status, reason = "failed", f"it is done, but not there: {self._results.missing[run.key]}"
        if status != "done":
            self._fail(run, f"{status}: {reason}")
        self._watcher.on_result(run, status, reason)
        self._submit_ready()

    def _fail(self, run: PlannedRun, reason: str) -> None:
        """Note why a run has failed, and that all runs which would have started from it cannot be trained."""
        self._waiting.pop(run.key, None)
        self.failures[run.key] = reason
        for other in list(self._waiting.values()):
            if other.start is not None and other.start.key == run.key:
                self._fail(other, f"not run: it starts from {run.name}, which failed")
