"""Study of the quality of several runs against their costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.analysis.accuracy import pareto_front
from ostinato.analysis.capture import CapturedBatch, Collector
from ostinato.analysis.collectors import Outcomes
from ostinato.analysis.drawing import COLOURS, common_legend, finish, in_units, legend_label, panels
from ostinato.analysis.latency import pass_latencies, threads_and_device
from ostinato.analysis.studies.base import Finding, OnProgress, Study, Subject, not_comparable
from ostinato.errors import CheckpointError
from ostinato.evaluation.loading import find_checkpoint
from ostinato.evaluation.scores import COUNTS_UNKNOWN
from ostinato.evaluation.threshold import TRAINED
from ostinato.metrics import decoded_scores
from ostinato.tasks.recipes import load_recipe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COSTS = ("parameters", "M MACs an example", "ms an example")
_FRONTS = ("parameters", "MACs", "latency")
_MARKS = "osD^vP*X"


class _TextBytes(Collector):
    """Bytes of the texts whose tokens the labels are; None where the labels do not say all of a text."""

    def __init__(self) -> None:
        self.n: int | None = 0

    def add(self, captured: CapturedBatch) -> None:
        """Take in one batch."""
        for size in captured.batch.sizes:
            self.n = None if size is None or self.n is None else self.n + size.n_bytes


def _why_not(subjects: Sequence[Subject]) -> str | None:
    """Return why runs cannot be placed by one quality, None where they can."""
    if (reason := not_comparable(subjects)) is not None or _stored_quality(subjects) is not None:
        return reason
    vocabularies, targets = _vocabularies(subjects), [example.target for example in subjects[0].examples]
    have_others = any(other != vocabularies[0] for other in vocabularies)
    if have_others and any(subject.run.tokenizers.target.lacks(targets) for subject in subjects):
        # What remains is sequence accuracy: a text with unknown tokens has no bits per byte.
        return f"sequence accuracy {COUNTS_UNKNOWN}: choose runs of one vocabulary, or with a decoded metric"
    return None


def _pareto(subjects: Sequence[Subject], on_progress: OnProgress) -> Finding:
    """Return costs and quality of all runs, and which of them are on each front."""
    quality_name, qualities = _quality(subjects)
    outcomes: list[Outcomes] = [subject.collected[Outcomes] for subject in subjects]
    latencies = pass_latencies([s.run for s in subjects], [s.examples for s in subjects])
    costs = [
        [float(subject.model.n_parameters()) for subject in subjects],
        [float(found.macs_N2[:, 1].mean()) / 1e6 for found in outcomes],
        [1e3 * latency.per_example for latency in latencies],
    ]
    fronts = [pareto_front(values, qualities) for values in costs]
    names = [subject.name for subject in subjects]
    rows: list[list[object]] = []
    for i, name in enumerate(names):
        leads = ", ".join(cost for cost, front in zip(_FRONTS, fronts, strict=True) if front[i])
        rows.append([name, qualities[i], int(costs[0][i]), costs[1][i], costs[2][i], leads])
    columns = ("run", quality_name, *_COSTS, "on the front of")
    n = min(latency.n for latency in latencies)
    return Finding(
        columns,
        rows,
        {"runs": [dict(zip(columns, row, strict=True)) for row in rows]},
        lambda narrow: _draw_fronts(names, quality_name, qualities, costs, fronts, narrow),
        note=f"MACs: realised, of a teacher-forced pass. Latency: passes over {n} examples in batches, the "
        f"runs taking turns, on {threads_and_device(subjects[0].model)}.",
    )


PARETO = Study(
    name="pareto",
    title="Quality against cost",
    reading=(
        "A mark is a run: the higher the better, the further left the cheaper. Filled marks, on the line, are the "
        "Pareto front: no other run is at least as good at no higher cost."
    ),
    needs=(Outcomes, _TextBytes),
    needs_steps=False,
    why_not_together=_why_not,
    of_runs=_pareto,
)


def _quality(subjects: Sequence[Subject]) -> tuple[str, list[float]]:
    """Return a decoded metric that all runs have (`_stored_quality`); else what is teacher-forced: token accuracy, or,
    where the runs' tokenizers make other labels, what does not count them."""
    if (stored := _stored_quality(subjects)) is not None:
        return stored
    split = subjects[0].split
    outcomes: list[Outcomes] = [subject.collected[Outcomes] for subject in subjects]
    counts = [found.labels_N.tolist() for found in outcomes]
    labels = list(zip(counts, _vocabularies(subjects), strict=True))
    if all(other == labels[0] for other in labels):
        return f"token accuracy, {split}", [found.token_accuracy for found in outcomes]
    n_bytes = [subject.collected[_TextBytes].n for subject in subjects]
    if all(n_bytes):
        bits = [found.nll_N.sum() / math.log(2) / n for found, n in zip(outcomes, n_bytes, strict=True)]
        return f"minus bits per byte, {split}", [-float(one) for one in bits]
    return f"sequence accuracy, {split}", [found.sequence_accuracy for found in outcomes]


