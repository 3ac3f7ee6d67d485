"""Running a claim: what is missing is run, every number is judged by its band, the outcome is a file.

The numbers come from rows, {arm, seed, values: {measure: number}}, of the claim's source: runs of a sweep, timings of
models with random weights, or counts.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ostinato.budget import Assumptions, count_budget
from ostinato.config.claim import ComparedConfig, CountSource, SweepSource, TimedArm, TimingSource
from ostinato.config.files import parse_value
from ostinato.config.measures import FigureName
from ostinato.config.model import ModelConfig
from ostinato.config.recipe import Recipe
from ostinato.config.sweep import SweepConfig
from ostinato.data.disk import MADE_AGAIN, read_json_object, reading, write_json
from ostinato.data.registry import DataAccess
from ostinato.errors import ConfigError, DataError, Problem
from ostinato.evaluation.timing import Effort
from ostinato.experiments.claims.files import Claim, Outcome, command
from ostinato.experiments.claims.inference import Sampling
from ostinato.experiments.claims.statistics import claim_verdict, find
from ostinato.experiments.results import pass_lengths
from ostinato.experiments.sweep.executors import Executor
from ostinato.experiments.sweep.files import load_sweep, read_sweep_settings
from ostinato.experiments.sweep.import_runs import import_runs
from ostinato.experiments.sweep.measures import analyse, select
from ostinato.experiments.sweep.run_key import run_versions
from ostinato.experiments.sweep.runs import PlannedRun, plan_runs
from ostinato.experiments.sweep.schedule import run_sweep
from ostinato.experiments.sweep.watch import Watcher
from ostinato.experiments.timing.latency import Timer
from ostinato.experiments.timing.workloads import Candidate, Workload
from ostinato.tasks.recipes import load_recipe
from ostinato.tasks.vocabulary import size_model
from ostinato.training.rundir import versions
from ostinato.version import __version__

Rows = list[dict[str, Any]]
_COMPARED = "compared"
_SAMPLING: dict[str, Sampling] = {"sweep": "seeds", "timing": "rounds", "count": "exact"}
_COUNTED: tuple[FigureName, ...] = ("parameters", "active", "macs")


@dataclass(frozen=True, slots=True)
class Resources:
    """What running a claim may use.

    Args:
        store: folder of runs, see `ostinato.experiments.sweep.schedule`.
        access: where published data comes from; None: the default cache and mirror.
        inputs: the user's files by the sweep's names. take: finished runs to copy into the store.
        on_event: called with a line of text for everything but the runs' progress.
        executor: trains the runs; None: this process. watcher: shows the runs' progress.
    """

    store: Path
    access: DataAccess | None = None
    inputs: Mapping[str, str] = field(default_factory=dict)
    take: Sequence[Path] = ()
    on_event: Callable[[str], None] = lambda line: None
    executor: Executor | None = None
    watcher: Watcher | None = None


def reproduce(claim: Claim, resources: Resources) -> Outcome:
    """Run what is missing, and return the outcome.

    Raises:
        ConfigError: inputs that are missing, or arms that cannot be built. DataError: an expectation of a number that
            was not measured. TrainingError: runs that failed, by arm and seed.
    """
    began = time.monotonic()
    source, now = claim.config.source, versions()
    code: str | None = claim.code
    match source:
        case SweepSource():
            rows, runs = sweep_source_rows(source, resources)
            if any(run_versions(run.directory).get("source") != now["source"] for run in runs):
                code = None
        case TimingSource():
            rows = timed_rows(source, resources.on_event)
        case CountSource():
            rows = counted_rows(source, resources.access)
    sampling = _SAMPLING[source.kind]
    numbers = find(claim.config.expect, rows, sampling)
    controls = []
    for control in claim.config.controls:
        of_control = rows
        if control.overrides and isinstance(source, SweepSource):
            changed = source.model_copy(update={"overrides": [*source.overrides, *control.overrides]})
            of_control, _ = sweep_source_rows(changed, resources)
        (number,) = find([control], of_control, sampling)
        low, high = control.band
        is_so = (low is None or number.value >= low) and (high is None or number.value <= high)
        controls.append({"what": control.what, "band": [low, high], "value": number.value, "is_so": is_so})
    head = {
        "name": claim.name,
        "claim": claim.address,
        "verdict": claim_verdict(numbers) if all(control["is_so"] for control in controls) else "void",
        "numbers": [number.as_dict() for number in numbers],
        "controls": controls,
        "date": datetime.now(UTC).date().isoformat(),
        "command": command(claim),
        "seconds": round(time.monotonic() - began, 1),
        "versions": now,
        "code": code,
    }
    return Outcome(head, rows)


def sweep_source_rows(source: SweepSource, resources: Resources) -> tuple[Rows, list[PlannedRun]]:
    """Train the runs that are missing; return the rows, measures of several runs among their values, and the runs."""
    sweep, store, access = source_sweep(source, resources.inputs), resources.store, resources.access
    runs = plan_runs(sweep, store, access)
    if resources.take:
        for run in import_runs(resources.take, runs):
            resources.on_event(f"taken: {run.name}")
    rows = run_sweep(sweep, store, access=access, executor=resources.executor, watcher=resources.watcher)
    for measure in source.compared:
        _add_comparison(measure, rows, runs, store, access)
    return rows, runs


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


def _add_comparison(
    measure: ComparedConfig, rows: Rows, runs: Sequence[PlannedRun], store: Path, access: DataAccess | None
) -> None:
    """Add a measure of several runs to the rows of its arm: to every seed's, or, over all runs, to the first seed's."""
    arms = [measure.arm, *measure.others]
    by_arm = {arm: [run for run in runs if run.arm == arm] for arm in arms}
    if missing := [arm for arm, of_arm in by_arm.items() if not of_arm]:
        raise ConfigError([Problem(f"compared.{measure.name}", arm, "is no arm of the sweep") for arm in missing])
    chosen = [run for arm in arms for run in by_arm[arm]]
    if measure.over == "all":
        groups = {by_arm[measure.arm][0].seed: chosen}
    else:
        groups = {own.seed: [run for run in chosen if run.seed == own.seed] for own in by_arm[measure.arm]}
    settings = measure.model_dump(mode="json", exclude={"name"})
    for seed, group in groups.items():
        (row,) = (row for row in rows if (row["arm"], row["seed"]) == (measure.arm, seed))
        # What an analysis finds is kept in the store and not computed twice.
        text = json.dumps([settings, [run.key for run in group], __version__], sort_keys=True)
        note = store / _COMPARED / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
        if not note.is_file():
            # The first run of an arm has the arm's name, its further seeds say which they are.
            named: dict[str, Path] = {}
            for run in group:
                named[run.name if run.arm in named else run.arm] = run.directory
            table = analyse(list(named.items()), measure.study, measure.split, measure.max_examples, access)
            value = select(table, measure.table, measure.name)
            note.parent.mkdir(parents=True, exist_ok=True)
            write_json(note, {"settings": settings, "value": value})
        with reading(note, DataError, MADE_AGAIN):
            found = float(read_json_object(note, DataError, MADE_AGAIN)["value"])
        row["values"] = row["values"] | {measure.name: found}


def timed_rows(source: TimingSource, on_event: Callable[[str], None]) -> Rows:
    """Return seconds of every round, by workload; all arms take turns in each. The rounds are the rows' seeds."""
    timer = Timer(source.device, source.n_threads)
    candidates = []
    for arm in source.arms:
        recipe, model = _sized(arm, None, source.vocabulary)
        candidates.append(Candidate(arm.name, model, recipe.training))
    work = [Workload(one.kind, one.batch_size, one.source_length, one.target_length, one.beam) for one in source.work]
    effort = Effort(rounds=source.rounds, least=source.rounds)
    found = list(timer.measure(candidates, work, effort, lambda plan: on_event(str(plan))))
    environment = asdict(timer.environment())
    rows: Rows = []
    for place, arm in enumerate(source.arms):
        # Measurements come workload by workload, each with all arms in their order.
        mine = found[place :: len(candidates)]
        for number in range(source.rounds):
            values = {one.name: mine[i].seconds[number] for i, one in enumerate(source.work)}
            rows.append({"arm": arm.name, "seed": number + 1, "values": values, "environment": environment})
    return rows


def counted_rows(source: CountSource, access: DataAccess | None) -> Rows:
    """Return parameters, active parameters and MACs of every arm."""
    rows: Rows = []
    for arm in source.arms:
        recipe, model = _sized(arm, access, source.vocabulary)
        lengths = pass_lengths(recipe, (source.source_length, source.target_length))
        budget = count_budget(model, Assumptions(*lengths))
        values = {figure: budget.figure(figure) for figure in _COUNTED}
        rows.append({"arm": arm.name, "seed": None, "values": values})
    return rows


def _sized(arm: TimedArm, access: DataAccess | None, vocabulary: int | None) -> tuple[Recipe, ModelConfig]:
    recipe = load_recipe(arm.recipe, arm.overrides)
    return recipe, size_model(recipe, access, source=vocabulary, target=vocabulary).model
