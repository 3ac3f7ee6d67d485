"""Choosing the halting threshold of a trained run: swept on a split, stored with the run, drawn.

What is measured and how is chosen: `ostinato.evaluation.threshold`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ostinato.analysis.drawing import can_draw, check_figure, save_figure
from ostinato.data.disk import write_json
from ostinato.data.output_files import check_output
from ostinato.data.registry import DataAccess
from ostinato.errors import ConfigError, Problem
from ostinato.evaluation.loading import LoadedRun
from ostinato.evaluation.oracle import with_oracle
from ostinato.evaluation.threshold import (
    CURVE,
    FILE,
    FORCED,
    Point,
    TunedThreshold,
    Tuning,
    choose,
    sweep,
    tuning_metric,
    write_tuned,
)
from ostinato.metrics import METRICS
from ostinato.nn.execution import Execution, ExitScope
from ostinato.tasks.registry import task_config

THRESHOLDS = (0.999, 0.99, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)

_WARM_UP = 8


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
    on_measured: Callable[[Tuning], None] = lambda tuning: None,
    exit: str | None = None,
    exit_scope: ExitScope = "token",
    **decoding: Any,
) -> Tuning:
    """Sweep a run's threshold on a split, choose one and store the choice with the run.

    Beside the thresholds stands an oracle, where the model has one (`ostinato.evaluation.oracle`). The loaded model has
    its thresholds of before when this returns. Into the run's directory go
    halting-threshold.json (the choice, which `ostinato.load` then uses), threshold-curve.json, and, where matplotlib is
    installed, threshold-curve.svg and .png.

    Args:
        thresholds: in [0, 1], in any order; each is for all stacks in which tokens halt. metric: None: the first of the
            run's metrics, or token_accuracy for texts without a source. access: where data files are found.
        on_point: told every point as it is measured, that of the oracle last. on_measured: told all that was measured
            before it is written. decoding: settings to use instead of the recipe's.
        exit, exit_scope: the criterion whose thresholds they are, in place of the model's own rules
            (`ostinato.nn.Execution`); it needs no training.

    Raises:
        ConfigError: no token of the model can halt, or stop by the criterion, no such split or metric, a threshold
            outside [0, 1], `max_drop` below 0, a decoding setting that is not possible, or, before anything is
            measured, a file that cannot be written.
    """

    from ostinato.analysis.threshold_figure import figure_of

    wanted = _check(run, thresholds, max_drop, exit)
    rule: dict[str, Any] = {"exit": exit, "exit_scope": exit_scope}
    if exit is not None or exit_scope != "token":
        run.model.checked(Execution(halting_threshold=1.0, exit=exit, exit_scope=exit_scope))
    metric = _metric(run, metric, access)
    for name in (FILE, f"{CURVE}.json"):
        check_output(run.directory / name, overwrite=True)
    if can_draw():
        check_figure(run.directory / CURVE, overwrite=True)
    measured = {"metric": metric, "max_examples": max_examples, "access": access, **decoding}
    # The first pass of a process is slower than all others.
    _evaluate(run, split, **(measured | {"max_examples": min(_WARM_UP, max_examples or _WARM_UP)}))
    points, n = sweep(run.model, metric, wanted, lambda: _evaluate(run, split, **measured), on_point, **rule)
    perfect = METRICS[metric].perfect if metric in METRICS else 1.0
    chosen = choose(points, max_drop, perfect)
    rule["weights"] = run.hashes[1]
    tuning = Tuning(run.checkpoint.name, split, metric, perfect, max_drop, n, tuple(points), chosen, **rule)
    # What a model writes has no oracle: the share of sentences whose every label is right stands for it.
    of_oracle = FORCED[1] if run.model.config.generates and metric not in FORCED else metric
    by_oracle = measured | {"metric": of_oracle}
    tuning = with_oracle(tuning, run.model, of_oracle, lambda scope: _evaluate(run, split, **by_oracle, oracle=scope))
    if tuning.oracle is not None:
        on_point(tuning.oracle)
    on_measured(tuning)
    # The choice is written last.
    data = run.directory / f"{CURVE}.json"
    write_json(data, tuning.as_dict())
    figures = save_figure(figure_of(tuning), run.directory / CURVE, overwrite=True) if can_draw() else ()
    choice = TunedThreshold(chosen.threshold, tuning.checkpoint, split, metric, max_drop, **rule)
    return replace(tuning, files=(write_tuned(run.directory, choice), data, *figures))


def _check(run: LoadedRun, thresholds: Sequence[float], max_drop: float, exit: str | None) -> list[float]:
    """Return the thresholds to be measured beside the trained ones, from high to low, each once."""
    trained = run.model.trained_thresholds()
    if not trained and exit is None:
        kinds = {f"model.{name}.halting.kind": one.halting.kind for name, one in run.model.config.stacks().items()}
        # Of several stacks the one that has a rule tells more.
        key = next((key for key, kind in kinds.items() if kind != "none"), next(iter(kinds), "model.kind"))
        reason = f"no token of {run.directory} can halt by a threshold, so that there is none to choose"
        if criteria := run.model.possible_criteria():
            reason += f"; --exit CRITERION stops tokens by {', '.join(criteria)}, without training"
        raise ConfigError([Problem(key, kinds.get(key, run.model.config.kind), reason)])
    problems = [Problem("thresholds", t, "must lie in [0, 1]") for t in thresholds if not 0.0 <= t <= 1.0]
    if not thresholds:
        problems.append(Problem("thresholds", list(thresholds), "name at least one, in [0, 1]"))
    if not max_drop >= 0.0:
        problems.append(Problem("max_drop", max_drop, "must be at least 0"))
    if problems:
        raise ConfigError(problems)
    own = set(trained.values()) if exit is None else set()
    return sorted({float(t) for t in thresholds if own != {float(t)}}, reverse=True)


def _metric(run: LoadedRun, metric: str | None, access: DataAccess | None) -> str:
    if metric is None:
        return tuning_metric(run.recipe, access)
    has_sources = task_config(run.recipe.task).has_sources
    if metric not in FORCED and not (has_sources and metric in METRICS):
        reason = f"must be one of {', '.join((*FORCED, *METRICS) if has_sources else FORCED)}"
        raise ConfigError([Problem("metric", metric, reason if has_sources else f"{reason}: texts are not decoded")])
    return metric


def _evaluate(run: LoadedRun, split: str, *, metric: str, **settings: Any) -> dict[str, Any]:
    return run.evaluate(split, metrics=[] if metric in FORCED else [metric], by=[], **settings)
