"""`ostinato convert`: a dense run with shared weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ostinato.cli.options import CheckpointOption, OverridesArgument, RunArgument, one_of
from ostinato.cli.output import print_line

_SHARED = ("average", "first", "last", "stepwise")


def convert(
    run: RunArgument,
    run_dir: Annotated[Path, typer.Option(metavar="NEW", help="Where the new run is written: a new folder.")],
    settings: OverridesArgument = None,
    shared: Annotated[
        str, typer.Option(metavar="WEIGHTS", help="What steps share: average, first, last or stepwise.")
    ] = "average",
    noise: Annotated[float, typer.Option(min=0.0, help="Of copies as experts, in standard deviations.")] = 0.0,
    checkpoint: CheckpointOption = None,
) -> None:
    """Make a run with shared weights of one without.

    The settings say what the new model is: shared over depth, in a loop with prelude and coda, with low-rank deltas
    (delta_rank), with one wide feed-forward, or with experts. It has as many steps; training.init_from=NEW trains
    it on.
    """
    from ostinato.evaluation.loading import load
    from ostinato.training.converted import convert_run

    loaded = load(run, checkpoint=checkpoint, device="cpu")
    found = convert_run(loaded, settings or [], run_dir, one_of("--shared", shared, *_SHARED), noise)
    before, after = loaded.model.n_parameters(), found.model.n_parameters()
    print_line(f"{run_dir}: {before:,} parameters became {after:,}")
