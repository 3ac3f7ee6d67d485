"""What a column of a result page says of some rows: the number, its spread or interval, and its unit."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, stdev
from typing import Any, Literal

from pydantic import Field
from scipy.stats import binomtest

from ostinato.config.base import Config
from ostinato.errors import DataError
from ostinato.experiments.sweep.measures import look_up
from ostinato.experiments.sweep.summary import number_text, seed_difference
from ostinato.metrics.bootstrap import LEVEL

Row = dict[str, Any]
Unit = Literal["number", "percent", "millions", "billions", "ms", "minutes", "MiB", "text"]
UNITS = {
    "number": (1.0, ""),
    "percent": (100.0, " %"),
    "millions": (1e-6, " M"),
    "billions": (1e-9, " G"),
    "ms": (1e3, " ms"),
    "minutes": (1 / 60, " min"),
    "MiB": (2**-20, " MiB"),
}
"""What a number is multiplied by, and what stands behind it."""


class Column(Config):
    """What a column of the table, or a number of the text, is made of.

    Of several rows: mean ± standard deviation, or the median of ratios.
    """

    title: str
    """Its heading; of a number its name in texts."""
    path: str
    """Dotted path into a row. Where no row of a group has it, the cell is empty."""
    where: dict[str, Any] = Field(default_factory=dict)
    """Only rows that have this value, or one of these, at each dotted path; `file` is the name of a row's file."""
    unit: Unit = "number"
    """What it is shown as."""
    digits: int | None = None
    """Digits behind the point; None: four in all."""
    signed: bool = False
    """Whether a plus stands before what is above 0."""
    interval: bool = False
    """The path leads to {value, low, high}, and all three are shown; of `ratio_to` its spread is."""
    best_by: str | None = None
    """Dotted path to a score: only the row that has the highest, such as the best seed by dev."""
    per: str | None = None
    """Dotted path to the number of the same row that this one is divided by."""
    of: str | None = None
    """Dotted path to the number of examples a share is of: its 95 % interval over examples is shown (Wilson 1927)."""
    minus: dict[str, Any] | None = None
    """As `where`: the rows whose number is subtracted, seed by seed. The interval is that of a sweep's differences."""
    minus_path: str | None = None
    """Dotted path to the number that is subtracted; None: `path`."""
    ratio_to: dict[str, Any] | None = None
    """As `where`: the timings of the same group that this one is divided by, round by round."""


def entry(row: Row, path: str) -> Any:
    """Return what stands at a dotted path; None where there is nothing."""
    found: Any = row
    for part in path.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def chosen(rows: Iterable[Row], where: Mapping[str, Any]) -> list[Row]:
    """Return the rows that have the wanted value, or one of several, at every path."""
    wanted = {path: value if isinstance(value, list) else [value] for path, value in where.items()}
    return [row for row in rows if all(entry(row, path) in values for path, values in wanted.items())]


def number_at(row: Row, path: str) -> float | None:
    """Return the number at a dotted path, whose names may have dots; None where there is none."""
    try:
        found = look_up(row, path)
    except LookupError:
        return None
    return None if isinstance(found, dict) else found


def numbers_at(rows: Iterable[Row], path: str) -> list[float]:
    """Return the numbers of the rows that have one."""
    return [found for row in rows if (found := number_at(row, path)) is not None]


def shown(value: float, column: Column, *, signed: bool = False) -> str:
    """Return a number in a column's unit, without the unit."""
    scaled, signed = value * UNITS[column.unit][0], signed or column.signed
    if column.digits is None:
        return number_text(scaled, signed=signed)
    return f"{scaled:{'+' if signed else ''},.{column.digits}f}"


