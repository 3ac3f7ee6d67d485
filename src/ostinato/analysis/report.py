"""One HTML file that opens anywhere, offline: figures inside it, numbers beside them, links to the data beside it."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from ostinato.analysis.collectors import Outcomes
from ostinato.analysis.studies.base import Finding, Study, Subject
from ostinato.budget import count_parameters
from ostinato.data.disk import reading
from ostinato.data.output_files import write_new_text
from ostinato.metrics import decoded_scores
from ostinato.tasks.registry import build_task
from ostinato.version import __version__

_MOST_ROWS = 200
_SCORES = (
    *("n", "loss", "perplexity", "word_perplexity", "bits_per_byte"),
    *("token_accuracy", "sequence_accuracy_forced"),
)
_STYLE = """
:root { color-scheme: light; --ink: #1b1b1b; --faint: #5c5c5c; --line: #d8d8d8; --accent: #0b5fa5; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 1180px; color: var(--ink); background: #fff;
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.2; } h2 { font-size: 1.25rem; margin: 2.5rem 0 .3rem; } h3 { font-size: 1rem; }
a { color: var(--accent); } .note, figcaption, footer { color: var(--faint); font-size: .9rem; }
nav ul { columns: 16rem; padding-left: 1.2rem; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 4px; margin: .5rem 0; }
.picture { border: 1px solid var(--line); border-radius: 4px; margin: .5rem 0; padding: .4rem; }
.picture img { display: block; max-width: 100%; height: auto; margin: 0 auto; }
pre { padding: .5rem; font-size: .8rem; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; width: 100%;
  overflow-wrap: break-word; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--line); text-align: left; white-space: nowrap; }
