"""`ostinato sweep`: every arm of a sweep with every seed."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ostinato.cli.completion import sweep_names
from ostinato.cli.options import (
    STORE,
    AccessOption,
    AddressOption,
    ExecutorOption,
    GpusOption,
    InputOption,
    JsonOption,
    SlurmOption,
    SweepStoreOption,
    WorkersOption,
    read_inputs,
)
from ostinato.cli.output import console, print_json, print_line, print_stderr, print_table

if TYPE_CHECKING:
    from ostinato.config.sweep import SweepConfig

_LONGEST_LIST = 40
"""Characters of seeds in a name; longer lists are named by their hash."""


def sweep(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A sweep's name, or a YAML file.", autocompletion=sweep_names)
    ],
    store: SweepStoreOption = STORE,
    executor: ExecutorOption = "local",
    workers: WorkersOption = None,
    address: AddressOption = None,
    gpus: GpusOption = 0,
    slurm: SlurmOption = None,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of a run whose recipe names none.")] = 1,
    seeds: Annotated[
        str | None, typer.Option(metavar="N,N", help="Seeds of every arm, in place of the file's.")
    ] = None,
    take: Annotated[
        list[Path] | None,
        typer.Option(metavar="RUN", help="Finished run, or folder of runs, to copy into the store; may be repeated."),
    ] = None,
    copy_to: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Copy finished runs and results here in the end: any URL that fsspec writes to."
        ),
    ] = None,
    given: InputOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the runs and what they cost; train nothing.")
    ] = False,
    access: AccessOption = None,
    json: JsonOption = False,
) -> None:
    """Train every arm of a sweep with every seed, once.

    A run that is in the store already is not trained again, an interrupted one is resumed. Ends with exit code 1
    where a run has failed; the others are done.
    """
    from ostinato.errors import ConfigError, OstinatoError
    from ostinato.experiments.sweep.choose import ExecutorChoice
    from ostinato.experiments.sweep.copies import Copies
    from ostinato.experiments.sweep.files import load_sweep
    from ostinato.experiments.sweep.import_runs import import_runs
    from ostinato.experiments.sweep.remote import RemoteStore, working_folder
    from ostinato.experiments.sweep.rows import results_folder
    from ostinato.experiments.sweep.runs import plan_runs
    from ostinato.experiments.sweep.schedule import run_sweep
    from ostinato.experiments.sweep.watch import make_watcher

    remote = None
    if isinstance(store, str):
        remote, store = RemoteStore(store), working_folder(store)
    choice = ExecutorChoice(executor, workers, gpus, address, tuple(slurm or ()))
    copies = None if copy_to is None else Copies(copy_to)
    chosen = with_seeds(load_sweep(file, read_inputs(given)), seeds)
    if remote is not None and executor == "slurm":
        raise ConfigError("--store: submitit needs a folder that all nodes see, and no URL")
    if remote is not None and copies is not None:
        raise ConfigError("--copy-to: copies a store that is a folder: remove it, or give --store one")
    if remote is not None and (take or dry_run):
        for run in plan_runs(chosen, store, access):
            if not run.is_finished:
                remote.fetch_rows(run.directory)
    if take:
        taken, others = import_runs(take, plan_runs(chosen, store, access))
        for run in taken:
            if remote is not None:
                remote.agree(run.directory)
            if not json:
                print_line(f"taken: {run.name}, into {run.directory}")
        if others:
            raise ConfigError("\n".join(others.values()))
    if dry_run:
        _show_plan(chosen, store, access, json)
        return
    watcher = make_watcher(None if json else console(), print_line)
    own = choice.make(store)

    def copy() -> int:
        return 0 if copies is None else copies.write(chosen, plan_runs(chosen, store, access), store)

    try:
        rows = run_sweep(chosen, store, access=access, executor=own, watcher=watcher, n_threads=threads, remote=remote)
    except BaseException as error:  # Some runs have failed, or the sweep is interrupted: what is finished is.
        try:
            copy()
        except OstinatoError as second:
            if str(second) != str(error):  # of a sweep that cannot be planned it is the same
                print_stderr(str(second))
        raise
    n_copied = copy()
    if json:
        print_json(rows)
        return
    if copies is not None:
        print_line(f"copied to {copies.name}: {n_copied} runs")
    if remote is not None:
        print_line(f"published: {remote.name}")
    print_line(f"results: {results_folder(chosen, store) / 'results.jsonl'}")


def with_seeds(sweep: SweepConfig, seeds: str | None) -> SweepConfig:
    """Return a sweep with other seeds for all of its arms, under a name of its own: its rows replace no others.

    Raises:
        typer.BadParameter: not a list of numbers.
    """
    if seeds is None:
        return sweep
    parts = [part.strip() for part in seeds.split(",")]
    numbers = [int(part) for part in parts if part.isdecimal()]
    if len(set(numbers)) < len(parts):
        raise typer.BadParameter(f"{seeds!r} is no list of different numbers such as 1,2,3", param_hint="--seeds")
    arms = [arm.model_copy(update={"seeds": None}) for arm in sweep.arms]
    listed = "-".join(map(str, numbers))
    if len(listed) > _LONGEST_LIST:  # names of folders have an end
        listed = f"{len(numbers)}-{hashlib.sha256(listed.encode()).hexdigest()[:8]}"
    name = f"{sweep.name}-seeds-{listed}"
    return sweep.model_copy(update={"name": name, "seeds": numbers, "arms": arms})


def _show_plan(sweep: SweepConfig, store: Path, access: Any, json: bool) -> None:
    """Print arms, seeds, keys and budgets, and which runs are there."""
    from ostinato.experiments.sweep.measure_checks import check_measurable
    from ostinato.experiments.sweep.rows import collect_rows
    from ostinato.experiments.sweep.runs import arm_budgets, check_equal, plan_runs
    from ostinato.training.trainable import check_trainable

    check_measurable(sweep.measures)
    runs = plan_runs(sweep, store, access)
    for run in {run.arm: run for run in runs if not run.directory.exists()}.values():
        check_trainable(run.recipe, access, with_start=run.start is None)
    budgets = arm_budgets(sweep, runs, access)
    missing = {(line["arm"], line["seed"]): line["why"] for line in collect_rows(sweep, runs, access)[1]}
    lines = [
        {
            "arm": run.arm,
            "seed": run.seed,
            "key": run.directory.name,
            "parameters": budgets[run.arm].figure("parameters"),
            "MACs": budgets[run.arm].figure("macs"),
            "starts from": run.start.name if run.start else None,
            "state": missing.get((run.arm, run.seed), "there"),
        }
        for run in runs
    ]
    if json:
        print_json(lines)
    else:
        print_table(list(lines[0]), [list(line.values()) for line in lines])
    check_equal(sweep, budgets)
