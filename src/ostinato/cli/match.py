"""`ostinato match`: runs compared at equal perplexity or equal held-out loss."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ostinato.cli.options import JsonOption

EPILOG = "Example: ostinato match perplexity runs/depth-*"
app = typer.Typer(name="match", help="Compare runs where they are equally good.", epilog=EPILOG, no_args_is_help=True)

RunsArgument = Annotated[list[Path], typer.Argument(metavar="RUN", help="Run directories.")]


@app.command("perplexity", epilog=EPILOG)
def perplexity(runs: RunsArgument, json: JsonOption = False) -> None:
    """Name the checkpoint of each run whose held-out perplexity is that of a shallower run at its end.

    To be fine-tuned alike: training.init_from=RUN training.init_checkpoint=CHECKPOINT. Runs keep as many checkpoints as
    training.keep_last says.
    """
    from ostinato.cli.output import print_json, print_table
    from ostinato.experiments.compare.matched_runs import match_perplexity, read_curve

    rows = match_perplexity([read_curve(run) for run in runs])
    if json:
        print_json(rows)
        return
    names = ["reference", "run", "depth", "perplexity", "reached", "checkpoint", "own", "mismatch"]
    print_table(names, [[row[name] for name in names] for row in rows])


@app.command("loss", epilog="Example: ostinato match loss runs/cogs-* --split gen --metric exact_match")
def loss(
    runs: RunsArgument,
    split: Annotated[str, typer.Option("--split", help="Split that is scored.")] = "test",
    metric: Annotated[str, typer.Option("--metric", help="Its score.")] = "exact_match",
    n_points: Annotated[int, typer.Option(min=1, help="Losses to compare at.")] = 5,
    max_examples: Annotated[int | None, typer.Option(min=1, help="Score so many, spread evenly.")] = None,
    json: JsonOption = False,
) -> None:
    """Score every saved checkpoint of each run on a split, and compare runs at equal held-out loss."""
    from ostinato.cli.output import print_json, print_table
    from ostinato.experiments.compare.matched_runs import match_loss, read_curve, score_pairs

    pairs = {str(run): score_pairs(run, read_curve(run), split, metric, max_examples=max_examples) for run in runs}
    rows = match_loss(pairs, n_points)
    if json:
        print_json({"pairs": pairs, "matched": rows})
        return
    print_table(["loss", *pairs], [[row["loss"], *(row["scores"][run] for run in pairs)] for row in rows])
