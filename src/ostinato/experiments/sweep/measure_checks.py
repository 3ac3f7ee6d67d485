"""Measures that name nothing their runs will have: found before anything is trained.

Each is put to the check that it would fail after training: rounds and thresholds to the model's, without its weights;
columns to the first example's; an analysis to its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from typing import Any

from ostinato.analysis.studies import STUDIES
from ostinato.budget.sizes import chosen_experts, plans
from ostinato.config.claim import ComparedConfig
from ostinato.config.halting import TokenChoiceConfig
from ostinato.config.measures import AnalysisMeasure, EvaluateMeasure, Measure, ResultMeasure
from ostinato.config.model import ModelConfig
from ostinato.config.recipe import Recipe
from ostinato.errors import ConfigError, OstinatoError, Problem
from ostinato.evaluation.averaging import parse_average
from ostinato.evaluation.depth import PERCENTILES
from ostinato.evaluation.oracle import oracle_of
from ostinato.evaluation.scores import check_metrics
from ostinato.models.build import Model, without_memory
from ostinato.nn.execution import Execution
from ostinato.tasks.base import Task
from ostinato.tasks.checks import FORCED_METRICS, OF_TEXTS, metric_problems
from ostinato.tasks.registry import build_task
from ostinato.training.prepare import with_splits
from ostinato.training.trainable import check_by

Tree = Mapping[str, "Tree | None"]
"""What may be found, by name: None is a number, and what stands under "*" is there under names that data give."""
_ANY = "*"
_OF_A_RUN = ("parameters", "seed", "processes", "n_updates", "best_update", "training_seconds", "seconds")
_COUNTS = ("n", "n_labels", "n_words", "n_bytes")
_UPDATE = re.compile(r"update-\d{6,}")
_OF_A_ROUTER = ("load_entropy", "row_entropy", "n_dead", "experts_per_token")


def measure_problems(measure: Measure, recipe: Recipe) -> Iterator[Problem]:
    """Yield what a measure names and a run will not have: a split, a score, a column, a stack, a checkpoint, a study.

    Args:
        recipe: that the run is trained with, with the changes of the measure's `set`.
    """
    where = f"measures.{measure.name}"
    if isinstance(measure, AnalysisMeasure):
        yield from _study_problems(measure, recipe, where, is_alone=True)
    if not isinstance(measure, ResultMeasure | EvaluateMeasure | AnalysisMeasure):
        return
    try:
        task = build_task(recipe.task, recipe.data)
    except ConfigError:  # files that are not here yet: the check of the recipe says so
        return
    scored = with_splits(recipe, task).evaluation.splits or []
    if measure.split is not None and measure.split not in task.splits():
        reason = task.why_no_split(measure.split)
        yield Problem(f"{where}.split", measure.split, reason)
    elif isinstance(measure, ResultMeasure) and measure.split is not None and measure.split not in scored:
        reason = f"runs are evaluated on {', '.join(scored) or 'no split'}: name it in evaluation.splits"
        yield Problem(f"{where}.split", measure.split, reason)
    elif isinstance(measure, EvaluateMeasure):
        yield from _evaluation_problems(measure, recipe, task)
    if not isinstance(measure, AnalysisMeasure):
        evaluated = measure if isinstance(measure, EvaluateMeasure) else None
        split = measure.split
        tree = _of_a_run(recipe, task) if split is None else _of_a_split(evaluated, recipe, task, split)
        if (lost := _why_no_number(tree, measure.path.split("."), measure.path.count(_ANY) == 1)) is not None:
            yield Problem(f"{where}.path", measure.path, lost)


def comparison_problems(measure: ComparedConfig, recipe: Recipe) -> Iterator[Problem]:
    """Yield what a measure of several runs names and a run of a recipe will not have: a study, a column, a split."""
    where = f"source.compared.{measure.name}"
    is_alone = measure.over == "each" and not measure.others
    yield from _study_problems(measure, recipe, where, is_alone=is_alone)
    try:
        task = build_task(recipe.task, recipe.data)
    except ConfigError:  # files that are not here yet: the check of the recipe says so
        return
    if measure.split is not None and measure.split not in task.splits():
        yield Problem(f"{where}.split", measure.split, task.why_no_split(measure.split))


def check_measurable(measures: Sequence[Measure]) -> None:
    """Refuse metrics of measures whose library or model is not here; rows that are there can be read without them.

    Raises:
        ConfigError: all of them.
    """
    problems = [
        problem
        for measure in measures
        if isinstance(measure, EvaluateMeasure) and measure.metrics
        for problem in _refused(
            f"measures.{measure.name}.metrics", measure.metrics, partial(check_metrics, measure.metrics)
        )
    ]
    if problems:
        raise ConfigError(problems)


def _study_problems(
    measure: AnalysisMeasure | ComparedConfig, recipe: Recipe, key: str, *, is_alone: bool
) -> Iterator[Problem]:
    """Yield what is wrong with the study and the columns of a measure; `is_alone`: it sees one run at a time."""
    study = next((study for study in STUDIES if study.name == measure.study), None)
    if study is None:
        yield Problem(f"{key}.study", measure.study, f"must be one of {', '.join(study.name for study in STUDIES)}")
        return
    # No run is as many as one where runs are compared.
    why = study.why_never(without_memory(recipe.model)) or (study.why_not_together(()) if is_alone else None)
    if why is not None:
        yield Problem(f"{key}.study", measure.study, f"does not apply: {why}")
    elif study.columns:
        for column in measure.table.missing(study.columns):
            yield Problem(f"{key}.table", column, f"is no column; there are {', '.join(study.columns)}")


def _evaluation_problems(measure: EvaluateMeasure, recipe: Recipe, task: Task) -> Iterator[Problem]:
    """Put a measure's settings to what evaluating refuses."""
    where, model = f"measures.{measure.name}.", recipe.model
    asked = recipe.evaluation.model_copy(update={"metrics": measure.metrics})
    for problem in metric_problems(recipe.model_copy(update={"evaluation": asked}), task.config.has_sources):
        if problem.key == "evaluation.metrics":
            yield Problem(f"{where}metrics", problem.value, problem.reason)
    yield from _refused(f"{where}n_steps", measure.n_steps, lambda: plans(model, measure.n_steps))
    try:
        measured = _as_measured(model, measure)
        if measure.oracle is not None:
            oracle_of(measured, measure.oracle)
            if measure.metrics and model.generates:
                reason = f"an oracle reads the right answers, and nothing is decoded: remove it, or {where}oracle"
                yield Problem(f"{where}metrics", measure.metrics, reason)
    except ConfigError as error:
        yield from (replace(problem, key=f"{where}{problem.key}") for problem in error.problems)
    key, checkpoint = f"{where}checkpoint", measure.checkpoint or recipe.evaluation.checkpoint
    if problems := list(_refused(key, checkpoint, lambda: parse_average(checkpoint))):
        yield from problems
    elif parse_average(checkpoint):
        yield from recipe.too_few_to_average(checkpoint, key, first=recipe.training.halting.off_updates)
    elif checkpoint not in ("best", "last") and "/" not in checkpoint and not _UPDATE.fullmatch(checkpoint):
        yield Problem(key, checkpoint, "must be best, last, a mean (best:5, last:5), or a name such as update-000500")
    if (by := measure.by) is not None:
        yield from _refused(f"{where}by", by, lambda: check_by(recipe, measure.split, by))


