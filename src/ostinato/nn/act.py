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

from ostinato.nn.halting import HaltingPass, Round, unchanged
from ostinato.nn.precision import at_least_float32
from ostinato.nn.shapes import Bool, Float, Tensor

Mix = Literal["accumulate", "interpolate"]


class ActUnit(nn.Module):
    """p = sigmoid(w x + b); w starts at zero mean, b at `initial_bias`."""

    def __init__(self, d_model: int, initial_bias: float) -> None:
        super().__init__()
        self.map = nn.Linear(d_model, 1)
        nn.init.normal_(self.map.weight, std=d_model**-0.5)
        nn.init.constant_(self.map.bias, initial_bias)

    def forward(self, states_BTD: Float[Tensor, "*B D"]) -> Float[Tensor, "*B"]:
        """Return p in float32 also under autocast."""
        with torch.autocast(states_BTD.device.type, enabled=False):
            return torch.sigmoid(self.map(at_least_float32(states_BTD))).squeeze(-1)


class Act:
    """The rule of one stack.

    Args:
        unit: the gate. epsilon: a token halts when 1 - epsilon is reached; may be changed at any time.
        mix, freezes: see the module. forces_remainder: the last round takes what is left of tokens that are still
            running; without it their weights do not add up to one (the UT listing).
        is_global: one probability a sentence, the mean of its tokens': they all halt together.
    """

    def __init__(
        self, unit: ActUnit, epsilon: float, *, mix: Mix, freezes: bool, forces_remainder: bool, is_global: bool
    ) -> None:
        self.unit, self.epsilon, self.mix = unit, epsilon, mix
        self.freezes, self.forces_remainder, self.is_global = freezes, forces_remainder, is_global

    @property
    def threshold(self) -> float:
        """1 - epsilon."""
        return 1.0 - self.epsilon

    @threshold.setter
    def threshold(self, value: float) -> None:
        self.epsilon = 1.0 - value

    def start(
        self, states_BTD: Float[Tensor, "B T D"], keep_BT: Bool[Tensor, "B T"] | None, n_rounds: int, *, runs_all: bool
    ) -> ActState:
        """Begin a pass."""
        return ActState(self, states_BTD, keep_BT, n_rounds, runs_all=runs_all)


class ActState(HaltingPass):
    """One pass: `total` is the sum of p so far, `remainder` what the halting round was given."""

    def __init__(self, rule: Act, states_BTD: Tensor, keep_BT: Tensor | None, n_rounds: int, *, runs_all: bool) -> None:
        super().__init__(states_BTD, keep_BT)
        self._rule, self._n_rounds, self._runs_all = rule, n_rounds, runs_all
        self._active_BT = self._next_BT = self._keep_BT
        self._total_BT = self._nothing_BT
        self._remainder_BT = self._nothing_BT
        self._rounds_BT = self._nothing_BT
        self._mix_BTD = torch.zeros_like(states_BTD)

    def before(self, index: int, states_BTD: Float[Tensor, "B T D"]) -> Round | None:
        """Run while any token does."""
        active_BT = self._active_BT = self._next_BT
        if not self._runs_all and not bool(active_BT.any()):
            return None
        if not self._rule.freezes:
            return Round(None, unchanged)
        weight_BT = torch.where(active_BT, 1.0 - self._total_BT, 0.0)
        if not index:
            return Round(weight_BT, unchanged)
        return Round(weight_BT, lambda later_BTD: torch.where(active_BT[..., None], later_BTD, states_BTD))

    def enter(self, index: int, states_BTD: Float[Tensor, "B T D"]) -> None:
        """Ask the gate, and decide who halts after this round."""
        rule, active_BT = self._rule, self._active_BT
        p_BT = rule.unit(states_BTD)
        if rule.is_global:
            keep_BT = self._keep_BT.to(p_BT.dtype)
            p_BT = ((p_BT * keep_BT).sum(1, keepdim=True) / keep_BT.sum(1, keepdim=True).clamp_min(1)).expand_as(p_BT)
        self._left.append(1.0 - self._total_BT)
        halts_BT = active_BT & ((self._total_BT + p_BT).detach() > 1.0 - rule.epsilon)
        if rule.forces_remainder and index == self._n_rounds - 1:
            halts_BT = active_BT
        rest_BT = 1.0 - self._total_BT
        weight_BT = torch.where(halts_BT, rest_BT, torch.where(active_BT, p_BT, 0.0))
        self._remainder_BT = torch.where(halts_BT, rest_BT, self._remainder_BT)
        self._total_BT = self._total_BT + weight_BT
        self._next_BT = active_BT & ~halts_BT
        self._rounds_BT = self._rounds_BT + active_BT
        self._probs.append(p_BT)
        self._weights.append(weight_BT)
        self._executed.append(active_BT if rule.freezes else self._keep_BT)

    def after(
        self, index: int, entered_BTD: Float[Tensor, "B T D"], left_BTD: Float[Tensor, "B T D"]
    ) -> Float[Tensor, "B T D"]:
        """Mix the round into the output."""
        weight_BT1 = self._weights[-1][..., None].to(left_BTD.dtype)
        # There is nothing to keep of before the first round, and autograd would keep it.
        kept_BTD = self._mix_BTD if self._rule.mix == "accumulate" or not index else (1.0 - weight_BT1) * self._mix_BTD
        self._mix_BTD = kept_BTD + weight_BT1 * left_BTD
        return torch.where(self._active_BT[..., None], left_BTD, entered_BTD) if self._rule.freezes else left_BTD

    def output(self, states_BTD: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Return the mix."""
        return self._mix_BTD

    def aux_loss(self) -> Tensor:
        """Return the ponder cost, rounds + remainder, as the mean over real tokens; its gradient is the remainder's."""
        return (self._rounds_BT + self._remainder_BT)[self._keep_BT].mean()
