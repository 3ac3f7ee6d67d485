"""A model whose free setting is solved so that it costs what another model does, counted or measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ostinato.budget.free import Measure
from ostinato.budget.solver import Rounding, Solution, counts, solve, solve_measured
from ostinato.config.model import ModelConfig
from ostinato.errors import ConfigError, Problem

Match = Literal["parameters", "active", "macs", "macs_per_generated_token", "bytes", "cache", "latency"]
MATCHES: tuple[Match, ...] = get_args(Match)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is varied, and what is to be matched.

    Args:
        free: the free setting, see `ostinato.budget.free`.
        match: what is equal afterwards: see `ostinato.budget.solver.counts`, or latency, the median seconds of a
            search on random weights.
        source_length, target_length: tokens of the sentence that MACs, bytes and latency are for.
        rounding: of counts, see `ostinato.budget.solver`.
        batch_size, beam: of bytes, and of the search.
        cached_rounds: rounds of a loop whose keys and values are kept; None: all.
        device, threads: where it is timed; threads None: torch's own choice.
        tolerance: relative, of latency.
    """

    free: str = "d_ff"
    match: Match = "parameters"
    source_length: int = 32
    target_length: int = 32
    rounding: Rounding = "nearest"
    batch_size: int = 1
    beam: int = 1
    cached_rounds: int | None = None
    device: str = "auto"
    threads: int | None = None
    tolerance: float = 0.05

    def cost(self) -> Measure:
        """Return the cost to be matched, as a function of a model.

        Raises:
            ConfigError: a match that does not exist, or a device that is not there.
        """
        if self.match not in MATCHES:
            raise ConfigError([Problem("match", self.match, f"must be one of {', '.join(MATCHES)}")])
        if self.match != "latency":
            sizes = self.batch_size, self.beam, self.cached_rounds
            return counts(self.source_length, self.target_length, *sizes)[self.match]
        from ostinato.experiments.timing.latency import Timer
        from ostinato.experiments.timing.workloads import Workload

        lengths = self.source_length, self.target_length
        search = Workload("decoding", self.batch_size, *lengths, self.beam, cached_rounds=self.cached_rounds)
        return Timer(self.device, self.threads).seconds_of(search)


def match_model(model: ModelConfig, target: ModelConfig | float, wanted: Wanted) -> Solution:
    """Return the model with its free setting solved.

    Args:
        model: with its vocabulary sizes set.
        target: the model whose cost is matched, decoded alike, or a cost.

    Raises:
        ConfigError: a setting that does not exist or changes nothing; `OutOfReach` where no value fits.
    """
    cost = wanted.cost()
    goal = target if isinstance(target, int | float) else cost(target)
    if wanted.match == "latency":
        return solve_measured(model, goal, wanted.free, cost, tolerance=wanted.tolerance)
    return solve(model, goal, wanted.free, cost, wanted.rounding)
