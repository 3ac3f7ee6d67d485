"""`ostinato average`: the mean of a run's checkpoints."""

from __future__ import annotations

from typing import Annotated

import typer

from ostinato.cli.options import JsonOption, RunArgument


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("average", epilog="Example: ostinato average runs/x --best 5")(average)


def average(
    run: RunArgument,
    best: Annotated[
        int | None, typer.Option(min=1, help="How many of the best, by the run's selection.", show_default=False)
    ] = None,
    last: Annotated[int | None, typer.Option(min=1, help="How many of the newest.", show_default=False)] = None,
    json: JsonOption = False,
) -> None:
    """Average a run's best or newest checkpoints.

    It is kept in the run as average-best-N or average-last-N, a name for --checkpoint. `--checkpoint best:N` averages
    by itself. A run keeps as many as its training.keep_best and training.keep_last say.
    """
    from ostinato.cli.output import print_json, say
    from ostinato.evaluation.averaging import average_checkpoints, read_members
    from ostinato.evaluation.loading import check_run

    if (best is None) == (last is None):
        raise typer.BadParameter("say how many: either --best N or --last N", param_hint="--best / --last")
    check_run(run)
    folder = average_checkpoints(run, "last", last) if last else average_checkpoints(run, "best", best or 1)
    members = read_members(folder) or []
    if json:
        print_json({"checkpoint": folder.name, "of": members})
        return
    say(f"{folder.name}: the mean of")
    for member in members:
        say(f"  {member['checkpoint']}" + ("" if member["value"] is None else f"  {member['value']:.6g}"))
