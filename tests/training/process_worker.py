"""One of several processes: does cases of `shared_updates`, trains, is interrupted, goes on, diverges, and fails.

Run by `launched.launch` with a folder, where the first process writes what the tests compare, and the names of cases.
The last process ends with an error, and the others because of it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import held_updates
import shared_updates
from safetensors.torch import save_file
from tiny_runs import tiny_recipe
from torch import Tensor, nn

from ostinato.errors import TrainingError
from ostinato.models import losses
from ostinato.training import parallel, train
from ostinato.training.checkpoint import Checkpoints
from ostinato.training.processes import Processes
from ostinato.training.session import Session

INTERRUPTED_IN = 5
FAILED_IN = 3
HELD = {"ddp": ["universal"]}
"""Cases that are done by other kinds of `training.parallel`, too: a few for every run of the tests."""


def do_updates(folder: Path, processes: Processes, names: list[str]) -> None:
    """Do these cases, and note how many parameters had a gradient in which process before they were added up."""
    add_up, n_found = parallel.all_reduce_gradients, list[int]()

    def watched(parameters: Iterable[nn.Parameter], numbers_V: Tensor) -> Tensor:
        chosen = list(parameters)
        n_found.append(sum(p.grad is not None for p in chosen))
        return add_up(chosen, numbers_V)

    parallel.all_reduce_gradients = watched
    report: dict[str, Any] = {}
    for name in names:
        n_found.clear()
        found, said = shared_updates.updates(shared_updates.CASES[name](folder / f"data-{processes.rank}"), processes)
        rounds = shared_updates.rounds_alone(shared_updates.CASES[name](folder / f"data-{processes.rank}"), processes)
        own = {"n_gradients": n_found[0], "losses": [one.losses for one in said], "rounds": rounds}
        by_rank = processes.gather(own)
        if processes.is_main:
            save_file(found, folder / f"{name}.safetensors")
            report[name] = {"said": [asdict(one) | {"norm_scalar": None} for one in said], "processes": by_rank}
    parallel.all_reduce_gradients = add_up
    if processes.is_main:
        (folder / "report.json").write_text(json.dumps(report))


def do_runs(folder: Path, processes: Processes) -> None:
    """Train a run undisturbed, and one of which the last process alone is interrupted, and which then goes on."""
    recipe = tiny_recipe(folder / "data", experts=True, halting=True, n_updates=8, evaluate_every=4)
    train(recipe, folder / "undisturbed")
    in_update(INTERRUPTED_IN, processes, lambda: os.kill(os.getpid(), signal.SIGINT))
    try:
        train(recipe, folder / "resumed")
    except KeyboardInterrupt:
        (folder / f"interrupted-{processes.rank}").touch()
    in_update(0, processes, lambda: None)
    if processes.is_main:
        shutil.copytree(folder / "resumed", folder / "interrupted")
    results = train(recipe, folder / "resumed", resume=True)
    (folder / f"results-{processes.rank}.json").write_text(json.dumps(results))
    train(shared_updates.still(tiny_recipe(folder / "data", n_updates=4)), folder / "still")


def diverge(folder: Path, processes: Processes) -> None:
    """Train; in the second update a loss is NaN, in the last process alone."""
    original, calls = losses.label_smoothed_loss, list[None]()

    def spoilt(logits: Tensor, *rest: Any) -> Any:
        calls.append(None)
        is_now = len(calls) == 3 and processes.rank == processes.world_size - 1
        return original(logits * float("nan") if is_now else logits, *rest)

    losses.label_smoothed_loss = spoilt
    try:
        train(tiny_recipe(folder / "data"), folder / "diverged")
    except TrainingError as error:
        (folder / f"diverged-{processes.rank}").write_text(str(error))
    losses.label_smoothed_loss = original


def save_slowly(folder: Path, processes: Processes) -> None:
    """Train; note in the last process, where an update begins, which checkpoints the first one has not saved yet."""
    save, missing, n_looked = Checkpoints.save, list[int](), 0

    def late(checkpoints: Checkpoints, *state: Any) -> Path:
        directory = save(checkpoints, *state)
        time.sleep(0.3)
        (folder / f"saved-{state[2].update}").touch()
        return directory

    def look(session: Session) -> Any:
        nonlocal n_looked
        update = session.progress.update
        if update and update % session.config.save_every == 0:
            n_looked += 1
            missing.extend([] if (folder / f"saved-{update}").exists() else [update])
        return _ONE_UPDATE(session)

    Checkpoints.save = late  # type: ignore[method-assign]
    if not processes.is_main:
        Session._update = look  # type: ignore[method-assign]
    train(tiny_recipe(folder / "data", n_updates=4, save_every=2, evaluate_every=4), folder / "slow")
    Checkpoints.save, Session._update = save, _ONE_UPDATE  # type: ignore[method-assign]
    if not processes.is_main:
        (folder / "not-saved.json").write_text(json.dumps([n_looked, missing]))


def fail(folder: Path, processes: Processes) -> None:
    """Train; in an update the last process runs out of memory."""

    def run_out() -> None:
        raise MemoryError("out of memory, says a test")

    (folder / f"until-then-{processes.rank}").touch()
    in_update(FAILED_IN, processes, run_out)
    train(tiny_recipe(folder / "data"), folder / "failed")


_ONE_UPDATE = Session._update


def in_update(number: int, processes: Processes, act: Any) -> None:
    """Do something at the beginning of an update, in the last process; 0: never."""

    def update_of(session: Session) -> Any:
        if session.progress.update == number - 1 and processes.rank == processes.world_size - 1:
            act()
        return _ONE_UPDATE(session)

    Session._update = update_of  # type: ignore[method-assign]


def main() -> None:
    folder, processes = Path(sys.argv[1]), Processes.from_environment()
    do_updates(folder, processes, sys.argv[2:])
    for kind, names in HELD.items():
        held_updates.do_updates(folder, processes, kind, names, shared_updates.N_UPDATES)
    if processes.is_main:
        tiny_recipe(folder / "data")
    processes.barrier()
    do_runs(folder, processes)
    diverge(folder, processes)
    save_slowly(folder, processes)
    fail(folder, processes)


if __name__ == "__main__":
    main()
