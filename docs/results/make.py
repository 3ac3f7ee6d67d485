"""Write the result pages and their index anew: each from a page of settings and the rows it names.

    python docs/results/make.py
    python docs/results/make.py --check
    python docs/results/make.py --figures

pages/NAME.yaml gives NAME.md, its settings those of `Page`; README.md is the index. Every number of a table is computed
from the rows, and texts name numbers of the rows instead of holding them: {cell[GROUP][COLUMN]} is a cell of the table,
{number[TITLE]} one of `numbers`. A title of digits alone cannot be named so.
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
from statistics import mean, median, stdev
from typing import Any, Literal, NamedTuple

from pydantic import Field
from scipy.stats import binomtest

from ostinato.analysis.drawing import COLOURS, FONT, WIDE, new_figure
from ostinato.config.base import Config
from ostinato.config.files import read_yaml
from ostinato.config.load import check_settings
from ostinato.errors import ConfigError, DataError, OstinatoError, Problem
from ostinato.experiments.results import markdown, read_rows
from ostinato.experiments.sweep.measures import look_up
from ostinato.experiments.sweep.summary import number_text, seed_difference
from ostinato.metrics.bootstrap import LEVEL

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
claim, with verdicts, is in [claims.md](claims.md)."""
Row = dict[str, Any]
Unit = Literal["number", "percent", "millions", "billions", "ms", "minutes", "MiB", "text"]
_UNITS = {
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
    per: str | None = None
    """Dotted path to the number of the same row that this one is divided by."""
    of: str | None = None
    """Dotted path to the number of examples a share is of: its 95 % interval over examples is shown (Wilson 1927)."""
    minus: dict[str, Any] | None = None
    """As `where`: the rows whose number is subtracted, seed by seed. The interval is that of a sweep's differences."""
    ratio_to: dict[str, Any] | None = None
    """As `where`: the timings of the same group that this one is divided by, round by round."""


class Published(Config):
    """A number of a paper beside ours."""

    what: str
    published: str
    ours: str
    differs: str


class Page(Config):
    """One question."""

    question: str
    answer: str
    """One sentence."""
    setting: str
    """What was compared, and how."""
    rows: list[str]
    """Files of JSON lines, in the folder of the pages."""
    where: dict[str, Any] = Field(default_factory=dict)
    """The rows of the table; see `Column.where`. Numbers choose among all rows."""
    group: dict[str, str]
    """What a line of the table is called: headings, and the dotted paths of what stands below them."""
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
    published: list[Published] = Field(default_factory=list)
    surprises: list[str] = Field(default_factory=list)
    cut: list[str]
    """What was not run, and what it would cost."""
    commands: list[str]


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


def numbers_at(rows: Iterable[Row], path: str) -> list[float]:
    """Return the numbers of the rows that have one."""
    found = []
    for row in rows:
        try:
            found.append(float(look_up(row, path)))  # type: ignore[arg-type]
        except LookupError:
            continue
    return found


def shown(value: float, column: Column, *, signed: bool = False) -> str:
    """Return a number in a column's unit, without the unit."""
    scaled, signed = value * _UNITS[column.unit][0], signed or column.signed
    if column.digits is None:
        return number_text(scaled, signed=signed)
    return f"{scaled:{'+' if signed else ''},.{column.digits}f}"


def cell(column: Column, rows: Sequence[Row]) -> str:
    """Return what a column says of some rows; empty where none has it."""
    mine = chosen(rows, column.where)
    if column.unit == "text":
        return ", ".join(dict.fromkeys(str(found) for row in mine if (found := entry(row, column.path)) is not None))
    unit = _UNITS[column.unit][1]
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
    """Return the mean over seeds of the differences, with the sweep's interval where there are several."""
    by_seed = {row["seed"]: look_up(row, column.path) for row in theirs}
    pairs = [look_up(row, column.path) - by_seed[row["seed"]] for row in mine if row["seed"] in by_seed]
    found = seed_difference(pairs)
    unit = " points" if column.unit == "percent" else _UNITS[column.unit][1]
    low, high = (shown(found[end], column, signed=True) for end in ("low", "high"))
    interval = f" [{low}, {high}]" if found["n"] > 1 else ""
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
        groups = groups_of(self.page, chosen(rows, self.page.where))
        columns = self.page.columns
        self.lines = {label: [cell(column, group) for column in columns] for label, group in groups.items()}
        titles = [column.title for column in columns]
        self.values = {
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
        if page.figure or page.drawn:
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
        yield "```sh\n" + "\n".join(page.commands) + "\n```"
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
    lines = [[f"[{made.page.question}]({made.name}.md)", made.answer] for made in pages]
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
            scale = _UNITS[column.unit][0]
            values = values_of(column, rows)
            ends = ends_of(column, rows) if values else []
            numbers.append(([scale * value for value in values], [scale * end for end in ends]))
        found.append(Drawn(", ".join(label), numbers))
    return found


def figure_mark(lines: Sequence[Drawn]) -> str:
    """Return what a figure keeps of its numbers, by which an old figure is known."""
    rounded = [(line.label, [[f"{x:.6g}" for x in (*found, *ends)] for found, ends in line.columns]) for line in lines]
    return f"numbers {hashlib.sha256(json.dumps(rounded).encode()).hexdigest()}"


def draw(made: Made) -> None:
    """Write the figure of a page: a point for every seed or run, a bar for the mean (of ratios the median), intervals.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    page, lines, columns = made.page, drawn_lines(made), drawn_columns(made.page)
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
    unit = _UNITS[columns[0].unit][1].strip()
    axes.set_xlabel(page.drawn_label or f"{columns[0].title}{f' ({unit})' if unit else ''}", fontsize=FONT)
    axes.spines[["top", "right"]].set_visible(False)
    if len(columns) > 1:
        handles = [
            axes.plot([], [], "o", color=c, label=one.title)[0] for one, c in zip(columns, COLOURS, strict=False)
        ]
        figure.legend(handles=handles, loc="outside upper center", ncols=4, fontsize=FONT, frameon=False)
    # The same numbers give the same file.
    with importlib.import_module("matplotlib").rc_context({"svg.hashsalt": made.name}):
        figure.savefig(figure_of(made), metadata={"Date": None, "Description": figure_mark(lines)})


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
    for made in (made for made in pages if made.page.drawn):
        file = figure_of(made)
        if not file.is_file() or figure_mark(drawn_lines(made)) not in file.read_text(encoding="utf-8"):
            found.append(f"{file}: shows other numbers, or is not there: --figures draws it")
    return found


def write_all(pages: Sequence[Made], *, figures: bool) -> None:
    """Write every page and the index, and the figures where they are wanted."""
    for path, text in documents(pages).items():
        path.write_text(text, encoding="utf-8")
    for made in pages if figures else ():
        if made.page.drawn:
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
