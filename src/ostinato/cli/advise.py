"""`ostinato advise`: which model for given data and a given budget."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Annotated

import typer

from ostinato.cli.options import (
    STORE,
    AccessOption,
    AddressOption,
    ExecutorOption,
    GpusOption,
    JsonOption,
    SlurmOption,
    StoreOption,
    split_settings,
    words_of,
)
from ostinato.cli.output import console, print_json, print_line, print_table

_BUDGET, _SEARCH = "Budget", "Search"
_RECORDED = ("params", "macs", "memory", "latency", "source_length", "target_length", "metric", "hours", "space", "out")
"""Options that stand in the command which the recommended recipe names, where they are not at their default."""


def advise(
    context: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="RECIPE_OR_DATA [KEY=VALUE]",
            help="A recipe; or a file of JSON lines, columns or text, or a folder with train.* and dev.*. Then "
            "settings that all candidates have.",
        ),
    ],
    params: Annotated[
        str | None,
        typer.Option(metavar="N", help="Most parameters, such as 5M. Default: the recipe's.", rich_help_panel=_BUDGET),
    ] = None,
    macs: Annotated[
        str | None,
        typer.Option(metavar="N", help="Most multiply-accumulates of a pass, such as 50M.", rich_help_panel=_BUDGET),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Most bytes of weights, activations and cache of one sentence, such as 200MB.",
            rich_help_panel=_BUDGET,
        ),
    ] = None,
    latency: Annotated[
        str | None,
        typer.Option(metavar="TIME@batchN", help="Longest decoding, such as 20ms@batch1.", rich_help_panel=_BUDGET),
    ] = None,
    source_length: Annotated[
        int, typer.Option(min=1, help="Source tokens, for all but parameters.", rich_help_panel=_BUDGET)
    ] = 32,
    target_length: Annotated[
        int, typer.Option(min=1, help="Target tokens, for all but parameters.", rich_help_panel=_BUDGET)
    ] = 32,
    metric: Annotated[
        str | None, typer.Option(help="Metric to compare by. Default: the recipe's training.selection.metric.")
    ] = None,
    hours: Annotated[float, typer.Option(min=0.0, help="Time of the whole command.", rich_help_panel=_SEARCH)] = 2.0,
    space: Annotated[
        str, typer.Option(metavar="NAME|FILE", help="Search space: docs/advise.md.", rich_help_panel=_SEARCH)
    ] = "default",
    workers: Annotated[
        int, typer.Option(min=1, help="Trainings at once, each in a process.", rich_help_panel=_SEARCH)
    ] = 1,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of a training.", rich_help_panel=_SEARCH)] = 1,
    executor: ExecutorOption = "local",
    address: AddressOption = None,
    gpus: GpusOption = 0,
    slurm: SlurmOption = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the answer goes. Default: runs/advice/NAME.")
    ] = None,
    store: StoreOption = STORE,
    access: AccessOption = None,
    json: JsonOption = False,
) -> None:
    """Say which model to train on a task, at equal cost.

    Candidates of the budget are trained for short times, the better ones longer. Killed, the same command goes on.
    Ends with exit code 1 where nothing can be advised.
    """
    from ostinato.advise.limits import Limits, read_bytes, read_count, read_latency
    from ostinato.advise.space import load_space

    names, overrides = split_settings(words)
    if len(names) != 1:
        raise typer.BadParameter("name one recipe, file or folder of data", param_hint="RECIPE_OR_DATA")
    limits = Limits(
        parameters=None if params is None else read_count("--params", params),
        macs=None if macs is None else read_count("--macs", macs),
        bytes=None if memory is None else read_bytes("--memory", memory),
        latency=None if latency is None else read_latency("--latency", latency),
        source_length=source_length,
        target_length=target_length,
    )
    chosen = load_space(space)

    # All that follows imports torch: a wrong option is refused before.
    from ostinato.advise.advise import Question
    from ostinato.advise.advise import advise as answer_question
    from ostinato.advise.candidates import BASE
    from ostinato.advise.report import table
    from ostinato.advise.words import findings
    from ostinato.experiments.sweep.choose import ExecutorChoice
    from ostinato.experiments.sweep.watch import LinesWatcher, make_watcher

    choice = ExecutorChoice(executor, workers, gpus, address, tuple(slurm or ()))
    question = Question(
        source=names[0],
        out=out or Path("runs/advice") / _folder_of(names[0]),
        store=store,
        space=chosen,
        limits=limits,
        overrides=tuple(overrides),
        metric=metric,
        hours=hours,
        n_workers=workers,
        n_threads=threads,
        command=shlex.join(["ostinato", "advise", *words, *words_of(context, _RECORDED)]),
    )
    advice = answer_question(
        question,
        access=access,
        say=(lambda line: None) if json else LinesWatcher(print_line).say,  # where nobody hears it, the search goes on
        began=time.monotonic() - time.process_time(),  # what the imports took counts, too
        make_executor=lambda: choice.make(store),
        watcher=lambda: make_watcher(None if json else console(), print_line),
    )
    if json:
        print_json(advice.as_dict())
        return
    columns, rows = table(advice.answer)
    shown = [columns.index(name) for name in columns if name not in ("rate", "95 %", "expected", "bytes", "is")]
    print_table([columns[i] for i in shown], [[row[i] for i in shown] for row in rows])
    for line in findings(advice.answer, str(advice.recipe)):
        print_line(line)
    named = {one.name: one.reason for one in advice.candidates.left_out}
    if BASE in named:
        print_line(f"left out: {BASE} itself: {named.pop(BASE)}")
    print_line(f"left out: {len(named)} combinations, named with the reasons in the report")
    if advice.candidates.n_untried:
        print_line(f"not looked at: {advice.candidates.n_untried} combinations beyond the space's n_candidates")
    print_line(f"report: {advice.report}")


def _folder_of(name: str) -> str:
    """Return what the folder of an answer is called: a file's name without its ending, a recipe's with its group."""
    path = Path(name)
    return path.resolve().name.partition(".")[0] if path.exists() else name.replace("/", "-")
