"""Rows of a sweep, one for every arm and seed in the sweep's order: made of finished runs, written, and opened again.

results.jsonl holds what is the same whenever and wherever the runs are trained; timings.jsonl holds the times. A sweep
that was interrupted and run again ends with the same results.jsonl, byte for byte, as one that was not.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from ostinato.budget import count_macs
from ostinato.config.files import YAML_SUFFIXES, shipped_files
from ostinato.config.measures import EvaluateMeasure
from ostinato.config.recipe import Recipe
from ostinato.config.sweep import EqualConfig, SweepConfig
from ostinato.data.disk import reading, write_text
from ostinato.data.registry import DataAccess
from ostinato.errors import CheckpointError, ConfigError, DataError, on_one_line
from ostinato.experiments.results import first_row, pass_lengths, read_rows
from ostinato.experiments.sweep.files import load_sweep
from ostinato.experiments.sweep.locks import write_lock
from ostinato.experiments.sweep.measures import values_of
from ostinato.experiments.sweep.run_key import noted_files, run_key, run_versions
from ostinato.experiments.sweep.runs import PlannedRun, plan_runs
from ostinato.tasks.recipes import load_recipe
from ostinato.training.rundir import RunDirectory

RESULTS, TIMINGS = "results.jsonl", "timings.jsonl"
_ID = ("sweep", "arm", "seed", "key")
_TIMES = ("began", "training_seconds", "seconds")


def sweep_row(sweep: SweepConfig, run: PlannedRun, access: DataAccess | None = None) -> dict[str, Any]:
    """Return what a finished run found.

    Returns:
        sweep, arm, seed, key; recipe (its name), version, commit, data_sha256 (by split), parameters (stored), macs and
        macs_lengths (source and target tokens), n_updates, checkpoint (the one that was evaluated: "best of dev
        loss", or "last"), checkpoints (of measures that name another one, where any does), began (UTC; None of
        runs of earlier versions), training_seconds, seconds (with the final evaluation), values: by names of measures.

    Raises:
        LookupError: it is not finished, or has not been measured, or has no such number: in words.
        CheckpointError: another run lies in its place, or one whose recipe cannot be read.
    """
    results = RunDirectory(run.directory).results()
    if results is None:
        raise LookupError("not trained")
    try:
        recipe, equal = load_recipe(run.directory), sweep.equal or EqualConfig()
    except ConfigError as error:
        reason = f"{run.directory} cannot be read as a run: {on_one_line(error)}"
        raise CheckpointError(f"{reason}: move it away, and run it again") from error
    _check_address(run, recipe)
    check_kept(run.directory, recipe, run.recipe, run.name)
    try:
        values = values_of(sweep.measures_of(run.arm), run.directory, access, only_kept=True, recipe=run.recipe)
    except (LookupError, DataError, ConfigError) as error:
        raise LookupError(f"not measured: {error.args[0]}") from error
    lengths = (equal.source_length, equal.target_length)
    versions = run_versions(run.directory)
    evaluated = [measure for measure in sweep.measures_of(run.arm) if isinstance(measure, EvaluateMeasure)]
    own_checkpoints = {
        measure.name: measure.checkpoint
        for measure in evaluated
        if measure.checkpoint not in (None, recipe.evaluation.checkpoint)
    }
    return {
        "sweep": sweep.name,
        "arm": run.arm,
        "seed": run.seed,
        "key": run.key,
        "recipe": run.recipe.name,
        "version": versions["ostinato"],
        "commit": versions.get("commit"),
        "data_sha256": results["data_sha256"],
        "parameters": results["parameters"],
        "macs": count_macs(recipe.model, *pass_lengths(recipe, lengths)).total,
        "macs_lengths": list(lengths),
        "n_updates": results["n_updates"],
        "checkpoint": "last" if results["best_update"] is None else _scored(recipe),
        **({"checkpoints": own_checkpoints} if own_checkpoints else {}),
        "began": versions.get("began"),
        "training_seconds": results["training_seconds"],
        "seconds": results["seconds"],
        "values": values,
    }


def _scored(recipe: Recipe) -> str:
    """Return which checkpoint results are of, in words."""
    checkpoint, selection = recipe.evaluation.checkpoint, recipe.training.selection
    return checkpoint if checkpoint.startswith("last") else f"{checkpoint} of {selection.split} {selection.metric}"


def _check_address(run: PlannedRun, recipe: Recipe) -> None:
    """Refuse a directory that holds another run than its name says: a default may have changed since."""
    start = run.start.key if run.start else None
    if start is None and recipe.training.init_from is not None:
        return  # what it started from may be gone, and is part of its address
    directory = RunDirectory(run.directory)
    hashes, changes = directory.data_hashes(), directory.recorded_changes()
    version, noted = run_versions(run.directory)["ostinato"], noted_files(run.directory, recipe)
    if run_key(recipe, hashes, start=start, version=version, changes=changes, noted=noted) != run.key:
        raise CheckpointError(f"{run.directory} holds another run than its name says: move it away, and run it again")


def check_kept(directory: Path, recipe: Recipe, asked: Recipe, name: str) -> None:
    """Refuse a run that keeps fewer checkpoints than is asked for: its address does not say how many.

    Args:
        recipe: the run's. asked, name: recipe and name of the run of the sweep.

    Raises:
        CheckpointError: it keeps fewer.
    """
    for key in ("keep_last", "keep_best"):
        kept, wanted = getattr(recipe.training, key), getattr(asked.training, key)
        if kept < wanted:
            reason = f"{directory} was begun with training.{key}={kept}, and {name} asks for {wanted}"
            raise CheckpointError(f"{reason}: move it away, and run it again")


def collect_rows(
    sweep: SweepConfig, runs: Sequence[PlannedRun], access: DataAccess | None = None, *, refuses: bool = True
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the rows of the runs that are there, and of the others arm, seed, key, directory and why.

    Args:
        refuses: whether a directory that is damaged, or holds another run, is an error; else it is not there, and its
            line says is_refused.

    Raises:
        CheckpointError: there is such a directory.
    """
    rows, missing = [], []
    for run in runs:
        try:
            rows.append(sweep_row(sweep, run, access))
        except (LookupError, CheckpointError) as error:
            if refuses and isinstance(error, CheckpointError):
                raise
            place = {"arm": run.arm, "seed": run.seed, "key": run.key, "directory": str(run.directory)}
            missing.append(place | {"why": str(error.args[0])})
            if isinstance(error, CheckpointError):
                missing[-1]["is_refused"] = True
    return rows, missing


