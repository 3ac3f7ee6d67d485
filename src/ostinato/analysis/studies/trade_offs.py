"""Studies of what other depths would give: other halting thresholds, other numbers of rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ostinato.analysis.capture import stream
from ostinato.analysis.collectors import Outcomes
from ostinato.analysis.drawing import common_legend, finish, line, panels, whole_numbers
from ostinato.analysis.studies.base import Finding, OnProgress, Study, Subject, no_threshold
from ostinato.analysis.threshold_figure import figure_of
from ostinato.data.example import Example, take_evenly
from ostinato.evaluation.evaluate import evaluate
from ostinato.evaluation.oracle import row_name, why_no_oracle, with_oracle
from ostinato.evaluation.threshold import CURVE, Point, Tuning, choose, read_curve, sweep, tuning_metric
from ostinato.models.build import Model
from ostinato.nn.execution import ExitScope

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EXAMPLES = 400
"""Shown to the model once for every point of these studies."""
_THRESHOLDS = (0.99, 0.95, 0.9, 0.8, 0.6, 0.4, 0.2)
_MAX_DROP = 0.002
_METRIC = "token_accuracy"
Points = dict[int, tuple[float, float, float, float]]


def _few(subject: Subject) -> list[Example]:
    return list(take_evenly(subject.examples, EXAMPLES))


def _thresholds(subject: Subject, on_progress: OnProgress) -> Finding:
    """Return the curve that `ostinato tune-threshold` stored, else a teacher-forced one of some examples."""
    found = read_curve(subject.run)
    note = f"Read from the run's {CURVE}.json."
    if found is None:
        found = _measure(subject, on_progress)
        note = f"Teacher-forced; ostinato tune-threshold measures by {tuning_metric(subject.run.recipe)}."
    stacks = list((found.oracle or found.trained).skipped)
    rows: list[list[object]] = [
        [
            _name_of(point, found, subject.model),
            point.score,
            *(100 * point.skipped[stack] if stack in point.skipped else None for stack in stacks),
            point.macs["realised"] / 1e6,
            100 * point.macs["realised"] / point.macs["full"],
        ]
        for point in (*found.points, *([found.oracle] if found.oracle else []))
    ]
    skipped = [f"{stack} skipped, %" for stack in stacks]
    names = (found.heading, found.metric, *skipped, "M MACs an example", "of full depth, %")
    note = f"{found.n:,} examples of {found.split}, {found.checkpoint}. {note}"
    return Finding(names, rows, found.as_dict(), lambda narrow: figure_of(found, narrow), note=note)


def _name_of(point: Point, found: Tuning, model: Model) -> str | float:
    if point is found.oracle:
        return row_name(found, model)
    return "trained" if point.threshold is None else point.threshold


THRESHOLDS = Study(
    name="thresholds",
    title="What a lower halting threshold saves and loses",
    reading=(
        "Left: the score against the share of token-rounds that are skipped; a line that stays level far to the right "
        "can halt early for nothing. Right: score, skipped rounds and multiply-accumulates by threshold. The square is "
        "the trained threshold, the ring the cheapest one that loses no more than 0.2 points, or what was asked for. "
        "The star is an oracle: every label in the first round that has it right, to which rules come close; no "
        "bound, where the table says so: the model's output mixes its rounds, and may be right where none of them is."
    ),
    why_not_model=no_threshold,
    extra_examples=lambda subjects: sum(
        _passes(subject.model) * len(_few(subject)) for subject in subjects if read_curve(subject.run) is None
    ),
    of_run=_thresholds,
)


def _wanted(model: Model) -> list[float]:
    own = set(model.trained_thresholds().values())
    return [threshold for threshold in _THRESHOLDS if own != {threshold}]


def _passes(model: Model) -> int:
    return 1 + len(_wanted(model)) + (why_no_oracle(model) is None)


def _measure(subject: Subject, on_progress: OnProgress) -> Tuning:
    examples, run = _few(subject), subject.run
    data = run.recipe.data_by_text()

    def measured(oracle: ExitScope | None = None) -> dict[str, Any]:
        settings = {"data": data, "decoding": run.recipe.decoding, "metrics": [], "oracle": oracle}
        result = evaluate(run.model, examples, run.tokenizers, **settings)  # type: ignore[arg-type]
        if on_progress is not None:
            on_progress(len(examples))
        return result

    execution = run.model.current_execution
    rule: dict[str, Any] = {"exit": execution.exit, "exit_scope": execution.exit_scope}
    points, n = sweep(run.model, _METRIC, _wanted(run.model), measured, **rule)
    chosen = choose(points, _MAX_DROP)
    found = Tuning(run.checkpoint.name, subject.split, _METRIC, 1.0, _MAX_DROP, n, tuple(points), chosen, **rule)
    return with_oracle(found, run.model, _METRIC, measured)


def variable_stacks(model: Model) -> list[str]:
    """Return the stacks of several rounds that all share their weights, whose number may change after training."""
    return [name for name, stack in model.stacks.items() if stack.plan.n_rounds > 1 and stack.plan.is_fully_shared]


def rounds_to_try(n_rounds: int) -> list[int]:
    """Return numbers of rounds from 1 to twice those that were trained, them too."""
    parts = (n_rounds // 4, n_rounds // 2, 3 * n_rounds // 4, n_rounds, 5 * n_rounds // 4, 3 * n_rounds // 2)
    return sorted({1, *(max(1, part) for part in parts), 2 * n_rounds})


def _passes_over_rounds(subjects: Sequence[Subject]) -> int:
    stacks = [(s, s.model.stacks[name].plan) for s in subjects for name in variable_stacks(s.model)]
    return sum(len(rounds_to_try(plan.n_rounds)) * len(_few(subject)) for subject, plan in stacks)


_COLUMNS = ("stack", "rounds", "trained for", "token accuracy", "every label right", "loss, nats", "rounds run")


def _test_depth(subject: Subject, on_progress: OnProgress) -> Finding:
    """Return accuracy and loss of every stack by its rounds, the other stack as the run is loaded."""
    trained_of = {name: subject.model.stacks[name].plan.n_rounds for name in variable_stacks(subject.model)}
    found: dict[str, Points] = {
        name: {n: _at(subject, name, n, on_progress) for n in rounds_to_try(trained)}
        for name, trained in trained_of.items()
    }
    rows: list[list[object]] = [
        [name, n, trained_of[name], *numbers] for name, points in found.items() for n, numbers in points.items()
    ]
    return Finding(
        _COLUMNS,
        rows,
        {"by_rounds": [dict(zip(_COLUMNS, row, strict=True)) for row in rows]},
        lambda narrow: _draw_rounds(found, trained_of, narrow),
        note=f"{len(_few(subject)):,} examples of {subject.split}, teacher-forced; one stack is varied at a time. "
        "Rounds run: what a token took part in, which halting may leave below.",
    )


TEST_DEPTH = Study(
    name="test-depth",
    title="Accuracy by rounds at test time",
    reading=(
        "The same weights, run for fewer and for more rounds than they were trained for (dashed line): flat to the "
        "right is a stack whose states have settled, falling one that only knows its own depth."
    ),
    columns=_COLUMNS,
    why_not_model=lambda model: (
        None if variable_stacks(model) else "no stack of its model has several rounds that share all weights"
    ),
    extra_examples=_passes_over_rounds,
    of_run=_test_depth,
)


def _at(subject: Subject, stack: str, n_rounds: int, on_progress: OnProgress) -> tuple[float, float, float, float]:
    examples = _few(subject)
    outcomes = Outcomes(len(examples))
    with subject.model.execution(rounds={stack: n_rounds}):
        stream(subject.run, examples, [outcomes], on_progress=on_progress)
    loss = float(outcomes.nll_N.sum() / max(outcomes.labels_N.sum(), 1))
    depth = float(outcomes.depths.compute()[stack]["mean"])
    return outcomes.token_accuracy, outcomes.sequence_accuracy, loss, depth


def _draw_rounds(found: dict[str, Points], trained: dict[str, int], narrow: bool) -> Figure:
    figure, axes = panels(len(found), narrow)
    for panel, (stack, points) in zip(axes, found.items(), strict=True):
        for i, name in enumerate(("labels right", "examples with every label right")):
            line(panel, i, list(points), [100 * numbers[i] for numbers in points.values()], name)
        panel.axvline(trained[stack], color="gray", linestyle="--", linewidth=1, label="trained for")
        panel.set_ylim(0, 104)
        whole_numbers(panel)
        finish(panel, f"rounds of the {stack}", "right, %", stack)
    common_legend(figure, axes)
    return figure
