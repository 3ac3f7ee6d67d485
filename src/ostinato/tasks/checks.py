"""What does not fit between a recipe's parts: its metrics, what selects its best checkpoint, its task, its model."""

from __future__ import annotations

from collections.abc import Iterator

from ostinato.config.recipe import Recipe
from ostinato.errors import Problem
from ostinato.metrics import METRICS
from ostinato.tasks.base import Task

FORCED_METRICS = ("loss", "perplexity", "token_accuracy", "sequence_accuracy_forced")
"""Scores of teacher forcing, which every evaluation has; the others need outputs."""
_SMALLER_IS_BETTER = ("loss", "perplexity")


def model_problems(recipe: Recipe, task: Task) -> Iterator[Problem]:
    """Yield a model that is not of the kind the task's examples are for."""
    if recipe.model.kind != task.model_kind:
        reason = f"the task {task.name} with these settings is for model.kind={task.model_kind}"
        yield Problem("model.kind", recipe.model.kind, reason)


def metric_problems(recipe: Recipe) -> Iterator[Problem]:
    """Yield metrics that do not exist, cannot be decoded, or would select the worst checkpoint."""
    selection, wanted = recipe.training.selection, recipe.evaluation.metrics or []
    known = (*FORCED_METRICS, *METRICS)
    if selection.metric not in known:
        yield Problem("training.selection.metric", selection.metric, f"must be one of {', '.join(known)}")
    elif selection.mode != (mode := "min" if selection.metric in _SMALLER_IS_BETTER else "max"):
        reason = f"must be {mode!r} with training.selection.metric={selection.metric}: it would keep the worst model"
        yield Problem("training.selection.mode", selection.mode, reason)
    for metric in wanted:
        if metric not in METRICS:
            yield Problem("evaluation.metrics", metric, f"must be among {', '.join(METRICS)}")
    if recipe.model.kind != "language_model":
        return
    named = [*(("evaluation.metrics", metric) for metric in wanted), ("training.selection.metric", selection.metric)]
    reason = f"a language model has no source to decode from: {', '.join(FORCED_METRICS)} only"
    yield from (Problem(key, metric, reason) for key, metric in named if metric in METRICS)
