"""Running a claim: what is missing is run, every number is judged by its band, the outcome is one object.

The numbers come from rows, {arm, seed, values: {measure: number}}, of the claim's source: runs of a sweep, timings of
models with random weights, or counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ostinato.config.claim import (
    ComparedConfig,
    ControlConfig,
    CountSource,
    ExpectationConfig,
    SweepSource,
    TimingSource,
    TuningConfig,
)
from ostinato.config.sweep import SweepConfig
from ostinato.data.disk import MADE_AGAIN, hash_of, read_json_object, reading, write_json
from ostinato.data.registry import DataAccess
from ostinato.errors import ConfigError, DataError, Problem
from ostinato.evaluation.loading import LoadedRun
from ostinato.evaluation.timing import Effort
from ostinato.experiments.claims.counts import counted_rows, sized
from ostinato.experiments.claims.design import (
    Rows,
    check_alike,
    check_compared,
    check_tuning,
    named_by,
    named_part,
    source_sweep,
    tuned,
    with_chosen,
    with_seeds,
)
from ostinato.experiments.claims.files import Claim, Outcome, command
from ostinato.experiments.claims.staleness import content_of, why_stale, with_scores
from ostinato.experiments.claims.statistics import claim_verdict, find
from ostinato.experiments.inference import Sampling, is_inside
from ostinato.experiments.sweep.executors import Executor
from ostinato.experiments.sweep.import_runs import import_runs
from ostinato.experiments.sweep.locks import write_lock
from ostinato.experiments.sweep.measures import analyse, load_placed, measuring_source, other_examples, select
from ostinato.experiments.sweep.run_key import run_versions
from ostinato.experiments.sweep.runs import PlannedRun, plan_runs
from ostinato.experiments.sweep.schedule import SweepError, run_sweep, sweep_rows
from ostinato.experiments.sweep.watch import Watcher
from ostinato.experiments.timing.latency import Timer
from ostinato.experiments.timing.workloads import TimedModel, Workload
from ostinato.training.rundir import versions

_COMPARED = "compared"
_SCORES = ("scores", "scores_recorded")
_SAMPLING: dict[str, Sampling] = {"sweep": "seeds", "timing": "rounds", "count": "exact"}


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


def reproduce(claim: Claim, resources: Resources, earlier: Outcome | None = None) -> Outcome:
    """Run what is missing, and return the outcome.

    Args:
        earlier: an outcome of the claim; runs in it that are still the same, by their content address, are not run
            again where what its arms compute has not changed.

    Raises:
        ConfigError: inputs that are missing, arms that cannot be built, or that differ in more than the claim says.
        DataError: an expectation of a number that was not measured. TrainingError: runs that failed, by arm and seed.
    """
    start = time.monotonic()
    now = {**versions(), "scipy": version("scipy")}  # by which intervals and p values are computed; no run needs it
    began = datetime.now(UTC).isoformat(timespec="seconds")
    source, config = claim.config.source, claim.config
    content = content_of(claim)
    chosen: dict[str, Any] = {}
    control_rows: dict[str, Rows] = {}
    match source:
        case SweepSource():
            kept = None if earlier is None or why_stale(claim, earlier) else earlier
            trained = _Trained(claim, source, resources, kept, now["source"])
            for control in config.controls:
                if control.overrides:  # what is wrong with it is found before anything is trained
                    trained.part([control], control)
            rows = trained.rows([*config.expect, *(c for c in config.controls if not c.overrides)])
            control_rows = {c.what: trained.rows([c], c) for c in config.controls if c.overrides}
            chosen = trained.chosen
            if kept is not None:  # as recorded: by the code of its runs, which today's was compared with (`why_stale`)
                recorded = with_scores(claim, kept).head
                content |= {key: recorded[key] for key in ("fingerprints", *_SCORES) if key in recorded}
            if trained.is_of_earlier_code:
                content |= dict.fromkeys(("fingerprints", *_SCORES))
            began = min(trained.began, default=began)
        case TimingSource():
            rows = timed_rows(source, resources.on_event)
        case CountSource():
            rows = counted_rows(source, resources.access)
    sampling = _SAMPLING[source.kind]
    numbers = find(config.expect, rows, sampling)
    controls = []
    for control in config.controls:
        (number,) = find([control], control_rows.get(control.what, rows), sampling)
        low, high = control.band
        is_so = is_inside(number.value, control.band)
        found = {"what": control.what, "unit": control.unit, "band": [low, high], "value": number.value, "is_so": is_so}
        controls.append(found | {"by_seed": number.by_seed})
    head = {
        "name": claim.name,
        "registered": claim.registered,
        "verdict": claim_verdict(numbers) if all(control["is_so"] for control in controls) else "void",
        "numbers": [number.as_dict() for number in numbers],
        "controls": controls,
        "tuning": chosen,
        "began": began,
        "date": datetime.now(UTC).date().isoformat(),
        "command": command(claim),
        "seconds": round(time.monotonic() - start, 1),
        "versions": now,
        **content,
    }
    of_controls = [{"control": what, **row} for what, found in control_rows.items() for row in found]
    return Outcome(head, [*rows, *of_controls])


class _Trained:
    """The runs of a claim: those of its numbers, and those that controls have of their own.

    Args:
        kept: an earlier outcome, whose rows stand for runs of the same content address. code: hash of today's source.
    """

    def __init__(
        self, claim: Claim, source: SweepSource, resources: Resources, kept: Outcome | None, code: str
    ) -> None:
        self.claim, self.source, self.resources, self.code = claim, source, resources, code
        self.design = claim.config.design
        self.whole = source_sweep(source, resources.inputs)
        self.kept: Rows = [] if kept is None else kept.rows
        self.chosen: dict[str, Any] = {} if kept is None else kept.head["tuning"]
        self.kept_began: list[str] = [] if kept is None else [kept.head["began"]]
        self._runs: list[PlannedRun] = []
        self.began: list[str] = []
        """When every run began, those of trials and of controls among them."""

    def part(
        self, expectations: Sequence[ExpectationConfig], control: ControlConfig | None = None
    ) -> tuple[SweepConfig, list[ComparedConfig]]:
        """Return the part of the sweep that some numbers name, and the comparisons among them, checked.

        Args:
            control: whose own runs these are; None: the claim's.

        Raises:
            ConfigError: what the numbers name is not there, or the arms are not alike.
        """
        changes = () if control is None else control.overrides
        sweep, compared = named_part(self.whole, self.source, named_by(expectations), changes)
        if self.design is not None:
            check_alike(sweep, self.design)
        check_compared(sweep, compared)
        return sweep, compared

    def rows(self, expectations: Sequence[ExpectationConfig], control: ControlConfig | None = None) -> Rows:
        """Return the rows of all arms and seeds that some numbers name; what is missing is trained.

        Args:
            control: see `part`.
        """
        source, resources, design, whole = self.source, self.resources, self.design, self.whole
        sweep, compared = self.part(expectations, control)
        own_name = f"claims/{self.claim.name}"  # the sweep it is of may have the claim's name
        if control is not None:  # its rows replace none of the claim's
            own_name += f"-control-{self.claim.config.controls.index(control) + 1}"
        sweep = sweep.model_copy(update={"name": own_name, "equal": None if design is None else design.equal})
        tuning = None if design is None else design.tuning
        if tuning is not None:
            check_tuning(whole, source, tuning, self.claim.config.expect)
        n_trials = 0 if tuning is None else len(sweep.arms) * len(tuning.values) * len(tuning.seeds)
        # Of one run or trial.
        minutes = self.claim.config.minutes / (n_trials + sum(len(sweep.seeds_of(arm)) for arm in sweep.arms))
        if tuning is not None:
            # A control with runs of its own keeps the settings that the arms chose, so that it differs in nothing else.
            if not self.chosen or (control is None and not self._is_of_kept_data(sweep, tuning)):
                with_measure = {"measures": [*sweep.measures, *(m for m in whole.measures if m not in sweep.measures)]}
                to_try = sweep.model_copy(update=with_measure)
                self.chosen = tuned(to_try, tuning, lambda trials: self._train_trials(trials, minutes))
            elif control is None:
                self.began += self.kept_began  # with the trials that these choices are from
            sweep = with_chosen(sweep, tuning, self.chosen)
        runs = plan_runs(sweep, resources.store, resources.access)
        own = None if control is None else control.what
        known = {(row["arm"], row["seed"]): row for row in self.kept if row.get("control") == own}
        found: dict[tuple[str, int], dict[str, Any]] = {}
        for run in runs:
            row = known.get((run.arm, run.seed))
            if row is not None and row["key"] == run.key:
                found[run.arm, run.seed] = row
        missing = {(run.arm, run.seed) for run in runs} - found.keys()
        # Numbers of several runs together need all of them.
        if missing and compared:
            found, missing = {}, {(run.arm, run.seed) for run in runs}
        if missing:
            part = with_seeds(sweep, missing)
            self._take(part)
            there = [run for run in runs if (run.arm, run.seed) in missing and run.is_finished]
            n_left = len(missing) - len(there)
            resources.on_event(
                f"{len(runs)} runs{'' if own is None else f' of the control ({own})'}: {len(found)} in the outcome, "
                f"{len(there)} in the store, {n_left} to train"
                + (f", about {n_left * minutes:.0f} minutes on two cores" if own is None else "")
            )
            self._tell_old(there)
            rows = self._train(part)
            for measure in compared:
                _add_comparison(measure, rows, runs, resources.store, resources.access)
            found |= {(row["arm"], row["seed"]): row for row in rows if (row["arm"], row["seed"]) in missing}
            self._runs += [run for run in runs if (run.arm, run.seed) in missing]
        rows = [found[run.arm, run.seed] for run in runs]
        self.began += [row["began"] for row in rows if row["began"]]
        return rows

    def _is_of_kept_data(self, sweep: SweepConfig, tuning: TuningConfig) -> bool:
        """Return whether any run with the settings that were chosen has a content address of the kept outcome.

        With other data files, or by another version of the package, none has.
        """
        runs = plan_runs(with_chosen(sweep, tuning, self.chosen), self.resources.store, self.resources.access)
        return not {row["key"] for row in self.kept}.isdisjoint(run.key for run in runs)

    @property
    def is_of_earlier_code(self) -> bool:
        """Whether a run in the store was trained by code of another content."""
        return any(map(self._is_old, self._runs))

    def _is_old(self, run: PlannedRun) -> bool:
        return run_versions(run.directory).get("source") != self.code

    def _tell_old(self, there: Sequence[PlannedRun]) -> None:
        """Say how many of the runs that are in the store were trained by earlier code."""
        if n_old := sum(map(self._is_old, there)):
            self.resources.on_event(
                f"{n_old} in the store were trained by earlier code, so that the outcome will be stale "
                "(another --store has them trained anew)"
            )

    def _train_trials(self, trials: SweepConfig, minutes: float) -> Rows:
        """Say which trials are there and what the others take, train those, and return the rows of all that can be.

        Args:
            minutes: of one.

        Raises:
            SweepError: a trial that failed otherwise than by a loss that is not finite.
        """
        self._take(trials)
        runs = plan_runs(trials, self.resources.store, self.resources.access)
        n_left = sum(not run.is_finished for run in runs)
        self.resources.on_event(
            f"{len(runs)} trials before the runs: {len(runs) - n_left} in the store, {n_left} to train, "
            f"about {n_left * minutes:.0f} minutes on two cores"
        )
        self._tell_old([run for run in runs if run.is_finished])
        self._runs += runs
        try:
            return self._train(trials)
        except SweepError as error:
            failed = [run for run, _ in error.failures]
            # What training leaves where a loss or a gradient is not finite.
            if not all(any(run.directory.glob("checkpoints/failed-update-*")) for run in failed):
                raise
            for run in failed:
                self.resources.on_event(f"{run.name}: its loss is not finite, which counts as the worst")
            rows, _ = sweep_rows(trials, self.resources.store, access=self.resources.access)
            self.began += [row["began"] for row in rows if row["began"]]
            return rows

    def _take(self, sweep: SweepConfig) -> None:
        """Copy what is given and is of a sweep into the store."""
        resources = self.resources
        if resources.take:
            taken, others = import_runs(resources.take, plan_runs(sweep, resources.store, resources.access))
            for run in taken:
                resources.on_event(f"taken: {run.name}")
            for why in others.values():  # a run of the claim is none of its trials, and the other way round
                resources.on_event(f"not taken here: {why}")

    def _train(self, sweep: SweepConfig) -> Rows:
        resources = self.resources
        rows = run_sweep(
            sweep, resources.store, access=resources.access, executor=resources.executor, watcher=resources.watcher
        )
        self.began += [row["began"] for row in rows if row["began"]]
        return rows


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
        others = [one for run in group for one in other_examples(measure, run.directory, access, run.recipe)]
        decides = [settings, [run.key for run in group], measuring_source(), *others]
        note = store / _COMPARED / f"{hash_of(decides)[:16]}.json"
        if not note.is_file():
            # The first run of an arm has the arm's name, its further seeds say which they are.
            named: dict[str, LoadedRun] = {}
            for run in group:
                loaded = load_placed(run.directory, run.recipe, halting_threshold="trained")
                named[run.name if run.arm in named else run.arm] = loaded
            table = analyse(named, measure.study, measure.split, measure.max_examples, access)
            value = select(table, measure.table, measure.name)
            note.parent.mkdir(parents=True, exist_ok=True)
            with write_lock(store, _COMPARED):
                write_json(note, {"settings": settings, "value": value})
        with reading(note, DataError, MADE_AGAIN):
            found = float(read_json_object(note, DataError, MADE_AGAIN)["value"])
        row["values"] = row["values"] | {measure.name: found}


def timed_rows(source: TimingSource, on_event: Callable[[str], None]) -> Rows:
    """Return seconds of every round, by workload; all arms take turns in each. The rounds are the rows' seeds."""
    timer = Timer(source.device, source.n_threads)
    candidates = []
    for arm in source.arms:
        recipe, model = sized(arm, None, source.vocabulary)
        candidates.append(TimedModel(arm.name, model, recipe.training))
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
