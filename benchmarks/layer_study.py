"""Running a study of layers: cell by cell, both phases, then the memory of each contestant."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import torch
from common import effort
from layers import BOTH, PHASES, Absent, Contestant, Share, forget, measure, trial
from live_memory import peak_bytes

from ostinato.evaluation.loading import resolve_device
from ostinato.evaluation.timing import Stopwatch, thread_waits
from ostinato.experiments.results import read_rows
from ostinato.experiments.timing.environment import describe_environment, versions_of
from ostinato.kernels import keep_freed_memory
from ostinato.training.rng import preserved_randomness
from ostinato.training.threads import cpu_threads
from ostinato.version import __version__

Row = dict[str, Any]
MOST_ROUNDS = 9


class CellLike(Protocol):
    """What contestants have in common."""

    def key(self) -> Row:
        """Return it as data."""


Build = Callable[[Any, torch.device], Iterable[Contestant | Absent]]
More = Callable[[Any, Sequence[Contestant]], Iterable[Row]]


def run_cells(
    study: str,
    cells: Sequence[CellLike],
    build: Build,
    args: argparse.Namespace,
    more: More | None = None,
    phases: Sequence[str] = PHASES,
    rest: float = 0.0,
    *,
    keeps_memory: bool = True,
) -> list[Row]:
    """Measure all phases of all cells and return the rows.

    Every row has study, kind, cell, version and environment. Kinds: time (see `layers.measure`), memory {name, role,
    live_bytes, gradient_bytes}, absent {name, reason}, and those of `more`, which sees the contestants of every cell.
    `rest`: seconds before every timed call. `keeps_memory`: the process keeps memory it has released, as
    `ostinato train` lets it.
    """
    device = resolve_device(args.device)
    if keeps_memory:
        keep_freed_memory()
    rows = []
    with cpu_threads(args.threads), preserved_randomness():
        environment = asdict(describe_environment(device))
        print(f"{study} on {environment['cpu']}, {device}, {environment['threads']} threads; {len(cells)} cells")
        share = Share(effort(args, MOST_ROUNDS), len(cells) * len(phases))
        for cell in cells:
            torch.manual_seed(1)
            print(f"  {cell.key()}", flush=True)
            head = {"study": study, "cell": cell.key(), "version": __version__, "environment": environment}
            rows += [
                head | row
                for row in _cell(
                    cell, build(cell, device), share, Stopwatch(device, waits=waits_of_all, rest=rest), more, phases
                )
            ]
    return rows


def _cell(
    cell: CellLike,
    built: Iterable[Contestant | Absent],
    share: Share,
    stopwatch: Stopwatch,
    more: More | None,
    phases: Sequence[str],
) -> Iterator[Row]:
    found = list(built)
    present, failed = trial([one for one in found if isinstance(one, Contestant)])
    for one in [*(one for one in found if isinstance(one, Absent)), *failed]:
        yield {"kind": "absent", "name": one.name, "reason": one.reason}
    for phase in phases:
        able = [one for one in present if phase in one.calls]
        for row in measure(able, phase, share.next(), stopwatch, _announce(phase)):
            print(f"    {phase}, {row['name']}: {1e3 * row['median_s']:.2f} ms", flush=True)
            yield {"kind": "time"} | row
    for one in present:
        if one.parameters and BOTH in one.calls and stopwatch.device.type == "cpu":
            yield {"kind": "memory", "name": one.name, "role": one.role} | _memory(one)
    if more is not None:
        yield from more(cell, present)


def _announce(phase: str) -> Callable[[int, float], None]:
    return lambda rounds, seconds: print(f"    {phase}: {rounds} rounds, about {seconds:.0f} s", flush=True)


def _memory(one: Contestant) -> Row:
    """Return the bytes a forward and backward pass holds at its peak, without gradients of parameters; and theirs."""
    live = peak_bytes(one.calls[BOTH], lambda: gradients(one))
    size = sum(grad.numel() * grad.element_size() for grad in gradients(one))
    forget(one)
    return {"live_bytes": live, "gradient_bytes": size}


def gradients(one: Contestant) -> list[torch.Tensor]:
    """Return the gradients a contestant's parameters have now."""
    return [parameter.grad for parameter in one.parameters if parameter.grad is not None]


def read_runs(paths: Iterable[Path]) -> list[list[Row]]:
    """Return the runs in files of rows, without their verdicts; a file may hold several, numbered."""
    runs: list[list[Row]] = []
    for path in paths:
        by_number: dict[int, list[Row]] = {}
        for row in read_rows(path):
            if row["kind"] != "verdict":
                by_number.setdefault(row.get("run", 1), []).append(row)
        runs += by_number.values()
    return runs


def numbered(runs: Sequence[Sequence[Row]]) -> list[Row]:
    """Return the rows of several runs as those of one file, each with the number of its run."""
    return [row | {"run": number} for number, run in enumerate(runs, 1) for row in run]


def waits_of_all() -> dict[str, float]:
    """Return the seconds that threads of this process, and of those it has started, waited for a core."""
    found = thread_waits()
    with suppress(OSError):  # a system that does not say
        for pid in {pid for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()}:
            of_process = thread_waits(Path(f"/proc/{pid}/task"))
            found |= {f"{pid}/{thread}": seconds for thread, seconds in of_process.items()}
    return found


def conditions(rows: Sequence[Row]) -> str:
    """Return in words what was measured on, and how."""
    machine = rows[0]["environment"]
    # Of runs that are put together, the last words differ: which source they are of.
    versions = list(dict.fromkeys(versions_of(row["environment"]) for row in rows))
    others = "".join(f" and {one.rpartition(' ')[2]}" for one in versions[1:])
    rounds = sorted({row["n"] for row in rows if row["kind"] == "time"})
    return (
        f"{machine['device']}, {machine['cpu']}, {machine['threads']} of {machine['cores']} cores used, "
        f"{machine['system']}, {versions[0]}{others}; "
        f"float32, {rounds[0]} to {rounds[-1]} rounds a cell. * marks fewer than five undisturbed rounds.\n"
    )
