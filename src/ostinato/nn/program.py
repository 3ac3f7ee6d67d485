"""What the depth loop runs: sub-layers by segment, round and step, and a halting rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ostinato.nn.halting import HaltingRule
from ostinato.nn.shapes import Tensor
from ostinato.nn.sub_layer import Runnable
from ostinato.plan import Segment

Rounds = Sequence[Sequence[Sequence[Runnable]]]
"""The sub-layers of every step of every round."""


class LoopProgram(NamedTuple):
    """What one segment runs: sub-layers, who takes part in their rounds, whether those tick, and what else it has
    (`ostinato.plan.Segment`). `path`: the lengths of its rounds' steps, where something is made of them.
    `n_rounds`: of a graph, how often the loop runs: the first of two rounds once, then the second again and again."""

    rounds: Rounds
    rule: HaltingRule
    ticks: bool = True
    segment: Segment = Segment(())
    path: Sequence[float] = ()
    n_rounds: Tensor | None = None

    @property
    def acts_between_rounds(self) -> bool:
        """Whether something other than steps and signals is run in every round."""
        own = self.segment
        between = (own.inject, own.vectors, own.time, own.round_norm)
        return any(name is not None for name in between) or bool(own.phases)


Program = Sequence[LoopProgram]
"""What a stack runs: its segments. The rounds of one of them tick."""
