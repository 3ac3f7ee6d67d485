"""What cannot be told, and why: too little data, a metric at its floor or ceiling, a count that does as well."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

from ostinato.advise.runs import MOST_EXAMPLES, range_of
from ostinato.advise.trials import TrialOutcome
from ostinato.config.recipe import Recipe
from ostinato.config.training import Mode
from ostinato.data.registry import DataAccess
from ostinato.errors import DataError, OstinatoError
from ostinato.tasks.base import Task
from ostinato.tasks.baselines import frequency_scores, trivial_scores
from ostinato.tasks.checks import FORCED_METRICS, mode_of
from ostinato.tasks.registry import build_task
from ostinato.training.prepare import with_splits

LEAST_TRAINING, LEAST_SELECTION = 100, 30
"""Examples: a score of fewer than 30 moves by more than 3 % with every single one."""


class NoAdviceError(OstinatoError):
    """The search ended, and nothing can be advised: why."""

    exit_code = 1


def check_data(recipe: Recipe, access: DataAccess | None = None) -> tuple[Task, int, str]:
    """Return the task, how many examples its selection split has, and a hash of both splits.

    Raises:
        DataError: too few examples to tell models apart, or no selection split.
    """
    task = build_task(recipe.task, recipe.data, access)
    recipe = with_splits(recipe, task)
    train, split = task.splits()[0], recipe.training.selection.split
    if split not in task.splits():
        raise DataError(
            f"training.selection.split: there is no {split!r} to choose models by; name a file: data.{split}=..."
        )
    content = hashlib.sha256()
    for name, least in ((train, LEAST_TRAINING), (split, LEAST_SELECTION)):
        n = 0
        for example in task.examples(name):
            n += 1
            content.update(repr((name, example.source, example.target)).encode())
        if n < least:
            raise DataError(f"the split {name!r} has {n} examples, too few to tell models apart: at least {least}")
    return task, n, content.hexdigest()


def baseline(recipe: Recipe, task: Task, metric: str) -> tuple[str, float] | None:
    """Return the best score of the selection split without a model, with its name; None where there is none."""
    split, n = recipe.training.selection.split, recipe.training.selection.max_examples or MOST_EXAMPLES
    scores: dict[str, float] = {}
    if metric in FORCED_METRICS:
        evaluation = recipe.evaluation.model_copy(update={"max_examples": n})  # what models are scored on
        for name, found in frequency_scores(recipe.model_copy(update={"evaluation": evaluation}), task, split).items():
            if metric == "loss" and "perplexity" in found:
                scores[name] = math.log(found["perplexity"])
            elif metric in found:
                scores[name] = found[metric]
    else:
        scores = {name: found[metric] for name, found in trivial_scores(task, split, [metric], n).items()}
    if not scores:
        return None
    pick = min if mode_of(metric) == "min" else max
    best = pick(scores, key=lambda name: scores[name])
    return best, scores[best]


def why_not(
    outcomes: Sequence[TrialOutcome],
    metric: str,
    mode: Mode,
    n_examples: int,
    without: tuple[str, float] | None,
    *,
    is_complete: bool = True,
) -> str | None:
    """Return why nothing can be advised by the outcomes of the last stage; None where it can.

    Args:
        without: the best score without a model, see `baseline`. is_complete: whether these are all outcomes.
    """
    scores = [one.score for one in outcomes if one.score is not None]
    if not scores:
        reasons = list(dict.fromkeys(one.reason.splitlines()[-1] for one in outcomes if one.reason))
        return f"no candidate could be trained: {reasons[0] if reasons else 'none was finished in the time'}"
    best = min(scores) if mode == "min" else max(scores)
    worst = max(scores) if mode == "min" else min(scores)
    if mode == "max" and is_complete:
        least, top = range_of(metric)
        # Half an example; nothing where a perfect score is not above 0, for then scores have no known size.
        step = max(0.0, top if math.isfinite(top) else 1.0) / n_examples / 2
        if worst >= top - step:
            return f"{metric} is at its ceiling ({best:.4g}) for every model of the last stage: harder data would tell"
        if best <= least + step:
            return (
                f"{metric} is at its floor ({best:.4g}) for every model: longer training, or --metric loss, would tell"
            )
    if without is not None and (best >= without[1] if mode == "min" else best <= without[1]):
        name, score = without
        return f"the best model has {metric} {best:.4g}, no better than {score:.4g} without a model ({name})"
    return None