td.number, th.number { text-align: right; } th { background: #f4f4f4; }
details .scroll { max-height: 26rem; overflow-y: auto; } summary { cursor: pointer; color: var(--accent); }
@media (max-width: 700px) {
  .picture img { width: 100%; }
  table { font-size: .8rem; } th, td { padding: .25rem .4rem; } th, td:not(.number) { white-space: normal; }
  td:not(.number) { min-width: 5rem; }
}
@media print {
  body { max-width: none; padding: 0; font-size: 11pt; } nav, summary { display: none; }
  .scroll { overflow: visible; max-height: none; border: 0; } th, td { white-space: normal; }
  .picture, tr { break-inside: avoid; } h2, h3 { break-after: avoid; }
}
"""


@dataclass(frozen=True, slots=True)
class WrittenFinding:
    """A finding and the files it was written to; narrow: its figure for narrow screens, "" where one does for all."""

    finding: Finding
    svg: Path
    png: Path
    data: list[Path]
    narrow: str


@dataclass(frozen=True, slots=True)
class Section:
    """The section of one analysis; left_out: runs it does not apply to, and why."""

    study: Study
    shown: list[WrittenFinding]
    left_out: str


def write_report(
    path: Path, subjects: Sequence[Subject], sections: Sequence[Section], left_out: Mapping[str, str]
) -> Path:
    """Write and return the report; it loads nothing from the network, and links to data in its own folder.

    An earlier report is replaced, and nothing else is.
    """
    names = ", ".join(subject.name for subject in subjects)
    links = "".join(f'<li><a href="#{one.study.name}">{escape(one.study.title)}</a></li>' for one in sections)
    missing = "".join(f"<li><b>{escape(name)}</b>: {escape(why)}</li>" for name, why in left_out.items())
    body = "\n".join(_section(section) for section in sections)
    whole = f"""{_overview(subjects)}
<nav aria-label="Analyses"><ul>{links}</ul></nav>
{body}
<h2 id="not-applicable">What does not apply</h2>
<ul>{missing or "<li>Every analysis that was asked for applies.</li>"}</ul>"""
    write_new_text(path, html_page(f"Analysis of {names}", whole), overwrite=True, is_ours=is_report)
    return path


def html_page(title: str, body: str) -> str:
    """Return a whole page: its title as a heading, a body in HTML, and the version; it loads nothing."""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{escape(title)}</title><style>{_STYLE}</style></head><body>
<h1>{escape(title)}</h1>
{body}
<footer>ostinato {escape(__version__)}</footer>
</body></html>
"""


def is_report(path: Path) -> bool:
    """Return whether a file begins as `write_report` begins its own."""
    with path.open("rb") as stream:
        return b"<title>Analysis of " in stream.read(1000)


def _overview(subjects: Sequence[Subject]) -> str:
    """Return recipe, budget and results of all runs, and the whole recipes to unfold."""
    facts = _beside({subject.name: _facts_of_run(subject) for subject in subjects}, "", missing="")
    parts = [f"<h2>Overview</h2>{facts}"]
    first, rest = _results(subjects)
    if any(first.values()) or any(rest.values()):
        told = "As stored with the runs when they ended: what the tasks are scored by, then loss and examples."
        parts.append(f'<h3>Results</h3><p class="note">{told}</p>{_beside(first, "score")}')
    if any(rest.values()):
        parts.append(f"<details><summary>Other scores</summary>{_beside(rest, 'score')}</details>")
    for subject in subjects:
        path = subject.run.directory / "recipe.yaml"
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        summary = f"Recipe of {escape(subject.name)}: {escape(subject.run.recipe.description or '')}"
        parts.append(
            f'<details><summary>{summary}</summary><pre class="scroll" tabindex="0">{escape(text)}</pre></details>'
        )
    return "\n".join(parts)


def _results(subjects: Sequence[Subject]) -> tuple[dict[str, dict[str, object]], dict[str, dict[str, object]]]:
    """Return by split (and run) the scores that the recipe or its task asks for, with loss and n, and all others."""
    first: dict[str, dict[str, object]] = {}
    rest: dict[str, dict[str, object]] = {}
    for subject in subjects:
        recipe = subject.run.recipe
        task, asked = build_task(recipe.task, recipe.data, trains=False), recipe.evaluation.metrics
        names = (*(task.metrics if asked is None else asked), *task.forced, "loss", "n")
        with reading(subject.run.directory / "results.json"):
            for split, one in (subject.stored_results().get("splits") or {}).items():
                place = f"{subject.name}, {split}" if len(subjects) > 1 else split
                scores = _table_scores(one)
                first[place] = {name: scores[name] for name in names if name in scores}
                rest[place] = {name: value for name, value in scores.items() if name not in names}
    return first, rest


def _beside(found: Mapping[str, Mapping[str, object]], corner: str, missing: object = None) -> str:
    """Return a table with a column for each of what was found, and a row for every name any of them has."""
    names = dict.fromkeys(name for one in found.values() for name in one)
    rows = [[name, *(one.get(name, missing) for one in found.values())] for name in names]
    return f'<div class="scroll" tabindex="0">{html_table((corner, *found), rows)}</div>'


def _facts_of_run(subject: Subject) -> dict[str, object]:
    recipe, model, stored = subject.run.recipe, subject.model, subject.stored_results()
    parameters = count_parameters(model.config)
    n_planned = recipe.training.n_updates
    updates = f"{n_planned:,} planned, not finished"
    if (n_done := stored.get("n_updates")) is not None:
        with reading(subject.run.directory / "results.json"):
            updates = f"{n_done:,}" if n_done == n_planned else f"{n_done:,} of {n_planned:,}"
    found: dict[str, object] = {
        "recipe": recipe.name,
        "task": recipe.task.kind,
        "seed": recipe.seed,
        "updates": updates,
        "checkpoint": subject.run.checkpoint.name,
        "width of states": model.config.d_model,
        "rounds": ", ".join(f"{name} {stack.plan.n_rounds}" for name, stack in model.stacks.items()),
        "parameters stored": f"{parameters.stored:,}",
        "parameters a token touches": f"{parameters.active:,}",
        "parameters executed, a use each": f"{parameters.executed:,}",
        "examples shown here": f"{len(subject.examples):,} of {subject.split}",
    }
    if seconds := stored.get("training_seconds"):
        with reading(subject.run.directory / "results.json"):
            found["hours of training"] = f"{seconds / 3600:.2f} on {stored.get('device')}"
    if thresholds := model.halting_thresholds():
        execution, exits = model.current_execution, model.exits()
        criterion = f" of {execution.exit} ({execution.exit_scope})"
        told = ", ".join(f"{name} {value:g}{criterion if name in exits else ''}" for name, value in thresholds.items())
        found["halting threshold"] = f"{told} ({subject.run.halting_threshold_from})"
    outcomes = subject.collected.get(Outcomes)
    if isinstance(outcomes, Outcomes) and outcomes.macs_N2.any():
        full, realised = outcomes.macs_N2.mean(0).tolist()
        found["M MACs an example"] = f"{realised / 1e6:.4g}"
        if model.halting_stacks():
            found["M MACs an example, full depth"] = f"{full / 1e6:.4g}"
    return found


def _table_scores(result: Mapping[str, Any]) -> dict[str, object]:
    """Return the scores of one split that fit a table."""
    found = {name: result[name] for name in _SCORES if isinstance(result.get(name), int | float)}
    found |= decoded_scores(result)
    if "ranking" in result:
        found["ranking"] = result["ranking"]["accuracy"]
    depth = {f"{stack}: mean rounds": numbers["mean"] for stack, numbers in (result.get("halting") or {}).items()}
    return found | depth


def _section(section: Section) -> str:
    note = f'<p class="note">Does not apply to {escape(section.left_out)}.</p>' if section.left_out else ""
    found = "\n".join(_finding(shown, section.study.title) for shown in section.shown)
    title, reading = escape(section.study.title), escape(section.study.reading)
    return f'<section id="{section.study.name}"><h2>{title}</h2><p>{reading}</p>{note}\n{found}</section>'


def _finding(shown: WrittenFinding, title: str) -> str:
    finding = shown.finding
    image = svg_data(shown.svg.read_bytes())
    narrow = f'<source media="(max-width: 700px)" srcset="{svg_data(shown.narrow.encode())}">' if shown.narrow else ""
    files = [*shown.data, shown.svg, shown.png]
    links = " ".join(f'<a href="{escape(file.name)}">{escape(file.suffix[1:].upper())}</a>' for file in files)
    rows = finding.rows[:_MOST_ROWS]
    cut = f", the first {_MOST_ROWS} of {len(finding.rows):,} rows" if len(rows) < len(finding.rows) else ""
    alternative = escape(f"{title}: {finding.runs}")
    return f"""<figure style="margin:1rem 0"><h3>{escape(finding.runs)}</h3>
<div class="picture"><picture>{narrow}<img alt="{alternative}" src="{image}"></picture></div>
<figcaption>{escape(finding.note)} Data and figure: {links}</figcaption>
<details{" open" if len(rows) <= 12 else ""}><summary>Numbers{cut}</summary>
<div class="scroll" tabindex="0">{html_table(finding.columns, rows)}</div></details></figure>"""


def svg_data(svg: bytes) -> str:
    """Return a figure as an address that holds it."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode('ascii')}"


def html_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table; columns of numbers are right-aligned."""
    numeric = [all(row[i] is None or isinstance(row[i], int | float) for row in rows) for i in range(len(columns))]
    kinds = [' class="number"' if is_number else "" for is_number in numeric]
    head = "".join(f"<th{kind}>{escape(name)}</th>" for kind, name in zip(kinds, columns, strict=True))
    lines = [
        "".join(f"<td{kind}>{escape(_text(cell))}</td>" for kind, cell in zip(kinds, row, strict=True)) for row in rows
    ]
    return (
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(f'<tr>{line}</tr>' for line in lines)}</tbody></table>"
    )


def _text(cell: object) -> str:
    """Return a cell for people; an empty one for None, infinities and NaN."""
    if cell is None or (isinstance(cell, float) and not math.isfinite(cell)):
        return ""
    if isinstance(cell, int):
        return f"{cell:,}"
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)
