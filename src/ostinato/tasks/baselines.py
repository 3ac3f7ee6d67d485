"""What needs no model: answering with the most frequent target, and copying the source.

A trained model has learned something where it is above both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from ostinato.data.example import Example
from ostinato.data.subset import take_evenly
from ostinato.metrics import make_metric
from ostinato.tasks.base import Task


def trivial_scores(
    task: Task, split: str, metrics: Sequence[str] | None = None, max_examples: int | None = None
) -> dict[str, dict[str, float]]:
    """Return the scores of a task's split without a model, by baseline and metric.

    Args:
        metrics: decoded metrics by name; None: the task's own.
        max_examples: so many at most, spread evenly over the split, as in an evaluation.

    Returns:
        ``majority``: the training split's most frequent target as every answer. ``copy``: the source as the answer.

    Raises:
        ConfigError: no such split or metric.
        DataError: the data cannot be had.
    """
    ((majority, _),) = Counter(example.target for example in task.examples("train")).most_common(1)
    rows = list(take_evenly(task.examples(split), max_examples))
    names = task.metrics if metrics is None else metrics
    return {
        "majority": _scores(names, rows, [majority] * len(rows)),
        "copy": _scores(names, rows, [example.source or "" for example in rows]),
    }


def _scores(names: Sequence[str], rows: Iterable[Example], outputs: Iterable[str]) -> dict[str, float]:
    metrics = [make_metric(name) for name in names]
    for example, output in zip(rows, outputs, strict=True):
        for metric in metrics:
            metric.update(output, example.target)
    return {metric.name: float(metric.compute()[metric.name]) for metric in metrics}
