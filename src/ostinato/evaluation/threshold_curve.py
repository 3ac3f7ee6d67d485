"""Score and cost of a trained model by halting threshold, and the choice of a threshold.

A threshold may be changed after training without changing a weight (Sparse Universal Transformer, figures 5-7). Tokens
then halt earlier, which changes their states, so the model is evaluated anew for every threshold:

    score            a metric of decoded outputs, or of teacher forcing where nothing is decoded
    skipped share    1 - token-rounds that ran / (tokens x rounds), of every stack
    realised MACs    `ostinato.budget.macs`: mean over the examples of one teacher-forced pass

The choice is the threshold of the fewest realised MACs whose score is at most `max_drop` below that at the trained
thresholds, in parts of a perfect score: 0.002 is 0.2 points of accuracy in percent, and 0.2 points of BLEU.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ostinato.errors import CheckpointError
from ostinato.models import Model

CURVE, CURVE_FORMAT = "threshold-curve", 1
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Point:
    """Score and cost of a model at one threshold.

    Args:
        threshold: None: the trained ones. thresholds: in force, by stack.
        score: as the metric reports it. skipped: share of the token-rounds, by stack. macs: full and realised.
        seconds: of the whole evaluation. decoding_seconds: of decoding alone, where there was any.
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
    """A sweep over thresholds and the chosen one.

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
        """The point of the trained thresholds, with which the others are compared."""
        return self.points[0]

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        plain = {key: value for key, value in asdict(self).items() if key != "files"}
        return {"format": CURVE_FORMAT} | plain


def sweep(
    model: Model,
    metric: str,
    thresholds: Sequence[float],
    evaluate: Callable[[], dict[str, Any]],
    on_point: Callable[[Point], None] = lambda point: None,
) -> tuple[list[Point], int]:
    """Return the points of a model at its trained thresholds and at others, and the number of examples.

    Args:
        metric: of the result. thresholds: each for all stacks in which tokens halt.
        evaluate: measures the model as it is (`ostinato.evaluation.evaluate`). on_point: called with each point.
    """
    points, n = [], 0
    for threshold in (None, *thresholds):
        with model.execution(halting_threshold=threshold):
            result = evaluate()
        n = result["n"]
        points.append(_point(threshold, metric, result))
        on_point(points[-1])
    return points, n


def choose(points: Sequence[Point], max_drop: float, perfect: float = 1.0) -> Point:
    """Return the point of the fewest realised MACs whose score is within `max_drop` of the first point's.

    Of several with equal MACs, that of the best score. Where none is cheaper than the first point, at the trained
    thresholds, the first point is chosen: a better score alone is no reason to change a threshold.
    """
    trained = points[0]
    least = trained.score - (max_drop + _ROUNDING) * perfect
    cheaper = [p for p in points if p.score >= least and p.macs["realised"] < trained.macs["realised"]]
    return min(cheaper, key=lambda p: (p.macs["realised"], -p.score), default=trained)


def read_curve(directory: Path, checkpoint: str) -> Tuning | None:
    """Return the sweep that was stored with a run (`ostinato tune-threshold`) for a checkpoint; None: there is none.

    Raises:
        CheckpointError: it cannot be read.
    """
    path = directory / f"{CURVE}.json"
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != CURVE_FORMAT:
            raise CheckpointError(f"{path}: format {content['format']!r} is not {CURVE_FORMAT}")
        points = tuple(Point(**point) for point in content["points"])
        rest = {field.name for field in fields(Tuning)} - {"points", "chosen", "files"}
        plain = {name: content[name] for name in rest}
        found = Tuning(points=points, chosen=Point(**content["chosen"]), **plain)
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"cannot be read: {error!r}; remove it, or measure it again with ostinato tune-threshold"
        raise CheckpointError(f"{path}: {reason}") from error
    return found if found.checkpoint == checkpoint else None


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
