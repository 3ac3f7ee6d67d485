"""What rules have in common by which routers choose the tokens of rounds (`select.py`, `token_choice.py`).

Attention of a round is among the tokens that take part in it: the pass says who did, and the cache remembers it.
"""

from __future__ import annotations

from abc import abstractmethod
from copy import copy

import torch
import torch.nn.functional as F
from torch import nn

from ostinato.kernels import without_autocast
from ostinato.nn.context import Pass
from ostinato.nn.halting import HaltingPass, HaltingRule
from ostinato.nn.layers import at_least_float32
from ostinato.nn.rows import Rows
from ostinato.nn.shapes import Bool, Float, Tensor
from ostinato.nn.types import HaltingTrace


class Routers(nn.Module):
    """s = w_r x, one vector for every round with a router; more rounds than that have the last one's."""

    def __init__(self, d_model: int, n_routers: int) -> None:
        super().__init__()
        self.weight_RD = nn.Parameter(torch.empty(n_routers, d_model))
        nn.init.normal_(self.weight_RD, std=d_model**-0.5)

    def forward(self, number: int, states_ND: Float[Tensor, "*N D"]) -> Float[Tensor, "*N"]:
        """Return scores in float32 also under autocast, of the router of that 0-based number."""
        row = min(number, self.weight_RD.shape[0] - 1)
        with without_autocast(states_ND.device):
            return F.linear(at_least_float32(states_ND), self.weight_RD[row : row + 1]).squeeze(-1)

    def of_all(self, states_ND: Float[Tensor, "*N D"]) -> Float[Tensor, "*N R"]:
        """Return the scores of all routers."""
        with without_autocast(states_ND.device):
            return F.linear(at_least_float32(states_ND), self.weight_RD)


class Chooser(HaltingRule):
    """A rule of one stack by which routers choose the tokens of rounds; those of a round see each other only.

    Args:
        routers: the scores. z: weight of their squares, or of those of their log sums, in the cost.
        leaves_out: False: all tokens run all rounds that there are routers for, still weighed by them.
        freezes: a token that a round leaves out takes part in none after it.
    """

    leaves_out = True
    chooses_tokens = True

    def __init__(self, routers: Routers, z: float) -> None:
        self.unit, self.z = routers, z

    def whole(self) -> HaltingRule:
        """Return the rule that leaves nobody out: what rounds add is still weighed by the routers."""
        found = copy(self)
        found.leaves_out = False
        return found

    @abstractmethod
    def rounds_that_leave_out(self, n_rounds: int) -> list[int]:
        """Return the rounds, of so many, in which some tokens may not be seen."""


class ChooserPass(HaltingPass):
    """One pass in which those that take no part in a round are not seen in it."""

    hides = True

    def __init__(self, rule: Chooser, states_ND: Tensor, rows: Rows, run: Pass, n_rounds: int) -> None:
        super().__init__(states_ND, rows, run)
        self._run, self._leaving = run, rule.rounds_that_leave_out(n_rounds)

    def enter(self, index: int | Tensor, states_ND: Tensor, entered_ND: Tensor) -> tuple[Tensor | None, None]:
        """Tokens that take no part are seen by none."""
        runs_N = self._runs_N()
        self._record(self._executed, runs_N)
        self._record(self._left, runs_N.to(self._zeros_N.dtype))
        self.seen_BS = self._columns_of(int(index), runs_N)
        return None if self.active_N is None else runs_N.to(self._zeros_N.dtype), None

    def _columns_of(self, index: int, runs_N: Tensor) -> Bool[Tensor, "B S"] | None:
        """Return who took part in the round, cached columns first; None where it can leave nobody out."""
        if index not in self._leaving:
            return None
        cache, runs_BT = self._run.cache, self.rows.grid(runs_N)
        if cache is None:
            return runs_BT
        # Rounds that did not run, because all were left out before, lack the columns of those steps.
        seen_BS = runs_BT.new_zeros(runs_BT.shape[0], cache.length + runs_BT.shape[1])
        if (before_BS := cache.took_part.get(index)) is not None:
            seen_BS[:, : before_BS.shape[1]] = before_BS
        seen_BS[:, cache.length :] = runs_BT
        cache.took_part[index] = seen_BS
        return seen_BS

    def trace(self) -> HaltingTrace | None:
        """Return what every token did; its last round is all of its output."""
        if not self._executed:
            return None
        executed_BTR = torch.stack(self._executed, -1)
        rounds_R = torch.arange(1, executed_BTR.shape[-1] + 1, device=executed_BTR.device)
        last_BT1 = (executed_BTR * rounds_R).amax(-1, keepdim=True)
        weights_BTR = ((rounds_R == last_BT1) & executed_BTR).to(self._zeros_N.dtype)
        n = executed_BTR.shape[-1]  # a router may have been asked about a round that then ran for nobody
        probs_BTR, left_BTR = torch.stack(self._probs[:n], -1), torch.stack(self._left, -1)
        return HaltingTrace(probs_BTR, left_BTR, executed_BTR, weights_BTR)
