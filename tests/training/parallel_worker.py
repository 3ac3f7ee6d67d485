"""One of several processes that hold a model by `training.parallel`: what it does is named on its command line.

parallel_worker.py FOLDER updates KIND ...              the cases of `shared_updates` that the kind is for
parallel_worker.py FOLDER lowered KIND NAME ...         some cases in bfloat16
parallel_worker.py FOLDER train NAME KIND N_UPDATES     a run, begun or gone on with, without pickles; the last one
                                                        may be the decay of a mean of its weights
parallel_worker.py FOLDER killed NAME KIND              a run whose last process is killed in an update
parallel_worker.py FOLDER rounds WHO                    tokens that halt at other rounds in each process: "all"
                                                        processes agree on rounds, or "each" ends its own
parallel_worker.py FOLDER naive-experts                 processes that gather single experts
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import held_updates
import shared_updates
import torch
from process_worker import in_update
from safetensors.torch import save_file
from tiny_runs import tiny_recipe
from torch import nn

from ostinato.config.recipe import Recipe
from ostinato.training import train
from ostinato.training.parallel import Call
from ostinato.training.processes import Processes

KILLED_IN = 6
HANGS_AFTER = 60
"""Seconds after which a process that waits for ever is ended by the alarm that it has set itself."""


def run_recipe(folder: Path, kind: str, n_updates: int, ema_decay: float | None = None) -> Recipe:
    """Return the recipe of a run without chance: experts, accumulation, and both halting rules, but for ddp."""
    has_halting = kind != "ddp"
    still = shared_updates.still(tiny_recipe(folder / "data", experts=True, halting=has_halting, n_updates=n_updates))
    # Gradients that are nothing but rounding would else move their parameters as far as others do.
    optimizer = still.training.optimizer.model_copy(update={"eps": 1e-2})
    changed = {
        "parallel": held_updates.KINDS[kind],
        "evaluate_every": 4,
        "save_every": 4,
        "optimizer": optimizer,
        "ema_decay": ema_decay,
    }
    return still.model_copy(update={"training": still.training.model_copy(update=changed)})


def forbid_pickles() -> None:
    """Make whatever pickles, or reads pickles, an error."""
    import torch._dynamo  # it is imported on the way, and defines a class of pickles

    def refuse(*arguments: Any, **named: Any) -> Any:
        raise AssertionError("something is pickled")

    for name in ("dump", "dumps", "load", "loads", "Pickler", "Unpickler"):
        setattr(pickle, name, refuse)
    torch.save = torch.load = refuse
    torch.distributed.distributed_c10d._pickler = torch.distributed.distributed_c10d._unpickler = refuse


def do_lowered(folder: Path, processes: Processes, kind: str, *names: str) -> None:
    for name in names:
        case = shared_updates.lowered(shared_updates.CASES[name](folder / f"data-{processes.rank}"))
        hold = held_updates.hold(kind, processes)
        found, _ = shared_updates.updates(case, processes, hold, held_updates.N_UPDATES)
        if processes.is_main:
            save_file(found, folder / f"{kind}-{name}.safetensors")


def do_run(folder: Path, processes: Processes, name: str, kind: str, *numbers: str) -> None:
    forbid_pickles()
    n_updates, *decay = numbers
    results = train(run_recipe(folder, kind, int(n_updates), *map(float, decay)), folder / name, resume=True)
    (folder / f"{name}-{processes.rank}.json").write_text(json.dumps(results))


def do_killed(folder: Path, processes: Processes, name: str, kind: str) -> None:
    """Kill the last process in an update whose gradients the others wait for."""
    in_update(KILLED_IN, processes, lambda: os.kill(os.getpid(), signal.SIGKILL))
    train(run_recipe(folder, kind, 8), folder / name)


def do_rounds(folder: Path, processes: Processes, who: str) -> None:
    """Do an update of tokens that halt at other rounds in each process, and note that it began and that it ended."""
    if who == "each":
        Processes.all_reduce_any = lambda self, value: value  # type: ignore[method-assign]
    case = shared_updates.CASES["halting"](folder / f"data-{processes.rank}")
    (folder / f"began-{processes.rank}").touch()
    if who == "each":
        signal.alarm(HANGS_AFTER)
    shared_updates.updates(case, processes, held_updates.hold("by use", processes), 1)
    (folder / f"ended-{processes.rank}").touch()


def do_naive_experts(folder: Path, processes: Processes) -> None:
    """Gather every expert for its own call, which each process makes for another one; and a whole layer of experts."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    whole = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(2))
    expected = whole[processes.rank](torch.ones(1, 4)).detach()
    errors = {}
    for kind in ("experts", "layer"):
        torch.manual_seed(0)
        layer = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(2))
        call = Call(layer=layer)
        for module in layer if kind == "experts" else [call]:
            fully_shard(module)
        found = call(partial(layer[processes.rank], torch.ones(1, 4))) if kind == "layer" else None
        found = layer[processes.rank](torch.ones(1, 4)) if found is None else found
        errors[kind] = float((found - expected).abs().max())
    (folder / f"errors-{processes.rank}.json").write_text(json.dumps(errors))


def main() -> None:
    folder, what, *rest = Path(sys.argv[1]), *sys.argv[2:]
    processes = Processes.from_environment()
    if processes.is_main:
        tiny_recipe(folder / "data")
    processes.barrier()
    match what:
        case "updates":
            for kind in rest:
                held_updates.do_updates(folder, processes, kind)
        case "lowered":
            do_lowered(folder, processes, *rest)
        case "train":
            do_run(folder, processes, *rest)
        case "killed":
            do_killed(folder, processes, *rest)
        case "rounds":
            do_rounds(folder, processes, *rest)
        case "naive-experts":
            do_naive_experts(folder, processes)


if __name__ == "__main__":
    main()
