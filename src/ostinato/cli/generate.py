"""`ostinato generate`: one line in, one line out."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import tee
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ostinato.cli.options import (
    SEARCH,
    BeamOption,
    CheckpointOption,
    DeviceOption,
    HaltingThresholdOption,
    RunArgument,
    SetOption,
    StepsOption,
    one_of,
)
from ostinato.cli.output import json_line, print_line, print_stderr
from ostinato.cli.results import TUNED, describe_average

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ostinato.data.inputs import Input, InputReader
    from ostinato.decoding.generate import Generation
    from ostinato.errors import DataError
    from ostinato.evaluation.loading import LoadedRun

_UNREADABLE_LINES = 1
_SAMPLING, _INPUT, _OUTPUT = "Sampling", "Input", "Output"


def generate(
    run: RunArgument,
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILES", help="Files of text or of JSON lines; default: standard input."),
    ] = None,
    checkpoint: CheckpointOption = "best",
    n_steps: StepsOption = None,
    threshold: HaltingThresholdOption = None,
    device: DeviceOption = "auto",
    beam: BeamOption = None,
    n_best: Annotated[
        int | None, typer.Option(min=1, help="Outputs of every line, at most the beam width.", rich_help_panel=SEARCH)
    ] = None,
    min_length: Annotated[
        int | None, typer.Option(min=0, help="Shortest output, in tokens.", rich_help_panel=SEARCH)
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(min=1, help="Longest output, in tokens.", rich_help_panel=SEARCH)
    ] = None,
    settings: SetOption = None,
    sample: Annotated[
        bool, typer.Option("--sample", help="Draw the outputs instead of searching.", rich_help_panel=_SAMPLING)
    ] = False,
    temperature: Annotated[float | None, typer.Option(help="Below 1 is sharper.", rich_help_panel=_SAMPLING)] = None,
    top_k: Annotated[
        int | None, typer.Option(min=1, help="Draw among so many tokens only.", rich_help_panel=_SAMPLING)
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the draws.", rich_help_panel=_SAMPLING)] = None,
    input_format: Annotated[
        str,
        typer.Option(
            metavar="FORMAT",
            help="text, json, or auto: JSON lines where a file's name says so.",
            rich_help_panel=_INPUT,
        ),
    ] = "auto",
    prefix: Annotated[str, typer.Option(help="Beginning of every output.", rich_help_panel=_INPUT)] = "",
    prefix_field: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="JSON lines: key of the output's beginning.", rich_help_panel=_INPUT),
    ] = None,
    window: Annotated[
        int, typer.Option(min=1, help="Lines that are read and batched together.", rich_help_panel=_INPUT)
    ] = 4096,
    scores: Annotated[
        bool, typer.Option("--scores", help="Write the score before every output.", rich_help_panel=_OUTPUT)
    ] = False,
    token_scores: Annotated[
        bool,
        typer.Option(
            "--token-scores", help="With --json: the log-probability of every token.", rich_help_panel=_OUTPUT
        ),
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Write one JSON object a line.", rich_help_panel=_OUTPUT)
    ] = False,
) -> None:
    """Write one output for every line of input.

    A line is a source, or a JSON object that has it under the key the run was trained with; a language model that was
    trained on texts without sources writes what follows the line. A line that cannot be read gets an empty output, a
    message on standard error, and exit code 1 at the end. With --json every output is an object: the input's own
    fields, then prediction, score and more, or error.
    """
    from ostinato.evaluation.loading import load

    if token_scores and not json:
        raise typer.BadParameter("they have no place in plain text: add --json", param_hint="--token-scores")
    loaded = load(
        run, checkpoint=checkpoint, device=device, overrides=settings or [], halting_threshold=halting_threshold
    )
    if loaded.halting_threshold_from == "tuned":
        print_stderr(f"halting threshold {max(loaded.model.halting_thresholds().values()):g}, {TUNED}")
    if line := describe_average(loaded.checkpoint):
        print_stderr(line)
    decoding = _decoding(beam, n_best, sample, min_length, max_length, token_scores)
    decoding |= _sampling(loaded, decoding, temperature=temperature, top_k=top_k, seed=seed)
    reader = _reader(loaded, input_format, prefix, prefix_field)
    has_lists = loaded.decoding(**decoding).n_best > 1
    write = _JsonWriter(has_lists) if json else _TextWriter(has_lists, scores)
    paths = files or []
    # Typed lines are answered one by one; a file is faster in long batches.
    window = 1 if not paths and sys.stdin.isatty() else window
    with _progress(lambda: sum(1 for _ in reader.read(paths)) if paths else None, window > 1) as count:
        inputs, texts = tee(reader.read(paths, sys.stdin.buffer))
        outputs = loaded.stream(texts, n_steps=n_steps, window=window, on_progress=count, **decoding)
        failed = _write_all(inputs, outputs, write)
    if failed:
        raise typer.Exit(_UNREADABLE_LINES)


@contextmanager
def _progress(total: Callable[[], int | None], wanted: bool = True) -> Iterator[Callable[[int], None] | None]:
    """Draw a bar of lines on standard error; yield the function that advances it.

    Nothing is drawn, and None yielded, where standard error is no terminal, or standard output is one too: the output
    itself then shows the progress.

    Args:
        total: called only where a bar is drawn; None where the number of lines is unknown.
    """
    if not wanted or not sys.stderr.isatty() or sys.stdout.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), BarColumn(), MofNCompleteColumn(), TextColumn("lines"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total())
        yield lambda n: progress.advance(task, n)


def _write_all(
    inputs: Iterable[Input], outputs: Iterable[Generation | DataError], write: _JsonWriter | _TextWriter
) -> bool:
    """Write each output when it is there; return whether an input could not be read."""
    from ostinato.errors import DataError

    failed = False
    for number, (given, output) in enumerate(zip(inputs, outputs, strict=True), start=1):
        if isinstance(output, DataError):
            failed = True
            print_stderr(str(output))
        for line in write(number, given, output):
            print_line(line)
    return failed


def _decoding(
    beam: int | None, n_best: int | None, sample: bool, min_length: int | None, max_length: int | None, tokens: bool
) -> dict[str, Any]:
    """Return the settings of the run that the options change."""
    if sample and beam is not None:
        raise typer.BadParameter("a beam is searched and not sampled: leave one of them out", param_hint="--sample")
    found: dict[str, Any] = {"strategy": "sample"} if sample else {}
    # A length that is given holds whatever the recipe adds for long sources.
    for name, value in (("min_length", min_length), ("max_length", max_length)):
        found |= {} if value is None else {name: value, f"{name}_ratio": 0.0}
    found |= {} if beam is None else {"beam": beam}
    found |= {} if n_best is None else {"n_best": n_best}
    return found | ({"token_scores": True} if tokens else {})


def _sampling(loaded: LoadedRun, decoding: dict[str, Any], **options: float | None) -> dict[str, Any]:
    """Return the options of sampling that were given, and refuse them where nothing is sampled."""
    given = {name: value for name, value in options.items() if value is not None}
    if given and loaded.decoding(**decoding).strategy != "sample":
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise typer.BadParameter("nothing is sampled: add --sample", param_hint=names)
    return given


def _reader(loaded: LoadedRun, input_format: str, prefix: str, prefix_field: str | None) -> InputReader:
    from ostinato.data.inputs import InputReader

    if loaded.reads_prompts and (prefix or prefix_field):
        reason = "this language model's input is itself the beginning of its output"
        raise typer.BadParameter(reason, param_hint="--prefix")
    data, setting = loaded.recipe.data, "data.text_field" if loaded.reads_prompts else "data.source_field"
    name = data.text_field if loaded.reads_prompts else data.source_field
    chosen = one_of("--input-format", input_format, "auto", "text", "json")
    return InputReader(name, setting, prefix_field, prefix, chosen)


class _TextWriter:
    """Writes a line for each input; with n-best lists a line for each output: number of the input, score, output."""

    def __init__(self, has_lists: bool, scores: bool) -> None:
        self.has_lists, self.scores = has_lists, scores

    def __call__(self, number: int, given: Input, output: Generation | Exception) -> list[str]:
        """Return the lines of one input."""
        found = [] if isinstance(output, Exception) else [output, *output.others]
        rows = [[f"{one.score:.6f}", re.sub(r"[\r\n]+", " ", one.text)] for one in found] or [["", ""]]
        if self.has_lists:
            return ["\t".join([str(number), *row]) for row in rows]
        return ["\t".join(rows[0]) if self.scores else rows[0][1]]


class _JsonWriter:
    """Writes an object for each input: its own fields, the output, and with n-best lists all outputs."""

    def __init__(self, has_lists: bool) -> None:
        self.has_lists = has_lists

    def __call__(self, number: int, given: Input, output: Generation | Exception) -> list[str]:
        """Return the line of one input."""

        if isinstance(output, Exception):
            return [json_line({**given.fields, "error": str(output)})]
        found = {**given.fields, **_fields(output)}
        if self.has_lists:
            found["n_best"] = [_fields(one) for one in (output, *output.others)]
        return [json_line(found)]


def _fields(output: Generation) -> dict[str, Any]:
    found: dict[str, Any] = {
        "prediction": output.text,
        "score": output.score,
        "log_prob": output.log_prob,
        "finished": output.finished,
        "n_tokens": output.n_tokens,
    }
    if output.tokens is not None:
        found |= {"tokens": output.tokens, "token_log_probs": output.token_log_probs}
    return found
