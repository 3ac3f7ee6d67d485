"""What measures find in a finished run, and where it is kept so that nothing is measured twice.

`_found` has a case for every kind of measure (`ostinato.config.measures`). Results and budgets are quick: they are read
from what the run wrote each time. The others are kept in the run's directory, as measures/<key>.json, the key being a
hash of the measure's settings, of the source that measures, and of examples that are not the run's own: what is other
is measured again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any

from ostinato.budget import Assumptions, count_budget
from ostinato.config.claim import ComparedConfig
from ostinato.config.files import without_references
from ostinato.config.measures import (
    AnalysisMeasure,
    BudgetMeasure,
    EvaluateMeasure,
    Measure,
    ResultMeasure,
    TableSelection,
)
from ostinato.config.recipe import Recipe
from ostinato.data.disk import MADE_AGAIN, hash_of, read_json_object, reading, write_json
from ostinato.data.registry import DataAccess
from ostinato.errors import DataError
from ostinato.evaluation.loading import LoadedRun, load
from ostinato.experiments.results import assumptions_of, read_results
from ostinato.experiments.sweep.run_key import DataHashes
from ostinato.tasks.own_files import SPLITS
from ostinato.tasks.recipes import load_recipe
from ostinato.training.rundir import RunDirectory, with_absolute_paths
from ostinato.version import LEARNING, __version__, source_hash

MEASURES = "measures"
Table = tuple[Sequence[str], Sequence[Sequence[Any]]]
_TAKE: dict[str, Callable[[list[float]], float]] = {
    "mean": fmean,
    "first": lambda values: values[0],
    "last": lambda values: values[-1],
    "min": min,
    "max": max,
}


def values_of(
    measures: Sequence[Measure],
    run: Path,
    access: DataAccess | None = None,
    *,
    only_kept: bool = False,
    recipe: Recipe | None = None,
) -> dict[str, float]:
    """Return the values of all measures of a run by name; one that finds several has names such as `name.key`.

    Args:
        access: where published data comes from; None: the default cache and mirror.
        only_kept: measure nothing that takes time.
        recipe: says on which device the model runs that is measured, and where its examples lie now; None: the run's.

    Raises:
        LookupError: `only_kept`, and a measure has not been taken; its name. DataError: the run has no such number.
    """
    values: dict[str, float] = {}
    for measure in measures:
        found, path = take(measure, run, access, only_kept=only_kept, recipe=recipe), measure.picks
        try:
            number = found if path is None else look_up(found, path)
        except LookupError as error:
            raise DataError(f"measure {measure.name}: {path}: {error.args[0]} ({run})") from error
        if isinstance(number, dict):
            values |= {f"{measure.name}.{key}": value for key, value in number.items()}
        else:
            values[measure.name] = number
    return values


def take(
    measure: Measure,
    run: Path,
    access: DataAccess | None = None,
    *,
    only_kept: bool = False,
    recipe: Recipe | None = None,
) -> Any:
    """Return what a measure finds in a finished run, before `Measure.picks` chooses the number in it.

    It is read where it was kept, else measured now and kept.

    Args:
        recipe: see `values_of`.

    Raises:
        LookupError: `only_kept`, and it has not been taken. DataError: the run has no such number.
    """
    if isinstance(measure, ResultMeasure | BudgetMeasure):
        return _found(measure, run, access, recipe)
    settings = measure.settings()
    decides = [settings, measuring_source(), *other_examples(measure, run, access, recipe)]
    note = run / MEASURES / f"{hash_of(decides)[:16]}.json"
    if not note.is_file():
        if only_kept:
            raise LookupError(measure.name)
        found = _found(measure, run, access, recipe)
        note.parent.mkdir(exist_ok=True)
        write_json(note, {"settings": settings, "version": __version__, "found": found})
    with reading(note, DataError, MADE_AGAIN):
        return read_json_object(note, DataError, MADE_AGAIN)["found"]


def other_examples(
    measure: Measure | ComparedConfig, run: Path, access: DataAccess | None, recipe: Recipe | None = None
) -> list[str]:
    """Return the hash of the examples that are measured where they are others than the run's key and data.json know.

    Args:
        recipe: see `values_of`.
    """
    changes = measure.overrides() if isinstance(measure, EvaluateMeasure) else []
    split: str | None = getattr(measure, "split", None)
    is_changed = any(change.startswith(("data.", "task.")) for change in changes)
    if split is None or (split in RunDirectory(run).data_hashes() and not is_changed):
        return []
    changed = load_recipe(run, [*_places(recipe), *changes])
    asked = changed.evaluation.model_copy(update={"splits": [split]})
    hashes = DataHashes(run.parent, access).resolve(changed.model_copy(update={"evaluation": asked}))[1]
    return [hashes[split]]


@cache
def measuring_source() -> str:
    """Return the hash of the source of all that decides what a measure finds in a run."""
    return source_hash((*LEARNING, "analysis", "budget"))


def load_placed(run: Path, recipe: Recipe | None = None, *, overrides: Sequence[str] = (), **choices: Any) -> LoadedRun:
    """Load a run on the device that a recipe names, its examples to be read where that says they lie.

    Args:
        recipe: None: the run's own. overrides: changes to the run's recipe, after these. choices: see `load`.
    """
    device = (load_recipe(run) if recipe is None else recipe).training.device
    return load(run, device=device, overrides=[*_places(recipe), *overrides], **choices)


def _places(recipe: Recipe | None) -> list[str]:
    """Return where the examples of a recipe lie as `dotted.key=value`: since a run began they may have been moved."""
    if recipe is None:
        return []
    places = without_references(with_absolute_paths(recipe).data.model_dump(mode="json", include={*SPLITS}))
    return [f"data.{name}={json.dumps(value, ensure_ascii=False)}" for name, value in places.items()]


def _found(measure: Measure, run: Path, access: DataAccess | None, recipe: Recipe | None) -> Any:
    match measure:
        case ResultMeasure(split=None):
            return read_results(run)
        case ResultMeasure(split=split):
            splits = read_results(run)["splits"]
            if split not in splits:
                reason = f"the run has results of {', '.join(splits)}, not of {split}"
                raise DataError(f"measure {measure.name}: {reason}")
            return splits[split]
        case BudgetMeasure():
            own = load_recipe(run)
            assumed = Assumptions(measure.source_length, measure.target_length)
            return count_budget(own.model, assumptions_of(own, assumed)).figure(measure.figure)
        case EvaluateMeasure():
            threshold = "trained" if measure.halting_threshold is None else measure.halting_threshold
            loaded = load_placed(
                run,
                recipe,
                overrides=measure.overrides(),
                checkpoint=measure.checkpoint,
                halting_threshold=threshold,
                exit=measure.exit,
                exit_scope=measure.exit_scope,
            )
            given = measure.model_dump(include={"metrics", "by", "n_steps", "max_examples", "oracle"})
            found = loaded.evaluate(measure.split, access=access, **given)
            if "data_note" in found:  # which would be kept as a measure of the run's own examples
                raise DataError(f"measure {measure.name}: {found['data_note']}; put back what it was")
            return found
        case AnalysisMeasure():
            loaded = load_placed(run, recipe, halting_threshold="trained")
            table = analyse({"run": loaded}, measure.study, measure.split, measure.max_examples, access)
            return select(table, measure.table, measure.name)
    raise TypeError(f"{type(measure).__name__} is no kind of measure that can be taken")


def look_up(found: Mapping[str, Any], path: str) -> float | dict[str, float]:
    """Return the number under a dotted path; where a part of it is `*`, the numbers of everything there, by name.

    Raises:
        LookupError: there is no such number, with what there is.
    """
    head, star, tail = path.partition("*")
    if not star:
        return _number(_descend(found, path))
    group = _descend(found, head.rstrip(".")) if head else found
    if not isinstance(group, Mapping):
        raise LookupError(f"{head.rstrip('.')} holds no names")
    rest = tail.lstrip(".")
    return {name: _number(_descend(inner, rest) if rest else inner) for name, inner in group.items()}


def _descend(found: Any, path: str) -> Any:
    """Follow a path; a name may have dots in it."""
    if not isinstance(found, Mapping):
        raise LookupError(f"there is nothing below {found!r} to look for {path} in")
    if path in found:
        return found[path]
    # The longest name first: of the names `a` and `a.b`, the path a.b.c means the second.
    for name in sorted(found, key=len, reverse=True):
        if path.startswith(f"{name}."):
            return _descend(found[name], path.removeprefix(f"{name}."))
    raise LookupError(f"there is no {path} among {', '.join(map(str, found))}")


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        found = "null (there is none, or it is not finite)" if value is None else type(value).__name__
        raise LookupError(f"must be a number, not {found}")
    return value


def analyse(
    runs: Mapping[str, LoadedRun],
    study: str,
    split: str | None,
    max_examples: int,
    access: DataAccess | None,
) -> Table:
    """Return the table that an analysis shows of some runs: headings and rows.

    Args:
        runs: by the names they get; the first is the one others are compared with.

    Raises:
        ConfigError: no analysis of that name. DataError: it does not apply to the runs: why.
    """
    from ostinato.analysis.analyze import choose, subjects

    (chosen,) = choose([study])
    found = subjects(list(runs.values()), split, max_examples, access)
    given = [replace(subject, name=name) for subject, name in zip(found, runs, strict=True)]
    reasons = [why for subject in given if (why := chosen.why_not(subject)) is not None]
    if not reasons and (together := chosen.why_not_together(given)) is not None:
        reasons = [together]
    if reasons:
        names = ", ".join(str(run.directory) for run in runs.values())
        raise DataError(f"the analysis {study} does not apply to {names}: {reasons[0]}")
    for subject in given:
        if chosen.needs:
            subject.collect(set(chosen.needs), None)
    tables = chosen.find(given, None)
    return tables[0].columns, tables[0].rows


def select(table: Table, selection: TableSelection, name: str) -> float:
    """Return one number of a table.

    Raises:
        DataError: there is no such column, no such row, or no number there.
    """
    columns, rows = table
    if missing := selection.missing(columns):
        raise DataError(f"measure {name}: no column {missing[0]!r}; there are {', '.join(columns)}")
    at = {column: place for place, column in enumerate(columns)}
    mine = [row for row in rows if all(row[at[key]] == value for key, value in selection.where.items())]
    values = [row[at[selection.column]] for row in mine]
    # A single cell that is no number is refused: the rest would be averaged as if they were all.
    numbers: list[float] = [float(value) for value in values if isinstance(value, int | float)]
    if not numbers or len(numbers) < len(values):
        wanted = ", ".join(f"{key} {value}" for key, value in selection.where.items()) or "any"
        raise DataError(f"measure {name}: no number in {selection.column!r} of {wanted}: {values or 'no such row'}")
    found = float(_TAKE[selection.take](numbers))
    if not isfinite(found):  # of states that do not vary, of experts that got no token
        raise DataError(f"measure {name}: {selection.column!r} is {found}, which is no number to compare")
    return found
