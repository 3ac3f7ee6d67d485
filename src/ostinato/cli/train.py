"""`ostinato train`: a recipe becomes a run directory."""

from __future__ import annotations

import shlex
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from ostinato.cli.options import AccessOption, JsonOption, OverridesArgument, RecipeArgument
from ostinato.cli.output import console, print_json, print_line, rank
from ostinato.cli.results import print_published, print_splits
from ostinato.data.disk import make_folder
from ostinato.errors import CheckpointError


def train(
    recipe: RecipeArgument,
    overrides: OverridesArgument = None,
    run_dir: Annotated[Path | None, typer.Option(help="Where to write; default: runs/ and the recipe's name.")] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on where a run stopped; training.n_updates=N makes it longer, where its schedule is constant or "
            "inverse_sqrt.",
        ),
    ] = False,
    access: AccessOption = None,
    json: JsonOption = False,
) -> None:
    """Train a model and write a run directory.

    The best checkpoint is evaluated on the recipe's splits at the end. Several processes: start them with
    torchrun --nproc_per_node N -m ostinato train RECIPE.
    """
    from ostinato.tasks.recipes import load_recipe
    from ostinato.tasks.registry import build_task
    from ostinato.training import train as train_recipe
    from ostinato.training.reporter import make_reporter

    resolved = load_recipe(recipe, overrides or [])
    directory = run_dir or default_directory(recipe, resolved.name, resume, is_main=rank() == 0)
    is_quiet = json or rank() > 0
    if not is_quiet:
        print_line(f"run directory: {directory}")
    reporter = make_reporter(None if is_quiet else console())
    try:
        result = train_recipe(resolved, directory, resume=resume, access=access, reporter=reporter)
    finally:
        if run_dir is None:
            with suppress(OSError):
                directory.rmdir()  # made for a run that failed before it wrote anything
    if rank():
        return
    if json:
        print_json(result)
    else:
        task = build_task(resolved.task, resolved.data, access)
        print_splits(result["splits"], task.forced)
        print_published(resolved.reference, task.config, result["splits"])
        known = {task.train_split, resolved.training.selection.split, *result["splits"]}
        if left := [split for split in task.splits() if split not in known]:
            command = shlex.join(["ostinato", "evaluate", str(directory), "--split", left[0]])
            print_line(f"not scored (evaluation.splits): {', '.join(left)}; {command}")
        print_line(f"results: {directory / 'results.json'}")


def default_directory(recipe: str, name: str, resume: bool, *, is_main: bool = True) -> Path:
    """Return the directory to write to where the user names none.

    A resumed run is found where it was written; a new one never goes into a directory that is there, and its own is
    made at once, so that of several that start together each has one.

    Args:
        is_main: False: make none. Of several processes of one run that of rank 0 is used.
    """
    from ostinato.config.files import RUN_RECIPE, RUN_VERSIONS

    given = Path(recipe)
    if resume and (given / RUN_RECIPE).is_file():
        return given
    if resume and given.name == RUN_RECIPE and (given.parent / RUN_VERSIONS).is_file():
        return given.parent
    first = Path("runs") / name.replace("/", "-")
    if resume or not is_main:
        return first
    for path in (first, *(first.with_name(f"{first.name}-{n}") for n in range(2, 100_000))):
        with suppress(FileExistsError):
            make_folder(path, exist_ok=False)
            return path
    raise CheckpointError(f"{first}: there are too many runs of this name: name another with --run-dir")
