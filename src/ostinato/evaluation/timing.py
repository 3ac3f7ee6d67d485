"""Timing of several calls in turns, on a machine that other processes use, too.

The calls take turns, one of each per round, so that whatever slows the machine down for a while slows all of them. A
call during which this process's threads waited for a core is disturbed, and is repeated. Only Linux tells how long
threads waited; elsewhere no call counts as disturbed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from ostinato.kernels import wait_for

_TASKS = Path("/proc/self/task")
_DISTURBED = 0.04
"""Share of a call's time that its threads may wait for a core."""


@dataclass(frozen=True, slots=True)
class Lap:
    """One timed call: its seconds, and those that this process's threads waited for a core, summed over threads."""

    seconds: float
    waited: float = 0.0

    @property
    def is_disturbed(self) -> bool:
        """True where the threads waited for more than 4 % of the call's time."""
        return self.waited > _DISTURBED * self.seconds


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure.

    Args:
        rounds: most rounds; every round calls everything once.
        least: fewest rounds, whatever the time they take.
        seconds: that warm-up and all rounds should take at most; None: no limit. Beyond it no call is repeated.
        warmup: untimed rounds before the first.
        repeats: how often a disturbed call is repeated before the least disturbed one is taken.
    """

    rounds: int = 5
    least: int = 3
    seconds: float | None = None
    warmup: int = 1
    repeats: int = 2

    def n_rounds(self, round_seconds: float) -> int:
        """Return the number of rounds where one takes `round_seconds`."""
        if self.seconds is None:
            return self.rounds
        left = self.seconds - self.warmup * round_seconds
        return min(self.rounds, max(self.least, int(left / max(round_seconds, 1e-9))))


class Stopwatch:
    """Times a call on a device, to the end of the device's work.

    Args:
        device: where the work is done.
        now: a clock in seconds.
        waits: the seconds every thread of this process has waited for a core so far, by thread.
        rest: seconds to sleep before a call, so that threads of the call before that still spin fall asleep.
    """

    def __init__(
        self,
        device: torch.device,
        now: Callable[[], float] = time.perf_counter,
        waits: Callable[[], dict[str, float]] | None = None,
        rest: float = 0.0,
    ) -> None:
        self.device, self._now, self._waits, self._rest = device, now, waits or thread_waits, rest

    def time(self, call: Callable[[], object]) -> Lap:
        """Run a call and return how long it took."""
        wait_for(self.device)
        time.sleep(self._rest)
        before = self._waits()
        began = self._now()
        call()
        wait_for(self.device)
        seconds = self._now() - began
        after = self._waits()
        return Lap(seconds, sum(waited - before.get(thread, 0.0) for thread, waited in after.items()))


def thread_waits(tasks: Path = _TASKS) -> dict[str, float]:
    """Return the seconds that every thread of this process was ready to run but had no core; empty where unknown.

    The second number of a thread's ``schedstat`` is that time in nanoseconds.
    """
    waits: dict[str, float] = {}
    for path in tasks.glob("*/schedstat"):
        try:
            waits[path.parent.name] = int(path.read_text(encoding="ascii").split()[1]) / 1e9
        except (OSError, IndexError, ValueError):  # A thread that has just ended, or a system that does not say.
            continue
    return waits


def interleave(
    calls: Mapping[str, Callable[[], object]],
    effort: Effort,
    stopwatch: Stopwatch,
    on_plan: Callable[[int, float], None] = lambda rounds, seconds: None,
) -> dict[str, list[Lap]]:
    """Time calls in turns; every round begins with another call, and the others follow in an order drawn for it.

    So no call is always the first, nor always after the same one: what a call leaves in caches, and threads that still
    spin, speed up or slow down the next one by several percent.

    Args:
        calls: by name.
        on_plan: called after the warm-up with the number of rounds and the seconds they should take.

    Returns:
        One lap a round for every call, in the order of the rounds.
    """
    laps: dict[str, list[Lap]] = {name: [] for name in calls}
    warm = [sum(stopwatch.time(call).seconds for call in calls.values()) for _ in range(max(1, effort.warmup))]
    rounds = effort.n_rounds(warm[-1])
    on_plan(rounds, rounds * warm[-1])
    names = list(calls)
    spent = sum(warm)
    for number in range(rounds):
        first = number % len(names)
        others = names[:first] + names[first + 1 :]
        for name in [names[first], *random.Random(number).sample(others, len(others))]:
            tries: list[Lap] = []
            while not tries or (
                tries[-1].is_disturbed
                and len(tries) <= effort.repeats
                and (effort.seconds is None or spent <= effort.seconds)
            ):
                tries.append(stopwatch.time(calls[name]))
                spent += tries[-1].seconds
            # The one whose threads waited for the smallest part of its time.
            laps[name].append(min(tries, key=lambda lap: lap.waited / max(lap.seconds, 1e-12)))
    return laps
