"""`ostinato table`: finished runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ostinato.cli.options import JsonOption


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("table", epilog="Example: ostinato table runs/scan-* --jsonl docs/results/scan.jsonl")(table)


def table(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="Run directories, or files of JSON lines written by --jsonl."),
    ],
    source_length: Annotated[int, typer.Option(min=1, help="Source tokens of the pass whose MACs are counted.")] = 16,
    target_length: Annotated[int, typer.Option(min=1, help="Target tokens of that pass.")] = 16,
    jsonl: Annotated[Path | None, typer.Option("--jsonl", help="Write the rows to this file as well.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    json: JsonOption = False,
) -> None:
    """Show what finished runs cost and scored, one line a split.

    Files that a speed study wrote are shown as tables of speeds.
    """
    from ostinato.cli.output import print_json, print_table, say
    from ostinato.experiments import results

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
    from ostinato.experiments.speed import speed_table

    return speed_table(rows)
