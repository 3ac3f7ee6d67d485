"""What the rows of a sweep say by arm: mean, standard deviation and number over seeds, differences to the first arm.

A difference is the mean over the seeds that both arms have of (arm - first arm): paired, so that what a seed does to
both cancels. Its interval is Student's, as of claims (`ostinato.experiments.inference`); one seed, or seeds that all
differ by as much, have none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from ostinato.errors import DataError
from ostinato.experiments.inference import judge
from ostinato.experiments.results import four_digits

Row = Mapping[str, Any]


def summarise(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return one JSON-able line for every arm, in the rows' order.

    Returns:
        sweep, arm, recipe, seeds, parameters, macs, macs_lengths, checkpoint, checkpoints (of measures that name
        another one), values: by measure {mean, sd (n - 1; None of one seed), n, by_seed, difference: None for the first
        arm and where there is no pair, else {value, low, high, n, verdict}}.

    Raises:
        DataError: rows of several sweeps, or none.
    """
    if len({row["sweep"] for row in rows}) != 1:
        raise DataError("a summary needs the rows of one sweep")
    arms = {name: [row for row in rows if row["arm"] == name] for name in dict.fromkeys(row["arm"] for row in rows)}
    names = list(dict.fromkeys(name for row in rows for name in row["values"]))
    first = next(iter(arms.values()))
    lines = []
    for arm, own in arms.items():
        values = {}
        for name in names:
            found = {row["seed"]: float(row["values"][name]) for row in own if name in row["values"]}
            theirs = {row["seed"]: float(row["values"][name]) for row in first if name in row["values"]}
            pairs = [value - theirs[seed] for seed, value in found.items() if seed in theirs and own is not first]
            if found:
                values[name] = {
                    "mean": mean(found.values()),
                    "sd": stdev(found.values()) if len(found) > 1 else None,
                    "n": len(found),
                    "by_seed": found,
                    "difference": seed_difference(pairs) if pairs else None,
                }
        lines.append(
            {
                "sweep": own[0]["sweep"],
                "arm": arm,
                "seeds": [row["seed"] for row in own],
                **{key: own[0].get(key) for key in ("recipe", "parameters", "macs", "macs_lengths", "checkpoint")},
                "checkpoints": own[0].get("checkpoints") or {},
                "values": values,
            }
        )
    return lines


def seed_difference(pairs: Sequence[float]) -> dict[str, Any]:
    """Return the mean of differences of the same seeds with Student's interval of 95 %.

    Returns:
        value, low, high (None without an interval), n, verdict: higher, lower, no difference shown or no spread.
    """
    found = judge(pairs, (0.0, None))
    verdict = "no difference shown"
    if found.low is None or found.high is None:
        verdict = "no spread"
    elif found.low > 0 or found.high < 0:
        verdict = "higher" if found.low > 0 else "lower"
    return {"value": found.value, "low": found.low, "high": found.high, "n": len(pairs), "verdict": verdict}


def summary_table(lines: Sequence[Row]) -> tuple[list[str], list[list[object]]]:
    """Return headings and one line for every arm: seeds, sizes, which checkpoint, mean ± sd of every measure."""
    names = _names(lines)
    source, target = lines[0]["macs_lengths"]
    columns = ["arm", "seeds", "parameters", f"M MACs ({source} to {target} tokens)", "checkpoint", *names]
    body: list[list[object]] = []
    for line in lines:
        cells = []
        for found in (line["values"].get(name) for name in names):
            spread = "" if not found or found["sd"] is None else f" ± {number_text(found['sd'])}"
            few = "" if not found or found["n"] == len(line["seeds"]) else f" (n {found['n']})"
            cells.append(f"{number_text(found['mean'])}{spread}{few}" if found else "")
        costs = [line["parameters"], round(line["macs"] / 1e6, 2)]
        body.append([line["arm"], len(line["seeds"]), *costs, line["checkpoint"], *cells])
    return columns, body


def difference_table(lines: Sequence[Row]) -> tuple[list[str], list[list[object]]] | None:
    """Return one line for every arm but the first: differences with intervals over seeds; None of a single arm."""
    names = [name for name in _names(lines) if any(_difference(line, name) for line in lines)]
    if not names:
        return None
    body: list[list[object]] = [[line["arm"]] for line in lines[1:]]
    for cells, line in zip(body, lines[1:], strict=True):
        for found in (_difference(line, name) or {} for name in names):
            shown = found.get("low") is not None
            interval = f"[{number_text(found['low'])}, {number_text(found['high'])}]" if shown else ""
            mark = f" {found['verdict']}" if found.get("verdict") in ("higher", "lower") else ""
            cells.append(f"{number_text(found['value'], signed=True)} {interval}{mark}".rstrip() if found else "")
    return [f"difference to {lines[0]['arm']}", *names], body


def flat_table(lines: Sequence[Row]) -> tuple[list[str], list[list[object]]]:
    """Return one line for every arm with a column for every number: for CSV."""
    names = _names(lines)
    described = ("arm", "recipe", "parameters", "macs", "checkpoint")
    parts = ("mean", "sd", "n")
    differences = ("value", "low", "high", "n")
    columns = [*described]
    for name in names:
        columns += [*(f"{name}: {part}" for part in parts), *(f"{name}: difference {part}" for part in differences)]
    body: list[list[object]] = []
    for line in lines:
        cells: list[object] = [line[key] for key in described]
        for name in names:
            found, difference = line["values"].get(name) or {}, _difference(line, name) or {}
            cells += [*(found.get(part) for part in parts), *(difference.get(part) for part in differences)]
        body.append(cells)
    return columns, body


def summary_notes(lines: Sequence[Row]) -> list[str]:
    """Return what has to be said below the tables."""
    notes = [
        f"{name}: of the checkpoint {found}"
        for name, found in {k: v for line in lines for k, v in line["checkpoints"].items()}.items()
    ]
    names = _names(lines)
    found = [one for line in lines for name in names if (one := _difference(line, name))]
    if found:
        notes.append("Intervals: 95 %, Student's t over seeds, paired; one seed, or equal differences, have none.")
    if (n := sum(one["low"] is not None for one in found)) > 1:
        notes.append(f"{n} differences were tested; of equal arms, about 1 in 20 intervals excludes 0 by chance.")
    return notes


def _names(lines: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(name for line in lines for name in line["values"]))


def _difference(line: Row, name: str) -> dict[str, Any] | None:
    found: dict[str, Any] | None = (line["values"].get(name) or {}).get("difference")
    return found


def number_text(value: float, *, signed: bool = False) -> str:
    """Return a number with four digits, or whole where it is large."""
    sign = "+" if signed and value > 0 else ""
    return sign + (f"{value:,.0f}" if abs(value) >= 10_000 else four_digits(value))
