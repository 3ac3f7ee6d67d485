"""What the rows of the halting study say: tables, and which targets hold."""

from __future__ import annotations

from collections.abc import Sequence

from layer_study import conditions
from layer_tables import (
    Row,
    Run,
    Verdict,
    absent,
    cells,
    judge,
    names,
    number_table,
    pick,
    ratio,
    table,
    verdict_table,
)

from ostinato.experiments.results import markdown

FULL, AUTO = "full depth", "auto"
FLOOR = "floor"
"""The same work without what chooses and gathers: tokens stand in the order of their depths."""
MODES = {AUTO: "auto", "always gathered": "always", "masked": "never"}
"""Forced depths, by when halted tokens are gathered away."""
GATES = {"act": "ACT, nobody halts", "stick_breaking": "stick-breaking, nobody halts"}
_WIDTH = 512
_HALF = 0.79
"""Half of the tokens at half depth, encoding and update: the most times as long as full depth; 0.75 is the work."""
_OVER_FLOOR = 0.05
"""The same in decoding, batch 32: what may be added to the floor that the smaller products set, both in times of full
depth."""
_OF_IDEAL = 0.8
"""Decoding in which tokens stop at any depth: rounds that are needed, in times of all, divided by the time, in times of
full depth's, are at least this."""
_OVERHEAD = 1.02
"""Nobody halts: the most times as long as full depth."""


def show(cell: Row) -> str:
    """Return what differs between the cells of a table."""
    return str(cell["pattern"])


def verdicts(runs: Sequence[Run]) -> list[Verdict]:
    """Judge every target."""
    found = []
    at = {cell["pattern"]: cell for cell in cells(runs) if cell["d_model"] == _WIDTH}
    for phase in ("encoding", "update"):
        one = ratio(runs, at["half"], phase, AUTO, FULL) if "half" in at else None
        found.append(judge(f"width {_WIDTH}, half at half depth, {phase}: auto / full depth", _HALF, one))
    found.append(_over_floor(runs, at.get("half"), "decoding, batch 32"))
    found += _of_ideal(runs, at["uniform"]) if "uniform" in at else []
    for cell in cells(runs):
        for phase in phases(runs, [cell]) if cell["pattern"] == "none" else ():
            for name in (AUTO, *GATES.values()):
                target = f"width {cell['d_model']}, nobody halts, {phase}: {name} / full depth"
                note = "" if name == AUTO else "its gate included"
                found.append(judge(target, _OVERHEAD, ratio(runs, cell, phase, name, FULL), note))
    return found


def _over_floor(runs: Sequence[Run], cell: Row | None, phase: str) -> Verdict:
    target = f"width {_WIDTH}, half at half depth, {phase}: (auto - {FLOOR}) / full depth"
    both = [ratio(runs, cell, phase, name, FULL) for name in (AUTO, FLOOR)] if cell is not None else []
    if None in both or not both:
        return Verdict(target, _OVER_FLOOR, None)
    return Verdict(target, _OVER_FLOOR, both[0].value - both[1].value, f"{both[0]} - {both[1]}")


def _of_ideal(runs: Sequence[Run], cell: Row) -> list[Verdict]:
    """Judge depth batching: every decoding in which tokens stop at any depth, half of the rounds in the mean."""
    found = []
    for phase in (one for one in phases(runs, [cell]) if one.startswith("decoding")):
        if (rounds := _rounds(runs, cell, phase)) is None:
            continue
        ideal = rounds["needed"] / rounds["full"]
        target = f"width {_WIDTH}, uniform depths, {phase}: auto / full depth ({ideal:.2f} / {_OF_IDEAL})"
        found.append(judge(target, ideal / _OF_IDEAL, ratio(runs, cell, phase, AUTO, FULL)))
    return found


def phases(runs: Sequence[Run], of_cells: Sequence[Row]) -> list[str]:
    """Return what was timed in some cells, in order."""
    rows = (row for run in runs for row in run if row["kind"] == "time" and row["cell"] in of_cells)
    return list(dict.fromkeys(row["phase"] for row in rows))


def report(runs: Sequence[Run], judged: Sequence[Verdict]) -> str:
    """Return all tables as Markdown."""
    sections = [
        conditions([row for run in runs for row in run]),
        f"Targets:\n\n{verdict_table(judged)}",
        _summary(runs),
        _gates(runs),
    ]
    for width in dict.fromkeys(cell["d_model"] for cell in cells(runs)):
        mine = [cell for cell in cells(runs) if cell["d_model"] == width]
        sections.append(f"### Width {width}, {mine[0]['n_rounds']} rounds, sentences of {mine[0]['length']} tokens\n")
        for phase in phases(runs, mine):
            sections += [_ratios(runs, mine, phase), _milliseconds(runs, mine, phase)]
    sections.append(absent(runs, lambda cell: f"{cell['d_model']}, {show(cell)}"))
    return "\n".join(section for section in sections if section)


def _summary(runs: Sequence[Run]) -> str:
    """Return a line for every pattern and phase: times full depth."""
    columns = (AUTO, *(mode for mode in MODES if mode != AUTO), FLOOR)
    lines = []
    for cell in cells(runs):
        for phase in phases(runs, [cell]):
            rounds = _rounds(runs, cell, phase)
            needed = "" if rounds is None else f"{rounds['needed'] / rounds['full']:.2f}"
            found = (ratio(runs, cell, phase, name, FULL) for name in columns)
            lines.append([cell["d_model"], show(cell), phase, needed, *(str(one or "") for one in found)])
    return f"Times full depth:\n\n{markdown(['width', 'pattern', 'phase', 'token-rounds', *columns], lines)}"


def _gates(runs: Sequence[Run]) -> str:
    """Return what gates cost that stop nobody: times full depth."""
    mine = [cell for cell in cells(runs) if cell["pattern"] == "none"]
    if not mine:
        return ""
    columns = phases(runs, mine)
    lines = [
        [cell["d_model"], name, *(str(ratio(runs, cell, phase, name, FULL) or "") for phase in columns)]
        for cell in mine
        for name in GATES.values()
    ]
    return f"With a real gate:\n\n{markdown(['width', 'gate', *columns], lines)}"


def _rounds(runs: Sequence[Run], cell: Row, phase: str) -> Row | None:
    """Return the rounds of tokens of a cell, of the first run that has it."""
    found = (pick(run, kind="rounds", cell=cell, phase=phase) for run in runs)
    return next((rows[0] for rows in found if rows), None)


def _ratios(runs: Sequence[Run], mine: Sequence[Row], phase: str) -> str:
    """Return time / time of full depth, and the rounds of tokens in times of all."""
    work = {"token-rounds": "needed", **{f"token-rounds computed, {mode}": mode for mode in MODES}}

    def entry(cell: Row, name: str) -> object:
        if name not in work:
            return ratio(runs, cell, phase, name, FULL)
        if (rounds := _rounds(runs, cell, phase)) is None:
            return None
        done = rounds["needed"] if name == "token-rounds" else rounds["computed"][work[name]]
        return f"{done / rounds['full']:.3f}"

    lines = [*work, *(name for name in names(runs, mine) if name != FULL)]
    return table(f"Times full depth, {phase}, by pattern", lines, mine, show, entry)


def _milliseconds(runs: Sequence[Run], mine: Sequence[Row], phase: str) -> str:
    return number_table(runs, f"ms, {phase}, by pattern", mine, show, number="median_s", unit=1e-3, phase=phase)
