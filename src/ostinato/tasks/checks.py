"""Checks between the parts of a recipe: its task, its model, its metrics and the selection of its checkpoint."""

from __future__ import annotations

from collections.abc import Iterator

from ostinato.config.recipe import Recipe
from ostinato.config.training import NO_SMOOTHING_OF_SPANS, Mode
from ostinato.errors import Problem
from ostinato.metrics import METRICS
from ostinato.tasks.base import Task

SMALLER_IS_BETTER = ("loss", "perplexity", "word_perplexity", "bits_per_byte")
FORCED_METRICS = (*SMALLER_IS_BETTER, "token_accuracy", "sequence_accuracy_forced")
"""Teacher-forced scores, which every evaluation has; the other metrics need generated outputs."""
OF_TEXTS = ("word_perplexity", "bits_per_byte")
"""Scores that only whole texts have, every token of which is a label and none unknown."""


def mode_of(metric: str) -> Mode:
    """Return whether a smaller or a larger value of a metric is better."""
    return "min" if metric in SMALLER_IS_BETTER else "max"


def model_problems(recipe: Recipe, has_sources: bool) -> Iterator[Problem]:
    """Yield the problems of a model that cannot read the task's examples, and of settings without effect on them.

    Args:
        has_sources: `TaskConfig.has_sources`.
    """
    reads, data = recipe.model.reads, recipe.data
    if data.target_tokenizer is not None and not recipe.model.generates:
        reason = "an encoder-only model reads with data.tokenizer, and its labels are no text: remove it"
        yield Problem("data.target_tokenizer", data.target_tokenizer.kind, reason)
    if reads == "span" and recipe.training.label_smoothing:
        yield Problem("training.label_smoothing", recipe.training.label_smoothing, NO_SMOOTHING_OF_SPANS)
    if has_sources:
        if reads == "masked":
            reason = f"the task {recipe.task.kind} has pairs: a masked head reads texts (files: task.model_kind)"
            yield Problem("model.head.kind", reads, reason)
        if data.block_length is not None:
            yield Problem("data.block_length", data.block_length, "packs texts, and this task's examples have a source")
        return
    texts = f"the task {recipe.task.kind} with these settings has texts without a source"
    if reads not in ("sequence", "masked"):
        kinds = "model.kind=language_model, or encoder with model.head.kind=masked"
        yield Problem("model.kind", recipe.model.kind, f"{texts}, which is for {kinds}")


def length_problems(recipe: Recipe, has_sources: bool) -> Iterator[Problem]:
    """Yield why pairs in one sequence may have more tokens than the decoder has learned positions for."""
    if not (has_sources and recipe.model.joins_pairs):
        return
    longest = recipe.data.max_source_length + recipe.data.max_target_length
    for name, stack in recipe.model.stacks().items():
        if stack.positions.kind == "learned" and longest > stack.positions.max_length:
            reason = (
                f"source and target are one sequence, of up to {longest} tokens (data.max_source_length and "
                "data.max_target_length): lower these, or raise it"
            )
            yield Problem(f"model.{name}.positions.max_length", stack.positions.max_length, reason)


def split_problems(recipe: Recipe, task: Task) -> Iterator[Problem]:
    """Yield the problems of splits that the task does not have."""
    named = [("training.selection.split", recipe.training.selection.split)]
    named += [("evaluation.splits", split) for split in recipe.evaluation.splits or []]
    for key, split in named:
        if split not in task.splits():
            yield Problem(key, split, task.why_no_split(split))


def metric_problems(recipe: Recipe, has_sources: bool) -> Iterator[Problem]:
    """Yield the problems of metrics that do not exist, need outputs of texts, or would select the worst checkpoint."""
    selection, wanted = recipe.training.selection, recipe.evaluation.metrics or []
    if selection.metric not in FORCED_METRICS and selection.metric not in METRICS:
        valid = ", ".join((*FORCED_METRICS, *METRICS))
        yield Problem("training.selection.metric", selection.metric, f"must be one of {valid}")
    elif selection.mode != (mode := mode_of(selection.metric)):
        reason = f"must be {mode!r} with training.selection.metric={selection.metric}: it would keep the worst model"
        yield Problem("training.selection.mode", selection.mode, reason)
    if selection.metric in OF_TEXTS and (has_sources or recipe.model.reads != "sequence"):
        reason = "is of texts every token of which is a label, and this task or model has none"
        yield Problem("training.selection.metric", selection.metric, reason)
    for metric in wanted:
        if metric not in METRICS:
            yield Problem("evaluation.metrics", metric, f"must be among {', '.join(METRICS)}")
    if has_sources:
        return
    named = [*(("evaluation.metrics", metric) for metric in wanted), ("training.selection.metric", selection.metric)]
    reason = f"the task's texts have no source to decode from: {', '.join(FORCED_METRICS)} only"
    yield from (Problem(key, metric, reason) for key, metric in named if metric in METRICS)
