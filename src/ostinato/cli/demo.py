"""`ostinato demo`: the main job in minutes."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ostinato.cli.options import JsonOption

if TYPE_CHECKING:
    from ostinato.experiments.comparison import Row


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo", epilog="Example: ostinato demo --run-dir runs/demo")(demo)


def demo(
    run_dir: Annotated[Path, typer.Option("--run-dir", help="Where to write; finished runs there are kept.")] = Path(
        "runs/demo"
    ),
    json: JsonOption = False,
) -> None:
    """Compare two models of equal size in a few minutes.

    A Transformer and a Universal Transformer, on data like that of their training and beyond it, three seeds each.
    """
    from ostinato.cli.output import console, print_json, say
    from ostinato.experiments.demo import run_demo
    from ostinato.training.reporter import make_reporter

    rows = run_demo(run_dir, make_reporter(None if json else console()))
    if json:
        print_json([asdict(row) for row in rows])
        return
    _print_rows(rows)
    say(f"written to {run_dir}: {', '.join(sorted(path.name for path in run_dir.iterdir() if path.is_file()))}")


def _print_rows(rows: list[Row]) -> None:
    """Print every run, then mean and spread over the seeds of each arm."""
    from ostinato.cli.output import print_table
    from ostinato.experiments.comparison import summary

    titles = list(rows[0].metrics)
    source, target = rows[0].macs_lengths
    columns = ["arm", "seed", "parameters", f"MACs ({source} to {target} tokens)", *titles, "seconds"]
    cells = [
        [row.arm, row.seed, row.parameters, row.macs, *(_percent(row.metrics[t]) for t in titles), round(row.seconds)]
        for row in rows
    ]
    print_table(columns, cells)
    spreads = [
        [arm, *(f"{_percent(mean)} ± {_percent(spread)}" for mean, spread in metrics.values())]
        for arm, metrics in summary(rows)
    ]
    print_table(["mean ± standard deviation over seeds", *titles], spreads)


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"
