"""What measures find in a finished run, and where it is kept so that nothing is measured twice.

Every kind of measure (`ostinato.config.measures`) has a function here. Quick kinds read what the run wrote and are read
again each time. The others are kept in the run's directory, as measures/<key>.json, the key being a hash of the
measure's settings and this package's version.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from ostinato.budget import Assumptions, count_budget
from ostinato.config.measures import BudgetMeasure, EvaluateMeasure, Measure, ResultMeasure
from ostinato.data.disk import write_json
from ostinato.data.registry import DataAccess
from ostinato.errors import CheckpointError, DataError
from ostinato.evaluation.loading import load
from ostinato.experiments.results import pass_lengths
from ostinato.tasks.recipes import load_recipe
from ostinato.version import __version__

_FOLDER = "measures"
Found = float | dict[str, float]
Function = Callable[[Any, Path], Any]
"""(settings of the measure, directory of the run) -> a number, or numbers by name, or what `Measure.pick` takes."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How one kind of measure is taken. is_quick: it only reads what the run wrote, and is not kept."""

    function: Function
    is_quick: bool


MEASURES: dict[str, Kind] = {}
"""Every kind of measure by the `kind` of its configuration."""

_access: ContextVar[DataAccess | None] = ContextVar("access", default=None)


def register_measure(kind: str, *, is_quick: bool = False) -> Callable[[Function], Function]:
    """Return a decorator that makes a function the one that takes a kind of measure."""

    def register(function: Function) -> Function:
        MEASURES[kind] = Kind(function, is_quick)
        return function

    return register


def data_access() -> DataAccess | None:
    """Return where the published data of the run that is being measured comes from; None: the default."""
    return _access.get()


@contextmanager
def using_access(access: DataAccess | None) -> Iterator[None]:
    """Let measures inside take published data from there."""
    token = _access.set(access)
    try:
        yield
    finally:
        _access.reset(token)


def values_of(measures: Sequence[Measure], run: Path, *, only_kept: bool = False) -> dict[str, float]:
    """Return the values of all measures of a run by name; one that finds several has names such as `name.key`.

    Args:
        only_kept: measure nothing that takes time.

    Raises:
        LookupError: `only_kept`, and a measure has not been taken; its name. DataError: the run has no such number.
    """
    values: dict[str, float] = {}
    for measure in measures:
        found = take(measure, run, only_kept=only_kept)
        if isinstance(found, dict):
            values |= {f"{measure.name}.{key}": value for key, value in found.items()}
        else:
            values[measure.name] = found
    return values


def take(measure: Measure, run: Path, *, only_kept: bool = False) -> Found:
    """Return what a measure finds in a finished run: kept from before, else measured now and kept.

    Raises:
        LookupError: `only_kept`, and it has not been taken. DataError: the run has no such number.
    """
    settings = measure.settings()
    kind = _kind(str(settings["kind"]))
    if kind.is_quick:
        return _picked(measure, kind.function(measure, run), run)
    text = json.dumps([settings, __version__], sort_keys=True)
    note = run / _FOLDER / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
    if not note.is_file():
        if only_kept:
            raise LookupError(measure.name)
        found = kind.function(measure, run)
        note.parent.mkdir(exist_ok=True)
        write_json(note, {"settings": settings, "version": __version__, "found": found})
    return _picked(measure, json.loads(note.read_text(encoding="utf-8"))["found"], run)


def _kind(name: str) -> Kind:
    """Return how a kind of measure is taken; what needs the analyses is imported when it is asked for."""
    if name == "analysis":
        import_module("ostinato.experiments.analysed")
    return MEASURES[name]


def _picked(measure: Measure, found: Any, run: Path) -> Found:
    path = measure.picks
    try:
        return found if path is None else look_up(found, path)
    except LookupError as error:
        raise DataError(f"measure {measure.name}: {path}: {error.args[0]} ({run})") from error


def look_up(found: Mapping[str, Any], path: str) -> Found:
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
    for name in sorted(found, key=len, reverse=True):
        if path.startswith(f"{name}."):
            return _descend(found[name], path.removeprefix(f"{name}."))
    raise LookupError(f"there is no {path} among {', '.join(map(str, found))}")


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise LookupError(f"must be a number, not {'null' if value is None else type(value).__name__}")
    return value


@register_measure("result", is_quick=True)
def _result(measure: ResultMeasure, run: Path) -> dict[str, Any]:
    """Return what training wrote, of one split or of all."""
    path = run / "results.json"
    if not path.is_file():
        raise CheckpointError(f"{run}: no results.json: the run is not finished")
    results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if measure.split is None:
        return results
    splits: dict[str, dict[str, Any]] = results["splits"]
    if measure.split not in splits:
        raise DataError(f"measure {measure.name}: the run has results of {', '.join(splits)}, not of {measure.split}")
    return splits[measure.split]


@register_measure("budget", is_quick=True)
def _budget(measure: BudgetMeasure, run: Path) -> float:
    recipe = load_recipe(run)
    lengths = pass_lengths(recipe, (measure.source_length, measure.target_length))
    return count_budget(recipe.model, Assumptions(*lengths)).figure(measure.figure)


@register_measure("evaluate")
def _evaluate(measure: EvaluateMeasure, run: Path) -> dict[str, Any]:
    """Return what a new evaluation finds."""
    threshold = "trained" if measure.halting_threshold is None else measure.halting_threshold
    loaded = load(
        run,
        checkpoint=measure.checkpoint,
        device=load_recipe(run).training.device,
        overrides=measure.overrides(),
        halting_threshold=threshold,  # type: ignore[arg-type]
    )
    return loaded.evaluate(
        measure.split,
        metrics=measure.metrics,
        by=measure.by,
        n_steps=measure.n_steps,
        max_examples=measure.max_examples,
        access=data_access(),
    )