def results_folder(sweep: SweepConfig, store: Path) -> Path:
    """Return the folder of a sweep's results.jsonl and timings.jsonl."""
    return store / "sweeps" / sweep.name.replace("/", "-")


class SweepResults:
    """The rows of a sweep while it runs, and its files, which hold at any time the rows that are there.

    Args:
        store: directory of the runs. access: where published data comes from; None: the default cache and mirror.
    """

    def __init__(
        self, sweep: SweepConfig, runs: Sequence[PlannedRun], store: Path, access: DataAccess | None = None
    ) -> None:
        self.sweep, self.runs, self.store, self.folder = sweep, runs, store, results_folder(sweep, store)
        self._access = access
        self._rows: dict[tuple[str, int], dict[str, Any]] = {}
        self._lines: dict[tuple[str, int], list[str]] = {}
        """Of every row its line of results and of timings: all are written again after every run."""
        self.missing: dict[str, str] = {}
        """Keys of runs that have no row yet, and why."""
        self.refused: set[str] = set()
        """Those of them whose directory is damaged, or holds another run."""
        self._written: bytes | None = None
        """What results.jsonl held when this process wrote it last: a sweep of the same name may run meanwhile."""
        self.kept: Path | None = None
        """Where files that were there were moved to, the last time; None where their rows were all there still."""
        self._read(runs)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows in the sweep's order."""
        return [self._rows[run.arm, run.seed] for run in self.runs if (run.arm, run.seed) in self._rows]

    def update(self, key: str) -> None:
        """Read the run of a key, which has ended."""
        self._read([run for run in self.runs if run.key == key])

    def _read(self, runs: Sequence[PlannedRun]) -> None:
        self._collect(runs)
        with write_lock(self.store, f"sweep-{self.folder.name}"):
            self.folder.mkdir(parents=True, exist_ok=True)
            found = self.folder / RESULTS
            if found.is_file() and found.read_bytes() != self._written:
                self.kept = self._keep_earlier(found) or self.kept
            lines = [self._lines[row["arm"], row["seed"]] for row in self.rows]
            for name, place in ((TIMINGS, 1), (RESULTS, 0)):
                write_text(self.folder / name, "".join(line[place] for line in lines))
            self._written = found.read_bytes()

    def _collect(self, runs: Sequence[PlannedRun]) -> None:
        # One run that is not what its name says, of other data on some machine, must not end all others.
        rows, missing = collect_rows(self.sweep, runs, self._access, refuses=False)
        for row in rows:
            place = row["arm"], row["seed"]
            self._rows[place] = row
            self._lines[place] = [json.dumps(p, ensure_ascii=False) + "\n" for p in split_row(self.sweep, row)]
        # Of two arms that are one run, one may have more measured of it.
        read = {run.key for run in runs}
        self.missing = {key: why for key, why in self.missing.items() if key not in read}
        self.missing |= {line["key"]: line["why"] for line in missing}
        self.refused = (self.refused - read) | {line["key"] for line in missing if "is_refused" in line}

    def _keep_earlier(self, found: Path) -> Path | None:
        """Move files that hold other rows, of a sweep before a change or of its namesake, to a folder below."""
        try:
            before = {tuple(row.get(key) for key in _ID) for row in read_rows(found)}
        except (DataError, TypeError):  # damaged: whatever it holds is kept
            before = {()}
        # Another process may have finished some since they were looked for.
        late = [run for run in self.runs if (self.sweep.name, run.arm, run.seed, run.key) in before]
        self._collect([run for run in late if (run.arm, run.seed) not in self._rows])
        if before <= {tuple(row[key] for key in _ID) for row in self.rows}:
            return None
        # The same rows are kept once: two sweeps of one name may take turns, and their rows become more.
        places, lines = (self.folder / f"earlier-{number}" for number in count(1)), {*found.read_bytes().splitlines()}
        kept = ((place, place / RESULTS) for place in places)
        place = next(one for one, file in kept if not file.exists() or lines.issuperset(file.read_bytes().splitlines()))
        place.mkdir(exist_ok=True)
        for name in (TIMINGS, RESULTS):  # the results last: a kill between both leaves them where they are looked for
            if (self.folder / name).is_file():
                (self.folder / name).replace(place / name)
        return place


