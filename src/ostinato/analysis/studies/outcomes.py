"""Studies of accuracy by category, and of learning curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from ostinato.analysis.accuracy import GroupAccuracy, accuracy_by_category
from ostinato.analysis.collectors import Outcomes, interval_of
from ostinato.analysis.curves import METRICS, LearningCurves, Line, learning_curves
from ostinato.analysis.drawing import COLOURS, common_legend, finish, line, panels, ticks, whole_numbers
from ostinato.analysis.studies.base import Finding, OnProgress, Study, Subject, natural_order

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_VALUES = 24
_CURVES = {"token_accuracy": "labels right, %", "sequence_accuracy_forced": "every label right, %"}
Groups = dict[str, dict[str, GroupAccuracy]]


_COLUMNS = ("column", "value", "examples", "every label right", "from", "to (95 %)", "labels right")


def _categories(subject: Subject, on_progress: OnProgress) -> Finding:
    """Return the accuracy of every value of every column."""
    found: Outcomes = subject.collected[Outcomes]
    categories = {
        name: [str(example.columns[name]) for example in subject.examples]
        for name in subject.columns
        if all(name in example.columns for example in subject.examples)
    }
    categories["length"] = [interval_of(n) for n in found.lengths_N.tolist()]
    groups: Groups = {}
    for name, values in categories.items():
        mine = accuracy_by_category(values, found.right_N, found.labels_N)
        groups[name] = {str(value): mine[value] for value in sorted(mine, key=lambda value: natural_order(str(value)))}
    rows: list[list[object]] = [
        [column, value, one.n, one.sequences, one.low, one.high, one.tokens]
        for column, mine in groups.items()
        for value, one in mine.items()
    ]
    data = {name: {value: asdict(one) for value, one in mine.items()} for name, mine in groups.items()}
    return Finding(
        _COLUMNS,
        rows,
        {"by": data},
        lambda narrow: _draw_groups(groups, narrow),
        note="Teacher-forced: the true labels before a label are given. Length: tokens the model reads.",
    )


CATEGORIES = Study(
    name="categories",
    title="Accuracy by category",
    reading=(
        "For every column of the data, and for length: bars are the share of examples with every label right, whiskers "
        "its 95 % interval, dots the share of single labels; a category whose interval lies apart is really different."
    ),
    columns=_COLUMNS,
    needs=(Outcomes,),
    needs_steps=False,
    of_run=_categories,
)


def _draw_groups(groups: Groups, narrow: bool) -> Figure:
    figure, axes = panels(len(groups), narrow)
    for panel, (column, mine) in zip(axes, groups.items(), strict=True):
        shown = dict(list(mine.items())[:_MOST_VALUES])
        at, heights = range(len(shown)), [100 * one.sequences for one in shown.values()]
        below = [100 * (one.sequences - one.low) for one in shown.values()]
        above = [100 * (one.high - one.sequences) for one in shown.values()]
        labels = [100 * one.tokens for one in shown.values()]
        panel.bar(at, heights, color=COLOURS[5], label="examples")
        panel.errorbar(at, heights, [below, above], fmt="none", ecolor="black", elinewidth=1, capsize=2)
        panel.plot(at, labels, "o", color=COLOURS[4], markersize=4, label="labels")
        ticks(panel, x=[f"{value} ({one.n:,})" for value, one in shown.items()])
        panel.set_ylim(0, 108)
        finish(panel, f"{column} (examples)", "right, %", f"by {column}")
    common_legend(figure, axes)
    return figure


_CURVE_COLUMNS = (
    "run",
    "split",
    "evaluations",
    "last update",
    "loss there",
    "lowest loss",
    "at update",
    "highest token accuracy",
)


def _learning(subjects: Sequence[Subject], on_progress: OnProgress) -> Finding:
    """Return the curves of all runs, in one figure."""
    curves = {subject.name: learning_curves(subject.run.directory / METRICS) for subject in subjects}
    rows: list[list[object]] = []
    for name, found in curves.items():
        for split, scores in found.scores.items():
            losses = scores.get("loss") or [(0, float("nan"))]
            best = min(losses, key=lambda point: point[1])
            accuracy = scores.get("token_accuracy")
            rows.append([name, split, len(losses), losses[-1][0], losses[-1][1], best[1], best[0]])
            rows[-1].append(max(value for _, value in accuracy) if accuracy else None)
    return Finding(
        _CURVE_COLUMNS,
        rows,
        {name: asdict(found) for name, found in curves.items()},
        lambda narrow: _draw_curves(curves, narrow),
        note="Loss in nats a label, without label smoothing and other losses.",
    )


LEARNING = Study(
    name="learning",
    title="Learning curves",
    reading=(
        "Loss in training (thin) and on the evaluated split (dots) by update, then the scores of the evaluations, and "
        "where tokens halt the rounds they took part in: a gap that opens between the two losses is overfitting."
    ),
    columns=_CURVE_COLUMNS,
    needs_steps=False,
    why_not_run=lambda subject: (
        None if (subject.run.directory / METRICS).is_file() else f"its directory holds no {METRICS}"
    ),
    of_runs=_learning,
)


def _draw_curves(curves: dict[str, LearningCurves], narrow: bool) -> Figure:
    # A score that is 0 throughout is left out: long texts are never right as a whole.
    splits = [scores for found in curves.values() for scores in found.scores.values()]
    shown = [name for name in _CURVES if any(value > 0 for scores in splits for _, value in scores.get(name, ()))]
    has_depth = any(found.depth for found in curves.values())
    figure, axes = panels(1 + len(shown) + has_depth, narrow)
    by_score = dict(zip(("loss", *shown), axes, strict=False))
    for i, (run, found) in enumerate(curves.items()):
        if found.training:
            axes[0].plot(*_xy(found.training), color=COLOURS[i % len(COLOURS)], linewidth=0.7)
        for split, scores in found.scores.items():
            for name, panel in by_score.items():
                x, y = _xy(scores.get(name, []))
                if x:  # loss in nats, shares in percent
                    shown_y = y if name == "loss" else [100 * share for share in y]
                    line(panel, i, x, shown_y, run if len(curves) > 1 else split)
        for k, (stack, points) in enumerate(found.depth.items()):
            # Several runs have a colour each, and their stacks a stroke; the stacks of one run have colours.
            of_run = i + k * len(COLOURS), f"{run} {stack}"
            number, label = of_run if len(curves) > 1 else (len(found.scores) + k, stack)
            line(axes[-1], number, *_xy(points), label)
    for name, panel in by_score.items():
        whole_numbers(panel)
        finish(panel, "update", _CURVES.get(name, "loss, nats"))
    if has_depth:
        axes[-1].set_ylim(bottom=0)
        finish(axes[-1], "update", "rounds a token takes part in")
    common_legend(figure, axes)
    return figure


def _xy(points: Line) -> tuple[list[int], list[float]]:
    return [x for x, _ in points], [y for _, y in points]
