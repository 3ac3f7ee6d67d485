"""`ostinato convert`: a dense run with shared weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from ostinato.cli.options import AccessOption, CheckpointOption, OverridesArgument, RunArgument, options_given
from ostinato.cli.output import print_line


def convert(
    context: typer.Context,
    run: RunArgument,
    run_dir: Annotated[Path, typer.Option(metavar="NEW", help="Where the new run is written: a new folder.")],
    settings: OverridesArgument = None,
    shared: Annotated[
        Literal["average", "first", "last", "stepwise"], typer.Option(help="How shared weights are made.")
    ] = "average",
    noise: Annotated[float, typer.Option(min=0.0, help="Noise on copied experts, in standard deviations.")] = 0.0,
    alike: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Let steps whose states are alike share: N sets of weights a stack."),
    ] = None,
    split: Annotated[str | None, typer.Option(help="Split on which states are compared (--alike).")] = None,
    max_examples: Annotated[int, typer.Option(min=1, help="Its examples, spread evenly (--alike).")] = 500,
    access: AccessOption = None,
    checkpoint: CheckpointOption = None,
) -> None:
    """Make a run with shared weights of one without.

    The settings say what the new model is: shared over depth, in a loop with prelude and coda, with low-rank deltas
    (delta_rank), with one wide feed-forward, or with experts. With --alike steps share weights where states change
    least between them. It has as many steps; training.init_from=NEW trains it on.
    """
    from ostinato.evaluation.loading import load
    from ostinato.training.converted import convert_run

    if alike is None and (named := options_given(context, ("split", "max_examples"))):
        raise typer.BadParameter("states are compared with --alike", param_hint=named)
    changed = settings or []
    of_data = [one for one in changed if one.startswith("data.")]
    loaded = load(run, checkpoint=checkpoint, device="cpu", overrides=of_data)
    if alike is not None:
        from ostinato.analysis.alike import shared_by_likeness
        from ostinato.analysis.analyze import subjects

        (subject,) = subjects([loaded], split, max_examples, access)
        by_likeness, similarities = shared_by_likeness(subject, alike)
        for name, values in similarities.items():
            print_line(f"{name}: similarity of neighbours {', '.join(f'{value:.3f}' for value in values)}")
        for setting in by_likeness:
            print_line(setting)
        changed = [*by_likeness, *changed]
    found = convert_run(loaded, changed, run_dir, shared, noise)
    before, after = loaded.model.n_parameters(), found.model.n_parameters()
    print_line(f"{run_dir}: {before:,} parameters became {after:,}")
