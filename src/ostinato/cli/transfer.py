"""`ostinato transfer`: scores by language, over seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ostinato.cli.options import JsonOption


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("transfer", epilog="Example: ostinato transfer runs/nli-1 runs/nli-2 runs/nli-3")(transfer)


def transfer(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Finished runs of one recipe, one a seed.")],
    split: Annotated[str, typer.Option("--split", help="Split that was scored.")] = "test",
    metric: Annotated[str, typer.Option("--metric", help="Score.")] = "accuracy",
    column: Annotated[str, typer.Option("--by", metavar="COLUMN", help="Column of the languages.")] = "lang",
    json: JsonOption = False,
) -> None:
    """Average scores over languages, then over seeds."""
    from ostinato.cli.output import print_json, print_table
    from ostinato.experiments.compare.transfer import transfer as average

    found = average(runs, split, metric, column)
    if json:
        print_json(found)
        return
    rows: list[list[object]] = [[language, value] for language, value in found["by"].items()]
    rows += [["mean", found["mean"]], ["sd over seeds", found["sd"]]]
    print_table([f"{split} by {column}, {found['n_runs']} runs", metric], rows)
