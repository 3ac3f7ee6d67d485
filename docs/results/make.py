"""Write the result pages and their index anew: each from a page of settings and the rows it names.

    python docs/results/make.py
    python docs/results/make.py --check
    python docs/results/make.py --figures

pages/NAME.yaml gives NAME.md, its settings those of `Page`; README.md is the index. Every number of a table is computed
from the rows, and texts name numbers of the rows instead of holding them: {cell[GROUP][COLUMN]} is a cell of the table,
{number[TITLE]} one of `numbers`. A title of digits alone cannot be named so. With --figures it also draws;
`columns` says what becomes of rows.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import importlib
import json
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

from columns import UNITS, Column, Row, Unit, cell, chosen, ends_of, entry, numbers_at, values_of
from pydantic import Field

from ostinato.analysis.drawing import COLOURS, FONT, WIDE, new_figure
from ostinato.config.base import Config
from ostinato.config.files import read_yaml
from ostinato.config.load import check_settings
from ostinato.errors import ConfigError, DataError, OstinatoError, Problem
from ostinato.experiments.results import markdown, read_rows

FOLDER = Path(__file__).parent
INDEX = "README.md"
OTHER_ROWS = "other-rows.yaml"
"""Says which document shows the rows that no page does."""
_WIDTH = 120
_LINE = 0.26
"""Inches that a line of the table takes in a figure."""
_ABOUT = """Every question with its answer; behind it a page with figure, table, published numbers, what was cut and the
commands. The numbers are computed from the JSON lines in this folder by `python docs/results/make.py`; a test runs it
with `--check`. ± is the standard deviation over seeds, brackets are intervals. Absolute times are of two shared x86
cores, one thread a run, with other work beside it: they say what order of time to expect, no more. What the papers
claim, with verdicts, is in [claims.md](claims.md), a list that is longer than a page. Where a page has no published
numbers, none are known to us that measure the same; a few answers take two sentences."""


class Published(Config):
    """A number of a paper beside ours."""

    what: str
    published: str
    ours: str
    differs: str


class Curve(Config):
    """A line of a figure of two numbers, against each other."""

    label: str
    where: dict[str, Any] = Field(default_factory=dict)
    """The rows of a point, all seeds of one arm; see `Column.where`."""
    points: list[str]
    """What stands for {} in `where` and in the paths, point after point."""
    x: str
    y: str
    """Dotted paths into a row."""


class Page(Config):
    """One question."""

    question: str
    answer: str
    """One sentence."""
    setting: str
    """What was compared, and how."""
    rows: list[str]
    """Files of JSON lines, in the folder of this script."""
    where: dict[str, Any] = Field(default_factory=dict)
    """The rows of the table; see `Column.where`. Numbers choose among all rows."""
    group: dict[str, str]
    """What a line of the table is called: headings, and the dotted paths of what stands below them. Of `lines`: the
    heading, above "{}"."""
    lines: dict[str, str] = Field(default_factory=dict)
    """Lines that are no groups of rows: what each is called, and what stands for {} in the paths of its columns."""
    names: dict[str, str] = Field(default_factory=dict)
    """How to show a value of `group`; values with one name are one line."""
    columns: list[Column]
    numbers: list[Column] = Field(default_factory=list)
    note: str = ""
    """Said below the table."""
    figure: str | None = None
    """A file that is there; None: what `--figures` draws."""
    drawn: list[str] = Field(default_factory=list)
    """Titles of the columns that are drawn on one axis, where no file is named."""
    drawn_label: str = ""
    """What the axis shows; empty: the first column."""
    drawn_where: dict[str, Any] = Field(default_factory=dict)
    """The lines of the table that are drawn; see `Column.where`."""
    curves: list[Curve] = Field(default_factory=list)
    """What is drawn instead of columns."""
    curves_x: str = ""
    """What they are drawn against; `drawn_label` says what they show."""
    curves_unit: Unit = "number"
    """Unit of what they are drawn against."""
    published: list[Published] = Field(default_factory=list)
    surprises: list[str] = Field(default_factory=list)
    cut: list[str]
    """What was not run, and what it would cost."""
    commands: list[str]


def groups_of(page: Page, rows: Iterable[Row]) -> dict[tuple[str, ...], list[Row]]:
    """Return the rows of every line of the table, in their order, by what the line is called."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        values = [entry(row, path) for path in page.group.values()]
        if None in values:
            raise DataError(f"{row['file']}: a row without {' or '.join(page.group.values())}: choose rows by `where`")
        found.setdefault(tuple(page.names.get(str(value), str(value)) for value in values), []).append(row)
    return found


