"""The runs that a command line names, directories and sweeps, each under a name of its own."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ostinato.config.files import YAML_SUFFIXES
from ostinato.data.registry import DataAccess
from ostinato.errors import ConfigError, DataError
from ostinato.experiments.sweep.files import load_sweep
from ostinato.experiments.sweep.rows import is_sweep
from ostinato.experiments.sweep.runs import plan_runs
from ostinato.training.rundir import RunDirectory


@dataclass(frozen=True, slots=True)
class ChosenRun:
    """A run, which may not have begun yet.

    Args:
        n_updates: that it is to have, where a sweep says so.
    """

    name: str
    directory: Path
    n_updates: int | None = None


def choose_runs(
    given: Sequence[str],
    store: Path,
    access: DataAccess | None = None,
    inputs: Mapping[str, str] | None = None,
    *,
    finished: bool = False,
) -> list[ChosenRun]:
    """Return the runs of directories and of sweeps, under names that are unlike each other.

    Args:
        given: directories of runs, and names or files of sweeps. store: where the runs of sweeps are.
        finished: of a sweep only those that are.

    Raises:
        ConfigError: a sweep that cannot be used, or the rows of one. DataError: a sweep none of whose runs is finished.
    """
    found: dict[str, ChosenRun] = {}
    for text in given:
        for one in _runs_of(text, store, access, inputs, finished):
            name, number = one.name, 1
            while name in found:
                number += 1
                name = f"{one.name}-{number}"
            found[name] = ChosenRun(name, one.directory, one.n_updates)
    return list(found.values())


def _runs_of(
    text: str, store: Path, access: DataAccess | None, inputs: Mapping[str, str] | None, finished: bool
) -> Iterator[ChosenRun]:
    path = Path(text)
    if not is_sweep(path):
        yield ChosenRun(path.resolve().name, path)
        return
    if path.is_file() and path.suffix not in YAML_SUFFIXES:
        raise ConfigError(f"{text} holds rows alone: give the sweep's file or name, whose runs are opened")
    runs = plan_runs(load_sweep(text, inputs), store, access)
    there = [run for run in runs if not finished or RunDirectory(run.directory).results() is not None]
    if not there:
        command = shlex.join(["ostinato", "sweep", text, "--store", str(store)])
        raise DataError(f"{text}: no run of it is finished in {store}: {command}")
    for run in there:
        yield ChosenRun(run.name, run.directory, run.recipe.training.n_updates)
