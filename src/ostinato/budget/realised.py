"""Multiply-accumulates of sentences whose depths are known.

    full      every token runs all rounds: `count_macs` of the sentence's lengths
    realised  of a pass over the sentence alone: every token pays for the rounds it took part in and, once halted, for
              its keys and values (`ostinato.budget.charges`); rounds in which no token of the sentence takes part do
              not run. Padding is not there, so that it costs nothing

Stacks whose halted tokens are computed all the same (`ostinato.budget.depth.Depth.is_saved`) count all rounds in both:
how long they run is their batch's to decide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ostinato.budget.charges import Price, charges, prices, sentence_macs
from ostinato.budget.depth import ONE_ROUND, expected_depths
from ostinato.config.model import ModelConfig


class SentenceMacs(NamedTuple):
    """Multiply-accumulates of one teacher-forced pass over one or more sentences: at full depth, and as it was."""

    full: int
    realised: int


class MacCounter:
    """Counts sentences of one model; what tokens pay is added up once a depth.

    Args:
        config: with its vocabulary sizes. n_steps: rounds at call time.

    Raises:
        ConfigError: as `count_macs`.
    """

    def __init__(self, config: ModelConfig, *, n_steps: int | None = None) -> None:
        self._charges = charges(config, n_steps, None)
        # A recurrence over positions is a stack of one round, in which every token takes part.
        self._depths = dict.fromkeys(config.recurrences(), ONE_ROUND) | expected_depths(config, n_steps=n_steps)
        self._sides = {stack: config.side_of(stack) for stack in self._charges}
        self._once = sentence_macs(config)
        self._prices: dict[tuple[str, int, int], dict[str, Price]] = {}

    def count(self, depths: Mapping[str, Sequence[int]]) -> SentenceMacs:
        """Return what a sentence costs.

        Args:
            depths: by stack how many of its tokens took part in 1, 2, ... rounds, as many numbers as the stack has
                rounds; by recurrence how many tokens it read, one number.
        """
        lengths = {self._sides[stack]: sum(found) for stack, found in depths.items()}
        source, target = lengths.get("source", 0), lengths["target"]
        full = realised = self._once
        for stack, found in depths.items():
            n_rounds, own = self._depths[stack].rounds, self._sides[stack]
            everyone = [0] * (n_rounds - 1) + [lengths[own]]
            whole = self._stack(stack, everyone, source, target)
            full += whole
            realised += self._stack(stack, found, source, target) if self._depths[stack].is_saved else whole
        return SentenceMacs(full, realised)

    def _stack(self, stack: str, found: Sequence[int], source: int, target: int) -> int:
        """Return what one stack costs, the memory's keys and values included."""
        own, total = self._sides[stack], 0
        deepest = max((depth for depth, n in enumerate(found, 1) if n), default=0)
        for depth, n in enumerate(found, 1):
            if n:
                total += n * self._price(stack, depth, deepest).get(own, Price()).at(source, target)
        if own != "source":
            total += source * self._price(stack, deepest, deepest).get("source", Price()).at(source, target)
        return total

    def _price(self, stack: str, depth: int, deepest: int) -> dict[str, Price]:
        """Return what a token of each side pays, all parts together."""
        key = stack, depth, deepest
        if key not in self._prices:
            sums: dict[str, Price] = {}
            for (_, side), price in prices(self._charges[stack], depth, deepest).items():
                sums[side] = Price(*(a + b for a, b in zip(sums.get(side, Price()), price, strict=True)))
            self._prices[key] = sums
        return self._prices[key]
