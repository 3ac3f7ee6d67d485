"""Measured latency of several models beside each other, on random weights and the same work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import median, quantiles
from typing import Any

from ostinato.config.model import ModelConfig
from ostinato.errors import ConfigError, Problem
from ostinato.evaluation.loading import resolve_device
from ostinato.evaluation.timing import Effort, Lap, Stopwatch, interleave
from ostinato.experiments.timing.environment import Environment, describe_environment
from ostinato.experiments.timing.workloads import Bench, TimedModel, Workload
from ostinato.training.rng import preserved_randomness
from ostinato.training.threads import cpu_threads


@dataclass(frozen=True, slots=True)
class Measurement:
    """How long one model took for one workload.

    Args:
        name: of the candidate.
        laps: one a round. The same place in two measurements of one workload is the same round.
    """

    name: str
    workload: Workload
    laps: tuple[Lap, ...]

    @property
    def seconds(self) -> list[float]:
        """Seconds of every round."""
        return [lap.seconds for lap in self.laps]

    @property
    def n(self) -> int:
        """Number of rounds."""
        return len(self.laps)

    @property
    def disturbed(self) -> int:
        """Rounds whose call waited for a core, however often it was repeated."""
        return sum(lap.is_disturbed for lap in self.laps)

    @property
    def median_s(self) -> float:
        """Median seconds of a call."""
        return median(self.seconds)

    @property
    def quartiles_s(self) -> tuple[float, float]:
        """Lower and upper quartile of the seconds, between the values there are."""
        if self.n == 1:
            return self.seconds[0], self.seconds[0]
        low, _, high = quantiles(self.seconds, n=4, method="inclusive")
        return low, high

    @property
    def tokens_per_s(self) -> float:
        """Target tokens a second, from the median: trained on, passed, or generated (not times the beam)."""
        return self.workload.n_tokens / self.median_s

    def row(self) -> dict[str, Any]:
        """Return everything as one JSON-able row."""
        low, high = self.quartiles_s
        return {
            "name": self.name,
            "workload": asdict(self.workload),
            "median_s": self.median_s,
            "low_s": low,
            "high_s": high,
            "n": self.n,
            "disturbed": self.disturbed,
            "tokens_per_s": self.tokens_per_s,
            "seconds": self.seconds,
        }


@dataclass(frozen=True, slots=True)
class TimingPlan:
    """How many rounds the next workload will have, and about how long they take; known after its warm-up."""

    workload: Workload
    rounds: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.workload}: {self.rounds} rounds, about {self.seconds:.0f} s"


class Timer:
    """Times models on one device with one number of threads.

    Args:
        device: auto, cpu, cuda, ... threads: CPU threads; None: torch's own choice.
        stopwatch: None: a real one.

    Raises:
        ConfigError: a device that is not there.
    """

    def __init__(self, device: str = "auto", threads: int | None = None, stopwatch: Stopwatch | None = None) -> None:
        self.device = resolve_device(device)
        self.threads = threads
        self._stopwatch = stopwatch or Stopwatch(self.device)

    def environment(self) -> Environment:
        """Return what is measured on."""
        with cpu_threads(self.threads):
            return describe_environment(self.device)

    def measure(
        self,
        candidates: Sequence[TimedModel],
        workloads: Sequence[Workload],
        effort: Effort | None = None,
        on_plan: Callable[[TimingPlan], None] = lambda plan: None,
    ) -> Iterator[Measurement]:
        """Yield the measurements, workload by workload; within one, the candidates take turns.

        All candidates are in memory at once, for updates with gradients and the optimiser's state.

        Args:
            effort: how often and how long; None: `Effort()`.
            on_plan: called before each workload's rounds.

        Raises:
            ConfigError: two candidates of one name, or a workload that does not fit a candidate.
        """
        names = [candidate.name for candidate in candidates]
        if len(set(names)) < len(names):
            raise ConfigError([Problem("candidates", ", ".join(names), "every candidate needs a name of its own")])
        benches = [Bench(candidate, self.device) for candidate in candidates]
        for workload in workloads:

            def announce(n_rounds: int, seconds: float, workload: Workload = workload) -> None:
                on_plan(TimingPlan(workload, n_rounds, seconds))

            with cpu_threads(self.threads), preserved_randomness():
                calls = {bench.candidate.name: bench.call(workload) for bench in benches}
                laps = interleave(calls, effort or Effort(), self._stopwatch, announce)
            for bench in benches:
                name = bench.candidate.name
                yield Measurement(name, workload, tuple(laps[name]))

    def seconds_of(self, workload: Workload, effort: Effort | None = None) -> Callable[[ModelConfig], float]:
        """Return a function from a model to its median seconds for a workload: a cost that a solver can match."""

        def seconds(model: ModelConfig) -> float:
            (found,) = self.measure([TimedModel("model", model)], [workload], effort)
            return found.median_s

        return seconds


def workloads(
    batch_sizes: Sequence[int], beams: Sequence[int], source_length: int, target_length: int
) -> list[Workload]:
    """Return an update and a teacher-forced pass for every batch size, and a search for every beam as well.

    Updates come last: they change the weights.

    Args:
        beams: empty for models that write no text.
    """
    decoding = [Workload("decoding", b, source_length, target_length, k) for b in batch_sizes for k in beams]
    passes = [Workload("forward", b, source_length, target_length) for b in batch_sizes]
    return [*decoding, *passes, *(Workload("update", b, source_length, target_length) for b in batch_sizes)]
