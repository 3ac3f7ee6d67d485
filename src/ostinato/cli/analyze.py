"""`ostinato analyze`: look inside finished runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ostinato.cli.options import (
    AccessOption,
    CheckpointOption,
    DeviceOption,
    JsonOption,
    NoVerifyOption,
    SetOption,
    run_settings,
)
from ostinato.cli.output import print_json, print_line, progress_bar


def analyze(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Run directories; others are compared with the first.")
    ],
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="An analysis; may be repeated; default: all that apply.")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Split that the models read; default: the first one of the run's recipe.")
    ] = None,
    max_examples: Annotated[int, typer.Option(min=1, help="Number of examples, spread evenly over the split.")] = 2000,
    example: Annotated[
        int | None,
        typer.Option(
            help="Example that analyses of one example show: its number among those read, from 1; default: the one of "
            "median length."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write to; default: analysis in the first run.")] = None,
    checkpoint: CheckpointOption = None,
    settings: SetOption = None,
    no_verify: NoVerifyOption = False,
    device: DeviceOption = "auto",
    access: AccessOption = None,
    json: JsonOption = False,
) -> None:
    """Look inside runs, in figures and numbers.

    Makes every analysis that applies (budget, learning, accuracy, depth, attention, experts, similarity, spectra),
    writes its numbers and figures, and one report.html that opens offline. Runs on as many CPU threads as the first run
    was trained with. A folder that is there is written to again: an earlier report and its files are replaced.
    """
    from ostinato.analysis import analyze as logic
    from ostinato.evaluation.loading import check_run, load
    from ostinato.training.threads import cpu_threads

    logic.choose(only)
    for path in runs:
        check_run(path)
    folder = out or runs[0] / "analysis"
    logic.check_folder(folder)
    how: dict[str, Any] = {"checkpoint": checkpoint, "device": device, "verify": not no_verify}
    loaded = [load(run, overrides=run_settings(settings), **how) for run in runs]
    given = logic.subjects(loaded, split, max_examples, access, example)
    # With as many threads as it was trained with: more are slower for small models, above all beside other work.
    threads = cpu_threads(loaded[0].recipe.training.n_threads)
    with threads, progress_bar("examples", not json) as (on_start, on_progress):
        found = logic.analyze(given, folder, only=only, on_start=on_start, on_progress=on_progress)
    if json:
        files = [str(path) for path in found.files]
        print_json({"report": str(found.report), "found": found.found, "left_out": found.left_out, "files": files})
        return
    for run in loaded:
        if line := run.mean_line:
            print_line(line)
    for name in found.found:
        print_line(f"made {name}")
    for name, why in found.left_out.items():
        print_line(f"left out {name}: {why}")
    print_line(f"wrote {found.report} and {len(found.files) - 1} files beside it")
