"""The rows of a claim's sweep: its runs, and what is measured of several of them together."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ostinato.config.claim import ComparedConfig, SweepSource
from ostinato.config.files import parse_value
from ostinato.config.sweep import SweepConfig
from ostinato.data.disk import write_json
from ostinato.data.registry import DataAccess
from ostinato.errors import ConfigError, Problem
from ostinato.experiments.adopt import adopt_all
from ostinato.experiments.analysed import analyse, select
from ostinato.experiments.executors import Executor
from ostinato.experiments.runs import PlannedRun, plan_runs
from ostinato.experiments.sweep import load_sweep, run_sweep
from ostinato.experiments.sweep_files import read_sweep_settings
from ostinato.experiments.watch import Watcher
from ostinato.version import __version__

Rows = list[dict[str, Any]]
_COMPARED = "compared"


@dataclass(frozen=True, slots=True)
class Means:
    """What running a claim may use.

    Args:
        store: folder of runs, see `ostinato.experiments.sweep`.
        inputs: the user's files by the sweep's names. take: finished runs to copy into the store.
        executor: trains the runs; None: this process. watcher: told how they go on.
        on_event: told what else goes on, a line at a time.
    """

    store: Path
    access: DataAccess | None = None
    inputs: Mapping[str, str] = field(default_factory=dict)
    take: Sequence[Path] = ()
    on_event: Callable[[str], None] = lambda line: None
    executor: Executor | None = None
    watcher: Watcher | None = None


def swept_rows(source: SweepSource, means: Means) -> Rows:
    """Train what is missing and return the rows, measures of several runs among their values.

    Raises:
        ConfigError: a sweep or inputs that cannot be used. SweepError: runs that failed.
    """
    sweep = source_sweep(source, means.inputs)
    runs = plan_runs(sweep, means.store, means.access)
    if means.take:
        for run in adopt_all(means.take, runs):
            means.on_event(f"taken: {run.name}")
    rows = run_sweep(sweep, means.store, access=means.access, executor=means.executor, watcher=means.watcher)
    for measure in source.compared:
        _compare(measure, rows, runs, means)
    return rows


def source_sweep(source: SweepSource, inputs: Mapping[str, str]) -> SweepConfig:
    """Return the sweep of a claim, with the claim's own changes."""
    named = isinstance(source.sweep, str)
    sweep = load_sweep(read_sweep_settings(source.sweep) if named else source.sweep, inputs)  # type: ignore[arg-type]
    changes = {key: parse_value(value) for key, _, value in (text.partition("=") for text in source.overrides)}
    arms = [
        arm.model_copy(update={"set": {**arm.set, **changes}} | ({} if source.seeds is None else {"seeds": None}))
        for arm in sweep.arms
    ]
    seeds = sweep.seeds if source.seeds is None else source.seeds
    return sweep.model_copy(update={"arms": arms, "seeds": seeds})


def _compare(measure: ComparedConfig, rows: Rows, runs: Sequence[PlannedRun], means: Means) -> None:
    """Add a measure of several runs to the rows it belongs to."""
    arms = [measure.arm, *measure.others]
    chosen = {arm: [run for run in runs if run.arm == arm] for arm in arms}
    if missing := [arm for arm, of_arm in chosen.items() if not of_arm]:
        raise ConfigError([Problem(f"compared.{measure.name}", arm, "is no arm of the sweep") for arm in missing])
    if measure.over == "all":
        groups = {chosen[measure.arm][0].seed: [run for arm in arms for run in chosen[arm]]}
    else:
        groups = {
            run.seed: [r for arm in arms for r in chosen[arm] if r.seed == run.seed] for run in chosen[measure.arm]
        }
    for seed, group in groups.items():
        (row,) = (row for row in rows if (row["arm"], row["seed"]) == (measure.arm, seed))
        row["values"] = row["values"] | {measure.name: _taken(measure, _named(group), group, means)}


def _named(group: Sequence[PlannedRun]) -> list[tuple[str, Path]]:
    """Return the runs under their arms' names; further seeds of an arm say which they are."""
    seen: set[str] = set()
    named = []
    for run in group:
        named.append((run.name if run.arm in seen else run.arm, run.directory))
        seen.add(run.arm)
    return named


def _taken(measure: ComparedConfig, named: list[tuple[str, Path]], group: Sequence[PlannedRun], means: Means) -> float:
    """Return the number, kept in the store from one time to the next."""
    settings = measure.model_dump(mode="json", exclude={"name"})
    text = json.dumps([settings, [run.key for run in group], __version__], sort_keys=True)
    note = means.store / _COMPARED / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
    if not note.is_file():
        table = analyse(named, measure.study, measure.split, measure.max_examples, means.access)
        value = select(table, measure.table, measure.name)
        note.parent.mkdir(parents=True, exist_ok=True)
        write_json(note, {"settings": settings, "value": value})
    return float(json.loads(note.read_text(encoding="utf-8"))["value"])
