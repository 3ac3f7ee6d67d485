"""Models of different depth compared where they are equally good at something else (Petty et al. 2024).

At equal perplexity (their section 3.3): of runs of pre-training the shallowest is the reference, r its held-out loss at
the end. For every run at least as deep it is found where its held-out loss first reaches r: the running minimum over
the run's evaluations, and between two of them, as log perplexity is the loss, a line in the loss. Of the
saved checkpoints before and after, the one whose loss is nearer to r is what is to be fine-tuned; what it is off by is
reported. Then the next deeper run is the reference, for those at least as deep as it.

At equal in-distribution loss (section 3.4): of runs of fine-tuning every saved checkpoint gives a pair, its held-out
loss and its score on another split. Along the running minimum of the loss, which makes it single-valued, the score is
interpolated over log loss, on a grid of losses that all runs reached.

Both leave one thing unequal: where in its schedule of learning rates a run stood.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ostinato.analysis.curves import METRICS, learning_curves
from ostinato.errors import CheckpointError, DataError
from ostinato.evaluation.loading import check_run, load
from ostinato.experiments.compare.systems import System
from ostinato.models.checkpoint import checkpoint_folders
from ostinato.tasks.recipes import load_recipe
from ostinato.training.rundir import RunDirectory

_LEAST_LOSS = float(np.finfo(np.float32).eps)
"""Smaller losses are rounding of the float32 they are computed in, and 0 has no logarithm."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Held-out losses of one run.

    Args:
        name: the run's directory. depth: steps of the model's deepest stack. points: update and loss of every
            evaluation, in order. checkpoints: updates that are saved. measured_on: what makes the labels that the
            losses are means over, by what it is called.
    """

    name: str
    depth: int
    points: list[tuple[int, float]]
    checkpoints: list[int]
    measured_on: Mapping[str, object] = field(default_factory=dict)

    @property
    def final(self) -> float:
        """The loss of the last evaluation."""
        return self.points[-1][1]


def read_curve(run: Path) -> Curve:
    """Read the evaluations of a run on its selection split, and which of its checkpoints are there.

    Raises:
        CheckpointError: no run, or no evaluations. DataError: records that cannot be read.
    """
    check_run(run)
    recipe = load_recipe(run)
    selection = recipe.training.selection
    scores = learning_curves(run / METRICS).scores.get(selection.split, {})
    points = dict(scores.get("loss", ()))
    if not points:
        raise CheckpointError(f"{run / METRICS}: no evaluations yet")
    saved = list(checkpoint_folders(run / "checkpoints"))
    model = recipe.model
    depth = max([s.depth for s in model.stacks().values()] + [r.n_layers for r in model.recurrences().values()])
    measured_on = {
        "tokens to predict": System(run, str(run), recipe).vocabulary(),
        "held-out examples": RunDirectory(run).data_hashes().get(selection.split),
        "training.selection.max_examples": selection.max_examples,
    }
    return Curve(str(run), depth, sorted(points.items()), sorted(saved), measured_on)


def check_alike(curves: Sequence[Curve]) -> None:
    """Raise a DataError where held-out losses are means over other labels, so that equal ones say nothing."""
    first = curves[0]
    for curve in curves[1:]:
        if other := [name for name, value in curve.measured_on.items() if first.measured_on.get(name) != value]:
            what = f"{curve.name} has other {' and '.join(other)} than {first.name}"
            raise DataError(f"{what}, so that their held-out losses cannot be matched: compare runs that share them")


def reached(points: Sequence[tuple[int, float]], loss: float) -> float | None:
    """Return the update at which the running minimum of a curve first reaches a loss; None where it never does."""
    before: tuple[int, float] | None = None
    for update, value in points:
        if value <= loss:
            if before is None or before[1] == value:
                return float(update)
            # Between two evaluations the loss is taken to fall along a line.
            return before[0] + (before[1] - loss) / (before[1] - value) * (update - before[0])
        before = update, value if before is None else min(value, before[1])
    return None


def match_perplexity(curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """Return a row for every reference and every run at least as deep, the shallowest reference first.

    Returns:
        reference, run, depth, reached (the update, None where the run never does), checkpoint (name; None likewise, or
        where no evaluated checkpoint is saved), perplexity (of the reference; `own` of that checkpoint), mismatch (own
        loss less the reference's).

    Raises:
        DataError: runs of other tokens or held-out examples.
    """
    check_alike(curves)
    ordered = sorted(curves, key=lambda curve: curve.depth)
    rows: list[dict[str, Any]] = []
    for reference in ordered:
        wanted = reference.final
        for curve in (curve for curve in ordered if curve.depth >= reference.depth):
            # The reference is at its final loss at its end, though its running minimum may have been there before.
            update = float(curve.points[-1][0]) if curve is reference else reached(curve.points, wanted)
            losses = {at: loss for at, loss in curve.points if at in curve.checkpoints}
            row = {
                "reference": reference.name,
                "run": curve.name,
                "depth": curve.depth,
                "perplexity": math.exp(wanted),
                "reached": update,
                "checkpoint": None,
                "own": None,
                "mismatch": None,
            }
            if update is not None and losses:
                # Of the two saved around that update: a later one may be as near again where the run overfits.
                around = [
                    max((at for at in losses if at <= update), default=None),
                    min((at for at in losses if at >= update), default=None),
                ]
                nearest = min((at for at in around if at is not None), key=lambda at: (abs(losses[at] - wanted), at))
                row["checkpoint"] = f"update-{nearest:06d}"
                row["own"] = math.exp(losses[nearest])
                row["mismatch"] = losses[nearest] - wanted
            rows.append(row)
    return rows


def score_pairs(
    run: Path, curve: Curve, split: str, metric: str, *, verify: bool = True, **options: Any
) -> list[tuple[float, float]]:
    """Return held-out loss and score on `split` of every saved checkpoint that was evaluated, in the order of updates.

    Args:
        verify: as in `ostinato.load`.
        options: of `LoadedRun.evaluate`, for example max_examples=100.

    Raises:
        DataError: no such checkpoint: a run keeps as many as training.keep_last says. ConfigError: no such split.
    """
    losses = dict(curve.points)
    pairs = []
    for update in curve.checkpoints:
        if update in losses:
            loaded = load(
                run, checkpoint=f"update-{update:06d}", device="auto", halting_threshold="trained", verify=verify
            )
            found = loaded.evaluate(split, metrics=[metric], **options)
            pairs.append((losses[update], float(found[metric])))
    if not pairs:
        raise DataError(f"{run}: none of its saved checkpoints was evaluated: train with a larger training.keep_last")
    return pairs


def match_loss(pairs: dict[str, list[tuple[float, float]]], n_points: int = 5) -> list[dict[str, Any]]:
    """Return for losses that all runs reached the score that each had there.

    Args:
        pairs: by run, loss and score of its checkpoints, in the order of updates. n_points: of the grid.

    Returns:
        loss, and scores: run -> score.

    Raises:
        DataError: no loss that all runs had.
    """
    curves: dict[str, list[tuple[float, float]]] = {run: [] for run in pairs}
    for run, kept in curves.items():  # where the loss is lower than ever before
        for measured, score in pairs[run]:
            loss = max(measured, _LEAST_LOSS)
            if not kept or loss < kept[-1][0]:
                kept.append((loss, score))
    high = min(max(loss for loss, _ in points) for points in curves.values())
    low = max(min(loss for loss, _ in points) for points in curves.values())
    if low > high:
        raise DataError(f"no loss that all runs had: one never fell below {low:.4g}, another began at {high:.4g}")
    grid = np.exp(np.linspace(math.log(high), math.log(low), n_points if low < high else 1))
    rows = []
    for loss in grid.tolist():
        scores = {}
        for run, points in curves.items():
            # Losses fall along the curve; interpolation wants them to rise.
            logs, values = zip(*[(math.log(x), y) for x, y in reversed(points)], strict=True)
            scores[run] = float(np.interp(math.log(loss), logs, values))
        rows.append({"loss": loss, "scores": scores})
    return rows
