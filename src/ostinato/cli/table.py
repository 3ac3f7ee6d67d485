"""`ostinato table`: finished runs side by side, their mean by a column, and sweeps by arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ostinato.cli.options import (
    STORE,
    AccessOption,
    InputOption,
    JsonOption,
    StoreOption,
    options_given,
    read_inputs,
)
from ostinato.cli.output import number, print_json, print_line, print_stderr, print_table, print_wide

if TYPE_CHECKING:
    from ostinato.experiments.sweep.rows import OpenedSweep

_BY, _SWEEP = "Scores by a column", "Sweeps"
_OF_BY, _OF_SWEEPS, _OF_RUNS = ("split", "metric"), ("csv", "examples"), ("source_length", "target_length", "jsonl")


def table(
    context: typer.Context,
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN",
            help="Run directories, files written by --jsonl, or one sweep: its file, name or results.jsonl.",
        ),
    ],
    by: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Average the runs' scores for each value of this column: over the runs, and over the values.",
            rich_help_panel=_BY,
        ),
    ] = None,
    split: Annotated[str, typer.Option(help="Split that was scored.", rich_help_panel=_BY)] = "test",
    metric: Annotated[str, typer.Option(help="Score.", rich_help_panel=_BY)] = "accuracy",
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV.", rich_help_panel=_SWEEP)] = False,
    examples: Annotated[
        bool,
        typer.Option(
            "--examples", help="Intervals over test examples too; decodes what is not kept.", rich_help_panel=_SWEEP
        ),
    ] = False,
    store: StoreOption = STORE,
    given: InputOption = None,
    source_length: Annotated[int, typer.Option(min=1, help="Source tokens of the pass whose MACs are counted.")] = 16,
    target_length: Annotated[int, typer.Option(min=1, help="Target tokens of that pass.")] = 16,
    jsonl: Annotated[Path | None, typer.Option(help="Write the rows to this file as well.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    access: AccessOption = None,
    json: JsonOption = False,
) -> None:
    """Show what runs cost and scored, or a sweep by arm.

    Of a sweep: mean, standard deviation and number over the seeds, and paired differences to the first arm. With --by:
    the mean over runs that differ in their seeds, for each value of a column such as the language. Files that a speed
    study wrote are shown as tables of speeds.
    """
    from ostinato.experiments.sweep.rows import is_sweep

    form = "json" if json else "csv" if csv else "markdown" if markdown else "text"
    if by is not None:
        if named := options_given(context, (*_OF_SWEEPS, *_OF_RUNS)):
            raise typer.BadParameter("cannot go with --by", param_hint=named)
        _show_by(runs, split, metric, by, form)
        return
    if named := options_given(context, _OF_BY):
        raise typer.BadParameter("is for --by COLUMN", param_hint=named)
    if any(map(is_sweep, runs)):
        if len(runs) > 1 or jsonl is not None:
            raise typer.BadParameter("a sweep is shown alone, and has its results.jsonl already", param_hint="RUN")
        _show_sweep(runs[0], store, form, examples=examples, access=access, inputs=read_inputs(given))
        return
    if named := options_given(context, _OF_SWEEPS):
        raise typer.BadParameter("is for a sweep: name its file", param_hint=named)
    _show_runs(runs, (source_length, target_length), jsonl, form)


def _show_by(runs: Sequence[Path], split: str, metric: str, column: str, form: str) -> None:
    """Print the mean over runs for each value of a column, and mean and spread over runs of the mean over values."""
    from ostinato.experiments.compare.transfer import transfer

    found = transfer(runs, split, metric, column)
    if form == "json":
        print_json(found)
        return
    rows = [*found["by"].items(), ("mean", found["mean"]), ("sd over seeds", found["sd"])]
    _print_table([f"{split} by {column}, {found['n_runs']} runs", metric], [list(row) for row in rows], form)


def _show_runs(runs: Sequence[Path], lengths: tuple[int, int], jsonl: Path | None, form: str) -> None:
    """Print a row a run, or the measured speeds of files.

    Raises:
        ConfigError: rows of both.
    """
    from ostinato.errors import ConfigError
    from ostinato.experiments import results

    rows: list[dict[str, Any]] = []
    for run in runs:
        rows += results.read_rows(run) if run.is_file() else [results.run_row(run, lengths)]
    if jsonl is not None:
        results.write_rows(rows, jsonl)
    if form == "json":
        print_json(rows)
        return
    n_speeds = sum("workload" in row for row in rows)
    if n_speeds == 0:
        _print_table(*results.table(rows), form)
        return
    if n_speeds < len(rows):
        raise ConfigError(f"{n_speeds} of {len(rows)} rows are measured speeds, the others runs: show them apart")
    from ostinato.experiments.timing.speed import speed_table

    _print_table(*speed_table(rows), form)


def _print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], form: str) -> None:
    from ostinato.experiments.results import markdown

    if form == "markdown":
        print_line(markdown(columns, rows).rstrip())
    else:
        print_table(columns, rows)


def _show_sweep(path: Path, store: Path, form: str, *, examples: bool, access: Any, inputs: Mapping[str, str]) -> None:
    """Print mean, standard deviation and number over seeds of every measure, and differences to the first arm.

    Args:
        form: text, markdown, csv or json. examples: intervals over test examples too.
    """
    import csv
    import io

    from ostinato.experiments.sweep import summary
    from ostinato.experiments.sweep.rows import open_sweep

    source = open_sweep(path, store, access, inputs)
    for line in source.missing:
        print_stderr(f"{line['arm']}, seed {line['seed']}: {line['why']}")
    lines = summary.summarise(source.rows)
    differences = _example_lines(source, path, access) if examples else []
    if form == "json":
        print_json({"arms": lines, "examples": differences, "missing": source.missing})
        return
    if form == "csv":
        columns, body = summary.flat_table(lines)
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([columns, *body])
        print_line(text.getvalue().rstrip("\n"))
        return
    tables = [summary.summary_table(lines), summary.difference_table(lines), _example_table(differences)]
    _print_tables([table for table in tables if table is not None], form)
    for note in summary.summary_notes(lines):
        print_line(note)
    if differences:
        print_line(
            "over examples: 95% of 1,000 bootstrap samples of the test examples, paired; scores are means over seeds."
        )


def _print_tables(tables: Sequence[tuple[list[str], list[list[object]]]], form: str) -> None:
    from ostinato.experiments.results import markdown

    for columns, body in tables:
        if form == "markdown":
            print_line(markdown(columns, body))
        else:
            print_wide(columns, [[number(cell) for cell in line] for line in body])


def _example_lines(source: OpenedSweep, path: Path, access: Any) -> list[dict[str, Any]]:
    from ostinato.errors import ConfigError
    from ostinato.experiments.sweep.example_intervals import example_differences

    if source.sweep is None:
        raise ConfigError(
            f"{path} holds rows alone: --examples needs the sweep's file or name, whose runs have outputs"
        )
    return example_differences(source.sweep, source.runs, access=access, on_line=print_stderr)


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
