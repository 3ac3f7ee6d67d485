"""Measures that name nothing their runs will have: found before anything is trained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches

from ostinato.analysis.studies import STUDIES
from ostinato.config.measures import AnalysisMeasure, EvaluateMeasure, Measure, ResultMeasure
from ostinato.config.recipe import Recipe
from ostinato.errors import ConfigError, Problem
from ostinato.tasks.base import Task
from ostinato.tasks.registry import build_task

OF_A_RUN = frozenset(
    (
        *("name", "task", "seed", "version", "parameters", "device", "processes", "n_updates", "training_seconds"),
        *("stopped", "best_update", "checkpoint", "mean_of", "selection", "data_sha256", "seconds", "splits"),
    )
)
"""What results.json may have at its top."""
OF_A_SPLIT = frozenset(
    (
        *("name", "n", "n_labels", "n_words", "n_bytes", "loss", "perplexity", "word_perplexity", "bits_per_byte"),
        *("token_accuracy", "sequence_accuracy_forced", "macs", "by", "macro", "failed", "depth", "halting"),
        *("halting_threshold", "halting_threshold_from", "routing", "ranking", "n_steps", "seconds", "decoding"),
        *("decoding_seconds", "n_generated", "n_unfinished"),
    )
)
"""What an evaluation of a split may find, beside decoded metrics."""


def measure_problems(measure: Measure, recipe: Recipe) -> Iterator[Problem]:
    """Yield what a measure names and a run of a recipe will not have: a split, a score, a column, a stack, a study."""
    where = f"measures.{measure.name}"
    if isinstance(measure, ResultMeasure) and measure.split is None:
        yield from _unknown(f"{where}.path", measure.path, 0, OF_A_RUN, "results.json begins with")
        return
    studies = [study.name for study in STUDIES]
    if isinstance(measure, AnalysisMeasure) and measure.study not in studies:
        yield Problem(f"{where}.study", measure.study, f"must be one of {', '.join(studies)}")
    if not isinstance(measure, ResultMeasure | EvaluateMeasure | AnalysisMeasure) or measure.split is None:
        return
    try:
        task = build_task(recipe.task, recipe.data)
    except ConfigError:  # files that are not here yet: the check of the recipe says so
        return
    if measure.split not in task.splits():
        reason = task.why_missing(measure.split) or f"the task {task.name} has the splits {', '.join(task.splits())}"
        yield Problem(f"{where}.split", measure.split, reason)
    if not isinstance(measure, AnalysisMeasure):
        yield from _path_problems(measure, recipe, task)


def _path_problems(measure: ResultMeasure | EvaluateMeasure, recipe: Recipe, task: Task) -> Iterator[Problem]:
    key, parts = f"measures.{measure.name}.path", measure.path.split(".")
    columns = _given(getattr(measure, "by", None), recipe.evaluation.by, task.by)
    metrics = _given(getattr(measure, "metrics", None), recipe.evaluation.metrics, task.metrics)
    scores = {*OF_A_SPLIT, *metrics, *(f"{name}_signature" for name in metrics)}
    first = 0
    if parts[0] in ("by", "macro") and len(parts) > 1:
        yield from _unknown(key, measure.path, 1, columns, "evaluation.by has")
        first = 3 if parts[0] == "by" else 2  # by.COLUMN.VALUE.score, macro.COLUMN.score
    if first < len(parts):
        yield from _unknown(key, measure.path, first, scores, f"{task.name} is scored by", shown=metrics)
    if parts[first : first + 1] == ["halting"] and first + 1 < len(parts):
        yield from _unknown(key, measure.path, first + 1, recipe.model.stacks(), "the model has the stacks")


def _given(*choices: Iterable[str] | None) -> list[str]:
    """Return the first choice that was made."""
    return next(list(choice) for choice in choices if choice is not None)


def _unknown(
    key: str, path: str, place: int, known: Iterable[str], lead: str, shown: Iterable[str] | None = None
) -> Iterator[Problem]:
    """Yield a problem where one part of a path is none of the known names."""
    part, known = path.split(".")[place], list(known)
    if part not in known and part != "*":
        close = get_close_matches(part, known, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        listed = ", ".join(sorted(known) if shown is None else shown) or "nothing"
        yield Problem(key, path, f"there will be no {part!r}: {lead} {listed}{hint}")
