"""`ostinato demo`: a comparison of two models, in minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ostinato.cli.options import JsonOption
from ostinato.cli.output import console, print_json, print_line, print_table

_SWEEP = "demo"
_TITLE = "Reversing digits: lengths 1-10 in training, 11-13 beyond"


def demo(
    run_dir: Annotated[Path, typer.Option(help="Where to write; finished runs there are kept.")] = Path("runs/demo"),
    json: JsonOption = False,
) -> None:
    """Compare two models of equal size in a few minutes.

    A Transformer and a Universal Transformer, on data like that of their training and beyond it, three seeds each: the
    sweep `demo`, with its table and its figure.
    """
    from ostinato.experiments.sweep.figure import draw_sweep
    from ostinato.experiments.sweep.files import load_sweep
    from ostinato.experiments.sweep.rows import results_folder
    from ostinato.experiments.sweep.schedule import run_sweep
    from ostinato.experiments.sweep.watch import make_watcher

    sweep = load_sweep(_SWEEP)
    rows = run_sweep(sweep, run_dir, watcher=make_watcher(None if json else console(), print_line))
    folder = results_folder(sweep, run_dir)
    draw_sweep(rows, folder / _SWEEP, title=_TITLE, overwrite=True)
    if json:
        print_json(rows)
        return
    _print_rows(rows)
    print_line(f"written to {folder}: {', '.join(sorted(path.name for path in folder.iterdir() if path.is_file()))}")


def _print_rows(rows: list[dict[str, Any]]) -> None:
    """Print every run, then mean and spread over the seeds of each arm."""
    from ostinato.experiments.sweep.summary import number_text, summarise, summary_table

    titles = list(rows[0]["values"])
    cells = [
        [row["arm"], row["seed"], *(number_text(row["values"][title]) for title in titles), round(row["seconds"])]
        for row in rows
    ]
    print_table(["arm", "seed", *titles, "seconds"], cells, right=True)
    print_table(*summary_table(summarise(rows)), title="mean ± standard deviation over seeds", right=True)
