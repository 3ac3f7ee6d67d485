"""What the depth loop runs: sub-layers by segment, round and step, and a halting rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ostinato.nn.bank import Banks
from ostinato.nn.context import Pass
from ostinato.nn.cross_attention import CrossAttention
from ostinato.nn.feedforward import FeedForwardSubLayer
from ostinato.nn.halting import HaltingRule
from ostinato.nn.self_attention import SelfAttention
from ostinato.nn.separable import SeparableConv, SeparableConvSubLayer
from ostinato.nn.shapes import Tensor
from ostinato.nn.sub_layer import Parallel, Runnable, SubLayer
from ostinato.plan import Plan, Segment, Step, Use

Rounds = Sequence[Sequence[Sequence[Runnable]]]
"""The sub-layers of every step of every round."""


class LoopProgram(NamedTuple):
    """What one segment runs: sub-layers, who takes part in their rounds, and what else it has
    (`ostinato.plan.Segment`). `path`: the lengths of its rounds' steps, where something is made of them.
    `n_rounds`: of a graph, how often the loop runs: the first of two rounds once, then the second again and again.
    `in_one`: runs all rounds and the rule in one call, from states `[N, D]` of a new column after cached ones, none of
    them padding (`ostinato.nn.compiled`), and, where it `is_normed`, the norm at the end of the stack, too."""

    rounds: Rounds
    rule: HaltingRule
    segment: Segment
    path: Sequence[float]
    n_rounds: Tensor | None = None
    in_one: Callable[[Tensor, Pass], Tensor] | None = None
    is_normed: bool = False

    @property
    def acts_between_rounds(self) -> bool:
        """Whether something other than steps and signals is run in every round."""
        own = self.segment
        between = (own.inject, own.vectors, own.time, own.round_norm)
        return any(name is not None for name in between) or bool(own.phases)


Program = Sequence[LoopProgram]
"""What a stack runs: its segments. One of them is the loop."""


def _itself(sub_layer: SubLayer) -> Runnable:
    return sub_layer


@dataclass(frozen=True, slots=True)
class SubLayers:
    """Makes the sub-layers of a plan: what runs at every step, with its weights.

    Args:
        banks: where the weights are. is_causal: convolutions read no later token.
        looks_back_only: relative positions know no later token. sees_some: a router chooses whose keys a round reads.
        around: what runs in place of a sub-layer.
    """

    banks: Banks
    is_causal: bool
    looks_back_only: bool
    sees_some: bool
    dropout: float
    around: Callable[[SubLayer], Runnable] = _itself

    def of_plan(self, plan: Plan) -> Sequence[Rounds]:
        """Return those of every segment."""
        may_repeat = plan.is_fully_shared

        def of_segment(segment: Segment) -> Rounds:
            own = [list(steps) for steps in segment.rounds()]
            n_a_round = len(own[0]) if may_repeat and own else None
            return tuple(tuple(self._of_step(plan.stack, step, n_a_round) for step in steps) for steps in own)

        return tuple(of_segment(segment) for segment in plan.segments)

    def _of_step(self, stack: str, step: Step, n_a_round: int | None) -> Sequence[Runnable]:
        sub_layers: Any = tuple(self.around(self._of_use(stack, step, use, n_a_round)) for use in step.uses)
        return (Parallel(sub_layers),) if step.is_parallel else sub_layers

    def _of_use(self, stack: str, step: Step, use: Use, n_a_round: int | None) -> SubLayer:
        """Return the sub-layer of a use.

        Args:
            n_a_round: steps of a round, where rounds share all weights.
        """
        given = (stack, step, use, self.banks)
        if use.kind == "self_attention":
            first = step.index - step.round * (n_a_round or 0)
            return SelfAttention(
                *given,
                looks_back_only=self.looks_back_only,
                sees_some=self.sees_some,
                rounds=None if n_a_round is None else range(first, step.index + 1, n_a_round),
                dropout=self.dropout,
            )
        if use.kind == "cross_attention":
            return CrossAttention(*given, dropout=self.dropout)
        if isinstance(self.banks.ffn[use.weights], SeparableConv):
            return SeparableConvSubLayer(*given, is_causal=self.is_causal, dropout=self.dropout)
        return FeedForwardSubLayer(*given, dropout=self.dropout)
