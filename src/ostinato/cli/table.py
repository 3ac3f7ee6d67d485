"""`ostinato table`: finished runs side by side, their mean by a column, and sweeps by arm."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ostinato.cli.options import (
    STORE,
    AccessOption,
    InputOption,
    JsonOption,
    OverwriteOption,
    StoreOption,
    options_given,
    read_inputs,
)
from ostinato.cli.output import (
    STANDARD_OUTPUT,
    check_output_file,
    number,
    print_json,
    print_line,
    print_stderr,
    print_table,
    print_wide,
    write_rows_to,
)
from ostinato.data.disk import reading
from ostinato.errors import ConfigError, DataError
from ostinato.system_errors import naming

_BY, _SWEEP = "Scores by a column", "Sweeps"
_OF_BY, _OF_SWEEPS, _OF_PASSES = ("split", "metric"), ("csv", "examples"), ("source_length", "target_length")
_OF_RUNS = (*_OF_PASSES, "jsonl")
_FORMS = "csv", "markdown", "json"


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
    jsonl: Annotated[Path | None, typer.Option(help="Write the rows to this new file as well.")] = None,
    overwrite: OverwriteOption = False,
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

    if sum((csv, markdown, json)) > 1:
        raise typer.BadParameter("choose one of them", param_hint=options_given(context, _FORMS))
    if by is not None:
        if named := options_given(context, (*_OF_SWEEPS, *_OF_RUNS)):
            raise typer.BadParameter("cannot go with --by", param_hint=named)
        from ostinato.experiments.compare.transfer import transfer

        found = transfer(runs, split, metric, by)
        rows = [*found["by"].items(), ("mean", found["mean"]), ("sd over seeds", found["sd"])]
        if json:
            print_json(found)
        else:
            print_table([f"{split} by {by}, {found['n_runs']} runs", metric], rows, markdown=markdown)
        return
    if named := options_given(context, _OF_BY):
        raise typer.BadParameter("is for --by COLUMN", param_hint=named)
    if any(map(is_sweep, runs)):
        if len(runs) > 1:
            raise typer.BadParameter("a sweep is shown alone", param_hint="RUN")
        if named := options_given(context, _OF_RUNS):
            raise typer.BadParameter(
                "is for runs: a sweep's file names lengths, and its results.jsonl is there", param_hint=named
            )
        form = "json" if json else "csv" if csv else "markdown" if markdown else "text"
        _show_sweep(runs[0], store, form, examples=examples, access=access, inputs=read_inputs(given))
        return
    if named := options_given(context, _OF_SWEEPS):
        raise typer.BadParameter("is for a sweep: name its file", param_hint=named)
    if all(run.is_file() for run in runs) and (named := options_given(context, _OF_PASSES)):
        raise typer.BadParameter("is for runs: the rows of a file hold what was counted", param_hint=named)
    check_output_file(jsonl, overwrite)
    _show_runs(runs, (source_length, target_length), jsonl, markdown, json, overwrite)


def _show_runs(
    runs: Sequence[Path], lengths: tuple[int, int], jsonl: Path | None, markdown: bool, json: bool, overwrite: bool
) -> None:
    """Print a row a run, or the measured speeds of files.

    Raises:
        ConfigError: rows of both.
    """
    from ostinato.experiments import results

    rows: list[dict[str, Any]] = []
    places: list[str] = []
    for run in runs:
        found = results.read_rows(run) if run.is_file() else [results.run_row(run, lengths)]
        places += [f"{run}, row {i}" for i in range(1, len(found) + 1)]
        rows += found
    if jsonl is not None:
        write_rows_to(jsonl, rows, overwrite)
    if json:
        print_json(rows)
        return
    n_speeds = sum("workload" in row for row in rows)
    if 0 < n_speeds < len(rows):
        raise ConfigError(f"{n_speeds} of {len(rows)} rows are measured speeds, the others runs: show them apart")
    if n_speeds:
        from ostinato.experiments.timing.speed import speed_table

        with reading(" and ".join(map(str, runs)), DataError):
            speeds = speed_table(rows)
        print_table(*speeds, markdown=markdown)
    else:
        for row, place in zip(rows, places, strict=True):
            results.check_run_row(row, place)
        print_table(*results.table(rows), markdown=markdown)


def _csv_cell(cell: object) -> object:
    """Return a cell; a text that a spreadsheet would run as a formula begins with an apostrophe."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell


