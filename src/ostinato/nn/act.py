"""Adaptive Computation Time: a token halts once its halting probabilities add up (Graves 2016; Universal Transformers).

    p_r = sigmoid(w x_r + b)              x_r: the state that enters round r, its signal added
    u_r = p_r while sum_{q <= r} p_q <= 1 - epsilon, else the remainder 1 - sum_{q < r} p_q, and the token halts
    accumulate:    output = sum_r u_r f_r           f_r: the state that left round r          (Graves; tensor2tensor's
                                                                                              "accumulated")
    interpolate:   prev = u_r f_r + (1 - u_r) prev, output = last prev                        (the UT listing)

The next round starts from f_r, not from the mix. With `freezes` a halted token's state stays as it was, and that is
what others see of it; without (the listing as printed) it goes on being transformed, and only its output is kept.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from ostinato.kernels import without_autocast
from ostinato.nn.context import Pass
from ostinato.nn.graph import is_first
from ostinato.nn.halting import HaltingPass, HaltingRule, Visible, where_active
from ostinato.nn.layers import at_least_float32
from ostinato.nn.rows import Rows
from ostinato.nn.shapes import Bool, Float, Tensor

ActMix = Literal["accumulate", "interpolate"]
BELOW_ONE = 1.0 - 2.0**-24
"""The largest float32 below 1: a sum of p of exactly 1 exceeds it, so that a token halts also where epsilon is 0."""


class ActUnit(nn.Module):
    """p = sigmoid(w x + b); w starts at N(0, 1 / d_model), b at `initial_bias`."""

    def __init__(self, d_model: int, initial_bias: float) -> None:
        super().__init__()
        self.map = nn.Linear(d_model, 1)
        nn.init.normal_(self.map.weight, std=d_model**-0.5)
        nn.init.constant_(self.map.bias, initial_bias)

    def forward(self, states_BTD: Float[Tensor, "*B D"]) -> Float[Tensor, "*B"]:
        """Return p in float32 also under autocast."""
        with without_autocast(states_BTD.device):
            return torch.sigmoid(self.map(at_least_float32(states_BTD))).squeeze(-1)


class Act(HaltingRule):
    """The rule of one stack.

    Args:
        unit: the gate. threshold: 1 - epsilon; a token halts when its sum of p exceeds it.
        mix, freezes: see the module. forces_remainder: the last round takes what is left of tokens that are still
            running; without it their weights do not add up to one (the UT listing).
        is_global: one probability a sentence, the mean of its tokens': they all halt together.
    """

    mixes = True

    def __init__(
        self, unit: ActUnit, threshold: float, *, mix: ActMix, freezes: bool, forces_remainder: bool, is_global: bool
    ) -> None:
        self.unit, self.threshold, self.mix = unit, threshold, mix
        self.freezes, self.forces_remainder, self.is_global = freezes, forces_remainder, is_global

    @property
    def enough(self) -> float:
        """What the sum of p has to exceed: at threshold 0 nothing, so that a p of exactly 0 halts, too."""
        return min(self.threshold, BELOW_ONE) if self.threshold else -1.0

    def start(self, states_ND: Float[Tensor, "N D"], rows: Rows, run: Pass, n_rounds: int | Tensor) -> ActPass:
        """Begin a pass."""
        return ActPass(self, states_ND, rows, run, n_rounds)


class ActPass(HaltingPass):
    """One pass: `total` is the sum of p so far and `rest` what is left of it, by token."""

    def __init__(self, rule: Act, states_ND: Tensor, rows: Rows, run: Pass, n_rounds: int | Tensor) -> None:
        super().__init__(states_ND, rows, run)
        self._rule, self._n_rounds = rule, n_rounds
        self._next_N = self._keep_N
        self._total_N = self._zeros_N
        self._mix_ND = torch.zeros_like(states_ND)
        # By round: who halted after it.
        self._halts: list[Tensor] = []

    def active(self, index: int | Tensor, states_ND: Float[Tensor, "N D"]) -> Bool[Tensor, "N"] | None:
        """Those whose probabilities do not add up yet."""
        self._set_active(self._next_N)
        return self.active_N

    def enter(
        self, index: int | Tensor, states_ND: Float[Tensor, "N D"], entered_ND: Float[Tensor, "N D"]
    ) -> tuple[Tensor | None, Visible]:
        """Ask the gate and decide who halts after this round; halted tokens show the state that left their last one."""
        rule, active_N = self._rule, self.active_N
        rest_N = 1.0 - self._total_N
        prob_N = rule.unit(entered_ND)
        if rule.is_global:
            prob_N = self._mean_of_sentences(prob_N)
        # At 1 nothing is left of a token, whatever epsilon.
        halts_N = (self._total_N + prob_N).detach() > rule.enough
        if rule.forces_remainder:
            halts_N = halts_N | (index == self._n_rounds - 1)
        self._weight_N = where_active(active_N, torch.where(halts_N, rest_N, prob_N), 0.0)
        self._record(self._left, rest_N)
        self._record(self._probs, prob_N)
        self._record(self._weights, self._weight_N)
        self._record(self._halts, halts_N)
        self._record(self._executed, self._runs_N())
        self._total_N = self._total_N + self._weight_N
        self._next_N = ~halts_N if active_N is None else active_N & ~halts_N
        return self._seen(index, states_ND, rest_N)

    def _seen(self, index: int | Tensor, states_ND: Tensor, rest_N: Tensor) -> tuple[Tensor | None, Visible]:
        """Return what is left of every row for the round, and what rows look like to others in it."""
        if not self._rule.freezes:
            return None, None
        active_N = self.active_N
        weight_N = where_active(active_N, rest_N, 0.0)
        if active_N is None or is_first(index):
            return weight_N, None
        return weight_N, lambda later_ND: where_active(active_N, later_ND, states_ND)

    def leave(
        self, index: int | Tensor, states_ND: Float[Tensor, "N D"], left_ND: Float[Tensor, "N D"]
    ) -> Float[Tensor, "N D"]:
        """Mix the round into the output."""
        weight_N1 = self._weight_N[:, None].to(left_ND.dtype)
        # There is nothing to keep of before the first round, and autograd would keep it.
        adds = self._rule.mix == "accumulate" or is_first(index)
        kept_ND = self._mix_ND if adds else (1.0 - weight_N1) * self._mix_ND
        self._mix_ND = torch.addcmul(kept_ND, weight_N1, left_ND)
        return where_active(self.active_N, left_ND, states_ND) if self._rule.freezes else left_ND

    def aux_loss(self) -> Tensor:
        """Return the ponder cost, rounds + remainder, as the mean over real tokens; its gradient is the remainder's."""
        if not self._weights:  # no token is real
            return self._zeros_N.sum()
        # The remainder is the weight of the round after which a token halts; tokens that ran no more weigh nothing.
        weights_BTR, halts_BTR = torch.stack(self._weights, -1), torch.stack(self._halts, -1)
        remainder_BT = torch.where(halts_BTR, weights_BTR, 0.0).sum(-1)
        return self._mean(torch.stack(self._executed, -1).sum(-1) + remainder_BT)

    def _final(self, states_ND: Tensor) -> Tensor:
        return self._mix_ND

    def _halted(self, states_ND: Tensor) -> tuple[Tensor, Tensor]:
        return self._mix_ND, states_ND

    def _keep_rows(self, kept_M: Tensor) -> None:
        self._total_N, self._mix_ND = self._total_N[kept_M], self._mix_ND.index_select(0, kept_M)