def read_page_rows(page: Page) -> list[Row]:
    """Return the rows of all files, each with its file."""
    return [row | {"file": name} for name in page.rows for row in read_rows(FOLDER / name)]


def table_lines(page: Page, rows: Sequence[Row]) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Yield what every line of the table is called, and its cells."""
    if page.lines:
        for label, one in page.lines.items():
            own = [column.model_copy(update={"path": column.path.format(one)}) for column in page.columns]
            yield (label,), [cell(column, rows) for column in own]
    else:
        for named, group in groups_of(page, rows).items():
            yield named, [cell(column, group) for column in page.columns]


class Made:
    """A page with its numbers.

    Raises:
        ConfigError: the settings cannot be used, or a text names a number that is not there.
        DataError: rows that cannot be read, or do not have what the table wants.
    """

    def __init__(self, source: Path) -> None:
        self.source, self.name = source, source.stem
        self.page = check_settings(read_yaml(source), Page)
        self.rows = rows = read_page_rows(self.page)
        columns = self.page.columns
        self.lines = dict(table_lines(self.page, chosen(rows, self.page.where)))
        titles = [column.title for column in columns]
        self.values: dict[str, Any] = {
            "cell": {
                ", ".join(label): {title: text for title, text in zip(titles, cells, strict=True) if text}
                for label, cells in self.lines.items()
            },
            "number": {column.title: cell(column, rows) for column in self.page.numbers},
        }
        self._check_all_found()

    def _check_all_found(self) -> None:
        empty = [
            *(c for i, c in enumerate(self.page.columns) if not any(cells[i] for cells in self.lines.values())),
            *(c for c in self.page.numbers if not self.values["number"][c.title]),
        ]
        if empty:
            reason = "no row has it, among those that are chosen"
            raise ConfigError([Problem(f"{self.source}: path of '{c.title}'", c.path, reason) for c in empty])
        if unknown := {*self.page.drawn} - {column.title for column in self.page.columns}:
            raise ConfigError([Problem(f"{self.source}: drawn", ", ".join(unknown), "no column has this title")])
        curve_lines(self)  # raises

    def text(self, text: str) -> str:
        """Return a text with its numbers."""
        try:
            filled = text.format_map(self.values)
        except (LookupError, ValueError) as error:
            raise ConfigError([Problem(f"{self.source}: a text", text, f"there is no {error}")]) from error
        return " ".join(filled.split())

    @property
    def answer(self) -> str:
        """The answer with its numbers."""
        return self.text(self.page.answer)

    def document(self) -> str:
        """Return the page."""
        return "\n\n".join(self._parts()) + "\n"

    def _parts(self) -> Iterator[str]:
        page = self.page
        yield f"# {page.question}"
        yield wrapped(f"**{self.answer}**")
        yield wrapped(self.text(page.setting))
        yield self._table()
        if page.note:
            yield wrapped(self.text(page.note))
        if page.figure or page.drawn or page.curves:
            yield f"![{page.question}]({page.figure or f'{self.name}.svg'})"
        if page.published:
            yield "## Published numbers"
            lines = [[self.text(part) for part in (p.what, p.published, p.ours, p.differs)] for p in page.published]
            yield markdown(["what", "published", "ours", "what differs"], lines).rstrip()
        for title, points in (("What surprised", page.surprises), ("What was cut", page.cut)):
            if points:
                yield f"## {title}"
                yield "\n".join(wrapped(self.text(point), "- ") for point in points)
        yield "## Commands"
        not_run = "# not run by the tests: minutes to hours"
        yield "\n".join(["```sh", not_run, *page.commands, "```"])
        files = ", ".join(f"[{name}]({name})" for name in page.rows)
        yield wrapped(f"Rows: {files}. Made from [pages/{self.name}.yaml](pages/{self.name}.yaml) by `make.py`.")

    def _table(self) -> str:
        titles = [*self.page.group, *(column.title for column in self.page.columns)]
        return markdown(titles, [[*label, *cells] for label, cells in self.lines.items()]).rstrip()


def wrapped(text: str, bullet: str = "") -> str:
    """Return a paragraph, or a point of a list, in lines of the documents' width."""
    layout = textwrap.TextWrapper(_WIDTH, bullet, " " * len(bullet), break_long_words=False, break_on_hyphens=False)
    return layout.fill(text)


