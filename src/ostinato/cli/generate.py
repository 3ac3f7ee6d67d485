"""`ostinato generate`: one line in, one line out."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import tee
from pathlib import Path
from typing import Annotated, Any

import typer

from ostinato.cli.options import (
    BeamOption,
    CheckpointOption,
    DeviceOption,
    HaltingThresholdOption,
    JsonOption,
    RunArgument,
    StepsOption,
)
from ostinato.cli.options import halting_threshold as read_threshold


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
    halting_threshold: HaltingThresholdOption = None,
    max_length: Annotated[int | None, typer.Option(min=1, help="Longest output, in tokens.")] = None,
    window: Annotated[int, typer.Option(min=1, help="Lines read before the first is answered.")] = 4096,
    device: DeviceOption = "auto",
    json: JsonOption = False,
) -> None:
    """Write one output for every line of input.

    A line is a source; a language model that was trained on texts without sources writes what follows the line. One
    that cannot be read gets an empty output, a message on standard error, and exit code 2 at the end. With --json
    every output is an object with source, text, score and more, or source and error.
    """
    from ostinato.cli.output import complain, json_line, say
    from ostinato.cli.results import TUNED
    from ostinato.errors import DataError
    from ostinato.evaluation.loading import load

    threshold = read_threshold(halting_threshold)
    loaded = load(run, checkpoint=checkpoint, device=device, halting_threshold=threshold)
    if loaded.halting_threshold_from == "tuned":
        complain(f"halting threshold {max(loaded.model.halting_thresholds().values()):g}, {TUNED}")
    settings: dict[str, Any] = {} if beam is None else {"beam": beam}
    if max_length is not None:  # The longest output, whatever the recipe adds for long sources.
        settings |= {"max_length": max_length, "max_length_ratio": 0.0}
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
    from ostinato.data.lines import decode_lines, read_lines

    paths = list(files)
    if not paths:
        # As bytes, because the text layer follows the locale and ends lines at a lone carriage return.
        yield from (text for _, text in decode_lines(sys.stdin.buffer, "standard input"))
    for path in paths:
        yield from (text for _, text in read_lines(path))
