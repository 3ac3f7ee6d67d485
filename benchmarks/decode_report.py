"""What the rows of the decoding study say: tables, and which targets hold."""

from __future__ import annotations

from collections.abc import Sequence

from layer_study import conditions
from layer_tables import Row, Run, Verdict, absent, cells, judge, names, pick, ratio, values, verdict_table

from ostinato.experiments.results import markdown

PEERS, PAPERS = "peers", "papers"
OURS, LIMIT, CTRANSLATE = "ours", "matmul limit", "CTranslate2"
DENSE, HALF = "dense", "universal, half the tokens at half depth"
HUGGING_FACE = ("HF Marian", "HF T5")
_OVER_HUGGING_FACE = {"1:1": 0.75, "1:5": 0.75, "32:1": 0.85, "32:5": 0.85}
"""By sentences and beam, the most times as long as the faster model of transformers."""
_OVER_CTRANSLATE = 0.9
"""The most times as long as CTranslate2."""


def verdicts(runs: Sequence[Run]) -> list[Verdict]:
    """Judge every target."""
    found = []
    for cell in (cell for cell in cells(runs) if cell["study"] == PEERS):
        head = f"vocabulary {cell['vocabulary']:,}"
        for phase in phases(cell):
            if phase not in _OVER_HUGGING_FACE:
                continue
            rivals = {name: one for name in HUGGING_FACE if (one := ratio(runs, cell, phase, OURS, name)) is not None}
            best = max(rivals, key=lambda name: rivals[name].value, default=HUGGING_FACE[0])
            target = f"{head}, {phase}: ours / transformers"
            found.append(judge(target, _OVER_HUGGING_FACE[phase], rivals.get(best), best))
            target = f"{head}, {phase}: ours / {CTRANSLATE}"
            found.append(judge(target, _OVER_CTRANSLATE, ratio(runs, cell, phase, OURS, CTRANSLATE)))
    return found


def phases(cell: Row) -> list[str]:
    """Return the phases of a cell."""
    return [f"{n}:{beam}" for n, beam in cell["loads"]]


def report(runs: Sequence[Run], judged: Sequence[Verdict]) -> str:
    """Return all tables as Markdown."""
    sections = [conditions([row for run in runs for row in run]), f"Targets:\n\n{verdict_table(judged)}"]
    for cell in cells(runs):
        if cell["study"] == PEERS:
            title = f"### Vocabulary {cell['vocabulary']:,}\n"
            sections += [title, _times(runs, cell, OURS, "ours"), _times(runs, cell, LIMIT, "the matmul limit")]
        else:
            sections += ["### The papers' models\n", _times(runs, cell, DENSE, "the dense model"), _macs(runs, cell)]
        sections += [_speeds(runs, cell), _equal(runs, cell), _parts(runs, cell)]
    sections.append(absent(runs, lambda cell: f"vocabulary {cell['vocabulary']:,}"))
    return "\n".join(section for section in sections if section)


def _times(runs: Sequence[Run], cell: Row, reference: str, words: str) -> str:
    def entry(name: str, phase: str) -> str | None:
        one = ratio(runs, cell, phase, name, reference)
        return None if one is None else f"{one} ({one.spread})"

    return _table(runs, cell, f"Time / time of {words}, by sentences:beam", entry)


def _speeds(runs: Sequence[Run], cell: Row) -> str:
    def entry(name: str, phase: str) -> str | None:
        seconds = values(runs, "median_s", kind="time", cell=cell, phase=phase, name=name)
        n = int(phase.split(":")[0]) * cell["target_length"]
        return None if seconds is None else f"{n / seconds:,.0f}"

    return _table(runs, cell, "New tokens/s, by sentences:beam", entry)


def _table(runs: Sequence[Run], cell: Row, head: str, entry: object) -> str:
    lines = [[name, *(entry(name, phase) for phase in phases(cell))] for name in names(runs, [cell])]
    return f"{head}\n\n{markdown(['', *phases(cell)], lines)}"


def _macs(runs: Sequence[Run], cell: Row) -> str:
    rows = pick(runs[0], kind="macs", cell=cell)
    dense = next((row["per_target_token"] for row in rows if row["name"] == DENSE), None)
    lines = [[r["name"], f"{r['per_target_token']:,}", r["per_target_token"] / dense] for r in rows] if dense else []
    return f"Multiply-accumulates of a target token\n\n{markdown(['', 'MACs', 'of the dense'], lines)}"


def _equal(runs: Sequence[Run], cell: Row) -> str:
    rows = pick(runs[0], kind="equal", cell=cell)
    lines = [[row["name"], row["phase"], f"{row['equal']} of {row['sentences']}"] for row in rows]
    return f"Outputs equal to ours, on the same weights\n\n{markdown(['', 'load', 'equal'], lines)}" if lines else ""


def _parts(runs: Sequence[Run], cell: Row) -> str:
    """Return the share of each part in the time of ours, of the first run that looked."""
    rows = next((found for run in runs if (found := pick(run, kind="part", cell=cell))), [])
    share = {(row["part"], row["phase"]): row["share"] for row in rows}
    of = [phase for phase in phases(cell) if any(key[1] == phase for key in share)]
    parts = sorted({part for part, _ in share}, key=lambda part: -sum(share.get((part, phase), 0.0) for phase in of))
    lines = [[part, *(f"{share.get((part, phase), 0.0):.0%}" for phase in of)] for part in parts]
    return f"Where the time of ours goes, by sentences:beam\n\n{markdown(['', *of], lines)}" if lines else ""
