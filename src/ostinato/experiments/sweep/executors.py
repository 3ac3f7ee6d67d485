"""The jobs of a sweep, and where they are done: in this process, in processes of this machine (`sweep.pool`), or by a
cluster (`sweep.cluster_executor`).

A job trains one run, or goes on with it, and measures what takes time. A run is trained by one process at a time: the
one that holds its lock (`ostinato.experiments.sweep.locks`).
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from ostinato.config.measures import AnyMeasure
from ostinato.config.recipe import Recipe
from ostinato.data.registry import DataAccess
from ostinato.errors import CheckpointError, OstinatoError
from ostinato.experiments.sweep.locks import BusyError, run_lock
from ostinato.experiments.sweep.measures import values_of
from ostinato.experiments.sweep.remote import RemoteError, RemoteStore
from ostinato.experiments.sweep.rows import check_kept
from ostinato.experiments.sweep.watch import Event, EventReporter
from ostinato.system_errors import describe_failure
from ostinato.tasks.own_files import SPLITS
from ostinato.tasks.recipes import load_recipe
from ostinato.tasks.start import is_run
from ostinato.training.changes import is_free
from ostinato.training.checkpoint import Checkpoints
from ostinato.training.loop import train
from ostinato.training.reporter import warning_text
from ostinato.training.rundir import RunDirectory
from ostinato.training.threads import cpu_threads

Status = Literal["done", "busy", "failed", "died"]
TakeEvent = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Job:
    """One run that is to be trained and measured.

    Args:
        name: for people. directory: of the run. n_threads: CPU threads where the recipe names none; None: torch's
            choice. access: where published data comes from; None: the default cache and mirror.
        remote: address of the store where the run is published (`sweep.remote`); None: the directory is its only place.
    """

    name: str
    recipe: Recipe
    directory: Path
    measures: tuple[AnyMeasure, ...] = ()
    n_threads: int | None = 1
    access: DataAccess | None = None
    remote: str | None = None


@dataclass(frozen=True, slots=True)
class JobResult:
    """How a job ended.

    Args:
        status: done; busy: another process works on the run; failed: with an error; died: with its process.
        reason: why, for people; empty where it was done.
        again_after: seconds after which a run that another process works on is worth another try.
    """

    job: Job
    status: Status
    reason: str = ""
    again_after: float = 1.0


class Executor(Protocol):
    """Does jobs, in any order; every job that is submitted has one result."""

    def submit(self, job: Job) -> None:
        """Take a job; return at once."""

    def collect(self, on_event: TakeEvent, timeout: float | None = None) -> JobResult | None:
        """Wait until a job that was submitted has ended, and return how; None where that took too many seconds.

        Args:
            on_event: called meanwhile with what happens in any of the runs.
        """

    def stop(self) -> None:
        """End all work that is going on; runs stay as their last checkpoints left them."""


class InProcess:
    """Does one job after the other in this process, when its result is asked for."""

    def __init__(self) -> None:
        self._waiting: deque[Job] = deque()

    def submit(self, job: Job) -> None:
        """Take a job."""
        self._waiting.append(job)

    def collect(self, on_event: TakeEvent, timeout: float | None = None) -> JobResult:
        """Do the next job, however long it takes."""
        return attempt(self._waiting.popleft(), on_event)

    def stop(self) -> None:
        """Forget the jobs that wait."""
        self._waiting.clear()


def attempt(job: Job, on_event: TakeEvent) -> JobResult:
    """Train and measure a run, without what is there already; return how that ended.

    What the machine refuses (a full disk, memory) is a line, as one of this package's own errors is; any other error
    comes with its traceback.
    """
    words: list[str] = []
    try:
        with run_lock(job.directory) as check_held, cpu_threads(job.recipe.training.n_threads or job.n_threads):
            remote = None if job.remote is None else RemoteStore(job.remote)

            def send(event: Event) -> None:
                check_held()
                on_event(event)

            def publish(update: int) -> None:
                if remote is None:
                    return
                try:
                    remote.publish(job.directory)
                except RemoteError as error:  # the next checkpoint may come through
                    send(Event(job.name, "warning", update, warning_text(update, str(error))))

            if remote is not None:
                remote.fetch(job.directory)
                _fetch_start(job, remote)
            run, reporter = RunDirectory(job.directory), EventReporter(job.name, send, publish)
            try:
                if run.results() is None:
                    words = ["train", str(job.directory)]
                    recipe = job.recipe
                    if run.exists:  # What was started under this key is the same run, even if it was called otherwise.
                        found = load_recipe(job.directory)
                        check_kept(job.directory, found, job.recipe, job.name)
                        _check_begun(run, found)
                        recipe = _placed_as(found, job.recipe)
                    train(recipe, job.directory, resume=run.exists, access=job.access, reporter=reporter)
                    words = []
                values_of(job.measures, job.directory, job.access, recipe=job.recipe)
            except Exception:  # what tells why stands in the run's directory
                if remote is not None:
                    with suppress(RemoteError, BusyError):
                        remote.publish(job.directory)
                raise
            if remote is not None:
                remote.publish(job.directory)
    except BusyError as error:
        return JobResult(job, "busy", str(error))
    except OstinatoError as error:
        return JobResult(job, "failed", str(error))
    except Exception as error:
        return JobResult(job, "failed", describe_failure(error, words) or traceback.format_exc())
    return JobResult(job, "done")


def _fetch_start(job: Job, remote: RemoteStore) -> None:
    """Have the run that a run starts from, where it is one of the store.

    Raises:
        RemoteError: it is not there.
    """
    start = job.recipe.training.init_from
    if start is None or Path(start).parent != job.directory.parent.absolute():
        return
    remote.fetch(Path(start))
    if RunDirectory(Path(start)).results() is None:
        raise RemoteError(f"--store: {remote.name}/{Path(start).name}: is not there, and {job.name} starts from it")


def _check_begun(run: RunDirectory, recipe: Recipe) -> None:
    """Refuse a run that has learned nothing yet, and whose start is gone: in a store that was moved.

    Raises:
        CheckpointError: it has no checkpoint to go on from, and is to be begun anew.
    """
    start = recipe.training.init_from
    if start is not None and not is_run(start) and Checkpoints(run.checkpoints, keep_last=1).last_update() is None:
        reason = f"has no checkpoint yet, and the run that it starts from is not at {start} any more"
        raise CheckpointError(f"{run.path}: {reason}: move it away, and run it again")


def _placed_as(recipe: Recipe, other: Recipe) -> Recipe:
    """Return a recipe with the device, the loggers, the files of examples and what else of another changes no result.

    Training refuses examples that are not the run's.
    """
    names = [name for name in type(recipe.training).model_fields if is_free(f"training.{name}")]
    free = {name: getattr(other.training, name) for name in names if not name.startswith("keep_")}
    files = {name: getattr(other.data, name) for name in SPLITS}
    changed = {"training": recipe.training.model_copy(update=free), "data": recipe.data.model_copy(update=files)}
    return recipe.model_copy(update=changed)
