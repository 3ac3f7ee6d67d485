"""Single layers timed beside each other: contestants, the cells they meet in, and one row of data a contestant.

A contestant does the same work as the others of its cell, on the same inputs: a forward pass without gradients, and a
forward pass with its backward, which gives gradients of the inputs and of all parameters. Gradients are made anew in
every call, as after `zero_grad()`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median, quantiles
from textwrap import shorten
from time import monotonic
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ostinato.evaluation.timing import Effort, Lap, Stopwatch, interleave

Role = Literal["dense", "limit", "ours", "reference", "peer"]
FORWARD, BOTH = "forward", "forward+backward"
PHASES = (FORWARD, BOTH)


@dataclass(frozen=True, slots=True)
class Contestant:
    """One way to do a cell's work.

    Args:
        calls: what is timed, by phase. parameters: whose gradients a backward makes.
        note: what a reader must know to compare it.
    """

    name: str
    role: Role
    calls: Mapping[str, Callable[[], object]]
    parameters: tuple[nn.Parameter, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Absent:
    """A contestant that does not take part, and why."""

    name: str
    reason: str


def layer(
    name: str,
    role: Role,
    module: nn.Module,
    x: Tensor,
    *,
    run: Callable[[Tensor], Tensor] | None = None,
    note: str = "",
    is_compiled: bool = False,
) -> Contestant:
    """Return a module as a contestant.

    Args:
        x: the inputs, a leaf. run: from inputs to outputs; None: the module itself.
        is_compiled: by torch.compile, as one graph; the name says so.
    """
    run = run or module
    if is_compiled:
        name, run = f"{name}, compiled", torch.compile(run, fullgraph=True, dynamic=False)
    parameters = tuple(module.parameters())
    leaf = x.detach().requires_grad_()
    grad = torch.ones_like(x)

    def forward() -> None:
        with torch.no_grad():
            run(x)

    def both() -> None:
        leaf.grad = None
        for parameter in parameters:
            parameter.grad = None
        run(leaf).backward(grad)

    return Contestant(name, role, {FORWARD: forward, BOTH: both}, parameters, note)


def forget(contestant: Contestant) -> None:
    """Free the gradients of a contestant."""
    for parameter in contestant.parameters:
        parameter.grad = None


class Share:
    """Divides the time of a study over its parts; what a part leaves is the later ones'.

    Args:
        effort: of the whole study. parts: how many there will be.
    """

    def __init__(self, effort: Effort, parts: int) -> None:
        self._effort, self._left, self._began = effort, parts, monotonic()

    def next(self) -> Effort:
        """Return the effort of the next part."""
        seconds, left = self._effort.seconds, max(1, self._left)
        self._left -= 1
        if seconds is None:
            return self._effort
        return replace(self._effort, seconds=max(0.0, seconds - (monotonic() - self._began)) / left)


def of_package(name: str, package: str, build: Callable[[], Contestant]) -> Contestant | Absent:
    """Return a peer, or why it is absent: its package is not here, or its code, of any version, fails."""
    if importlib.util.find_spec(package) is None:
        return Absent(name, f"{package} is not installed")
    try:
        return build()
    except Exception as error:
        return Absent(name, shorten(f"{type(error).__name__}: {error}", 200))


def trial(contestants: Sequence[Contestant]) -> tuple[list[Contestant], list[Absent]]:
    """Run every contestant once, backward and all; those that fail are absent, with what they said."""
    work, absent = [], []
    for one in contestants:
        try:
            for call in one.calls.values():
                call()
            if torch.cuda.is_initialized():  # what fails on a GPU fails later
                torch.cuda.synchronize()
        except Exception as error:  # Others' code on sizes it may not have been made for: anything can come.
            absent.append(Absent(one.name, shorten(f"{type(error).__name__}: {error}", 200)))
        else:
            work.append(one)
        forget(one)
    return work, absent


def measure(
    contestants: Sequence[Contestant],
    phase: str,
    effort: Effort,
    stopwatch: Stopwatch,
    on_plan: Callable[[int, float], None] = lambda rounds, seconds: None,
) -> Iterator[dict[str, Any]]:
    """Time one phase of all contestants in turns; yield a row each.

    Row: phase, name, role, note, parameters; median_s, low_s, high_s (quartiles) over the undisturbed rounds, all where
    there are fewer than three; n, undisturbed; seconds, is_disturbed: of every round.
    """
    calls = {one.name: _freeing(one, phase) for one in contestants}
    laps = interleave(calls, effort, stopwatch, on_plan)
    for one in contestants:
        n_parameters = sum(parameter.numel() for parameter in one.parameters)
        head = {"phase": phase, "name": one.name, "role": one.role, "note": one.note, "parameters": n_parameters}
        yield head | timing(laps[one.name])


def _freeing(one: Contestant, phase: str) -> Callable[[], object]:
    """Return a call that leaves no gradients behind: those of all contestants together may not fit."""
    call = one.calls[phase]

    def run() -> None:
        call()
        forget(one)

    return run


def timing(laps: Sequence[Lap]) -> dict[str, Any]:
    """Return what the rounds of one contestant say."""
    calm = [lap.seconds for lap in laps if not lap.is_disturbed]
    seconds = calm if len(calm) >= 3 else [lap.seconds for lap in laps]
    low, _, high = quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else seconds * 3
    return {
        "median_s": median(seconds),
        "low_s": low,
        "high_s": high,
        "n": len(laps),
        "undisturbed": len(calm),
        "seconds": [lap.seconds for lap in laps],
        "is_disturbed": [lap.is_disturbed for lap in laps],
    }
