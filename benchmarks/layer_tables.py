"""From rows of timed layers to ratios, tables and verdicts; of one run, or of several by their median."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from layers import PHASES

from ostinato.experiments.results import markdown
from ostinato.experiments.timing.spread import speed_ratio

Row = dict[str, Any]
Run = Sequence[Row]
DENSE = "dense"
MIB = 2**20
_FEWEST = 5
"""Undisturbed rounds below which a number is marked."""


@dataclass(frozen=True, slots=True)
class Times:
    """How many times as long as a reference, median over rounds (over runs: of their medians), with its spread.

    Args:
        low, high: 95 % of the bootstrap over rounds; of several runs the smallest and the largest median.
        is_firm: every run had at least five rounds in which neither was disturbed.
    """

    value: float
    low: float
    high: float
    is_firm: bool

    def __str__(self) -> str:
        return f"{self.value:.2f}{'' if self.is_firm else '*'}"

    @property
    def spread(self) -> str:
        """Return low and high in words."""
        return f"{self.low:.2f}-{self.high:.2f}"


def times(row: Row, reference: Row, *, with_spread: bool = True) -> Times:
    """Return own / reference seconds over the rounds in which neither was disturbed, over all if those are < 3.

    Without the spread, whose bootstrap takes milliseconds, low and high are the value.
    """
    disturbed = zip(row["is_disturbed"], reference["is_disturbed"], strict=True)
    calm = [place for place, (mine, theirs) in enumerate(disturbed) if not mine and not theirs]
    rounds = calm if len(calm) >= 3 else range(len(row["seconds"]))
    is_firm = len(calm) >= _FEWEST
    if not with_spread:
        value = median(row["seconds"][r] / reference["seconds"][r] for r in rounds)
        return Times(value, value, value, is_firm)
    # A speed is the inverse of a time: the reference's speed against ours is our time against the reference's.
    found = speed_ratio([reference["seconds"][r] for r in rounds], [row["seconds"][r] for r in rounds])
    return Times(found.value, found.low, found.high, is_firm)


def over_runs(found: Sequence[Times]) -> Times | None:
    """Return several runs' ratios as one; None where there are none."""
    if len(found) < 2:
        return found[0] if found else None
    values = [one.value for one in found]
    return Times(median(values), min(values), max(values), all(one.is_firm for one in found))


def pick(run: Run, **wanted: Any) -> list[Row]:
    """Return the rows that have all these values."""
    return [row for row in run if all(row.get(key) == value for key, value in wanted.items())]


def ratio(runs: Sequence[Run], cell: Row, phase: str, name: str, reference: str = DENSE) -> Times | None:
    """Return a contestant's time against another's in one cell, over all runs that have both."""
    found = []
    for run in runs:
        mine = pick(run, kind="time", cell=cell, phase=phase, name=name)
        theirs = pick(run, kind="time", cell=cell, phase=phase, name=reference)
        if mine and theirs:
            found.append(times(mine[0], theirs[0]))
    return over_runs(found)


def values(runs: Sequence[Run], key: str, **wanted: Any) -> float | None:
    """Return the median over runs of one number of a row."""
    found = [row[key] for run in runs for row in pick(run, **wanted)]
    return median(found) if found else None


def cells(runs: Sequence[Run], kind: str = "time") -> list[Row]:
    """Return the cells of rows of a kind, in order."""
    found: list[Row] = []
    for row in (row for run in runs for row in run if row["kind"] == kind):
        if row["cell"] not in found:
            found.append(row["cell"])
    return found


def names(runs: Sequence[Run], of_cells: Sequence[Row], kind: str = "time") -> list[str]:
    """Return the contestants of some cells, in order."""
    rows = (row for run in runs for row in run if row["kind"] == kind and row["cell"] in of_cells)
    return list(dict.fromkeys(row["name"] for row in rows))


