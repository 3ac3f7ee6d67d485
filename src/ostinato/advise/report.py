"""The page of an answer: what is advised, one table, one figure, and what was left out."""

from __future__ import annotations

from html import escape
from pathlib import Path

from ostinato.advise.answer import LATENCY, Answer, Standing
from ostinato.advise.candidates import Candidates
from ostinato.advise.halving import Found
from ostinato.advise.words import findings
from ostinato.analysis.drawing import (
    COLOURS,
    HOW_TO_GET_FIGURES,
    can_draw,
    finish,
    in_units,
    legend_label,
    panels,
    save_figure,
)
from ostinato.analysis.report import html_page, html_table, svg_data
from ostinato.config.space import SpaceConfig
from ostinato.data.output_files import write_new_text

REPORT, FIGURE = "report.html", "front"
_TITLE = "Advice: "
_AXES = {"parameters": "parameters", "macs": "multiply-accumulates", "bytes": "bytes", LATENCY: "seconds"}


def table(answer: Answer) -> tuple[list[str], list[list[object]]]:
    """Return the columns and rows of the table of candidates, the best first."""
    figures = [axis for axis in _AXES if any(axis in one.figures for one in answer.standings)]
    columns = ["candidate", "stage", "updates", "rate", "seeds", answer.metric, "95 %", "expected", *figures, "is"]
    return columns, [_row(one, answer, figures) for one in answer.standings]


def _row(one: Standing, answer: Answer, figures: list[str]) -> list[object]:
    interval = "" if one.low is None or one.high is None else f"{one.low:.4g} to {one.high:.4g}"
    expected = "" if one.expected is None else f"{one.expected.low:.4g} to {one.expected.high:.4g}"
    words = ["advised"] if one is answer.best else ["not told apart"] if one.is_equal else []
    words += ["on the front"] if one.is_on_front else []
    words += [one.failed] if one.failed else []
    costs = [int(one.figures[axis]) if axis != LATENCY else one.figures.get(axis) for axis in figures]
    return [
        one.name,
        one.stage + 1,
        one.updates,
        f"x {one.rate:g}",
        len(one.scores),
        one.mean,
        interval,
        expected,
        *costs,
        ", ".join(words),
    ]


def write_report(
    folder: Path, answer: Answer, candidates: Candidates, found: Found, space: SpaceConfig, recipe: str
) -> Path:
    """Write report.html, and the figure beside it where matplotlib is installed; earlier ones are replaced."""
    lines = "".join(f"<li>{escape(line)}</li>" for line in findings(answer, recipe))
    figure = f'<p class="note">{escape(HOW_TO_GET_FIGURES)}</p>'
    if can_draw():
        svg = draw_front(answer, folder / FIGURE)
        figure = f'<div class="picture"><img alt="Pareto front" src="{svg_data(svg.read_bytes())}"></div>'
    importance = html_table(
        ["axis", "share of the spread", "best level"], [[one.axis, one.share, one.best] for one in answer.importance]
    )
    left_out = html_table(
        ["combination", "why it is no candidate"], [[one.name, one.reason] for one in candidates.left_out]
    )
    title = f"{_TITLE}{answer.best.name}"
    body = f"""<ul>{lines}</ul>
<h2>Score against cost</h2>{figure}
<p class="note">Candidates of the last stage; bars are 95 % intervals over seeds. Those on the Pareto front are filled:
no other is better in the score and all costs.</p>
<h2>Candidates</h2><div class="scroll" tabindex="0">{html_table(*table(answer))}</div>
<p class="note">Space {escape(space.name)}; budget: {escape(str(answer.limits))}; {len(found.outcomes)} trainings.
"expected": 90 % interval of the score after the recipe's own updates, continued from the trainings' ends.</p>
<h2>What mattered</h2>{importance}
<p class="note">Share of the spread of ranks in the first stage that each axis explains by itself.</p>
<h2>Left out</h2><p class="note">{candidates.n_untried} combinations of the space were not looked at: its n_candidates
says how many are.</p><div class="scroll" tabindex="0">{left_out}</div>"""
    path = folder / REPORT
    write_new_text(path, html_page(title, body), overwrite=True, is_ours=is_report)
    return path


def is_report(path: Path) -> bool:
    """Return whether a file begins as `write_report` begins its own."""
    with path.open("rb") as stream:
        return f"<title>{_TITLE}".encode() in stream.read(1000)


def draw_front(answer: Answer, path: Path) -> Path:
    """Draw the score against every cost, for the candidates of the last stage; return the SVG beside `path`."""
    best = answer.best
    shown = [one for one in answer.standings if one.mean is not None and one.stage == best.stage]
    axes = [axis for axis in _AXES if all(axis in one.figures for one in shown)]
    figure, places = panels(len(axes), narrow=False)
    for axis, place in zip(axes, places, strict=True):
        for number, one in enumerate(shown):
            x, y, colour = one.figures[axis], float(one.mean or 0.0), COLOURS[number % len(COLOURS)]
            low, high = (y if end is None else end for end in (one.low, one.high))
            place.plot([x, x], [low, high], "-", color=colour, linewidth=1.2)
            face = colour if one.is_on_front else "none"
            place.plot([x], [y], "o", color=colour, markerfacecolor=face, label=legend_label(one.name))
        finish(place, _AXES[axis], answer.metric)
        in_units(place.xaxis)
    handles, labels = places[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=1, fontsize=7, frameon=False)
    return save_figure(figure, path, overwrite=True)[0]
