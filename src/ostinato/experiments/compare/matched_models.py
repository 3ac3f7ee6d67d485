"""A model whose free setting is solved so that it costs what another model does, counted or measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ostinato.budget import Assumptions
from ostinato.budget.free import Measure
from ostinato.budget.solver import Rounding, Solution, counts, solve, solve_measured
from ostinato.config.model import ModelConfig
from ostinato.config.recipe import Recipe
from ostinato.errors import ConfigError, Problem
from ostinato.experiments.results import assumptions_of, timed_lengths

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
    device: str = "auto"
    threads: int | None = None
    tolerance: float = 0.05

    def cost(self, recipe: Recipe) -> Measure:
        """Return the cost to be matched, as a function of a model that is trained and decoded as a recipe says.

        Raises:
            ConfigError: a match that does not exist, or a device that is not there.
        """
        if self.match not in MATCHES:
            raise ConfigError([Problem("match", self.match, f"must be one of {', '.join(MATCHES)}")])
        if self.match != "latency":
            assumed = Assumptions(self.source_length, self.target_length, self.batch_size, self.beam)
            return counts(assumptions_of(recipe, assumed))[self.match]
        from ostinato.experiments.timing.latency import Timer
        from ostinato.experiments.timing.workloads import Workload

        lengths = timed_lengths(recipe, (self.source_length, self.target_length))
        kept = recipe.decoding.cached_rounds
        search = Workload("decoding", self.batch_size, *lengths, self.beam, cached_rounds=kept)
        return Timer(self.device, self.threads).seconds_of(search)


def match_model(model: ModelConfig, target: float, wanted: Wanted, recipe: Recipe) -> Solution:
    """Return the model with its free setting solved.

    Args:
        model: a recipe's, with its vocabulary sizes set. target: what it should cost.

    Raises:
        ConfigError: a setting that does not exist or changes nothing; `OutOfReach` where no value fits.
    """
    cost = wanted.cost(recipe)
    if wanted.match == "latency":
        return solve_measured(model, target, wanted.free, cost, tolerance=wanted.tolerance)
    return solve(model, target, wanted.free, cost, wanted.rounding)
