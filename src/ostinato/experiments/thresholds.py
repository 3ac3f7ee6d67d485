"""The halting threshold of a trained model: what a lower one saves and loses, and which to use.

A threshold may be changed after training without touching a weight (Sparse Universal Transformer, figures 5-7): tokens
then halt earlier, states change with it, and the model is run as it would be used. For every threshold:

    score            a metric of decoded outputs, or of teacher forcing where nothing is decoded
    skipped share    1 - token-rounds that ran / (tokens x rounds), of every stack
    realised MACs    `ostinato.budget.realised`: mean over the examples of one teacher-forced pass

The choice is the threshold of the fewest realised MACs whose score is at most `max_drop` below that at the trained
thresholds, in parts of a perfect score: 0.002 is 0.2 points of accuracy in percent, and 0.2 points of BLEU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ostinato.analysis.canvas import can_draw
from ostinato.data.disk import write_json
from ostinato.data.registry import DataAccess
from ostinato.errors import ConfigError, Problem
from ostinato.evaluation.loading import LoadedRun
from ostinato.evaluation.threshold import TunedThreshold, trained_thresholds, write_tuned
from ostinato.metrics import METRICS
from ostinato.tasks.registry import build_task, task_config

THRESHOLDS = (0.999, 0.99, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
FORCED = ("token_accuracy", "sequence_accuracy_forced")
"""Scores of teacher forcing that grow as a model gets better."""

CURVE, CURVE_FORMAT = "threshold-curve", 1
_WARM_UP = 8
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Point:
    """What a model does at one threshold.

    Args:
        threshold: None: the trained ones. thresholds: in force, by stack.
        score: as the metric reports it. skipped: share of the token-rounds, by stack. macs: full and realised.
        seconds: the whole evaluation, read once. decoding_seconds: the search alone, where there was one.
    """

    threshold: float | None
    thresholds: dict[str, float]
    score: float
    skipped: dict[str, float]
    macs: dict[str, float]
    seconds: float
    decoding_seconds: float | None


@dataclass(frozen=True, slots=True)
class Tuning:
    """A sweep and what was chosen.

    Args:
        perfect: the metric's score of perfect outputs. n: examples. points: the trained thresholds first.
        chosen: of the points. files: written into the run's directory.
    """

    checkpoint: str
    split: str
    metric: str
    perfect: float
    max_drop: float
    n: int
    points: tuple[Point, ...]
    chosen: Point
    files: tuple[Path, ...] = ()

    @property
    def trained(self) -> Point:
        """The point everything is compared with."""
        return self.points[0]

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        plain = {key: value for key, value in asdict(self).items() if key != "files"}
        return {"format": CURVE_FORMAT} | plain


def tune_threshold(
    run: LoadedRun,
    split: str = "dev",
    *,
    thresholds: Sequence[float] = THRESHOLDS,
    max_drop: float = 0.002,
    metric: str | None = None,
    max_examples: int | None = None,
    access: DataAccess | None = None,
    on_point: Callable[[Point], None] = lambda point: None,
    **decoding: Any,
) -> Tuning:
    """Sweep a run's threshold on a split, choose one and store the choice with the run.

    The loaded model has its thresholds of before when this returns. Into the run's directory go
    halting-threshold.json (the choice, which `ostinato.load` then uses), threshold-curve.json, and, where matplotlib is
    installed, threshold-curve.svg and .png.

    Args:
        thresholds: in [0, 1], in any order; each is for all stacks in which tokens halt. metric: None: the first of the
            run's metrics, or token_accuracy for texts without a source. access: where data files are found.
        on_point: told every point as it is measured. decoding: settings to use instead of the recipe's.

    Raises:
        ConfigError: no token of the model can halt, no such split or metric, a threshold outside [0, 1], `max_drop`
            below 0, or a decoding setting that is not possible.
    """
    wanted = _check(run, thresholds, max_drop)
    metric = _metric(run, metric, access)
    measured = {"metric": metric, "max_examples": max_examples, "access": access, **decoding}
    with _own_rules(run):
        # The first pass of a process is slower than all others.
        _evaluate(run, split, **(measured | {"max_examples": min(_WARM_UP, max_examples or _WARM_UP)}))
        points, n = [], 0
        for threshold in (None, *wanted):
            if threshold is not None:
                run.model.set_halting_threshold(threshold)
            result = _evaluate(run, split, **measured)
            points.append(_point(threshold, metric, result))
            n = result["n"]
            on_point(points[-1])
    perfect = METRICS[metric].perfect if metric in METRICS else 1.0
    chosen = choose(points, max_drop, perfect)
    tuning = Tuning(run.checkpoint.name, split, metric, perfect, max_drop, n, tuple(points), chosen)
    return _store(run.directory, tuning)


def choose(points: Sequence[Point], max_drop: float, perfect: float = 1.0) -> Point:
    """Return the point of the fewest realised MACs whose score is within `max_drop` of the first point's.

    Of several with as many MACs the best score. The first point, at the trained thresholds, stays the choice where none
    of the others is cheaper: a better score alone is no reason.
    """
    trained = points[0]
    least = trained.score - (max_drop + _ROUNDING) * perfect
    cheaper = [p for p in points if p.score >= least and p.macs["realised"] < trained.macs["realised"]]
    return min(cheaper, key=lambda p: (p.macs["realised"], -p.score), default=trained)


def _check(run: LoadedRun, thresholds: Sequence[float], max_drop: float) -> list[float]:
    """Return the thresholds to be measured beside the trained ones, from high to low, each once."""
    trained = trained_thresholds(run.model)
    if not trained:
        stack = next(iter(run.model.stacks), None)
        reason = f"no token of {run.directory} can halt, so that there is no threshold to choose"
        key, value = ("model.kind", run.model.config.kind) if stack is None else (f"model.{stack}.halting.kind", "none")
        raise ConfigError([Problem(key, value, reason)])
    problems = [Problem("thresholds", t, "must lie in [0, 1]") for t in thresholds if not 0.0 <= t <= 1.0]
    if not thresholds:
        problems.append(Problem("thresholds", list(thresholds), "name at least one, in [0, 1]"))
    if not max_drop >= 0.0:
        problems.append(Problem("max_drop", max_drop, "must be at least 0"))
    if problems:
        raise ConfigError(problems)
    own = set(trained.values())
    return sorted({float(t) for t in thresholds if own != {float(t)}}, reverse=True)


def _metric(run: LoadedRun, metric: str | None, access: DataAccess | None) -> str:
    """Return the metric to judge by."""
    has_sources = task_config(run.recipe.task).has_sources
    if metric is None:
        own = run.recipe.evaluation.metrics
        if own is None:
            own = list(build_task(run.recipe.task, run.recipe.data, access).metrics)
        return own[0] if own and has_sources else FORCED[0]
    known = (*FORCED, *METRICS) if has_sources else FORCED
    if metric not in known:
        reason = f"must be one of {', '.join(known)}"
        raise ConfigError([Problem("metric", metric, reason if has_sources else f"{reason}: texts are not decoded")])
    return metric


@contextmanager
def _own_rules(run: LoadedRun) -> Iterator[None]:
    """Run the trained thresholds, and put back the rules that were there."""
    stacks, before = run.model.stacks, {name: stack.halting for name, stack in run.model.stacks.items()}
    try:
        for name, threshold in trained_thresholds(run.model).items():
            stacks[name].halting = copy(before[name])
            stacks[name].halting.threshold = threshold
        yield
    finally:
        for name, rule in before.items():
            stacks[name].halting = rule


def _evaluate(run: LoadedRun, split: str, *, metric: str, **settings: Any) -> dict[str, Any]:
    return run.evaluate(split, metrics=[] if metric in FORCED else [metric], by=[], **settings)


def _point(threshold: float | None, metric: str, result: dict[str, Any]) -> Point:
    skipped = {stack: 1.0 - numbers["mean"] / len(numbers["histogram"]) for stack, numbers in result["halting"].items()}
    present = result["halting_threshold"]
    return Point(
        threshold,
        present if threshold is None else dict.fromkeys(present, threshold),
        float(result[metric]),
        skipped,
        result["macs"],
        result["seconds"],
        result.get("decoding_seconds"),
    )


def _store(directory: Path, tuning: Tuning) -> Tuning:
    """Write curve and choice, the choice last, and return the tuning with its files."""
    from ostinato.experiments.threshold_figure import draw_curve

    data = directory / f"{CURVE}.json"
    write_json(data, tuning.as_dict())
    figures = draw_curve(tuning, directory / CURVE) if can_draw() else ()
    chosen = tuning.chosen.threshold
    choice = TunedThreshold(chosen, tuning.checkpoint, tuning.split, tuning.metric, tuning.max_drop)
    files = (write_tuned(directory, choice), data, *figures)
    return replace(tuning, files=files)
