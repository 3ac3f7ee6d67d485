"""Halting: which tokens still take part in a round, and what the others look like to them.

One protocol for every rule. The depth loop asks, for every round: `before` (is anything still running, and how does a
round look to the tokens?), `enter` (with the round's signal added), `after` (the states to go on with), and at the end
`output`, `trace` and `aux_loss`. A rule's state lives for one pass and is made by `start`; nothing is kept on modules.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from ostinato.nn.precision import at_least_float32
from ostinato.nn.shapes import Bool, Float, Tensor
from ostinato.nn.types import HaltingTrace


@dataclass(frozen=True, slots=True)
class Round:
    """What a round is to its tokens. It never changes, so that a step may be recomputed when later rounds have run.

    Args:
        weight_BT: how much of a token is left for this round, 0 where it does not run; None: every token runs whole.
        visible: from states to those that keys and values are made of: a halted token shows its last visible state.
    """

    weight_BT: Float[Tensor, "B T"] | None
    visible: Callable[[Tensor], Tensor]


@runtime_checkable
class HaltingState(Protocol):
    """One pass under a halting rule."""

    def before(self, index: int, states_BTD: Float[Tensor, "B T D"]) -> Round | None:
        """Return what the 0-based round `index` is; None once every token has halted."""
        ...

    def enter(self, index: int, states_BTD: Float[Tensor, "B T D"]) -> None:
        """Take note of the states that the first step of the round will read."""
        ...

    def after(
        self, index: int, entered_BTD: Float[Tensor, "B T D"], left_BTD: Float[Tensor, "B T D"]
    ) -> Float[Tensor, "B T D"]:
        """Return the states after a round, given those before its signal and those that left it."""
        ...

    def output(self, states_BTD: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Return the stack's output."""
        ...

    def trace(self) -> HaltingTrace | None:
        """Return what every token did; None where no token can halt."""
        ...

    def aux_loss(self) -> Tensor | None:
        """Return the mean cost of depth over real tokens; None where there is none."""
        ...


@runtime_checkable
class HaltingRule(Protocol):
    """A halting rule of one stack.

    Args:
        threshold: of a token's mass: once so much of it is given out, the token halts. May be changed at any time.
    """

    threshold: float

    def start(
        self, states_BTD: Float[Tensor, "B T D"], keep_BT: Bool[Tensor, "B T"] | None, n_rounds: int, *, runs_all: bool
    ) -> HaltingState:
        """Begin a pass over embedded states.

        Args:
            runs_all: run every round, also those in which no token takes part: later tokens of a cached pass may go
                deeper, and look at these.
        """
        ...


class HaltingPass:
    """What passes under a rule that halts have in common: who is real, and what every token did in every round."""

    def __init__(self, states_BTD: Float[Tensor, "B T D"], keep_BT: Bool[Tensor, "B T"] | None) -> None:
        self._nothing_BT = at_least_float32(torch.zeros_like(states_BTD[..., 0]))
        self._keep_BT = torch.ones_like(self._nothing_BT, dtype=torch.bool) if keep_BT is None else keep_BT
        self._probs: list[Tensor] = []
        self._left: list[Tensor] = []
        self._weights: list[Tensor] = []
        self._executed: list[Tensor] = []

    def trace(self) -> HaltingTrace:
        """Return the gates, what was left before every round, what ran, and the weights of the rounds."""
        stacked = (torch.stack(values, -1) for values in (self._probs, self._left, self._executed, self._weights))
        return HaltingTrace(*stacked)


def unchanged(states_BTD: Tensor) -> Tensor:
    """Return the states: no token has halted."""
    return states_BTD


_WHOLE = Round(None, unchanged)


class NoHalting:
    """Every token takes part in every round. It has no state, so it is its own."""

    threshold = math.inf

    def start(
        self, states_BTD: Float[Tensor, "B T D"], keep_BT: Bool[Tensor, "B T"] | None, n_rounds: int, *, runs_all: bool
    ) -> NoHalting:
        """Begin a pass."""
        return self

    def before(self, index: int, states_BTD: Float[Tensor, "B T D"]) -> Round:
        """Every token runs whole, and shows its present state."""
        return _WHOLE

    def enter(self, index: int, states_BTD: Float[Tensor, "B T D"]) -> None:
        """Nothing depends on the states."""

    def after(
        self, index: int, entered_BTD: Float[Tensor, "B T D"], left_BTD: Float[Tensor, "B T D"]
    ) -> Float[Tensor, "B T D"]:
        """The next round starts from the states that left this one."""
        return left_BTD

    def output(self, states_BTD: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """The last states are the output."""
        return states_BTD

    def trace(self) -> HaltingTrace | None:
        """No token can halt."""
        return None

    def aux_loss(self) -> Tensor | None:
        """Depth costs nothing."""
        return None