def cell(column: Column, rows: Sequence[Row]) -> str:
    """Return what a column says of some rows; empty where none has it."""
    mine = chosen(rows, column.where)
    if column.unit == "text":
        return ", ".join(dict.fromkeys(str(found) for row in mine if (found := entry(row, column.path)) is not None))
    unit = UNITS[column.unit][1]
    if column.ratio_to is not None:
        return _ratio(column, rows)
    if column.minus is not None:
        return _difference(column, mine, chosen(rows, column.minus))
    if not (found := values_of(column, rows)):
        return ""
    if ends := ends_of(column, rows):
        if len(found) > 1:
            raise DataError(f"{mine[0]['file']}: {len(found)} rows where one interval of '{column.title}' is wanted")
        low, high = (shown(end, column) for end in ends)
        return f"{shown(found[0], column)} [{low}, {high}]{unit}"
    spread = f" ± {shown(stdev(found), column)}" if len(set(found)) > 1 else ""
    return f"{shown(mean(found), column)}{spread}{unit}"


def values_of(column: Column, rows: Sequence[Row]) -> list[float]:
    """Return a column's number in each of the rows, and of timings in each run."""
    if column.ratio_to is not None:
        return [one.value for one in ratios(column, rows)]
    mine = chosen(rows, column.where)
    if (score := column.best_by) is not None and mine:
        mine = [max(mine, key=lambda row: numbers_at([row], score)[0])]
    found = numbers_at(mine, f"{column.path}.value" if column.interval else column.path)
    if column.per is not None:
        found = [number / whole for number, whole in zip(found, numbers_at(mine, column.per), strict=True)]
    return found


def ends_of(column: Column, rows: Sequence[Row]) -> list[float]:
    """Return the ends of a number's interval: those of the first row, Wilson's of a share, a ratio's; else none."""
    mine = chosen(rows, column.where)
    if column.ratio_to is not None:
        one = over_runs(column, rows) if column.interval else None
        return [] if one is None else [one.low, one.high]
    if column.interval:
        return [end for name in ("low", "high") for end in numbers_at(mine, f"{column.path}.{name}")[:1]]
    if column.of is None:
        return []
    share, n = values_of(column, rows)[0], numbers_at(mine, column.of)[0]
    return list(binomtest(round(share * n), round(n)).proportion_ci(LEVEL, method="wilson"))


def _difference(column: Column, mine: Sequence[Row], theirs: Sequence[Row]) -> str:
    """Return the mean over seeds of the differences, with the sweep's interval where there is one."""
    by_seed = {row.get("seed"): number_at(row, column.minus_path or column.path) for row in theirs}
    both = [(number_at(row, column.path), by_seed.get(row.get("seed"))) for row in mine]
    pairs = [own - other for own, other in both if own is not None and other is not None]
    if not pairs:
        return ""
    found = seed_difference(pairs)
    unit = " points" if column.unit == "percent" else UNITS[column.unit][1]
    ends = [shown(found[end], column, signed=True) for end in ("low", "high") if found[end] is not None]
    interval = f" [{', '.join(ends)}]" if ends else ""
    return f"{shown(found['value'], column, signed=True)}{interval}{unit}"


def ratios(column: Column, rows: Sequence[Row]) -> list[Any]:
    """Return seconds / seconds of the same rounds of every run, by the benchmarks' own rule."""
    tables = importlib.import_module("layer_tables")
    mine, theirs = chosen(rows, column.where), chosen(rows, column.ratio_to or {})
    found: list[Any] = []
    for file in dict.fromkeys(row["file"] for row in mine):
        own, reference = ([row for row in rows if row["file"] == file] for rows in (mine, theirs))
        if len(own) != len(reference):
            raise DataError(f"{file}: {len(own)} timings beside {len(reference)} of the reference: no ratio")
        found += [tables.times(*pair, with_spread=column.interval) for pair in zip(own, reference, strict=True)]
    return found


def over_runs(column: Column, rows: Sequence[Row]) -> Any:
    """Return the ratio of all runs, by the benchmarks' own rule; None where there is none."""
    return importlib.import_module("layer_tables").over_runs(ratios(column, rows))


def _ratio(column: Column, rows: Sequence[Row]) -> str:
    """Return the ratio of timings, of several runs their median, with its spread where it is wanted."""
    if (one := over_runs(column, rows)) is None:
        return ""
    text = str(one).replace("*", r"\*")  # which marks few rounds, and is no emphasis
    return f"{text} [{one.low:.2f}, {one.high:.2f}]" if column.interval else text