def table(
    head: str,
    of_names: Sequence[str],
    of_cells: Sequence[Row],
    show: Callable[[Row], str],
    entry: Callable[[Row, str], object],
) -> str:
    """Return one line a contestant, one column a cell."""
    lines = [[name, *(_text(entry(cell, name)) for cell in of_cells)] for name in of_names]
    return f"{head}\n\n{markdown(['layer', *map(show, of_cells)], lines)}"


def number_table(
    runs: Sequence[Run],
    head: str,
    of_cells: Sequence[Row],
    show: Callable[[Row], str],
    *,
    number: str,
    unit: float,
    kind: str = "time",
    **wanted: Any,
) -> str:
    """Return a table of one number of the rows of a kind, in a unit."""

    def entry(cell: Row, name: str) -> float | None:
        found = values(runs, number, kind=kind, cell=cell, name=name, **wanted)
        return None if found is None else found / unit

    return table(head, names(runs, of_cells, kind), of_cells, show, entry)


def layer_tables(runs: Sequence[Run], mine: Sequence[Row], show: Callable[[Row], str], by: str) -> list[str]:
    """Return time against the dense layer, milliseconds and memory of cells that belong together."""
    found = []
    for phase in PHASES:
        head = f"Time / time of the dense layer, {phase}, by {by}"
        entry = partial(_against_dense, runs, phase)
        found.append(table(head, names(runs, mine), mine, show, entry))
    for phase in PHASES:
        head = f"ms, {phase}, by {by}"
        found.append(number_table(runs, head, mine, show, number="median_s", unit=1e-3, phase=phase))
    if names(runs, mine, "memory"):
        head = f"Peak MiB live in one forward and backward pass, beyond parameters and their gradients, by {by}"
        found.append(number_table(runs, head, mine, show, number="live_bytes", unit=MIB, kind="memory"))
    return found


def _against_dense(runs: Sequence[Run], phase: str, cell: Row, name: str) -> Times | None:
    return ratio(runs, cell, phase, name)


def _text(value: object) -> object:
    return str(value) if isinstance(value, Times) else value


def absent(runs: Sequence[Run], show: Callable[[Row], str]) -> str:
    """Return who did not take part, where and why, in words; nothing where all did."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in (row for run in runs for row in run if row["kind"] == "absent"):
        where = found.setdefault((row["name"], row["reason"]), [])
        if (text := show(row["cell"])) not in where:
            where.append(text)
    lines = [f"- {name}: {reason} ({', '.join(where)})" for (name, reason), where in found.items()]
    return "\n".join(["Absent:", "", *lines, ""]) if lines else ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target and whether it holds.

    Args:
        target: in words. bound: the most it may be. measured: None where it was not measured.
        is_decided: False where runs lie on both sides of the bound.
    """

    target: str
    bound: float
    measured: float | None
    spread: str = ""
    note: str = ""
    is_decided: bool = True

    @property
    def word(self) -> str:
        """Say holds, missed, not decided or not measured."""
        if self.measured is None:
            return "not measured"
        if not self.is_decided:
            return "not decided"
        return "holds" if self.measured <= self.bound else "missed"

    def row(self) -> Row:
        """Return it as data."""
        return {
            "kind": "verdict",
            "target": self.target,
            "bound": self.bound,
            "measured": self.measured,
            "spread": self.spread,
            "note": self.note,
            "verdict": self.word,
        }


def judge(target: str, bound: float, one: Times | None, note: str = "") -> Verdict:
    """Return whether a measured ratio, None where there is none, keeps to its bound, and what makes it doubtful."""
    if one is None:
        return Verdict(target, bound, None, note=note)
    doubts = "" if one.is_firm else "fewer than five undisturbed rounds"
    return Verdict(target, bound, one.value, one.spread, ", ".join(filter(None, [note, doubts])))


def verdict_table(verdicts: Iterable[Verdict]) -> str:
    """Return one line a target."""
    lines = [[v.target, f"{v.bound:.4g}", v.measured, v.spread, v.word, v.note] for v in verdicts]
    return markdown(["target", "at most", "measured", "spread", "verdict", "note"], lines)
