"""What the rows of the study of updates say: tables, and which targets hold."""

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
    names,
    pick,
    ratio,
    values,
    verdict_table,
)
from update_peers import UPDATE

from ostinato.experiments.results import markdown

LIMIT, OURS, SPARSE = "matrix products", "ours", "ours, sparse universal"
OVER_LIMIT = {0.1: 1.5, 0.0: 1.3}
"""By dropout: the most times as long as the matrix products alone."""
OVER_PEER = {0.1: 0.75, 0.0: 1.0}
"""By dropout: the most times as long as the best peer."""
SPARSE_TIME, SPARSE_MEMORY = 1.45, 1.5
"""The sparse model's time and memory, in times of the dense one's."""


def title(cell: Row) -> str:
    """Return what a comparison is of."""
    return f"{cell['family']}, dropout {cell['dropout']:g}"


def verdicts(runs: Sequence[Run]) -> list[Verdict]:
    """Judge every target that the cells measured have."""
    found: list[Verdict] = []
    for cell in cells(runs):
        found += _sparse(runs, cell) if cell["family"] == "sparse" else _dense(runs, cell)
    return found


def _dense(runs: Sequence[Run], cell: Row) -> list[Verdict]:
    where, rivals = title(cell), _peers(runs, cell)
    found = []
    if (bound := OVER_LIMIT.get(cell["dropout"])) is not None:
        found.append(judge(f"{where}: ours / matrix products", bound, ratio(runs, cell, UPDATE, OURS, LIMIT)))
    timed = {name: one for name in rivals if (one := ratio(runs, cell, UPDATE, name, LIMIT)) is not None}
    if timed:
        best = min(timed, key=lambda name: timed[name].value)
        bound = OVER_PEER.get(cell["dropout"], 1.0)
        found.append(judge(f"{where}: ours / best peer", bound, ratio(runs, cell, UPDATE, OURS, best), best))
    sizes = {name: size for name in rivals if (size := _memory(runs, cell, name)) is not None}
    mine = _memory(runs, cell, OURS)
    if sizes and mine is not None:
        best = min(sizes, key=lambda name: sizes[name])
        found.append(Verdict(f"{where}: memory of ours / best peer", 1.0, mine / sizes[best], note=best))
    return found


def _sparse(runs: Sequence[Run], cell: Row) -> list[Verdict]:
    where = title(cell)
    found = [judge(f"{where}: time / dense", SPARSE_TIME, ratio(runs, cell, UPDATE, SPARSE, OURS))]
    mine, dense = (_memory(runs, cell, name) for name in (SPARSE, OURS))
    if mine is not None and dense is not None:
        found.append(Verdict(f"{where}: memory / dense", SPARSE_MEMORY, mine / dense))
    return found


def _peers(runs: Sequence[Run], cell: Row) -> list[str]:
    rows = (row for run in runs for row in pick(run, kind="time", cell=cell, role="peer"))
    return list(dict.fromkeys(row["name"] for row in rows))


def _memory(runs: Sequence[Run], cell: Row, name: str) -> float | None:
    return values(runs, "live_bytes", kind="memory", cell=cell, name=name)


def report(runs: Sequence[Run], judged: Sequence[Verdict]) -> str:
    """Return all tables as Markdown."""
    sections = [conditions([row for run in runs for row in run]), f"Targets:\n\n{verdict_table(judged)}"]
    sections += [_table(runs, cell) for cell in cells(runs)]
    sections += [_parts(runs[0], cell) for cell in cells(runs, "part")]
    return "\n".join([*sections, absent(runs, title)])


def _table(runs: Sequence[Run], cell: Row) -> str:
    """Return one line a contestant: against the reference in every run, milliseconds, speed and memory."""
    reference = OURS if cell["family"] == "sparse" else LIMIT
    tokens = cell["n_sentences"] * cell["target_length"]
    lines = []
    for name in names(runs, [cell]):
        rows = [row for run in runs for row in pick(run, kind="time", cell=cell, name=name)]
        by_run = [ratio([run], cell, UPDATE, name, reference) for run in runs]
        shown = " / ".join("" if one is None else f"{one} ({one.spread})" for one in by_run)
        seconds = values(runs, "median_s", kind="time", cell=cell, name=name) or 0.0
        live = _memory(runs, cell, name)
        memory = None if live is None else f"{live / MIB:,.0f}"
        parameters = f"{rows[0]['parameters'] / 1e6:.1f}" if rows[0]["parameters"] else None
        speed = f"{tokens / seconds:,.0f}"
        lines.append([name, shown, f"{1e3 * seconds:,.0f}", speed, memory, parameters, rows[0]["note"]])
    head = ["", f"time / {reference}, by run (95 %)", "ms", "target tokens/s", "peak MiB", "M parameters", "note"]
    return f"### {title(cell)}\n\n{markdown(head, lines)}"


def _parts(run: Run, cell: Row) -> str:
    found = []
    for name in dict.fromkeys(row["name"] for row in pick(run, kind="part", cell=cell)):
        rows = pick(run, kind="part", cell=cell, name=name)
        lines = [
            [row["part"], row["direction"], 1e3 * row["seconds"], f"{row['share']:.1%}", row["operations"]]
            for row in rows
        ]
        head = f"Where the time of {name} goes, {title(cell)}"
        found.append(f"{head}\n\n{markdown(['part', 'direction', 'ms', 'share', 'operations'], lines)}")
    return "\n".join(found)
