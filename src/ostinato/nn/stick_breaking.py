"""Stick-breaking halting: a distribution over rounds for every token (Sparse Universal Transformer, section 2.5).

    a_r = halt(h_r),   alpha_r = N_{r-1} a_r,   N_r = N_{r-1} (1 - a_r),   N_0 = 1,   r = 1, 2, ..., L - 1
    s_r = N_{r-1} h_r + sum_{q < r} alpha_q h_q          what others see of the token, and at the end the output

h_r is the state that left round r. The gate of the last round is never asked: what is left belongs to it. A token takes
part in round r + 1 while N_r >= 1 - threshold. One that does not is frozen: its mass N_{r-1} belongs to round r, and it
is seen as s_r from then on. So the weights of a token's rounds add up to one, whatever the threshold.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from ostinato.nn.halting import HaltingPass, Round, unchanged
from ostinato.nn.precision import at_least_float32
from ostinato.nn.shapes import Bool, Float, Tensor

_LEAST_MASS = 1e-8
"""A token with less left stops even at threshold 1: products of such masses become denormal numbers, on which a CPU is
several times slower."""


class StickBreakingUnit(nn.Module):
    """log (1 - a) and log a of a state: log_softmax(V dropout(gelu(W h + b)) + (0, c)).

    V starts at zero, so that every token halts with probability sigmoid(c) at first: 1/2 where there is no c, which is
    the paper's unit.

    Args:
        initial_bias: c at the start, learned; None: no c.
    """

    def __init__(self, d_model: int, *, dropout: float, initial_bias: float | None) -> None:
        super().__init__()
        self.hidden = nn.Linear(d_model, d_model)
        self.out = nn.Linear(d_model, 2, bias=False)
        self.bias = None if initial_bias is None else nn.Parameter(torch.tensor(float(initial_bias)))
        self.dropout = dropout
        nn.init.zeros_(self.out.weight)

    def forward(self, states_BTD: Float[Tensor, "*B D"]) -> tuple[Tensor, Tensor]:
        """Return log (1 - a) and log a of every state, in float32 also under autocast."""
        with torch.autocast(states_BTD.device.type, enabled=False):
            hidden = F.gelu(self.hidden(at_least_float32(states_BTD)))
            if self.dropout and self.training:
                hidden = F.dropout(hidden, self.dropout)
            go, stop = self.out(hidden).unbind(-1)
            stop = stop if self.bias is None else stop + self.bias
            logs = torch.log_softmax(torch.stack([go, stop], -1), -1)
            return logs[..., 0], logs[..., 1]


class StickBreaking:
    """The rule of one stack.

    Args:
        unit: the gate. threshold: see the module; may be changed at any time.
        detaches_weight: routers do not pass the gradient of what is left of a token on to the gate.
    """

    def __init__(self, unit: StickBreakingUnit, threshold: float, *, detaches_weight: bool) -> None:
        self.unit, self.threshold, self.detaches_weight = unit, threshold, detaches_weight

    def start(
        self, states_BTD: Float[Tensor, "B T D"], keep_BT: Bool[Tensor, "B T"] | None, n_rounds: int, *, runs_all: bool
    ) -> StickBreakingState:
        """Begin a pass."""
        return StickBreakingState(self, states_BTD, keep_BT, runs_all=runs_all)


class StickBreakingState(HaltingPass):
    """One pass: `left` is N and `log_left` its log, `mean` the sum of alpha h, `frozen` the s of halted tokens."""

    def __init__(self, rule: StickBreaking, states_BTD: Tensor, keep_BT: Tensor | None, *, runs_all: bool) -> None:
        super().__init__(states_BTD, keep_BT)
        self._rule, self._runs_all = rule, runs_all
        self._active_BT = self._keep_BT
        self._log_left_BT = self._nothing_BT
        self._left_BT = torch.ones_like(self._nothing_BT)
        self._mean_BTD = torch.zeros_like(states_BTD)
        self._frozen_BTD = states_BTD

    def before(self, index: int, states_BTD: Float[Tensor, "B T D"]) -> Round | None:
        """Ask the gate of the round before; freeze who has too little left."""
        if index:
            self._halt(states_BTD)
        if not self._runs_all and not bool(self._active_BT.any()):
            return None
        left_BT = torch.where(self._active_BT, self._left_BT, 0.0)
        self._executed.append(self._active_BT)
        self._left.append(left_BT)
        weight_BT = left_BT.detach() if self._rule.detaches_weight else left_BT
        return Round(weight_BT, self._seen() if index else unchanged)

    def _halt(self, states_BTD: Tensor) -> None:
        log_go_BT, log_halt_BT = self._rule.unit(states_BTD)
        # Every number is made once: autograd keeps each that is made.
        halt_BT = log_halt_BT.exp()
        left_BT, active_BT = self._left_BT, self._active_BT
        next_BT = self._log_left_BT + log_go_BT
        has_enough_BT = next_BT.detach().exp() >= max(1.0 - self._rule.threshold, _LEAST_MASS)
        # At threshold 0 nothing is enough, not even the whole mass of a gate that is exactly 0.
        goes_on_BT = active_BT & has_enough_BT if self._rule.threshold else torch.zeros_like(active_BT)
        seen_BTD = self._mean_BTD + left_BT[..., None].to(states_BTD.dtype) * states_BTD
        self._frozen_BTD = torch.where(active_BT[..., None], seen_BTD, self._frozen_BTD)
        alpha_BT = torch.where(goes_on_BT, left_BT * halt_BT, 0.0)
        self._mean_BTD = self._mean_BTD + alpha_BT[..., None].to(states_BTD.dtype) * states_BTD
        self._log_left_BT = torch.where(goes_on_BT, next_BT, self._log_left_BT)
        self._left_BT = self._log_left_BT.exp()
        self._probs.append(halt_BT)
        self._weights.append(torch.where(goes_on_BT, alpha_BT, torch.where(active_BT, left_BT, 0.0)))
        self._active_BT = goes_on_BT

    def enter(self, index: int, states_BTD: Float[Tensor, "B T D"]) -> None:
        """The gate reads states without a signal."""

    def _seen(self) -> Callable[[Tensor], Tensor]:
        """Return the map from states to expected halted states, as things stand."""
        active_BT1, mean_BTD, frozen_BTD = self._active_BT[..., None], self._mean_BTD, self._frozen_BTD
        left_BT1 = self._left_BT[..., None].to(mean_BTD.dtype)
        return lambda states_BTD: torch.where(active_BT1, mean_BTD + left_BT1 * states_BTD, frozen_BTD)

    def after(
        self, index: int, entered_BTD: Float[Tensor, "B T D"], left_BTD: Float[Tensor, "B T D"]
    ) -> Float[Tensor, "B T D"]:
        """Halted tokens keep their states."""
        return torch.where(self._active_BT[..., None], left_BTD, entered_BTD)

    def output(self, states_BTD: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Return s of the last round."""
        # Where the loop ended because nobody was active, the last weights were given out by `before`.
        if len(self._weights) < len(self._executed):
            self._weights.append(torch.where(self._active_BT, self._left_BT, 0.0))
            self._probs.append(self._active_BT.to(self._left_BT.dtype))
        return self._seen()(states_BTD)

    def aux_loss(self) -> Tensor:
        """Return the expected depth sum_r w_r r, rounds counted from 1, as the mean over real tokens."""
        weights_BTR = torch.stack(self._weights, -1)
        rounds_R = torch.arange(1, weights_BTR.shape[-1] + 1, device=weights_BTR.device, dtype=weights_BTR.dtype)
        depth_BT = (weights_BTR * rounds_R).sum(-1)
        return depth_BT[self._keep_BT].mean()
