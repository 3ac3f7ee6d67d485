"""Halting: which tokens still take part in a round, and what the others look like to them.

One protocol for every rule. The depth loop asks, for every round: `before` (is anything still running?), `visible`
(the states that keys and values are made of), `after` (the states to go on with), and at the end `output`, `trace`
and `aux_loss`. A rule's state lives for one pass and is made by `start`; nothing is kept on modules.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from ostinato.nn.shapes import Bool, Float, Tensor
from ostinato.nn.types import HaltingTrace


@runtime_checkable
class HaltingState(Protocol):
    """One pass under a halting rule."""

    def before(self, index: int, states_BTD: Float[Tensor, "B T D"]) -> bool:
        """Return whether the 0-based round `index` runs at all: False once every token has halted."""
        ...

    def visible(self, states_BTD: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Return the states that keys and values are made of: a halted token shows its last visible state."""
        ...

    def after(
        self, index: int, entered_BTD: Float[Tensor, "B T D"], left_BTD: Float[Tensor, "B T D"]
    ) -> Float[Tensor, "B T D"]:
        """Return the states after a round, given those that entered and those that left it."""
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
    """A halting rule of one stack."""

    def start(self, states_BTD: Float[Tensor, "B T D"], keep_BT: Bool[Tensor, "B T"] | None) -> HaltingState:
        """Begin a pass over embedded states."""
        ...


class NoHalting:
    """Every token takes part in every round. It has no state, so it is its own."""

    def start(self, states_BTD: Float[Tensor, "B T D"], keep_BT: Bool[Tensor, "B T"] | None) -> NoHalting:
        """Begin a pass."""
        return self

    def before(self, index: int, states_BTD: Float[Tensor, "B T D"]) -> bool:
        """Every round runs."""
        return True

    def visible(self, states_BTD: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Every token shows its present state."""
        return states_BTD

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