def index(pages: Sequence[Made], others: Mapping[str, str]) -> str:
    """Return the index: every question with its answer."""
    lines: list[list[object]] = [[f"[{made.page.question}]({made.name}.md)", made.answer] for made in pages]
    parts = [
        "# Results",
        wrapped(_ABOUT),
        markdown(["question", "answer"], lines).rstrip(),
        "## Rows of other documents",
        "\n".join(wrapped(f"[{file}]({file}): {where}", "- ") for file, where in others.items()),
    ]
    return "\n\n".join(parts) + "\n"


class Drawn(NamedTuple):
    """A line of the table in a figure: its label, and of every column the numbers and the ends of an interval."""

    label: str
    columns: list[tuple[list[float], list[float]]]


def drawn_columns(page: Page) -> list[Column]:
    """Return the columns that are drawn."""
    return [column for column in page.columns if column.title in page.drawn]


def drawn_lines(made: Made) -> list[Drawn]:
    """Return what the figure of a page shows, in the units of its columns."""
    groups = groups_of(made.page, chosen(made.rows, {**made.page.where, **made.page.drawn_where}))
    found = []
    for label, rows in groups.items():
        numbers = []
        for column in drawn_columns(made.page):
            scale = UNITS[column.unit][0]
            values = values_of(column, rows)
            ends = ends_of(column, rows) if values else []
            numbers.append(([scale * value for value in values], [scale * end for end in ends]))
        found.append(Drawn(", ".join(label), numbers))
    return found


def curve_lines(made: Made) -> list[Drawn]:
    """Return what a figure of curves shows: for every point the numbers of all seeds along both axes.

    Raises:
        ConfigError: no row has a point, or fewer rows have one than the other of its two numbers.
    """
    found = []
    for curve in made.page.curves:
        points = []
        for one in curve.points:
            where = {
                path: value.format(one) if isinstance(value, str) else value for path, value in curve.where.items()
            }
            rows = chosen(made.rows, where)
            points.append((numbers_at(rows, curve.x.format(one)), numbers_at(rows, curve.y.format(one))))
        if not all(xs and len(xs) == len(ys) for xs, ys in points):
            reason = f"not every one of {curve.points} is in its rows"
            raise ConfigError([Problem(f"{made.source}: curves", curve.label, reason)])
        found.append(Drawn(curve.label, points))
    return found


def figure_lines(made: Made) -> list[Drawn]:
    """Return what the figure of a page shows."""
    return curve_lines(made) if made.page.curves else drawn_lines(made)


def figure_mark(lines: Sequence[Drawn]) -> str:
    """Return what a figure keeps of its numbers, by which an old figure is known."""
    rounded = [(line.label, [[f"{x:.6g}" for x in (*found, *ends)] for found, ends in line.columns]) for line in lines]
    return f"numbers {hashlib.sha256(json.dumps(rounded).encode()).hexdigest()}"


