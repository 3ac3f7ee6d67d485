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

from ostinato.kernels import ActGate
from ostinato.nn.halting import HaltingPass, Round, unchanged, where_active
from ostinato.nn.links import are_plain, is_changed
from ostinato.nn.precision import at_least_float32, without_autocast
from ostinato.nn.rows import Rows
from ostinato.nn.shapes import Bool, Float, Tensor

Mix = Literal["accumulate", "interpolate"]
_BELOW_ONE = 1.0 - 2.0**-24


class ActUnit(nn.Module):
    """p = sigmoid(w x + b); w starts at zero mean, b at `initial_bias`."""

    def __init__(self, d_model: int, initial_bias: float) -> None:
        super().__init__()
        self.map = nn.Linear(d_model, 1)
        nn.init.normal_(self.map.weight, std=d_model**-0.5)
        nn.init.constant_(self.map.bias, initial_bias)

    def forward(self, states_BTD: Float[Tensor, "*B D"]) -> Float[Tensor, "*B"]:
        """Return p in float32 also under autocast."""
        with without_autocast(states_BTD.device):
            return torch.sigmoid(self.map(at_least_float32(states_BTD))).squeeze(-1)

    def compiled(self) -> ActGate | None:
        """Return the gate as a compiled kernel; None where its modules must be called."""
        if type(self) is not ActUnit or is_changed(self, self.map):
            return None
        weight_1D = self.map.weight
        bias_1: Tensor | None = self.map.bias
        return ActGate(weight_1D, bias_1) if bias_1 is not None and are_plain(weight_1D, bias_1) else None


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
        self, states_ND: Float[Tensor, "N D"], rows: Rows, keep_N: Bool[Tensor, "N"] | None, n_rounds: int
    ) -> ActState:
        """Begin a pass."""
        return ActState(self, states_ND, rows, keep_N, n_rounds)


class ActState(HaltingPass):
    """One pass: `total` is the sum of p so far and `rest` what is left of it, by token."""

    def __init__(self, rule: Act, states_ND: Tensor, rows: Rows, keep_N: Tensor | None, n_rounds: int) -> None:
        super().__init__(states_ND, rows, keep_N)
        self._rule, self._n_rounds = rule, n_rounds
        self._next_N = keep_N
        self._n_next: int | None = None  # where it is known
        self._total_N = self._zeros_N
        self._real_BT = rows.grid(torch.ones_like(self._zeros_N, dtype=torch.bool) if keep_N is None else keep_N)
        self._mix_ND = torch.zeros_like(states_ND)
        # By round: who took part in it, frozen or not, and who halted after it.
        self._ran: list[Tensor] = []
        self._halts: list[Tensor] = []
        self._gate: ActGate | None = None

    def use_kernels(self) -> None:
        """See `HaltingPass`."""
        super().use_kernels()
        if self._rule.freezes and not self._rule.is_global:
            self._gate, self._total_N = self._rule.unit.compiled(), torch.zeros_like(self._zeros_N)

    def active(self, index: int, states_ND: Float[Tensor, "N D"]) -> Bool[Tensor, "N"] | None:
        """Those whose probabilities do not add up yet."""
        self._set_active(self._next_N, self._n_next)
        return self.active_N

    def before(self, index: int, states_ND: Float[Tensor, "N D"]) -> Round:
        """Halted tokens show the state that left their last round."""
        active_N = self.active_N
        self._rest_N = 1.0 - self._total_N
        if not self._rule.freezes:
            return Round(None, unchanged)
        weight_N = where_active(active_N, self._rest_N, 0.0)
        if active_N is None or not index:
            return Round(weight_N, unchanged)
        return Round(weight_N, lambda later_ND: where_active(active_N, later_ND, states_ND))

    def enter(self, index: int, states_ND: Float[Tensor, "N D"]) -> None:
        """Ask the gate, and decide who halts after this round."""
        rule, active_N = self._rule, self.active_N
        is_last = rule.forces_remainder and index == self._n_rounds - 1
        # At 1 nothing is left of a token, whatever epsilon.
        threshold = min(rule.threshold, _BELOW_ONE)
        if self._gate is not None:
            made = self._gate.enter(states_ND, self._total_N, active_N, threshold, is_last=is_last)
            self._weight_N, self._next_N, self._n_next = made
            return
        p_N = rule.unit(states_ND)
        if rule.is_global:
            p_N = self._mean_of_sentences(p_N)
        if is_last:
            halts_N = torch.ones_like(p_N, dtype=torch.bool)
        else:
            halts_N = (self._total_N + p_N).detach() > threshold
        weight_N = where_active(active_N, torch.where(halts_N, self._rest_N, p_N), 0.0)
        if self.keeps_notes:
            self._note(self._left, self._rest_N)
            self._note(self._probs, p_N)
            self._note(self._weights, weight_N)
            self._note(self._halts, halts_N)
            self._note(self._ran, self._runs_N())
            self._executed.append(self._ran[-1] if rule.freezes else self._real_BT)
        self._total_N = self._total_N + weight_N
        self._next_N = ~halts_N if active_N is None else active_N & ~halts_N
        self._weight_N = weight_N

    def _mean_of_sentences(self, p_N: Tensor) -> Tensor:
        """Return for every row the mean over the real tokens of its sentence, all of which run or none."""
        real_BT = self._real_BT.to(p_N.dtype)
        mean_B1 = (self.rows.grid(p_N) * real_BT).sum(1, keepdim=True) / real_BT.sum(1, keepdim=True).clamp_min(1)
        return self.rows.take(mean_B1.expand_as(real_BT))

    def after(
        self, index: int, entered_ND: Float[Tensor, "N D"], left_ND: Float[Tensor, "N D"]
    ) -> Float[Tensor, "N D"]:
        """Mix the round into the output."""
        if self._gate is not None:
            given = entered_ND, left_ND, self._weight_N, self._mix_ND, self.active_N
            return self._gate.after(*given, interpolates=self._rule.mix == "interpolate")
        weight_N1 = self._weight_N[:, None].to(left_ND.dtype)
        # There is nothing to keep of before the first round, and autograd would keep it.
        kept_ND = self._mix_ND if self._rule.mix == "accumulate" or not index else (1.0 - weight_N1) * self._mix_ND
        self._mix_ND = torch.addcmul(kept_ND, weight_N1, left_ND)
        return where_active(self.active_N, left_ND, entered_ND) if self._rule.freezes else left_ND

    def aux_loss(self) -> Tensor:
        """Return the ponder cost, rounds + remainder, as the mean over real tokens; its gradient is the remainder's."""
        # The remainder is the weight of the round after which a token halts; tokens that ran no more weigh nothing.
        weights_BTR, halts_BTR = torch.stack(self._weights, -1), torch.stack(self._halts, -1)
        remainder_BT = torch.where(halts_BTR, weights_BTR, 0.0).sum(-1)
        return self._mean(torch.stack(self._ran, -1).sum(-1) + remainder_BT)

    def _final(self, states_ND: Tensor) -> Tensor:
        return self._mix_ND

    def _halted(self, states_ND: Tensor) -> tuple[Tensor, Tensor]:
        return self._mix_ND, states_ND

    def _keep_rows(self, kept_M: Tensor) -> None:
        self._total_N, self._mix_ND = self._total_N[kept_M], self._mix_ND.index_select(0, kept_M)
