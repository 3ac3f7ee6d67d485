"""What the rows of the feed-forward study say: tables, and which targets hold."""

from __future__ import annotations

from collections.abc import Sequence

from layer_study import conditions
from layer_tables import (
    MIB,
    Row,
    Run,
    Verdict,
    absent,
    cells,
    judge,
    layer_tables,
    number_table,
    pick,
    ratio,
    values,
    verdict_table,
)
from layers import BOTH, PHASES
from moe_layers import Cell
from moe_peers import DROPS

from ostinato.experiments.results import markdown

OVER_DENSE = {"8:2": 1.12, "32:2": 1.35, "64:4": 1.45}
"""Forward and backward, uniform routing: the most times as long as the dense layer."""
GROWTH = ("64:2", "8:2", 1.4)
"""What the first may take at most, in times of the second, each against its dense layer."""
OVER_BEST_PEER = 1.05
_SUT = {"8:2": 242, "32:2": 245, "64:2": 288, "64:4": 281}
"""MiB resident of the Sparse Universal Transformer's public layer on these sizes, beyond parameters and gradients."""
_OF_SUT = 0.8


def size(cell: Row) -> str:
    """Return experts and experts a token."""
    return f"{cell['n_experts']}:{cell['k']}"


def series(cell: Row) -> str:
    """Return what cells of one table have in common."""
    return f"{cell['routing']} routing, {cell['n_tokens']:,} tokens of width {cell['d_model']}"


def verdicts(runs: Sequence[Run]) -> list[Verdict]:
    """Judge every target, and every cell against the best peer in it."""
    targets = {size(key): key for key in cells(runs) if key == Cell(key["n_experts"], key["k"]).key()}
    found = []
    for name, bound in OVER_DENSE.items():
        one = ratio(runs, targets[name], BOTH, "ours") if name in targets else None
        found.append(judge(f"{name}, {BOTH}: ours / dense", bound, one))
    found.append(_growth(runs, targets))
    found += [_memory(runs, targets.get(name), name) for name in _SUT]
    for drops in (False, True):
        found += [_against_peers(runs, key, phase, drops) for key in cells(runs) for phase in PHASES]
    return found


def _growth(runs: Sequence[Run], targets: dict[str, Row]) -> Verdict:
    large, small, bound = GROWTH
    target = f"{large} / {small}, {BOTH}: ours, each / its dense layer"
    both = [ratio(runs, targets[name], BOTH, "ours") for name in (large, small) if name in targets]
    if len(both) < 2 or None in both:
        return Verdict(target, bound, None)
    return Verdict(target, bound, both[0].value / both[1].value, f"{both[0]} / {both[1]}")


def _memory(runs: Sequence[Run], key: Row | None, name: str) -> Verdict:
    bound = _OF_SUT * _SUT[name]
    target = f"{name}: MiB resident beyond parameters and gradients ({_OF_SUT} of {_SUT[name]})"
    resident = values(runs, "resident_bytes", kind="resident", cell=key, name="ours")
    live = values(runs, "live_bytes", kind="memory", cell=key, name="ours")
    note = "" if live is None else f"{live / MIB:.0f} live"
    return Verdict(target, bound, None if resident is None else resident / MIB, note=note)


def _against_peers(runs: Sequence[Run], key: Row, phase: str, drops: bool) -> Verdict:
    """Judge ours by the best peer of those that drop tokens, which is less work, or of the others."""
    timed = [row for run in runs for row in run if row["kind"] == "time"]
    notes = {row["name"]: row.get("note", "") for row in timed if row["role"] in ("peer", "reference")}
    others = [name for name, note in notes.items() if (DROPS in note) is drops]
    rivals = {name: found for name in others if (found := ratio(runs, key, phase, name)) is not None}
    target = f"{series(key)}, {size(key)}, {phase}: ours / best peer" + (" that drops tokens" if drops else "")
    if not rivals:
        return Verdict(target, OVER_BEST_PEER, None)
    best = min(rivals, key=lambda name: rivals[name].value)
    return judge(target, OVER_BEST_PEER, ratio(runs, key, phase, "ours", best), best)


def report(runs: Sequence[Run], judged: Sequence[Verdict]) -> str:
    """Return all tables as Markdown."""
    sections = [conditions([row for run in runs for row in run]), f"Targets:\n\n{verdict_table(judged)}"]
    for title in dict.fromkeys(series(key) for key in cells(runs)):
        sections += _series(runs, title, [key for key in cells(runs) if series(key) == title])
    sections += [_resident(runs), *_parts(runs), absent(runs, lambda key: f"{size(key)}, {key['n_tokens']} tokens")]
    return "\n".join(section for section in sections if section)


def _series(runs: Sequence[Run], title: str, mine: Sequence[Row]) -> list[str]:
    """Return times, memory and the realised load of one series."""
    loads = [(size(key), pick(runs[0], kind="load", cell=key)) for key in mine]
    lines = [[name, *(f"{rows[0][part]:.4f}" for part in ("largest", "smallest"))] for name, rows in loads if rows]
    load = f"Realised load: part of all choices\n\n{markdown(['E:k', 'largest', 'smallest'], lines)}"
    return [f"### {title}\n", *layer_tables(runs, mine, size, "E:k"), load]


def _resident(runs: Sequence[Run]) -> str:
    mine = cells(runs, "resident")
    if not mine:
        return ""
    head = "Peak MiB resident of one pass in a process of its own, beyond parameters and their gradients, by E:k"
    return number_table(runs, head, mine, size, kind="resident", number="resident_bytes", unit=MIB)


def _parts(runs: Sequence[Run]) -> list[str]:
    """Return where the time of ours goes, a table a cell, of the first run."""
    found = []
    for key in cells(runs, "part"):
        rows = pick(runs[0], kind="part", cell=key)
        lines = [
            [row["part"], row["direction"], 1e3 * row["seconds"], f"{row['share']:.1%}", row["operations"]]
            for row in rows
        ]
        head = f"Where the time of ours goes, {BOTH}, {series(key)}, {size(key)}"
        found.append(f"{head}\n\n{markdown(['part', 'direction', 'ms', 'share', 'operations'], lines)}")
    return found
