"""Finished runs from elsewhere, copied into a store in place of the runs that a sweep would train."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from shutil import copyfile

from ostinato.config.files import say_once
from ostinato.data.disk import new_folder
from ostinato.errors import CheckpointError, ConfigError, OstinatoError, on_one_line
from ostinato.experiments.sweep.locks import run_lock
from ostinato.experiments.sweep.run_key import key_of_run, key_settings, noted_files, run_versions
from ostinato.experiments.sweep.runs import PlannedRun
from ostinato.tasks.recipes import load_recipe
from ostinato.training.rundir import RunDirectory
from ostinato.version import __version__

_SHOWN = 8


def import_run(path: Path, runs: Sequence[PlannedRun]) -> PlannedRun | None:
    """Copy a finished run into its place in the store; return the planned run that it is, None where it is none.

    The run that it started from, where it did, need not be in the store.

    Raises:
        CheckpointError: it is no run, or is not finished.
        BusyError: another process works on the run in the store.
    """
    results = RunDirectory(path).results()
    key = key_of_run(path)
    if results is None:
        command = shlex.join(["ostinato", "train", str(path), "--resume"])
        raise CheckpointError(f"{path} is not finished: go on with it ({command})")
    mine = [run for run in runs if run.key == key]
    if not mine:
        return None
    target = mine[0].directory
    if path.resolve() == target.resolve():
        return mine[0]
    with run_lock(target):
        if not mine[0].is_finished:
            with new_folder(target) as folder:
                _copy_files(path, folder)
    return mine[0]


def _copy_files(source: Path, target: Path) -> None:
    """Copy a run's files, those behind links too, without their permissions: an archive may be for reading only."""
    for place, inside, names in os.walk(source, followlinks=True):
        here = Path(place)
        # A link may lead back to where it is.
        inside[:] = [one for one in inside if not here.resolve().is_relative_to((here / one).resolve())]
        (there := target / here.relative_to(source)).mkdir(exist_ok=True)
        for file in (here / name for name in names if not name.startswith(".lock")):
            if file.is_file():
                copyfile(file, there / file.name)


def _difference(path: Path, runs: Sequence[PlannedRun]) -> str:
    """Say how a run differs from the most similar one of a sweep."""
    version = run_versions(path)["ostinato"]
    if version != __version__:
        return f"it was trained by version {version}, this is {__version__}"
    recipe, differences = load_recipe(path), dict[str, list[str]]()
    own = key_settings(recipe, noted=noted_files(path, recipe))
    for run in runs:
        other = key_settings(run.recipe)
        differences[run.name] = [
            f"{key} is {own.get(key)!r} there and {other.get(key)!r} in the sweep"
            for key in own | other
            if own.get(key) != other.get(key)
        ]
    name = min(differences, key=lambda name: len(differences[name]))
    found = differences[name]
    if not found:
        return f"it has the settings of {name}, but other data or another start, or its recipe was changed on the way"
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f"of {name} it differs in: {'; '.join(found[:_SHOWN])}{more}"


def _finished_in(folder: Path) -> dict[Path, str | None]:
    """Return the finished runs in a folder with their keys; one whose key can no longer be computed is named."""
    found: dict[Path, str | None] = {}
    for path in sorted(folder.glob("[!.]*/results.json")):
        try:
            found[path.parent] = key_of_run(path.parent)
        except (OstinatoError, OSError) as error:
            found[path.parent] = None
            say_once(f"{path.parent} is not taken: {on_one_line(error)}")
    return found


def import_runs(paths: Sequence[Path], runs: Sequence[PlannedRun]) -> tuple[list[PlannedRun], dict[Path, str]]:
    """Copy several finished runs into a store; return those, and by path why a run is none of these.

    Args:
        paths: run directories; of a directory of run directories (a store) those that are the sweep's.

    Raises:
        ConfigError: naming every path that holds no finished run; the others are copied.
    """
    taken, others, refused = list[PlannedRun](), dict[Path, str](), list[str]()
    keys = {run.key for run in runs}
    for path in paths:
        chosen = [path]
        if not RunDirectory(path).exists and (finished := _finished_in(path)):
            chosen = [inner for inner, key in finished.items() if key in keys]
            known = [inner for inner, key in finished.items() if key is not None]
            if not known:
                refused.append(f"{path}: holds no run whose address can be computed")
            elif not chosen:
                reason = f"{known[0].name}: {_difference(known[0], runs)}"
                say_once(f"{path}: none of its {len(known)} finished runs is one of this sweep ({reason})")
        for one in chosen:
            try:
                run = import_run(one, runs)
            except CheckpointError as error:
                refused.append(str(error))
                continue
            if run is None:
                others[one] = f"{one} is no run of this sweep: {_difference(one, runs)}"
            else:
                taken.append(run)
    if refused:
        raise ConfigError("\n".join(refused))
    return taken, others