def _vocabularies(subjects: Sequence[Subject]) -> list[list[str]]:
    """Return the texts of the tokens that every run predicts, whatever their order there."""
    tokenizers = [subject.run.tokenizers.target for subject in subjects]
    return [sorted(one.decode([i]) for i in range(one.vocab_size)) for one in tokenizers]


def _stored_quality(subjects: Sequence[Subject]) -> tuple[str, list[float]] | None:
    """Return a decoded metric that all runs have in results.json, of as many examples of the split; else None."""
    stored = [_stored_scores(subject) for subject in subjects]
    for name in decoded_scores(stored[0]) if len({scores.get("n") for scores in stored}) == 1 else ():
        values = [scores.get(name) for scores in stored]
        if all(isinstance(value, int | float) for value in values):
            return f"{name}, {subjects[0].split}", [float(value) for value in values if value is not None]
    return None


def _stored_scores(subject: Subject) -> dict[str, Any]:
    """Return what results.json has of the split: of the scored checkpoint at its trained thresholds, and of the data
    and the decoding that the run was trained with, alone."""
    run = subject.run
    found = (subject.stored_results().get("splits") or {}).get(subject.split) or {}
    if not found or run.halting_threshold_from != TRAINED:
        return {}
    trained = load_recipe(run.directory)
    if any(getattr(trained, name) != getattr(run.recipe, name) for name in ("task", "data", "decoding")):
        return {}
    try:
        return found if run.checkpoint == find_checkpoint(run.directory) else {}
    except CheckpointError:  # it is no longer there
        return {}


def _draw_fronts(
    names: Sequence[str],
    quality_name: str,
    qualities: Sequence[float],
    costs: Sequence[Sequence[float]],
    fronts: Sequence[np.ndarray],
    narrow: bool,
) -> Figure:
    figure, axes = panels(3, narrow, height=3.2)
    for panel, label, values, front in zip(axes, _COSTS, costs, fronts, strict=True):
        order = sorted(np.flatnonzero(front).tolist(), key=lambda i: (values[i], qualities[i]))
        panel.plot([values[i] for i in order], [qualities[i] for i in order], "-", color="gray", linewidth=1, zorder=1)
        for i, name in enumerate(names):
            colour = COLOURS[i % len(COLOURS)]
            mark = panel.scatter(
                [values[i]], [qualities[i]], 60, marker=_MARKS[i % len(_MARKS)], label=legend_label(name), zorder=2
            )
            mark.set(facecolor=colour if front[i] else "none", edgecolor=colour)
        panel.margins(0.12)
        panel.locator_params(axis="x", nbins=5)
        in_units(panel.xaxis)
        finish(panel, label, quality_name if panel is axes[0] else "")
    common_legend(figure, axes)
    return figure