def draw(made: Made) -> None:
    """Write the figure of a page.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    lines = figure_lines(made)
    figure = _curves(made.page, lines) if made.page.curves else _bars(made.page, lines)
    # The same numbers give the same file.
    with importlib.import_module("matplotlib").rc_context({"svg.hashsalt": made.name}):
        figure.savefig(figure_of(made), metadata={"Date": None, "Description": figure_mark(lines)})


def _curves(page: Page, lines: Sequence[Drawn]) -> Any:
    """Return a figure of lines through the means over seeds, every seed a faint point."""
    scale, unit = UNITS[page.curves_unit]
    figure = new_figure(WIDE, 0.6 * WIDE)
    axes = figure.add_subplot()
    for turn, line in enumerate(lines):
        colour, marker = COLOURS[turn % len(COLOURS)], "os^D"[turn // len(COLOURS)]
        for xs, ys in line.columns:
            axes.plot([scale * x for x in xs], ys, marker, color=colour, markersize=2.5, alpha=0.4)
        means = [(scale * mean(xs), mean(ys)) for xs, ys in line.columns]
        axes.plot(
            *zip(*means, strict=True), f"-{marker}", color=colour, markersize=4.5, linewidth=1.4, label=line.label
        )
    axes.set_xlabel(f"{page.curves_x} ({unit.strip()})", fontsize=FONT)
    axes.set_ylabel(page.drawn_label, fontsize=FONT)
    axes.tick_params(labelsize=FONT)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=4, fontsize=FONT, frameon=False)
    return figure


def _bars(page: Page, lines: Sequence[Drawn]) -> Any:
    """Return a figure with a point for every seed or run, a bar for the mean (of ratios the median), and intervals."""
    columns = drawn_columns(page)
    figure = new_figure(WIDE, 1.0 + _LINE * len(lines) * max(1.0, len(columns) / 2))
    axes = figure.add_subplot()
    for place, line in enumerate(lines):
        for turn, (column, (found, ends)) in enumerate(zip(columns, line.columns, strict=True)):
            if not found:
                continue
            colour, level = COLOURS[turn], place + (turn - (len(columns) - 1) / 2) * 0.7 / len(columns)
            middle = mean(found) if column.ratio_to is None else median(found)
            axes.plot(ends, [level] * len(ends), color=colour, linewidth=1.4)
            axes.plot(found, [level] * len(found), "o", color=colour, markersize=4.5, alpha=0.6)
            axes.plot([middle], [level], "|", color=colour, markersize=11, markeredgewidth=2)
    axes.set_yticks(range(len(lines)), [line.label for line in lines], fontsize=FONT)
    axes.set_ylim(len(lines) - 0.4, -0.6)
    axes.set_ylabel(", ".join(page.group), fontsize=FONT)
    axes.tick_params(labelsize=FONT)
    unit = UNITS[columns[0].unit][1].strip()
    axes.set_xlabel(page.drawn_label or f"{columns[0].title}{f' ({unit})' if unit else ''}", fontsize=FONT)
    axes.spines[["top", "right"]].set_visible(False)
    if len(columns) > 1:
        handles = [
            axes.plot([], [], "o", color=c, label=one.title)[0] for one, c in zip(columns, COLOURS, strict=False)
        ]
        figure.legend(handles=handles, loc="outside upper center", ncols=4, fontsize=FONT, frameon=False)
    return figure


def figure_of(made: Made) -> Path:
    """Return the file of a figure that is drawn."""
    return FOLDER / f"{made.name}.svg"


def pages() -> list[Made]:
    """Return the pages in the order of their names."""
    return [Made(source) for source in sorted((FOLDER / "pages").glob("*.yaml"))]


def documents(pages: Sequence[Made]) -> dict[Path, str]:
    """Return what every file has to hold."""
    found = {FOLDER / f"{made.name}.md": made.document() for made in pages}
    others = {str(file): str(where) for file, where in read_yaml(FOLDER / OTHER_ROWS).items()}
    return {**found, FOLDER / INDEX: index(pages, others)}


def differences(pages: Sequence[Made]) -> list[str]:
    """Return the lines by which the files differ from what they have to hold, and the figures that are old."""
    found: list[str] = []
    for path, text in documents(pages).items():
        old = path.read_text(encoding="utf-8") if path.is_file() else ""
        found += difflib.unified_diff(old.splitlines(), text.splitlines(), str(path), f"{path}, made", lineterm="", n=0)
    for made in (made for made in pages if made.page.drawn or made.page.curves):
        file = figure_of(made)
        if not file.is_file() or figure_mark(figure_lines(made)) not in file.read_text(encoding="utf-8"):
            found.append(f"{file}: shows other numbers, or is not there: --figures draws it")
    return found


def write_all(pages: Sequence[Made], *, figures: bool) -> None:
    """Write every page and the index, and the figures where they are wanted."""
    for path, text in documents(pages).items():
        path.write_text(text, encoding="utf-8")
    for made in pages if figures else ():
        if made.page.drawn or made.page.curves:
            draw(made)


def main(given: Sequence[str] | None = None, write: Callable[[str], object] = sys.stderr.write) -> None:
    """Write the pages, or say what differs and end with 1."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--check", action="store_true", help="write nothing; fail where a page is not up to date")
    options.add_argument("--figures", action="store_true", help="draw the figures, too (matplotlib)")
    args = options.parse_args(given)
    sys.path.append(str(FOLDER.parents[1] / "benchmarks"))
    try:
        found = pages()
        if not args.check:
            write_all(found, figures=args.figures)
        elif lines := differences(found):
            write("\n".join(lines) + "\n")
            raise SystemExit("pages are not what their rows say: run python docs/results/make.py")
    except OstinatoError as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main()
