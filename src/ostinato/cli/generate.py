"""`ostinato generate`: one line in, one line out."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import tee
from pathlib import Path
from typing import Annotated

import typer

from ostinato.cli.options import BeamOption, CheckpointOption, DeviceOption, JsonOption, RunArgument, StepsOption


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("generate", epilog="Example: echo 'jump twice' | ostinato generate runs/x --beam 4")(generate)


def generate(
    run: RunArgument,
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILES", help="One source a line; default: standard input.", show_default=False),
    ] = None,
    checkpoint: CheckpointOption = "best",
    beam: BeamOption = None,
    n_steps: StepsOption = None,
    max_length: Annotated[int | None, typer.Option(min=1, help="Longest output, in tokens.")] = None,
    window: Annotated[int, typer.Option(min=1, help="Lines read before the first is answered.")] = 4096,
    device: DeviceOption = "auto",
    json: JsonOption = False,
) -> None:
    """Write one output for every line of input.

    A language model writes what follows the line. A line that cannot be read gets an empty output, a message on
    standard error, and exit code 2 at the end. With --json every output is an object with source, text, score and
    more, or source and error.
    """
    from ostinato.cli.output import complain, json_line, say
    from ostinato.errors import DataError
    from ostinato.evaluation.loading import load

    loaded = load(run, checkpoint=checkpoint, device=device)
    given = {"beam": beam, "max_length": max_length}
    settings = {key: value for key, value in given.items() if value is not None}
    # Somebody typing wants the answer now; a file is faster in long batches.
    window = 1 if not files and sys.stdin.isatty() else window
    sources, texts = tee(_lines(files or []))
    failed = False
    for source, output in zip(sources, loaded.stream(texts, n_steps=n_steps, window=window, **settings), strict=True):
        if isinstance(output, DataError):
            failed = True
            complain(str(output))
            say(json_line({"source": source, "error": str(output)}) if json else "")
        else:
            say(json_line({"source": source, **asdict(output)}) if json else output.text)
    if failed:
        raise typer.Exit(DataError.exit_code)


def _lines(files: Iterable[Path]) -> Iterator[str]:
    """Yield the lines of the files in turn, or of standard input where there are none."""
    paths = list(files)
    if not paths:
        yield from (line.rstrip("\r\n") for line in sys.stdin)
    for path in paths:
        with path.open(encoding="utf-8") as stream:
            yield from (line.rstrip("\r\n") for line in stream)
