"""`ostinato table`: finished runs side by side, and sweeps by arm."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ostinato.cli.options import JsonOption, MirrorOption
from ostinato.cli.sweep import STORE, InputOption, StoreOption


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("table", epilog="Example: ostinato table runs/scan-* --jsonl docs/results/scan.jsonl")(table)


def table(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN",
            help="Run directories, files written by --jsonl, or one sweep: its file, name or results.jsonl.",
        ),
    ],
    source_length: Annotated[int, typer.Option(min=1, help="Source tokens of the pass whose MACs are counted.")] = 16,
    target_length: Annotated[int, typer.Option(min=1, help="Target tokens of that pass.")] = 16,
    jsonl: Annotated[Path | None, typer.Option("--jsonl", help="Write the rows to this file as well.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV (of a sweep).")] = False,
    examples: Annotated[
        bool, typer.Option("--examples", help="Of a sweep: intervals over test examples too; decodes what is not kept.")
    ] = False,
    store: StoreOption = STORE,
    given: InputOption = None,
    mirror: MirrorOption = None,
    json: JsonOption = False,
) -> None:
    """Show what runs cost and scored, or a sweep by arm.

    Of a sweep: mean, standard deviation and number over the seeds, and paired differences to the first arm. Files that
    a speed study wrote are shown as tables of speeds.
    """
    from ostinato.cli.claims import inputs_of
    from ostinato.cli.output import print_json, print_table, say
    from ostinato.cli.sweep_table import show_sweep
    from ostinato.data.registry import DataAccess
    from ostinato.experiments import results
    from ostinato.experiments.sweep.rows import is_sweep

    if any(map(is_sweep, runs)):
        form = "json" if json else "csv" if csv else "markdown" if markdown else "text"
        if len(runs) > 1 or jsonl is not None:
            raise typer.BadParameter("a sweep is shown alone, and has its results.jsonl already", param_hint="RUN")
        access = DataAccess.default(mirror)
        show_sweep(runs[0], store, form, examples=examples, access=access, inputs=inputs_of(given or []))
        return
    if csv or examples:
        raise typer.BadParameter("is for a sweep: name its file", param_hint="--csv" if csv else "--examples")
    rows = []
    for run in runs:
        if run.is_file():
            rows += results.read_rows(run)
        else:
            rows.append(results.run_row(run, (source_length, target_length)))
    if jsonl is not None:
        results.write_rows(rows, jsonl)
    if json:
        print_json(rows)
        return
    columns, lines = _table(rows)
    if markdown:
        say(results.markdown(columns, lines).rstrip())
    else:
        print_table(columns, lines)


def _table(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[object]]]:
    """Return the table of runs, or of measured speeds.

    Raises:
        ConfigError: rows of both.
    """
    from ostinato.errors import ConfigError
    from ostinato.experiments import results

    n_speeds = sum("workload" in row for row in rows)
    if n_speeds == 0:
        return results.table(rows)
    if n_speeds < len(rows):
        raise ConfigError(f"{n_speeds} of {len(rows)} rows are measured speeds, the others runs: show them apart")
    from ostinato.experiments.timing.speed import speed_table

    return speed_table(rows)
