"""The rows of a sweep from wherever the user names them: a sweep's file or name, or the results.jsonl it wrote."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ostinato.config.sweep import SweepConfig
from ostinato.data.registry import DataAccess
from ostinato.errors import DataError
from ostinato.experiments.rows import collect_rows, read_sweep
from ostinato.experiments.runs import PlannedRun, plan_runs
from ostinato.experiments.sweep_files import load_sweep, shipped_sweeps

_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class OpenedSweep:
    """What is there of a sweep.

    Args:
        rows: in the sweep's order. missing: see `ostinato.experiments.rows.collect_rows`. sweep, runs: the finished
            ones; of a results.jsonl nothing is known of either.
    """

    rows: list[dict[str, Any]]
    missing: list[dict[str, Any]]
    sweep: SweepConfig | None = None
    runs: tuple[PlannedRun, ...] = ()


def is_sweep(path: Path) -> bool:
    """Return True for a sweep's file or name, and for the rows that one wrote."""
    if path.is_dir():
        return False
    return str(path) in shipped_sweeps() or path.suffix in _SUFFIXES or (path.is_file() and _holds_rows(path))


def open_sweep(
    path: Path, store: Path, access: DataAccess | None = None, inputs: Mapping[str, str] | None = None
) -> OpenedSweep:
    """Return the rows of a sweep: of a file of rows those, else those of the runs in the store.

    Raises:
        ConfigError: no such sweep, or one that cannot be used. DataError: there are no rows yet.
    """
    if path.is_file() and path.suffix not in _SUFFIXES:
        source = OpenedSweep(read_sweep(path), [])
    else:
        sweep = load_sweep(str(path), inputs)
        runs = plan_runs(sweep, store, access)
        rows, missing = collect_rows(sweep, runs)
        there = {(row["arm"], row["seed"]) for row in rows}
        source = OpenedSweep(rows, missing, sweep, tuple(run for run in runs if (run.arm, run.seed) in there))
    if not source.rows:
        raise DataError(f"{path}: no run of it is in {store}: ostinato sweep {path} --store {store}")
    return source


def _holds_rows(path: Path) -> bool:
    with path.open("rb") as file:
        line = file.readline()
    try:
        row = json.loads(line)
    except ValueError:
        return False
    return isinstance(row, dict) and {"sweep", "arm", "values"} <= set(row)
