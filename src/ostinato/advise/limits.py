"""A budget: what a model may store, execute and keep in memory, and how long it may take."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from ostinato.budget import Assumptions
from ostinato.budget.solver import counts
from ostinato.config.model import ModelConfig
from ostinato.config.recipe import Recipe
from ostinato.errors import ConfigError, Problem
from ostinato.experiments.results import assumptions_of, timed_lengths

_NUMBER = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[A-Za-z]*)")
_LATENCY = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>ms|s)(?:@batch(?P<batch>[1-9]\d*))?")
_COUNTS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12}
_BYTES = {"": 1.0, "b": 1.0} | {
    f"{letter}{ending}": (1024.0 if ending == "ib" else 1000.0) ** power
    for power, letter in enumerate("kmgt", 1)
    for ending in ("", "b", "ib")
}
WORDS = {"parameters": "parameters", "macs": "multiply-accumulates", "bytes": "bytes"}
"""The budgets that are counted, in words."""


@dataclass(frozen=True, slots=True)
class LatencyLimit:
    """Most seconds of decoding (or of a pass, for models that write no text), for so many sentences at once."""

    seconds: float
    batch_size: int = 1


@dataclass(frozen=True, slots=True)
class Limits:
    """What a candidate may cost at most; None: no limit.

    Args:
        parameters: stored. macs: of one teacher-forced pass. bytes: weights, its activations, and a search's cache.
        latency: measured, in seconds. source_length, target_length: tokens of the sentence that all but parameters are
            for.
        assumed: how models are trained and decoded, for the bytes; its lengths are not used, but the two above.
    """

    parameters: float | None = None
    macs: float | None = None
    bytes: float | None = None
    latency: LatencyLimit | None = None
    source_length: int = 32
    target_length: int = 32
    assumed: Assumptions = field(default_factory=Assumptions)

    def counted(self) -> dict[str, float]:
        """Return the limits that are counted, by name."""
        given = {"parameters": self.parameters, "macs": self.macs, "bytes": self.bytes}
        return {name: limit for name, limit in given.items() if limit is not None}

    def figures(self, model: ModelConfig) -> dict[str, float]:
        """Return what a model costs, by name: parameters, macs and bytes."""
        return self._count(model, WORDS)

    def share(self, model: ModelConfig) -> float:
        """Return the largest of cost / limit: 1 where a model meets the budget exactly."""
        limits = self.counted()
        return max(cost / limits[name] for name, cost in self._count(model, limits).items())

    def of_recipe(self, recipe: Recipe) -> Limits:
        """Return the same limits of models that are trained and decoded as a recipe says.

        Without the source tokens that a language model of texts does not read.
        """
        source, _ = timed_lengths(recipe, (self.source_length, self.target_length))
        assumed = replace(self.assumed, beam=recipe.decoding.beam)
        return replace(self, source_length=source, assumed=assumptions_of(recipe, assumed))

    def _count(self, model: ModelConfig, names: Collection[str]) -> dict[str, float]:
        target = self.target_length
        if model.joins_pairs:  # one sequence, which the counts know as the target
            target += self.source_length
        assumed = replace(self.assumed, source_length=self.source_length, target_length=target)
        return {name: count(model) for name, count in counts(assumed).items() if name in names}

    def __str__(self) -> str:
        texts = [f"{limit:,.0f} {WORDS[name]}" for name, limit in self.counted().items()]
        if self.latency is not None:
            texts.append(f"{1000 * self.latency.seconds:g} ms at batch {self.latency.batch_size}")
        return ", ".join(texts)


def read_count(option: str, text: str) -> float:
    """Return a count such as 500K, 5M or 1.5G (10^9).

    Raises:
        ConfigError: it is none, or not above 0.
    """
    return _read(option, text, _COUNTS, "a count such as 500K, 5M or 1.5G")


def read_bytes(option: str, text: str) -> float:
    """Return bytes such as 200MB (10^6) or 200MiB (2^20).

    Raises:
        ConfigError: it is none, or not above 0.
    """
    return _read(option, text, _BYTES, "a size such as 200MB or 1.5GiB")


def read_latency(option: str, text: str) -> LatencyLimit:
    """Return a latency such as 20ms@batch1 or 0.5s.

    Raises:
        ConfigError: it is none, or not above 0.
    """
    match = _LATENCY.fullmatch(text.strip())
    if match is None or float(match["number"]) == 0:
        raise ConfigError([Problem(option, text, "must be a time such as 20ms@batch1 or 0.5s@batch8")])
    seconds = float(match["number"]) * (0.001 if match["unit"] == "ms" else 1.0)
    return LatencyLimit(seconds, int(match["batch"] or 1))


def _read(option: str, text: str, units: dict[str, float], valid: str) -> float:
    match = _NUMBER.fullmatch(text.strip())
    if match is None or match["unit"].lower() not in units or float(match["number"]) == 0:
        raise ConfigError([Problem(option, text, f"must be {valid}")])
    return float(match["number"]) * units[match["unit"].lower()]
