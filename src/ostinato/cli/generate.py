"""`ostinato generate`: one line in, one line out."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from itertools import tee
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ostinato.cli.options import (
    SEARCH,
    AddressOption,
    BatchExecutorOption,
    BeamOption,
    CachedRoundsOption,
    CheckpointOption,
    DeviceOption,
    ExitOption,
    ExitScopeOption,
    GpusOption,
    HaltingThresholdOption,
    JobsOption,
    JournalOption,
    NoVerifyOption,
    RoundLengthsOption,
    RunArgument,
    SetOption,
    StepsOption,
    run_settings,
)
from ostinato.cli.output import print_stderr, print_text, progress_bar
from ostinato.cli.results import describe_threshold
from ostinato.data.disk import as_json
from ostinato.errors import DataError
from ostinato.system_errors import kind_of

if TYPE_CHECKING:
    from ostinato.data.inputs import Input, InputReader
    from ostinato.decoding.generate import Generation
    from ostinato.evaluation.loading import LoadedRun

_UNREADABLE_LINES = 1
_LINE = 32
"""Tokens of a line, as `ostinato plan` counts them, where memory is lacking."""
_SAMPLING, _INPUT, _OUTPUT = "Sampling", "Input", "Output"
_OWN_FIELDS = frozenset(
    ("prediction", "score", "log_prob", "finished", "n_tokens", "tokens", "token_log_probs", "n_best", "error")
)
"""Keys of outputs with --json."""


def generate(
    run: RunArgument,
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILES", help="Files of text, JSON lines or columns (.tsv, .csv); default: standard input."
        ),
    ] = None,
    checkpoint: CheckpointOption = None,
    no_verify: NoVerifyOption = False,
    n_steps: StepsOption = None,
    threshold: HaltingThresholdOption = None,
    exit: ExitOption = None,
    exit_scope: ExitScopeOption = "token",
    round_lengths: RoundLengthsOption = None,
    cached_rounds: CachedRoundsOption = None,
    device: DeviceOption = "auto",
    beam: BeamOption = None,
    n_best: Annotated[
        int | None, typer.Option(min=1, help="Outputs of every line; the beam is as wide.", rich_help_panel=SEARCH)
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
        Literal["auto", "text", "json"],
        typer.Option(
            help="text, json, or auto: what a file's name says; else JSON where the first line is such an object.",
            rich_help_panel=_INPUT,
        ),
    ] = "auto",
    prefix: Annotated[str, typer.Option(help="Beginning of every output.", rich_help_panel=_INPUT)] = "",
    prefix_field: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="JSON lines, columns: key of the output's beginning.", rich_help_panel=_INPUT),
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
    jobs: JobsOption = 1,
    executor: BatchExecutorOption = "local",
    address: AddressOption = None,
    gpus: GpusOption = 0,
    journal: JournalOption = None,
) -> None:
    """Write one output for every line of input.

    A line is a source, or a JSON object that has it under the key the run was trained with, or a row of a file of
    columns; a language model that was trained on texts without sources writes what follows the line. A line that
    cannot be read gets an empty output, a message on standard error, and exit code 1 at the end. With --json every
    output is an object: the input's own fields, then prediction, score and more, or error.
    """
    from ostinato.budget.out_of_memory import noting_plan
    from ostinato.evaluation.loading import load
    from ostinato.evaluation.workers import Jobs
    from ostinato.kernels import keep_freed_memory

    keep_freed_memory()
    workers = Jobs(jobs, executor, address, gpus, journal)
    if not files and sys.stdin.isatty() and workers != Jobs():
        raise typer.BadParameter("typed lines are answered one by one: name a file", param_hint="--jobs, --journal")
    if token_scores and not json:
        raise typer.BadParameter("they have no place in plain text: add --json", param_hint="--token-scores")
    overrides = run_settings(settings, beam=beam, strategy="sample" if sample else None)
    loaded = load(
        run,
        checkpoint=checkpoint,
        device=device,
        verify=not no_verify,
        overrides=overrides,
        halting_threshold=threshold,
        exit=exit,
        exit_scope=exit_scope,
        round_lengths=round_lengths,
        cached_rounds=cached_rounds,
    )
    if line := describe_threshold(loaded):
        print_stderr(line)
    if line := loaded.mean_line:
        print_stderr(line)
    decoding = _decoding(
        loaded,
        sample,
        lengths={"min_length": min_length, "max_length": max_length},
        draws={"temperature": temperature, "top_k": top_k, "seed": seed},
        beam=beam,
        n_best=n_best,
        token_scores=token_scores or None,
    )
    search = loaded.decoding(**decoding)
    if search.token_scores and not json:
        raise typer.BadParameter("they have no place in plain text: add --json", param_hint="decoding.token_scores")
    reader = _reader(loaded, input_format, prefix, prefix_field)
    has_lists, failed = search.n_best > 1, False
    paths = files or []
    # Typed lines are answered one by one; a file is faster in long batches.
    window = 1 if not paths and sys.stdin.isatty() else window
    # Output on a terminal itself shows the progress.
    is_drawn = window > 1 and sys.stderr.isatty() and not sys.stdout.isatty()
    sentences = min(window, max(1, loaded.recipe.data.eval_tokens_per_batch // _LINE))
    planned = noting_plan(loaded.model.config, (sentences, _LINE, _LINE), beam=search.beam)
    question = {"search": search.model_dump(mode="json"), "n_steps": n_steps}
    with (
        planned,
        progress_bar("lines", is_drawn) as (set_total, advance),
        workers.runner(loaded, **question) as runner,
    ):
        if is_drawn and paths and not any(map(kind_of, paths)):  # a FIFO can be read once
            set_total(sum(1 for _ in reader.read(paths)))
        inputs, texts = tee(reader.read(paths, sys.stdin.buffer))
        outputs = loaded.stream(texts, n_steps=n_steps, window=window, on_progress=advance, runner=runner, **decoding)
        for number, (given, output) in enumerate(zip(inputs, outputs, strict=True), start=1):
            if isinstance(output, DataError):
                failed = True
                print_stderr(str(output))
            lines = [_json(given, output, has_lists)] if json else _text(number, output, has_lists, scores)
            for line in lines:
                print_text(f"{line}\n")
    if failed:
        raise typer.Exit(_UNREADABLE_LINES)


def _decoding(
    loaded: LoadedRun,
    sample: bool,
    lengths: Mapping[str, int | None],
    draws: Mapping[str, float | None],
    **options: int | None,
) -> dict[str, Any]:
    """Return the settings of the run that the options change."""
    if sample and options["beam"] is not None:
        raise typer.BadParameter("a beam is searched and not sampled: leave one of them out", param_hint="--sample")
    found: dict[str, Any] = {"strategy": "sample"} if sample else {}
    found |= {name: value for name, value in options.items() if value is not None}
    n_best, beam = options["n_best"] or 1, options["beam"] or loaded.recipe.decoding.beam
    samples = sample or (loaded.recipe.decoding.strategy == "sample" and options["beam"] is None)
    if n_best > beam and not samples:
        print_stderr(f"beam width {n_best} in place of {beam}: --n-best {n_best} needs one as wide")
        found["beam"] = n_best
    for name, value in lengths.items():
        if value is not None:  # It holds whatever the recipe adds for long sources.
            found |= {name: value, f"{name}_ratio": 0.0}
    given = {name: value for name, value in draws.items() if value is not None}
    if given and loaded.decoding(**found).strategy != "sample":
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise typer.BadParameter("nothing is sampled: add --sample", param_hint=names)
    return found | given


def _reader(loaded: LoadedRun, input_format: Any, prefix: str, prefix_field: str | None) -> InputReader:
    from ostinato.data.inputs import InputReader
    from ostinato.data.sources import fields_of, has_header
    from ostinato.tasks.registry import task_config

    if loaded.reads_prompts and (prefix or prefix_field):
        reason = "this language model's input is itself the beginning of its output"
        raise typer.BadParameter(reason, param_hint="--prefix")
    fields = fields_of(loaded.recipe.data, "language_model" if loaded.reads_prompts else "seq2seq")
    names = {setting: name for name, setting in fields}
    setting = f"data.{task_config(loaded.recipe.task).input_field}"
    return InputReader(names[setting], setting, prefix_field, prefix, input_format, has_header(fields))


def _text(number: int, output: Generation | DataError, has_lists: bool, scores: bool) -> list[str]:
    """Return the line of an input; with n-best lists a line for each output: number of the input, score, output."""
    found = [] if isinstance(output, DataError) else [output, *output.others]
    rows = [[f"{one.score:.6f}", re.sub(r"[\r\n]+", " ", one.text)] for one in found] or [["", ""]]
    if has_lists:
        return ["\t".join([str(number), *row]) for row in rows]
    return ["\t".join(rows[0]) if scores else rows[0][1]]


def _json(given: Input, output: Generation | DataError, has_lists: bool) -> str:
    """Return an object: the input's own fields, the output, and with n-best lists all outputs."""
    # What an earlier pass over these lines had found is not this one's.
    own = {name: value for name, value in given.fields.items() if name not in _OWN_FIELDS}
    if isinstance(output, DataError):
        return as_json({**own, "error": str(output)})
    found = {**own, **_fields(output)}
    if has_lists:
        found["n_best"] = [_fields(one) for one in (output, *output.others)]
    return as_json(found)


def _fields(output: Generation) -> dict[str, Any]:
    names = ["score", "log_prob", "finished", "n_tokens"]
    names += [] if output.tokens is None else ["tokens", "token_log_probs"]
    return {"prediction": output.text} | {name: getattr(output, name) for name in names}
