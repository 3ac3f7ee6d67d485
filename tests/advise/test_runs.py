from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import pytest
from tiny_question import TINY

from ostinato.advise.candidates import Candidate
from ostinato.advise.runs import N_EVALUATIONS, Deadline, SweepTrainer, best_of, range_of
from ostinato.advise.trials import TimeUp, Trial
from ostinato.config.measures import as_overrides
from ostinato.experiments.sweep.executors import InProcess, Job
from ostinato.metrics.matching import ExactMatch
from ostinato.tasks.checks import mode_of
from ostinato.tasks.recipes import load_recipe
from ostinato.training.optim import learning_rate
from ostinato.training.rundir import RunDirectory
from ostinato.version import __version__

RECIPE = load_recipe("digits/transformer", TINY)
SHALLOW = {"model.encoder.n_steps": 1, "model.decoder.n_steps": 1}


def trainer(store: Path, deadline: float) -> SweepTrainer:
    candidates = [Candidate("base", {}, {}, RECIPE.model, {}), Candidate("one", {}, SHALLOW, RECIPE.model, {})]
    return SweepTrainer(
        "tiny",
        "digits/transformer",
        TINY,
        RECIPE,
        candidates,
        "loss",
        store,
        make_executor=InProcess,
        deadline=deadline,
    )


@pytest.mark.slow
def test_trials_are_runs_with_curves_that_are_trained_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = trainer(tmp_path, time.monotonic() + 100)
    trials = [Trial("base", 1.0, 1, 6), Trial("one", 3.0, 1, 6)]
    first, second = ours.train("stage 0", trials)
    assert [one.trial for one in (first, second)] == trials
    assert [update for update, _ in first.curve] == [1, 2, 3, 4, 5, 6]
    assert first.score == min(score for _, score in first.curve)
    assert first.score != second.score
    assert first.seconds > 0
    assert first.origin["key"] != second.origin["key"]
    assert first.origin["version"] == second.origin["version"] == __version__
    monkeypatch.setattr("ostinato.experiments.sweep.executors.train", None)
    assert ours.done("stage 0", [*trials, Trial("one", 1.0, 1, 6)]) == [first, second]
    assert ours.train("stage 0", trials) == [first, second]


def test_a_shorter_training_has_a_shorter_schedule_and_warm_up(tmp_path: Path) -> None:
    found = trainer(tmp_path, 0).settings(Trial("one", 3.0, 1, 15))
    assert found == SHALLOW | {
        "training.n_updates": 15,
        "training.schedule.warmup": 3,
        "training.optimizer.lr": pytest.approx(0.03),
        **dict.fromkeys(("training.evaluate_every", "training.save_every", "training.log_every"), 3),
    }
    assert -(-15 // found["training.evaluate_every"]) <= N_EVALUATIONS


@pytest.mark.parametrize(
    "level",
    [{"training.schedule.warmup": 30}, {"training.schedule": {"kind": "linear", "warmup": 30}}],
    ids=["setting", "group"],
)
def test_a_warm_up_that_a_level_sets_is_shorter_in_a_shorter_training_too(
    tmp_path: Path, level: dict[str, Any]
) -> None:
    ours = trainer(tmp_path, 0)
    ours.candidates["slow"] = Candidate("slow", {}, level, RECIPE.model, {})
    settings = ours.settings(Trial("slow", 1.0, 1, 15))
    recipe = load_recipe("digits/transformer", [*TINY, *as_overrides(settings)])
    assert recipe.training.schedule.warmup == 10
    assert recipe.training.n_updates == 15


@pytest.mark.parametrize("kind", ["constant", "inverse_sqrt", "inverse_sqrt_t2t", "linear", "cosine"])
def test_the_peak_of_the_learning_rate_is_the_recipes_however_short_the_warm_up(tmp_path: Path, kind: str) -> None:
    ours = trainer(tmp_path, 0)
    ours.overrides.append(f"training.schedule.kind={kind}")

    def peak(settings: dict[str, Any]) -> float:
        training = load_recipe("digits/transformer", [*ours.overrides, *as_overrides(settings)]).training
        updates = range(1, training.n_updates + 1)
        return max(learning_rate(training.optimizer, training.schedule, u, training.n_updates, 16) for u in updates)

    assert peak(ours.settings(Trial("base", 3.0, 1, 15))) == pytest.approx(3.0 * peak({}))


def test_a_mean_of_weights_forgets_the_start_of_a_shorter_training_as_well(tmp_path: Path) -> None:
    ours = trainer(tmp_path, 0)
    ours.overrides.append("training.ema_decay=0.95")
    assert RECIPE.training.n_updates == 45
    settings = ours.settings(Trial("base", 1.0, 1, 15))
    assert settings["training.ema_decay"] ** 15 == pytest.approx(0.95**45)
    other = trainer(tmp_path, 0)
    other.overrides += ["training.ema_decay=0.95", "training.n_updates=1000000"]
    assert other.settings(Trial("base", 1.0, 1, 15))["training.ema_decay"] is None


def test_nothing_is_begun_after_the_deadline(tmp_path: Path) -> None:
    ours = trainer(tmp_path, time.monotonic())
    with pytest.raises(TimeUp):
        ours.train("stage 0", [Trial("base", 1.0, 1, 9)])
    assert ours.done("stage 0", [Trial("base", 1.0, 1, 9)]) == []
    assert not [path for path in tmp_path.iterdir() if RunDirectory(path).exists]


class Asleep:
    """An executor whose jobs never end."""

    def __init__(self) -> None:
        self.is_stopped = False
        self.now = 0.0

    def submit(self, job: Job) -> None:
        pass

    def collect(self, on_event: object, timeout: float | None = None) -> None:
        assert timeout is not None
        self.now += timeout

    def stop(self) -> None:
        self.is_stopped = True


def test_a_job_that_does_not_end_is_left_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = Asleep()
    monkeypatch.setattr("ostinato.advise.runs.time.monotonic", lambda: inner.now)
    ours = Deadline(inner, 0.1)
    assert ours.collect(print, 0.02) is None
    with pytest.raises(TimeUp):
        ours.collect(print)
    ours.stop()
    assert inner.is_stopped


def test_metrics_know_their_range() -> None:
    assert [range_of(name) for name in ("loss", "perplexity", "exact_match", "chrf")] == [
        *((0.0, math.inf), (1.0, math.inf), (0.0, 1.0), (0.0, 100.0)),
    ]


def test_metrics_know_their_direction() -> None:
    assert [mode_of(name) for name in ("loss", "bits_per_byte", "exact_match", "bleu")] == ["min", "min", "max", "max"]


class Percent(ExactMatch):
    """A user's own metric, of which 100 is the best."""

    perfect = 100.0


class MinusDistance(ExactMatch):
    """A user's own metric, of which 0 is the best."""

    perfect = 0.0


def test_the_best_of_ones_own_metric_is_what_it_says_and_the_least_is_not_known() -> None:
    assert range_of(f"{__name__}:Percent") == (-math.inf, 100.0)
    assert range_of(f"{__name__}:MinusDistance") == (-math.inf, 0.0)
    assert best_of(f"{__name__}:MinusDistance") == 0.0
