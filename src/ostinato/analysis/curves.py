"""Learning curves, read from a run's metrics.jsonl."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ostinato.data.disk import reading
from ostinato.data.lines import read_lines
from ostinato.data.sources import parse_object
from ostinato.errors import DataError

METRICS = "metrics.jsonl"
Line = list[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class LearningCurves:
    """Numbers by update.

    Args:
        training: nats a label, of the updates since the last record, without smoothing and other losses.
        scores: of evaluations, by split and name. depth: mean rounds of a token, by stack in which tokens halt.
        temperature: what routers divide scores by, by router that has a temperature.
    """

    training: Line = field(default_factory=list)
    scores: dict[str, dict[str, Line]] = field(default_factory=dict)
    depth: dict[str, Line] = field(default_factory=dict)
    temperature: dict[str, Line] = field(default_factory=dict)


def learning_curves(path: Path) -> LearningCurves:
    """Return the curves of a run's metrics.jsonl.

    Raises:
        DataError: the file is missing, or a line is no record.
    """
    found = LearningCurves()
    for number, line in read_lines(path):
        with reading(f"{path}, line {number}", DataError):
            _add(found, parse_object(line, path, number))
    return found


def _add(found: LearningCurves, record: dict[str, Any]) -> None:
    kind, update = record["kind"], int(record["update"])
    if not 0 <= update < 1 << 31:
        raise ValueError("update must be in [0, 2^31 - 1]")
    if kind == "training":
        if record.get("nll") is not None:
            found.training.append((update, float(record["nll"])))
        for stack, numbers in (record.get("depth") or {}).items():
            found.depth.setdefault(stack, []).append((update, float(numbers["mean"])))
        for router, numbers in (record.get("routing") or {}).items():
            if "temperature" in numbers:
                found.temperature.setdefault(router, []).append((update, float(numbers["temperature"])))
    elif kind == "evaluation":
        mine = found.scores.setdefault(record["split"], {})
        for name, value in record["scores"].items():
            if isinstance(value, float):
                mine.setdefault(name, []).append((update, value))
