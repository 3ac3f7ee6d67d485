"""Halting: which tokens still take part in a round, and what the others look like to them.

One protocol for every rule. The depth loop asks, for every round: `active` (who takes part?), `enter` (how much of
every token is left, and what do the halted look like?), `leave` (the states to go on with), and at the end `output`,
`trace` and `aux_loss`. Where the loop gathers halted tokens away, it says so with `narrow`. A rule's state lives for
one pass and is made by `start`; nothing is kept on modules.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import torch
from torch import nn

from ostinato.kernels import mean_where, places_where, runs_ahead
from ostinato.nn.context import Pass
from ostinato.nn.rows import Rows
from ostinato.nn.shapes import Bool, Float, Int, Tensor
from ostinato.nn.types import HaltingTrace

Visible = Callable[[Tensor], Tensor] | None
"""From the states of rows to those that keys and values are made of: a halted token shows its last visible state. None:
all rows show their present states."""


class HaltingRule(ABC):
    """A halting rule of one stack.

    Args:
        threshold: of a token's mass: once so much of it is given out, the token halts. Infinite: there is none.
        freezes: a halted token stays as it was; only then is there nothing left to compute for it.
        chooses_tokens: routers choose the tokens of every round, which see each other only, and weigh what it adds:
            another rule would be another model.
        mixes: a token's output is a weighted sum of the states that left its rounds, and no state of one round.
        unit: the parameter set that is asked, a gate or routers, where there is one.
    """

    unit: Any = None
    threshold: float = math.inf
    freezes: bool = True
    chooses_tokens: bool = False
    mixes: bool = False

    def at(self, threshold: float) -> HaltingRule:
        """Return the same rule, with the same unit, at another threshold; itself where it has none."""
        if math.isinf(self.threshold):
            return self
        found = copy(self)
        found.threshold = threshold
        return found

    def asking(self, unit: nn.Module) -> HaltingRule:
        """Return the same rule with another unit; itself where that is its own, or where it asks none."""
        if self.unit is None or unit is self.unit:
            return self
        found = copy(self)
        found.unit = unit
        return found

    def whole(self) -> HaltingRule:
        """Return the rule by which every token runs every round."""
        return NoHalting()

    @abstractmethod
    def start(self, states_ND: Float[Tensor, "N D"], rows: Rows, run: Pass, n_rounds: int | Tensor) -> HaltingPass:
        """Begin a pass of at most `n_rounds` rounds over the embedded states of all tokens."""


class HaltingPass(ABC):
    """One pass under a rule: the rows that are computed, who of them takes part, and what every token did.

    Attributes:
        rows: the tokens that states and all else `[N, ...]` are of.
        active_N: those that take part in the round; None: all.
        hides: those that take no part are not seen by others. seen_BS: the columns that are seen in the round, cached
            ones first; None: all real tokens.
        ends_early: it depends on the tokens how many rounds there are; else every one is run, if there is a token.
        comes_back: those that take no part in a round, and are not seen in it, may take part in a later one: they are
            gathered away for a round at a time.
    """

    hides = False
    comes_back = False
    ends_early = True
    seen_BS: Bool[Tensor, "B S"] | None = None
    _n_active: int | None
    _counts: Sequence[int] | None
    """Rows that take part, of every sentence, where they had to be read."""

    def __init__(self, states_ND: Float[Tensor, "N D"], rows: Rows, run: Pass) -> None:
        self.rows = rows
        self._as_graph = run.execution.as_graph
        self._like_N = states_ND.shape[0], torch.promote_types(states_ND.dtype, torch.float32), states_ND.device
        self._zeros: Tensor | None = None
        self._keep_BT, self._keep_N = run.keep_BT, run.keep_N()
        self._set_active(self._keep_N)
        self._outputs: list[Tensor] = []
        self._places: list[Tensor] = []
        self._probs: list[Tensor] = []
        self._left: list[Tensor] = []
        self._weights: list[Tensor] = []
        self._executed: list[Tensor] = []

    @property
    def _zeros_N(self) -> Tensor:
        """Zeros for all rows of the pass as it began; where every token runs every round, nobody asks for them."""
        if self._zeros is None:
            n, dtype, device = self._like_N
            self._zeros = torch.zeros(n, dtype=dtype, device=device)
        return self._zeros

    @property
    def is_over(self) -> bool:
        """Whether no token takes part in this round and all later ones."""
        return not self.n_active

    @property
    def n_active(self) -> int:
        """Number of rows that take part. An accelerator is waited for when it is first read in a round."""
        if self._n_active is None:
            assert self.active_N is not None  # without a mask their number is known
            self._counts = self.rows.count(self.active_N)
            self._n_active = sum(self._counts)
        return self._n_active

    def active(self, index: int | Tensor, states_ND: Float[Tensor, "N D"]) -> Bool[Tensor, "N"] | None:
        """Return who takes part in the 0-based round `index`, given the states it starts from; None: all rows."""
        return self.active_N

    @abstractmethod
    def enter(
        self, index: int | Tensor, states_ND: Float[Tensor, "N D"], entered_ND: Float[Tensor, "N D"]
    ) -> tuple[Float[Tensor, "N"] | None, Visible]:
        """Begin a round.

        Args:
            states_ND: after the round before. entered_ND: with this round's signal added, as its first step reads them.

        Returns:
            How much of every row is left for the round, 0 where it does not take part (None: all of all rows), and
            what rows look like to others. Neither changes later, so that a step can be run again.
        """

    def leave(
        self, index: int | Tensor, states_ND: Float[Tensor, "N D"], left_ND: Float[Tensor, "N D"]
    ) -> Float[Tensor, "N D"]:
        """Return the states after a round, given those after the round before it and those that its last step gave."""
        return left_ND

    def carried(self) -> dict[str, Tensor]:
        """Return what differs from round to round, by attribute."""
        fixed = ("_keep_BT", "_keep_N", "_zeros", "_n_rounds")
        return {name: one for name, one in vars(self).items() if isinstance(one, Tensor) and name not in fixed}

    def standing_at(self, carried: dict[str, Tensor]) -> HaltingPass:
        """Return this pass as it stands before another round, of which all differing tensors are given."""
        found = copy(self)
        vars(found).update(carried)
        return found

    def narrow(self, kept_M: Int[Tensor, "M"], halted_L: Int[Tensor, "L"], states_ND: Float[Tensor, "N D"]) -> Tensor:
        """Give halted rows their output and forget them; called between `active` and `enter`.

        Returns:
            What they look like to others from now on, `[L, D]`.
        """
        output_ND, shown_ND = self._halted(states_ND)
        shown_LD = shown_ND.index_select(0, halted_L)
        self._outputs.append(shown_LD if output_ND is shown_ND else output_ND.index_select(0, halted_L))
        self._places.append(halted_L if self.rows.index_N is None else self.rows.index_N[halted_L])
        self._keep_rows(kept_M)
        self.rows = self.rows.keep(kept_M, self._counts)
        self._set_active(None)
        return shown_LD

    def rows_of_round(self) -> tuple[Int[Tensor, "M"], Rows]:
        """Return which rows take part in this round, and places of their own for them."""
        assert self.active_N is not None  # some take no part
        kept_M = places_where(self.active_N, self.n_active)
        return kept_M, self.rows.keep(kept_M, self._counts)

    def output(self, states_ND: Float[Tensor, "N D"]) -> Float[Tensor, "B T D"]:
        """Return the stack's output, given the states of the rows that are left."""
        final_ND = self._final(states_ND)
        if self.rows.index_N is None:
            return self.rows.grid(final_ND)
        places = torch.cat([*self._places, self.rows.index_N])
        all_ND = torch.cat([*self._outputs, final_ND])
        everything = Rows(self.rows.n_sentences, self.rows.n_columns, places)
        return everything.grid(all_ND)

    def trace(self) -> HaltingTrace | None:
        """Return what every token did; None where no token can halt, or none took part."""
        if not self._executed:
            return None
        stacked = (torch.stack(values, -1) for values in (self._probs, self._left, self._executed, self._weights))
        return HaltingTrace(*stacked)

    def aux_loss(self) -> Tensor | None:
        """Return the mean cost of depth over real tokens; None where there is none."""
        return None

    def _final(self, states_ND: Tensor) -> Tensor:
        """Return the output of all rows, once no round is to come."""
        return states_ND

    def _halted(self, states_ND: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output of rows that have halted, and what they look like, before a round starts; of other rows
        anything."""
        return states_ND, states_ND

    def _keep_rows(self, kept_M: Tensor) -> None:  # noqa: B027, a rule that holds nothing of rows keeps nothing
        """Keep what is held of these rows only."""

    def _set_active(self, active_N: Tensor | None, n_active: int | None = None) -> None:
        """Note who takes part, and, where that is not given, their number; that of an accelerator once it is read."""
        if self._as_graph:  # how many they are is not known, and not asked
            self._n_active, self._counts, self.active_N = 1, None, active_N
            return
        n = len(self.rows)
        if active_N is None:
            n_active = n
        elif n_active is None and not runs_ahead(active_N.device):
            n_active = int(torch.count_nonzero(active_N))
        self._n_active, self._counts = n_active, None
        self.active_N = None if n_active == n else active_N

    def _runs_N(self) -> Bool[Tensor, "N"]:
        """Return who takes part in the round."""
        n, device = self.rows.n_rows, self._zeros_N.device
        return torch.ones(n, dtype=torch.bool, device=device) if self.active_N is None else self.active_N

    def _record(self, values: list[Tensor], value_N: Tensor) -> None:
        """Add what the rows did to what is known of all tokens; 0 for the others."""
        if not self._as_graph:  # of rounds in a loop only what it carries leaves it
            values.append(self.rows.grid(value_N))

    def _mean_of_sentences(self, value_N: Tensor) -> Tensor:
        """Return for every row the mean over the real tokens of its sentence, all of which run or none."""
        value_BT = self.rows.grid(value_N)
        real_BT = torch.ones_like(value_BT) if self._keep_BT is None else self._keep_BT.to(value_N.dtype)
        mean_B1 = (value_BT * real_BT).sum(1, keepdim=True) / real_BT.sum(1, keepdim=True).clamp_min(1)
        return self.rows.take(mean_B1.expand_as(real_BT))

    def _mean(self, cost_BT: Tensor) -> Tensor:
        """Return the mean over real tokens."""
        return mean_where(cost_BT, self._keep_BT)


def where_active(active_N: Tensor | None, values: Tensor, otherwise: Tensor | float | bool) -> Tensor:
    """Return values of the rows that take part, and of the others something else; None: all take part."""
    if active_N is None:
        return values
    return torch.where(active_N.view(-1, *(1 for _ in values.shape[1:])), values, otherwise)


class NoHalting(HaltingRule):
    """Every real token takes part in every round."""

    def start(self, states_ND: Float[Tensor, "N D"], rows: Rows, run: Pass, n_rounds: int | Tensor) -> WholePass:
        """Begin a pass."""
        return WholePass(states_ND, rows, run)


class WholePass(HaltingPass):
    """One pass in which only padding has nothing to do; an accelerator computes it rather than being waited for."""

    ends_early = False

    def __init__(self, states_ND: Float[Tensor, "N D"], rows: Rows, run: Pass) -> None:
        super().__init__(states_ND, rows, run)
        if runs_ahead(states_ND.device) and run.execution.compaction != "always":
            self._set_active(None)

    def enter(self, index: int | Tensor, states_ND: Tensor, entered_ND: Tensor) -> tuple[None, None]:
        """Every token runs whole, and shows its present state."""
        return None, None
