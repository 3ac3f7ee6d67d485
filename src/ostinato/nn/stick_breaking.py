"""Stick-breaking halting: a distribution over rounds for every token (Sparse Universal Transformer, section 2.5).

    a_r = halt(h_r),   alpha_r = N_{r-1} a_r,   N_r = N_{r-1} (1 - a_r),   N_0 = 1,   r = 1, 2, ..., L - 1
    s_r = N_{r-1} h_r + sum_{q < r} alpha_q h_q          what others see of the token, and at the end the output

h_r is the state that left round r. The gate of the last round is never asked: what is left belongs to it. A token takes
part in round r + 1 while N_r >= 1 - threshold. One that does not is frozen: its mass N_{r-1} belongs to round r, and it
is seen as s_r from then on. So the weights of a token's rounds add up to one, whatever the threshold.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from ostinato.kernels import without_autocast
from ostinato.nn.context import Pass
from ostinato.nn.graph import is_first
from ostinato.nn.halting import HaltingPass, HaltingRule, Visible, where_active
from ostinato.nn.layers import Linear, at_least_float32
from ostinato.nn.rows import Rows
from ostinato.nn.shapes import Bool, Float, Tensor
from ostinato.nn.types import HaltingTrace

LEAST_MASS = 1e-8
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
        self.hidden = Linear(d_model, d_model, bias=True)
        self.out = nn.Linear(d_model, 2, bias=False)
        self.bias = None if initial_bias is None else nn.Parameter(torch.tensor(float(initial_bias)))
        self.dropout = dropout
        nn.init.zeros_(self.out.weight)

    def forward(self, states_BTD: Float[Tensor, "*B D"]) -> tuple[Tensor, Tensor]:
        """Return log (1 - a) and log a of every state, in float32 also under autocast."""
        with without_autocast(states_BTD.device):
            hidden = F.gelu(self.hidden(at_least_float32(states_BTD)))
            if self.dropout and self.training:
                hidden = F.dropout(hidden, self.dropout)
            go, stop = self.out(hidden).unbind(-1)
            stop = stop if self.bias is None else stop + self.bias
            logs = torch.log_softmax(torch.stack([go, stop], -1), -1)
            return logs[..., 0], logs[..., 1]


class StickBreaking(HaltingRule):
    """The rule of one stack.

    Args:
        unit: the gate. threshold: see the module.
        detaches_weight: routers do not pass the gradient of what is left of a token on to the gate.
    """

    mixes = True

    def __init__(self, unit: StickBreakingUnit, threshold: float, *, detaches_weight: bool) -> None:
        self.unit, self.threshold, self.detaches_weight = unit, threshold, detaches_weight

    def start(
        self, states_ND: Float[Tensor, "N D"], rows: Rows, run: Pass, n_rounds: int | Tensor
    ) -> StickBreakingPass:
        """Begin a pass."""
        return StickBreakingPass(self, states_ND, rows, run)


class StickBreakingPass(HaltingPass):
    """One pass: `left` is N of rows that take part and 0 of the others, `mean` the sum of alpha h, their s."""

    def __init__(self, rule: StickBreaking, states_ND: Tensor, rows: Rows, run: Pass) -> None:
        super().__init__(states_ND, rows, run)
        self._rule, keep_N = rule, self._keep_N
        self._log_left_N = self._zeros_N
        self._left_N = torch.ones_like(self._zeros_N) if keep_N is None else keep_N.to(self._zeros_N.dtype)
        # Padding has halted, and looks as it did.
        self._mean_ND = torch.zeros_like(states_ND) if keep_N is None else where_active(~keep_N, states_ND, 0.0)

    def active(self, index: int | Tensor, states_ND: Float[Tensor, "N D"]) -> Bool[Tensor, "N"] | None:
        """Ask the gate of the round before; whoever has too little left halts."""
        if not is_first(index):
            self._halt(states_ND)
        return self.active_N

    def _halt(self, states_ND: Tensor) -> None:
        log_go_N, log_halt_N = self._rule.unit(states_ND)
        # Every number is made once: autograd keeps each that is made.
        halt_N = log_halt_N.exp()
        left_N, active_N = self._left_N, self.active_N
        next_N = self._log_left_N + log_go_N
        has_enough_N = next_N.detach().exp() >= max(1.0 - self._rule.threshold, LEAST_MASS)
        # At threshold 0 nothing is enough, not even the whole mass of a gate that is exactly 0.
        goes_on_N = has_enough_N if self._rule.threshold else torch.zeros_like(has_enough_N)
        self._set_active(goes_on_N if active_N is None else active_N & goes_on_N)
        # Who halts gives out all that is left, and who has halted has nothing left.
        alpha_N = where_active(self.active_N, left_N * halt_N, left_N)
        self._record(self._probs, halt_N)
        self._record(self._weights, alpha_N)
        self._mean_ND = self._mean_ND + alpha_N[:, None].to(states_ND.dtype) * states_ND
        self._log_left_N = where_active(self.active_N, next_N, self._log_left_N)
        self._left_N = where_active(self.active_N, self._log_left_N.exp(), 0.0)

    def enter(
        self, index: int | Tensor, states_ND: Float[Tensor, "N D"], entered_ND: Float[Tensor, "N D"]
    ) -> tuple[Tensor | None, Visible]:
        """Halted tokens show s of their last round, the others their s so far."""
        left_N = self._left_N
        self._record(self._executed, self._runs_N())
        self._record(self._left, left_N)
        visible = partial(self._shown, self._mean_ND, left_N) if not is_first(index) else None
        return left_N.detach() if self._rule.detaches_weight else left_N, visible

    @staticmethod
    def _shown(mean_ND: Tensor, left_N: Tensor, states_ND: Tensor) -> Tensor:
        """Return expected halted states."""
        return torch.addcmul(mean_ND, left_N[:, None].to(states_ND.dtype), states_ND)

    def leave(
        self, index: int | Tensor, states_ND: Float[Tensor, "N D"], left_ND: Float[Tensor, "N D"]
    ) -> Float[Tensor, "N D"]:
        """Halted tokens keep their states."""
        return where_active(self.active_N, left_ND, states_ND)

    def _close(self) -> None:
        """Record what the last round has, once no round is to come: the mass that is left."""
        # Where the loop ended because nobody was active, the last weights were given out by `active`.
        if len(self._weights) < len(self._executed):
            self._record(self._weights, self._left_N)
            self._record(self._probs, self._runs_N().to(self._left_N.dtype))

    def trace(self) -> HaltingTrace | None:
        """Return what every token did."""
        self._close()
        return super().trace()

    def aux_loss(self) -> Tensor:
        """Return the expected depth sum_r w_r r, rounds counted from 1, as the mean over real tokens."""
        self._close()
        if not self._weights:  # no token is real
            return self._zeros_N.sum()
        weights_BTR = torch.stack(self._weights, -1)
        rounds_R = torch.arange(1, weights_BTR.shape[-1] + 1, device=weights_BTR.device, dtype=weights_BTR.dtype)
        return self._mean((weights_BTR * rounds_R).sum(-1))

    def _final(self, states_ND: Tensor) -> Tensor:
        return self._shown(self._mean_ND, self._left_N, states_ND)

    def _halted(self, states_ND: Tensor) -> tuple[Tensor, Tensor]:
        return self._mean_ND, self._mean_ND

    def _keep_rows(self, kept_M: Tensor) -> None:
        self._log_left_N, self._left_N = self._log_left_N[kept_M], self._left_N[kept_M]
        self._mean_ND = self._mean_ND.index_select(0, kept_M)