def split_row(sweep: SweepConfig, row: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the part of a row that is the same every time the sweep is run, and its times."""
    timing = [measure.name for measure in sweep.measures if measure.is_timing]

    def is_time(name: str) -> bool:
        return any(name == own or name.startswith(f"{own}.") for own in timing)

    found = {key: value for key, value in row.items() if key not in _TIMES}
    found["values"] = {name: value for name, value in row["values"].items() if not is_time(name)}
    times = {key: row[key] for key in (*_ID, *_TIMES)}
    times["values"] = {name: value for name, value in row["values"].items() if is_time(name)}
    return found, times


def read_sweep(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a results.jsonl, with the times of the timings.jsonl beside it where there is one.

    Raises:
        DataError: a row that lacks what tables and figures read, or has a value that is no finite number; null is none.
    """
    rows = read_rows(path)
    beside = path.with_name(TIMINGS)
    with reading(beside, DataError):
        times = {tuple(line[key] for key in _ID): line for line in (read_rows(beside) if beside.is_file() else [])}
    joined = []
    with reading(path, DataError):
        for row in rows:
            own = times.get(tuple(row[key] for key in _ID), {})
            source, target = row["macs_lengths"]
            if not all(isinstance(size, int) for size in (row["parameters"], row["macs"], source, target)):
                raise TypeError("sizes must be whole numbers")
            found = row["values"] | own.get("values", {})
            values = {name: value for name, value in found.items() if value is not None}
            if not all(isinstance(value, int | float) and math.isfinite(value) for value in values.values()):
                raise TypeError("values must be finite numbers, or null")
            joined.append(row | {key: own[key] for key in _TIMES if key in own} | {"values": values})
    return joined


@dataclass(frozen=True, slots=True)
class OpenedSweep:
    """The rows of a sweep, and what is known beside them.

    Args:
        rows: in the sweep's order. missing: see `collect_rows`. sweep, runs: the sweep and its finished runs; None
            and empty where the rows come from a results.jsonl.
    """

    rows: list[dict[str, Any]]
    missing: list[dict[str, Any]]
    sweep: SweepConfig | None = None
    runs: tuple[PlannedRun, ...] = ()


def is_sweep(path: Path) -> bool:
    """Return True for a sweep's file or name, and for the rows that one wrote."""
    if path.is_dir():
        return False
    if str(path) in shipped_files("sweeps") or path.suffix in YAML_SUFFIXES:
        return True
    if not path.is_file():
        return False
    is_empty = path.name == RESULTS and not path.stat().st_size  # of a sweep none of whose runs is done yet
    return is_empty or {"sweep", "arm", "values"} <= (first_row(path) or {}).keys()


def open_sweep(
    path: Path, store: Path, access: DataAccess | None = None, inputs: Mapping[str, str] | None = None
) -> OpenedSweep:
    """Return the rows of a sweep: those in a file of rows, or else those of the sweep's runs in the store.

    Raises:
        ConfigError: no such sweep, or one that cannot be used. DataError: there are no rows yet.
    """
    if path.is_file() and path.suffix not in YAML_SUFFIXES:
        if not (found := read_sweep(path)):
            raise DataError(f"{path}: has no rows: no run of its sweep is done yet")
        source = OpenedSweep(found, [])
    else:
        sweep = load_sweep(str(path), inputs)
        runs = plan_runs(sweep, store, access)
        rows, missing = collect_rows(sweep, runs, access)
        there = {(row["arm"], row["seed"]) for row in rows}
        source = OpenedSweep(rows, missing, sweep, tuple(run for run in runs if (run.arm, run.seed) in there))
    command = shlex.join(["ostinato", "sweep", str(path), "--store", str(store)])
    if not source.rows and (unmeasured := [line["why"] for line in source.missing if "measured" in line["why"]]):
        raise DataError(f"{path}: its runs in {store} have no rows ({unmeasured[0]}), which {command} adds")
    if not source.rows:
        reason = f"{path}: no run of it is in {store}: {command}"
        folder = None if source.sweep is None else results_folder(source.sweep, store)
        if earlier := [] if folder is None else [one for one in folder.rglob(RESULTS) if one.stat().st_size]:
            newest = max(earlier, key=lambda one: one.stat().st_mtime)
            reason += f" (its rows of earlier settings, data or versions: {newest})"
        raise DataError(reason)
    return source
