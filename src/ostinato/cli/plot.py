"""`ostinato plot`: one figure of a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ostinato.cli.options import STORE, AccessOption, InputOption, OverwriteOption, StoreOption, read_inputs
from ostinato.cli.output import print_line, print_stderr


def plot(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A sweep's file or name, or its results.jsonl.")],
    x: Annotated[
        str | None, typer.Option(help="A measure, parameters, macs, n_updates, seconds; default: arms.")
    ] = None,
    y: Annotated[list[str] | None, typer.Option(help="Measure to draw; may be repeated; default: all.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where to write, without .svg and .png; new files.")] = None,
    overwrite: OverwriteOption = False,
    store: StoreOption = STORE,
    given: InputOption = None,
    access: AccessOption = None,
) -> None:
    """Draw a sweep: points of seeds, bars of means.

    Writes SVG and PNG, beside the sweep's results unless told otherwise; an earlier figure there is replaced.
    """
    from ostinato.analysis.drawing import check_figure
    from ostinato.experiments.sweep.figure import draw_sweep
    from ostinato.experiments.sweep.rows import open_sweep, results_folder

    if out is not None:
        check_figure(out, overwrite=overwrite)
    source = open_sweep(file, store, access, read_inputs(given))
    for line in source.missing:
        print_stderr(f"{line['arm']}, seed {line['seed']}: {line['why']}")
    folder = file.parent if source.sweep is None else results_folder(source.sweep, store)
    target = out or folder / ("plot" if x is None else f"plot-{x.replace('/', '-')}")
    replace = overwrite or out is None
    for path in draw_sweep(source.rows, target, x=x, y=y or (), title=source.rows[0]["sweep"], overwrite=replace):
        print_line(f"written: {path}")
