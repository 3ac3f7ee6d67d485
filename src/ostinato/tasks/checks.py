"""What does not fit between a recipe's parts: its metrics, what selects its best checkpoint, its task, its model."""

from __future__ import annotations

from collections.abc import Iterator

from ostinato.config.model import LanguageModelConfig
from ostinato.config.recipe import Recipe
from ostinato.errors import Problem
from ostinato.metrics import METRICS

FORCED_METRICS = ("loss", "perplexity", "token_accuracy", "sequence_accuracy_forced")
"""Scores of teacher forcing, which every evaluation has; the others need outputs."""
_SMALLER_IS_BETTER = ("loss", "perplexity")


def model_problems(recipe: Recipe, has_sources: bool) -> Iterator[Problem]:
    """Yield a model that needs sources where the task's examples have none (`TaskConfig.has_sources`)."""
    if has_sources:
        return
    texts = f"the task {recipe.task.kind} with these settings has texts without a source"
    if not isinstance(recipe.model, LanguageModelConfig):
        yield Problem("model.kind", recipe.model.kind, f"{texts}, which is for model.kind=language_model")
    elif recipe.model.mask == "prefix":
        yield Problem("model.mask", "prefix", f"{texts}, so that there is no prefix: use causal")


def metric_problems(recipe: Recipe, has_sources: bool) -> Iterator[Problem]:
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
    if has_sources:
        return
    named = [*(("evaluation.metrics", metric) for metric in wanted), ("training.selection.metric", selection.metric)]
    reason = f"the task's texts have no source to decode from: {', '.join(FORCED_METRICS)} only"
    yield from (Problem(key, metric, reason) for key, metric in named if metric in METRICS)
