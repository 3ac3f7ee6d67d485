"""What a worker does for a sweep: train one run, or go on with it, and measure what takes time.

A run is trained by one process at a time: the worker that holds its lock (`ostinato.experiments.locks`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ostinato.config.measures import AnyMeasure
from ostinato.config.recipe import Recipe
from ostinato.data.registry import DataAccess
from ostinato.experiments.locks import run_lock
from ostinato.experiments.measures import using_access, values_of
from ostinato.tasks.recipes import load_recipe
from ostinato.training.loop import train
from ostinato.training.reporter import Reporter, SilentReporter
from ostinato.training.rundir import RunDirectory
from ostinato.training.threads import cpu_threads


@dataclass(frozen=True, slots=True)
class Job:
    """One run that is to be trained and measured.

    Args:
        name: for people. directory: of the run. n_threads: CPU threads where the recipe names none; None: torch's
            choice. access: where published data comes from; None: the default cache and mirror.
    """

    name: str
    recipe: Recipe
    directory: Path
    measures: tuple[AnyMeasure, ...] = ()
    n_threads: int | None = 1
    access: DataAccess | None = None


def do_job(job: Job, reporter: Reporter | None = None) -> None:
    """Train and measure; what is there already is not done again.

    Raises:
        BusyError: another process is at work on this run. OstinatoError: whatever training or measuring raises.
    """
    with (
        run_lock(job.directory),
        cpu_threads(job.recipe.training.n_threads or job.n_threads),
        using_access(job.access),
    ):
        run = RunDirectory(job.directory)
        if run.results() is None:
            # What was started under this key is the same run, even if it was called otherwise.
            recipe = load_recipe(job.directory) if run.exists else job.recipe
            train(recipe, job.directory, resume=True, access=job.access, reporter=reporter or SilentReporter())
        values_of(job.measures, job.directory)