def _as_measured(model: ModelConfig, measure: EvaluateMeasure) -> Model:
    """Return the model, without its weights, as a measure runs it.

    Raises:
        ConfigError: a threshold or a criterion that the model cannot follow.
    """
    execution = Execution(halting_threshold=measure.halting_threshold, exit=measure.exit, exit_scope=measure.exit_scope)
    return without_memory(model, execution)


def _refused(key: str, value: object, check: Callable[[], object]) -> Iterator[Problem]:
    """Yield under a key what a check refuses."""
    try:
        check()
    except ConfigError as error:
        yield from (Problem(key, value, problem.reason) for problem in error.problems)
    except OstinatoError as error:
        yield Problem(key, value, str(error))


def _of_a_run(recipe: Recipe, task: Task) -> Tree:
    """Return what results.json holds."""
    splits = with_splits(recipe, task).evaluation.splits or []
    scored = {split: _of_a_split(None, recipe, task, split) for split in splits}
    return {**dict.fromkeys(_OF_A_RUN), "selection": {"value": None}, "splits": scored}


def _of_a_split(measure: EvaluateMeasure | None, recipe: Recipe, task: Task, split: str) -> Tree:
    """Return what the evaluation of a split finds.

    Args:
        measure: None: the evaluation at the end of training.
    """
    evaluation = recipe.evaluation
    columns = _given(None if measure is None else measure.by, evaluation.by, task.by)
    decodes_nothing = measure is not None and measure.oracle is not None and recipe.model.generates
    of_labels: list[str] | None = [] if decodes_nothing else None
    metrics = _given(of_labels, None if measure is None else measure.metrics, evaluation.metrics, task.metrics)
    stacks = recipe.model.stacks()
    is_of_texts = recipe.model.reads == "sequence" and not task.config.has_sources
    left_out = () if is_of_texts else (*OF_TEXTS, "n_words", "n_bytes")
    scores: Tree = dict.fromkeys(name for name in (*metrics, *FORCED_METRICS) if name not in left_out)
    depth: Tree = {"mean": None, "expected": None, "percentiles": dict.fromkeys(map(str, PERCENTILES))}
    counts = [name for name in _COUNTS if name not in left_out]
    group = {**scores, **dict.fromkeys(counts), "macs": {"full": None, "realised": None}}
    stopped = _stopped(measure, recipe)
    halting = [*stopped, *(name for name, stack in stacks.items() if stack.halting.kind != "none")]
    group |= _if_any("halting", dict.fromkeys(halting, depth))
    found = {**group, "seconds": None, **_if_any("depth", dict.fromkeys(stacks))}
    found |= _if_any("by", {column: {_ANY: group} for column in columns})
    found |= _if_any("macro", dict.fromkeys(columns, scores))
    found |= _if_any("failed", dict.fromkeys(columns if "exact_match" in metrics else ()))
    # Token choice is learned, and has no threshold.
    own = [n for n, one in stacks.items() if one.halting.has_gate and not isinstance(one.halting, TokenChoiceConfig)]
    found |= _if_any("halting_threshold", dict.fromkeys([*own, *stopped]))
    if chosen_experts(recipe.model):
        found["routing"] = {_ANY: dict.fromkeys(_OF_A_ROUTER)}
    if metrics and recipe.model.generates:
        found["decoding"] = _numbers(recipe.decoding.model_dump())
        found |= dict.fromkeys(("decoding_seconds", "n_generated", "n_unfinished"))
    if measure is not None and measure.n_steps is not None:
        found["n_steps"] = None
    is_ranked = measure is None or measure.oracle is None
    if is_ranked and task.contrast_of(split) is not None:
        right: Tree = {"n": None, "accuracy": None}
        by = {column: {_ANY: right} for column in columns}
        found["ranking"] = {**right, "by": by, "macro": {column: {"accuracy": None} for column in columns}}
    return found


