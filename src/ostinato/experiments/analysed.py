"""Numbers that analyses find, as measures: of one run, or of several together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from ostinato.config.measures import AnalysisMeasure, TableSelection
from ostinato.data.registry import DataAccess
from ostinato.errors import DataError
from ostinato.evaluation.loading import load
from ostinato.experiments.measures import data_access, register_measure
from ostinato.tasks.recipes import load_recipe

Table = tuple[Sequence[str], Sequence[Sequence[Any]]]
_TAKE: dict[str, Callable[[list[float]], float]] = {
    "mean": fmean,
    "first": lambda values: values[0],
    "last": lambda values: values[-1],
    "min": min,
    "max": max,
}


@register_measure("analysis")
def _analysis(measure: AnalysisMeasure, run: Path) -> float:
    found = analyse([("run", run)], measure.study, measure.split, measure.max_examples, data_access())
    return select(found, measure.table, measure.name)


def analyse(
    runs: Sequence[tuple[str, Path]], study: str, split: str | None, max_examples: int, access: DataAccess | None
) -> Table:
    """Return the table that an analysis shows of some runs: headings and rows.

    Args:
        runs: the runs with the names they get; the first is the one others are compared with.

    Raises:
        ConfigError: no analysis of that name. DataError: it does not apply to the runs: why.
    """
    from ostinato.analysis.analyze import choose, subjects

    (chosen,) = choose([study])
    loaded = [load(path, device=load_recipe(path).training.device, halting_threshold="trained") for _, path in runs]
    given = [
        replace(subject, name=name)
        for subject, (name, _) in zip(subjects(loaded, split, max_examples, access), runs, strict=True)
    ]
    reasons = [why for subject in given if (why := chosen.why_not(subject)) is not None]
    if not reasons and (together := chosen.why_not_together(given)) is not None:
        reasons = [together]
    if reasons:
        names = ", ".join(str(path) for _, path in runs)
        raise DataError(f"the analysis {study} does not apply to {names}: {reasons[0]}")
    for subject in given:
        if chosen.needs:
            subject.collect(set(chosen.needs), None)
    found = chosen.find(given, None)
    return found[0].columns, found[0].rows


def select(table: Table, selection: TableSelection, name: str) -> float:
    """Return one number of a table.

    Raises:
        DataError: there is no such column, no such row, or no number there.
    """
    columns, rows = table
    missing = [column for column in (*selection.where, selection.column) if column not in columns]
    if missing:
        raise DataError(f"measure {name}: no column {missing[0]!r}; there are {', '.join(columns)}")
    at = {column: place for place, column in enumerate(columns)}
    mine = [row for row in rows if all(row[at[key]] == value for key, value in selection.where.items())]
    values = [row[at[selection.column]] for row in mine]
    numbers: list[float] = [float(value) for value in values if isinstance(value, int | float)]
    if not numbers or len(numbers) < len(values):
        wanted = ", ".join(f"{key} {value}" for key, value in selection.where.items()) or "any"
        raise DataError(f"measure {name}: no number in {selection.column!r} of {wanted}: {values or 'no such row'}")
    return float(_TAKE[selection.take](numbers))
