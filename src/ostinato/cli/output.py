"""Printing shared by the commands: JSON for programs, tables and lines for people."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ostinato.data.disk import finite
from ostinato.errors import without_controls
from ostinato.system_errors import naming

if TYPE_CHECKING:
    from rich.console import Console

WIDTH_WITHOUT_TERMINAL = 120
READABLE_WIDTH = 100
"""Side-by-side tables and plans of many steps are continued in another block beyond this width."""
STANDARD_OUTPUT = "standard output"


def console() -> Console:
    """Return a console on standard output; into a file or pipe it writes plain text, `WIDTH_WITHOUT_TERMINAL` wide."""
    from rich.console import Console

    # Colours may be forced into a pipe or a file (FORCE_COLOR); a bar that is drawn again and again is for a terminal.
    found = Console(highlight=False, force_interactive=None if sys.stdout.isatty() else False)
    return found if found.is_terminal else Console(highlight=False, width=WIDTH_WITHOUT_TERMINAL)


def readable_width() -> int:
    """Return the width of side-by-side tables and plans."""
    return min(console().width, READABLE_WIDTH)


def print_text(text: str) -> None:
    """Write a text as it is."""
    with naming(STANDARD_OUTPUT):
        typer.echo(text, nl=False)


def print_line(message: str = "") -> None:
    """Write one line for people: names in it may be anybody's, so that what a terminal obeys is escaped."""
    print_text(without_controls(f"{message}\n"))


def rank() -> int:
    """Return the rank of this process among those that a launcher started; 0 for the first, or the only one."""
    given = os.environ.get("RANK", "")
    return int(given) if given.isdecimal() and os.environ.get("WORLD_SIZE", "1") != "1" else 0


def print_stderr(message: str) -> None:
    """Write as `print_line` does to standard error, without colours and wrapping, so that lines can be searched for."""
    typer.echo(without_controls(f"process {rank()}: {message}" if rank() else message), err=True)


def print_json(data: object) -> None:
    """Write one JSON document."""
    print_text(json.dumps(finite(data), indent=2, ensure_ascii=False, default=str) + "\n")


def check_output_file(path: Path | None, overwrite: bool) -> None:
    """Refuse a file that an option names and that cannot be written, before long work; None: there is none."""
    from ostinato.data.output_files import check_output

    if path is not None:
        check_output(path, overwrite=overwrite)


def write_rows_to(path: Path, rows: Iterable[dict[str, Any]], overwrite: bool) -> None:
    """Write rows as JSON lines to a new file, or in place of a plain one."""
    from ostinato.data.output_files import new_file
    from ostinato.experiments.results import write_rows

    with new_file(path, overwrite=overwrite) as partial:
        write_rows(rows, partial)


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    title: str | None = None,
    *,
    right: bool = False,
    markdown: bool = False,
) -> None:
    """Write a table; columns whose cells are all numbers are right-aligned, with `right` all but the first.

    What a terminal obeys is escaped, as by `print_line`.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    if markdown:
        from ostinato.experiments.results import markdown as as_markdown

        print_text(without_controls(as_markdown(columns, rows)))
        return
    cells = [list(row) for row in rows]
    title = title and without_controls(title)
    table = Table(title=title, box=SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False)
    for i, name in enumerate(columns):
        is_number = bool(cells) and all(isinstance(row[i], int | float | None) for row in cells)
        table.add_column(
            Text(without_controls(name)), justify="right" if is_number or (right and i) else "left", overflow="fold"
        )
    for row in cells:
        table.add_row(*(Text(without_controls(number(cell))) for cell in row))
    with naming(STANDARD_OUTPUT):
        console().print(table)


def print_columns(rows: Iterable[Sequence[str]]) -> None:
    """Write a line for each row, cells aligned and never wrapped, so that the lines can be searched and cut."""
    cells = [[without_controls(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        print_line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


_LONGEST = 1e15
"""From here on digits say nothing: a float has no more of them."""


def number(value: object) -> str:
    """Return a value as people read it: 1,388,544, 0.1235 and 0.99997; 4.78e+80 of what has more than 15 digits."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "" if value is None else str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if 1000 <= abs(value) < _LONGEST:
        return f"{value:,.1f}"
    from ostinato.experiments.results import four_digits

    return four_digits(value)


def compact(value: int, base: int = 1000) -> str:
    """Return a large count in four digits: 228.4M; with base 1024, bytes: 870.4 MiB."""
    units = ("", "K", "M", "G", "T", "P") if base == 1000 else (" B", " KiB", " MiB", " GiB", " TiB", " PiB")
    scaled, unit = float(value), 0
    while abs(scaled) >= base - 0.05 and unit < len(units) - 1:
        scaled, unit = scaled / base, unit + 1
    return f"{value}{units[0]}" if not unit else f"{scaled:#.4g}".rstrip(".") + units[unit]


def print_wide(columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: bool = False) -> None:
    """Write a table of texts; where its columns are too many for the width, further tables repeat the first column."""
    cells = [list(row) for row in rows]
    widths = [max(len(row[i]) for row in [list(columns), *cells]) + 3 for i in range(len(columns))]
    parts: list[list[int]] = [[]]
    for i in range(1, len(columns)):
        if parts[-1] and widths[0] + sum(widths[j] for j in [*parts[-1], i]) > readable_width():
            parts.append([])
        parts[-1].append(i)
    for part in parts:
        print_table([columns[i] for i in (0, *part)], [[row[i] for i in (0, *part)] for row in cells], right=right)


@contextmanager
def progress_bar(what: str, wanted: bool) -> Iterator[tuple[Callable[[int], None], Callable[[int], None]]]:
    """Draw a bar where standard error is a terminal; yield what sets its total, and what advances it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    off = not (wanted and sys.stderr.isatty())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=off) as progress:
        bar = progress.add_task(what, total=None)
        yield lambda total: progress.update(bar, total=total), lambda n: progress.advance(bar, n)