def _stopped(measure: EvaluateMeasure | None, recipe: Recipe) -> Iterable[str]:
    """Return the stacks whose tokens stop by a measure's criterion; none where it is refused."""
    if measure is None or measure.exit is None:
        return ()
    try:
        return _as_measured(recipe.model, measure).exits()
    except ConfigError:
        return ()


def _numbers(settings: Mapping[str, Any]) -> Tree:
    """Return what of some settings is a number."""
    found: dict[str, Tree | None] = {name: None for name, value in settings.items() if type(value) in (int, float)}
    return found | {name: _numbers(value) for name, value in settings.items() if isinstance(value, Mapping)}


def _if_any(name: str, group: Tree) -> Tree:
    return {name: group} if group else {}


def _given(*choices: Sequence[str] | None) -> Sequence[str]:
    """Return the first choice that was made."""
    return next(choice for choice in choices if choice is not None)


def _why_no_number(tree: Tree | None, parts: Sequence[str], has_star: bool, group: str = "") -> str | None:
    """Return why the parts of a path lead to no number, None where they may; names may have dots, as in `look_up`.

    Args:
        has_star: whether "*" stands for all names of a group. group: the path so far.
    """
    if tree is None:
        return f"there is nothing below {group} to look for {'.'.join(parts)} in: it is a number" if parts else None
    if not parts:
        return f"{group} is no number, but holds {', '.join(tree)}"
    if has_star and parts[0] == _ANY:
        reasons = [_why_no_number(inner, parts[1:], False, _below(group, name)) for name, inner in tree.items()]
        return next((reason for reason in reasons if reason is not None), None)
    if _ANY in tree:  # the shortest name that leads to a number, or what is wrong after the first part
        whys = [
            _why_no_number(tree[_ANY], parts[n:], has_star, _below(group, ".".join(parts[:n])))
            for n in range(1, len(parts) + 1)
        ]
        return None if None in whys else whys[0]
    for n in range(len(parts), 0, -1):
        if (name := ".".join(parts[:n])) in tree:
            return _why_no_number(tree[name], parts[n:], has_star, _below(group, name))
    close = get_close_matches(parts[0], tree, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return f"there will be no {parts[0]!r}{f' in {group}' if group else ''}: there is {', '.join(tree)}{hint}"


def _below(group: str, name: str) -> str:
    return f"{group}.{name}" if group else name
