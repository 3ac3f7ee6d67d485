"""Trials as runs of sweeps: a stage is a sweep, whose arms are candidates at their learning rates.

So runs have content addresses, are trained once, go on where they were killed, and may be done by several processes or
by any `Executor`. When the time is up the executor is stopped; a run that was going on stays as its last checkpoint.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ostinato.advise.candidates import Candidate
from ostinato.advise.trials import TimeUp, Trial, TrialOutcome
from ostinato.analysis import curves
from ostinato.config.load import check_settings
from ostinato.config.measures import as_overrides
from ostinato.config.own_code import is_own
from ostinato.config.recipe import Recipe
from ostinato.config.sweep import SweepConfig
from ostinato.config.training import TrainingConfig
from ostinato.data.registry import DataAccess
from ostinato.experiments.sweep.executors import Executor, Job, JobResult, TakeEvent
from ostinato.experiments.sweep.rows import collect_rows
from ostinato.experiments.sweep.runs import PlannedRun, plan_runs
from ostinato.experiments.sweep.schedule import SweepError, run_sweep
from ostinato.experiments.sweep.watch import Watcher
from ostinato.metrics import METRICS
from ostinato.tasks.checks import FORCED_METRICS, mode_of
from ostinato.tasks.recipes import load_recipe
from ostinato.training.optim import learning_rate

N_EVALUATIONS = 6
"""Of every training."""
MOST_EXAMPLES = 1000
"""Of the selection split in an evaluation, where the recipe does not say."""
_SCORE, _LOSS = "score", "loss"
_ORIGIN = ("key", "version", "commit")
_OF_UPDATES = ("schedule.warmup", "halting.off_updates", "halting.warmup", "halting.capacity_warmup", "rounds.ramp")
"""Settings of training that count updates, and become shorter with the training."""


class Deadline:
    """An executor that stops when the time is up.

    Args:
        inner: does the jobs. at: `time.monotonic()` of the end.
    """

    def __init__(self, inner: Executor, at: float) -> None:
        self.inner, self.at = inner, at

    def submit(self, job: Job) -> None:
        """Take a job."""
        self.inner.submit(job)

    def collect(self, on_event: TakeEvent, timeout: float | None = None) -> JobResult | None:
        """Wait for the next job that ends.

        Raises:
            TimeUp: the time is used.
        """
        left = self.at - time.monotonic()
        if left <= 0:
            raise TimeUp
        result = self.inner.collect(on_event, left if timeout is None else min(left, timeout))
        if result is None and time.monotonic() >= self.at:
            raise TimeUp
        return result

    def stop(self) -> None:
        """End all work."""
        self.inner.stop()


class SweepTrainer:
    """Does trials as runs of sweeps.

    Args:
        name: of the sweeps, before the stage's. base: name or file of the recipe, with `overrides`. store: of the runs.
        metric: of the recipe's selection split. make_executor: of a stage. deadline: `time.monotonic()` of the end.
        watcher: shows progress, of a stage.
    """

    def __init__(
        self,
        name: str,
        base: str,
        overrides: Sequence[str],
        recipe: Recipe,
        candidates: Sequence[Candidate],
        metric: str,
        store: Path,
        *,
        make_executor: Callable[[], Executor],
        deadline: float,
        access: DataAccess | None = None,
        watcher: Callable[[], Watcher] = Watcher,
        n_threads: int | None = 1,
    ) -> None:
        self.name, self.base, self.overrides, self.recipe = name, base, list(overrides), recipe
        self.candidates = {one.name: one for one in candidates}
        self.metric, self.store, self.deadline, self.access = metric, store, deadline, access
        self.make_executor, self.watcher, self.n_threads = make_executor, watcher, n_threads
        self._trainings: dict[str, TrainingConfig] = {}

    def train(self, stage: str, trials: Sequence[Trial]) -> list[TrialOutcome]:
        """Do the trials that are not done yet; return the outcomes of all.

        Raises:
            TimeUp: before all were done.
        """
        sweep, names = self._sweep(stage, trials)
        failures: dict[str, str] = {}
        try:
            run_sweep(
                sweep,
                self.store,
                access=self.access,
                executor=Deadline(self.make_executor(), self.deadline),
                watcher=self.watcher(),
                n_threads=self.n_threads,
            )
        except SweepError as error:
            failures = {run.arm: reason for run, reason in error.failures}
        return self._outcomes(sweep, names, failures)

    def done(self, stage: str, trials: Sequence[Trial]) -> list[TrialOutcome]:
        """Return the outcomes of those trials that are done."""
        sweep, names = self._sweep(stage, trials)
        return self._outcomes(sweep, names, {}, is_whole=False)

    def _sweep(self, stage: str, trials: Sequence[Trial]) -> tuple[SweepConfig, dict[str, Trial]]:
        """Return the sweep of some trials, which have one seed, and the trial of every arm."""
        names = {f"{t.candidate}, rate x {t.rate:g}, {t.updates} updates": t for t in trials}
        settings: dict[str, Any] = {
            "name": f"{self.name}, {stage}",
            "recipe": self.base,
            "overrides": [*self.overrides, *self._shared()],
            "seeds": sorted({trial.seed for trial in trials}),
            "arms": [{"name": arm, "set": self.settings(trial)} for arm, trial in names.items()],
            "measures": [
                {"name": _SCORE, "kind": "result", "path": "selection.value"},
                {"name": _LOSS, "kind": "result", "split": self.recipe.training.selection.split, "path": "loss"},
            ],
        }
        return check_settings(settings, SweepConfig), names

    def _shared(self) -> list[str]:
        """Return what all trials have in common: what is scored, on how many examples."""
        selection = self.recipe.training.selection
        n = selection.max_examples or MOST_EXAMPLES
        changes: dict[str, Any] = {
            "training.selection.metric": self.metric,
            "training.selection.mode": mode_of(self.metric),
            "training.selection.max_examples": n,
            "training.selection.patience": None,
            "evaluation.splits": [selection.split],
            "evaluation.metrics": [] if self.metric in FORCED_METRICS else [self.metric],
            "evaluation.by": [],
            "evaluation.max_examples": n,
            "evaluation.checkpoint": "best",
            "reference": [],
        }
        return as_overrides(changes)

    def settings(self, trial: Trial) -> dict[str, Any]:
        """Return what a trial changes in the recipe."""
        own = self.candidates[trial.candidate].settings
        training = self._training_of(trial.candidate)
        every = max(1, -(-trial.updates // N_EVALUATIONS))
        changes: dict[str, Any] = {
            "training.n_updates": trial.updates,
            "training.evaluate_every": every,
            "training.save_every": every,
            "training.log_every": every,
            "training.optimizer.lr": training.optimizer.lr * trial.rate,
        }
        for name in _OF_UPDATES:
            group, _, key = name.partition(".")
            if value := getattr(getattr(training, group), key, 0):
                changes[f"training.{name}"] = max(1, round(value * trial.updates / max(1, training.n_updates)))
        if training.ema_decay is not None:
            # At its end the mean forgets as much of the start as that of the whole training would; with nothing left
            # to remember there is none.
            changes["training.ema_decay"] = training.ema_decay ** (training.n_updates / trial.updates) or None
        if (warmup := changes.get("training.schedule.warmup")) is not None:
            # Where the peak depends on how long the warm-up is it stays the recipe's.
            shorter = training.schedule.model_copy(update={"warmup": warmup})
            long, short = (
                learning_rate(training.optimizer, one, one.warmup, one.warmup, 1)
                for one in (training.schedule, shorter)
            )
            changes["training.optimizer.lr"] *= long / short
        return own | changes

    def _training_of(self, candidate: str) -> TrainingConfig:
        """Return how a candidate would be trained to its end: a level may say how long its warm-up is."""
        if candidate not in self._trainings:
            changes = as_overrides(self.candidates[candidate].settings)
            self._trainings[candidate] = load_recipe(self.base, [*self.overrides, *changes]).training
        return self._trainings[candidate]

    def _outcomes(
        self, sweep: SweepConfig, names: dict[str, Trial], failures: dict[str, str], *, is_whole: bool = True
    ) -> list[TrialOutcome]:
        planned = plan_runs(sweep, self.store, self.access)
        runs = {run.arm: run for run in planned}
        rows = {row["arm"]: row for row in collect_rows(sweep, planned, self.access)[0]}
        return [
            self._outcome(trial, runs[arm], rows.get(arm), failures.get(arm, ""))
            for arm, trial in names.items()
            if arm in rows or is_whole
        ]

    def _outcome(self, trial: Trial, run: PlannedRun, row: dict[str, Any] | None, reason: str) -> TrialOutcome:
        if row is None:
            return TrialOutcome(trial, None, reason=reason)
        scores = curves.learning_curves(run.directory / curves.METRICS).scores
        values = row["values"]
        curve = tuple(scores.get(self.recipe.training.selection.split, {}).get(self.metric, ()))
        origin = {name: row[name] for name in _ORIGIN}
        return TrialOutcome(trial, values[_SCORE], values[_LOSS], curve, row["seconds"], origin=origin)


def range_of(metric: str) -> tuple[float, float]:
    """Return the least and the largest value that a metric can have; the least of a user's own is not known."""
    if mode_of(metric) == "min":
        return (1.0 if metric.endswith("perplexity") else 0.0), math.inf
    if metric == "comet":  # a regression: outputs may be scored above their references
        return 0.0, math.inf
    return -math.inf if is_own(metric) else 0.0, 1.0 if metric in FORCED_METRICS else METRICS[metric].perfect


def best_of(metric: str) -> float | None:
    """Return the best value that a metric can have; None where there is none."""
    best = range_of(metric)[0 if mode_of(metric) == "min" else 1]
    return best if math.isfinite(best) else None
