"""`ostinato table` of a sweep: one line an arm."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ostinato.data.registry import DataAccess
    from ostinato.experiments.sweep.rows import OpenedSweep


def show_sweep(
    path: Path, store: Path, form: str, *, examples: bool, access: DataAccess | None, inputs: Mapping[str, str]
) -> None:
    """Print mean, standard deviation and number over seeds of every measure, and differences to the first arm.

    Args:
        form: text, markdown, csv or json. examples: intervals over test examples too.
    """
    from ostinato.cli.output import complain, print_json, say
    from ostinato.experiments.sweep import summary
    from ostinato.experiments.sweep.rows import open_sweep

    source = open_sweep(path, store, access, inputs)
    for line in source.missing:
        complain(f"{line['arm']}, seed {line['seed']}: {line['why']}")
    lines = summary.summarise(source.rows)
    differences = _example_lines(source, path, access) if examples else []
    if form == "json":
        print_json({"arms": lines, "examples": differences, "missing": source.missing})
        return
    if form == "csv":
        columns, body = summary.flat_table(lines)
        say(_csv(columns, body))
        return
    tables = [summary.summary_table(lines), summary.difference_table(lines), _example_table(differences)]
    _print_tables([table for table in tables if table is not None], form)
    for note in summary.summary_notes(lines):
        say(note)
    if differences:
        say("over examples: 95% of 1,000 bootstrap samples of the test examples, paired; scores are means over seeds.")


def _print_tables(tables: Sequence[tuple[list[str], list[list[object]]]], form: str) -> None:
    from ostinato.cli.output import number, print_wide, say
    from ostinato.experiments.results import markdown

    for columns, body in tables:
        if form == "markdown":
            say(markdown(columns, body))
        else:
            print_wide(columns, [[number(cell) for cell in line] for line in body])


def _example_lines(source: OpenedSweep, path: Path, access: DataAccess | None) -> list[dict[str, Any]]:
    from ostinato.cli.output import complain
    from ostinato.errors import ConfigError
    from ostinato.experiments.sweep.example_intervals import example_differences

    if source.sweep is None:
        raise ConfigError(
            f"{path} holds rows alone: --examples needs the sweep's file or name, whose runs have outputs"
        )
    return example_differences(source.sweep, source.runs, access=access, on_line=complain)


def _example_table(lines: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[object]]] | None:
    from ostinato.experiments.sweep.summary import number_text

    if not lines:
        return None
    columns = ["over examples", "arm", "examples", "score", "difference", "verdict"]
    body: list[list[object]] = []
    for line in lines:
        found = line["difference"]
        score = f"{number_text(line['score']['value'])} {_interval(line['score'])}"
        difference = "" if found is None else f"{number_text(found['value'], signed=True)} {_interval(found)}"
        body.append([line["measure"], line["arm"], line["n_examples"], score, difference, line["verdict"] or ""])
    return columns, body


def _interval(found: dict[str, float]) -> str:
    from ostinato.experiments.sweep.summary import number_text

    return f"[{number_text(found['low'])}, {number_text(found['high'])}]"


def _csv(columns: Sequence[str], body: Sequence[Sequence[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([columns, *body])
    return text.getvalue().rstrip("\n")