def _show_sweep(path: Path, store: Path, form: str, *, examples: bool, access: Any, inputs: Mapping[str, str]) -> None:
    """Print mean, standard deviation and number over seeds of every measure, and differences to the first arm.

    Args:
        form: text, markdown, csv or json. examples: intervals over test examples too.
    """
    import csv

    from ostinato.experiments.sweep import summary
    from ostinato.experiments.sweep.rows import open_sweep

    source = open_sweep(path, store, access, inputs)
    for line in source.missing:
        print_stderr(f"{line['arm']}, seed {line['seed']}: {line['why']}")
    lines = summary.summarise(source.rows)
    differences: list[dict[str, Any]] = []
    if examples:
        if source.sweep is None:
            raise ConfigError(
                f"{path} holds rows alone: --examples needs the sweep's file or name, whose runs have outputs"
            )
        from ostinato.experiments.sweep.example_intervals import example_differences

        differences = example_differences(source.sweep, source.runs, access=access, on_line=print_stderr)
    if form == "json":
        print_json({"arms": lines, "examples": differences, "missing": source.missing})
        return
    if form == "csv":
        columns, body = summary.flat_table(lines)
        rows: list[Sequence[object]] = [columns, *body]
        with naming(STANDARD_OUTPUT):
            csv.writer(sys.stdout, lineterminator="\n").writerows([[_csv_cell(cell) for cell in row] for row in rows])
        return
    for found in (summary.summary_table(lines), summary.difference_table(lines), _example_table(differences)):
        if found is not None and form == "markdown":
            print_table(*found, markdown=True)
            print_line()
        elif found is not None:
            columns, body = found
            print_wide(columns, [[number(cell) for cell in line] for line in body])
    for note in summary.summary_notes(lines):
        print_line(note)
    if len(lines) > 1 and source.sweep is not None and (first := source.sweep.arms[0].name) != lines[0]["arm"]:
        print_line(f"No run of {first}, the first arm, is there: differences are to {lines[0]['arm']}.")
    if differences:
        print_line(
            "over examples: 95% of 1,000 bootstrap samples of the test examples, paired; scores are means over seeds, "
            "differences over the seeds that both arms have."
        )


def _example_table(lines: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[object]]] | None:
    from ostinato.experiments.sweep.summary import number_text

    def text(found: dict[str, float], signed: bool) -> str:
        value = number_text(found["value"], signed=signed)
        return f"{value} [{number_text(found['low'])}, {number_text(found['high'])}]"

    if not lines:
        return None

    def said(seeds: Sequence[int]) -> str:
        return ", ".join(map(str, seeds))

    reference = next((line["reference"] for line in lines if line["reference"] is not None), None)
    difference_to = "difference" if reference is None else f"difference to {reference}"
    columns = ["over examples", "arm", "seeds", "examples", "score", difference_to, "verdict"]
    body: list[list[object]] = []
    for line in lines:
        compared = line["seeds_compared"]
        difference = "no seed of both" if compared == [] else ""
        if line["difference"] is not None:
            difference = text(line["difference"], signed=True)
            # Those of the reference that this arm lacks are seen in its own line.
            difference += "" if compared == line["seeds"] else f" (seeds {said(compared)})"
        score = text(line["score"], signed=False)
        row = [line["measure"], line["arm"], said(line["seeds"]), line["n_examples"], score, difference]
        body.append([*row, line["verdict"] or ""])
    return columns, body
