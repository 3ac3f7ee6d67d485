"""Choosing rounds by a router: every token has a number of them, known before the first one.

    s = W h_0                          h_0: the states that the loop starts from; W: one vector for every round
    p = softmax(s)                     in float32
    T = argmax_r p_r                   rounds of the token, counted from 1
    h_r = C(h_{r-1}), r = 1 .. T       C: the round, its own residual included
    output = h_0 + scale p_T h_T

Mixture-of-Recursions, token choice (Bae et al. 2025, section 2.2), with scale 1. A token's number of rounds follows
from its own state: no token has a say in that of an earlier one, in training either. Attention of a round is among the
tokens that take part in it. A call for more rounds than there are vectors gives no token more than those; one for fewer
takes the softmax over as many.

The cost spreads tokens over rounds: with f_r the share of a sentence's tokens that have r rounds, and P_r the mean of
their p_r, R sum_r f_r P_r, as a mean over real tokens; 1 where both are even. The published code takes both shares over
all sentences of a batch, by which a sentence's gradient depends on its neighbours. And z (log sum exp s)^2 (Zoph et al.
2022, 2202.08906, equation 5). Balancing by biases without a loss, the paper's other way, is not there.
"""

from __future__ import annotations

import torch

from ostinato.nn.choosing import Chooser, ChooserPass, Routers
from ostinato.nn.context import Pass
from ostinato.nn.halting import where_active
from ostinato.nn.rows import Rows
from ostinato.nn.shapes import Bool, Float, Tensor


class TokenChoice(Chooser):
    """The rule of one stack.

    Args:
        routers: one vector for every round. scale: of the gate. z: weight of the squared log sums in the cost.
    """

    def __init__(self, routers: Routers, *, scale: float = 1.0, z: float = 0.0) -> None:
        super().__init__(routers, z)
        self.scale = scale

    def rounds_that_leave_out(self, n_rounds: int) -> list[int]:
        """Return all but the first one."""
        return list(range(1, n_rounds))

    def start(self, states_ND: Float[Tensor, "N D"], rows: Rows, run: Pass, n_rounds: int | Tensor) -> TokenChoicePass:
        """Begin a pass, and ask the router."""
        return TokenChoicePass(self, states_ND, rows, run, int(n_rounds))


class TokenChoicePass(ChooserPass):
    """One pass: of every row the 0-based last round, -1 of padding, and its gate; and the states of the beginning."""

    def __init__(self, rule: TokenChoice, states_ND: Tensor, rows: Rows, run: Pass, n_rounds: int) -> None:
        super().__init__(rule, states_ND, rows, run, n_rounds)
        scores_NR = rule.unit.of_all(states_ND)[:, :n_rounds]
        probs_NR = torch.softmax(scores_NR, dim=-1)
        deepest = torch.full_like(rows.places(states_ND.device), scores_NR.shape[1] - 1)
        last_N = probs_NR.detach().argmax(dim=-1) if rule.leaves_out else deepest
        self._gate_N = rule.scale * probs_NR.gather(1, last_N[:, None]).squeeze(1)
        self._last_N = last_N if self._keep_N is None else torch.where(self._keep_N, last_N, -1)
        self._first_ND, self._probs_NR, self._z = states_ND, probs_NR, rule.z
        self._of_all = scores_NR, probs_NR, self._last_N

    def active(self, index: int | Tensor, states_ND: Float[Tensor, "N D"]) -> Bool[Tensor, "N"] | None:
        """Those whose last round has not been."""
        self._set_active(self._last_N >= index)
        row, n = self._probs_NR, self._probs_NR.shape[1]
        self._record(self._probs, row[:, int(index)] if int(index) < n else torch.zeros_like(row[:, 0]))
        return self.active_N

    def leave(
        self, index: int | Tensor, states_ND: Float[Tensor, "N D"], left_ND: Float[Tensor, "N D"]
    ) -> Float[Tensor, "N D"]:
        """Weigh what the last round of a token has made of it; those that take no part keep their states."""
        is_last_N = self._last_N == index
        ended_ND = torch.addcmul(self._first_ND, self._gate_N[:, None].to(left_ND.dtype), left_ND)
        left_ND = torch.where(is_last_N[:, None], ended_ND, left_ND)
        return where_active(self.active_N, left_ND, states_ND)

    def aux_loss(self) -> Tensor:
        """Return how unevenly tokens are spread over rounds, and how large the scores are."""
        scores_NR, probs_NR, last_N = self._of_all
        rows = Rows.all(self.rows.n_sentences, self.rows.n_columns)
        rounds_R = torch.arange(probs_NR.shape[1], device=last_N.device)
        has_NR = (last_N[:, None] == rounds_R).to(probs_NR.dtype)
        real_NR = probs_NR if self._keep_N is None else torch.where(self._keep_N[:, None], probs_NR, 0.0)
        n_B1 = rows.grid((last_N >= 0).to(probs_NR.dtype)).sum(1, keepdim=True).clamp_min(1)
        shares_BR, means_BR = (rows.grid(one_NR).sum(1) / n_B1 for one_NR in (has_NR, real_NR))
        cost_B = len(rounds_R) * (shares_BR * means_BR).sum(-1)
        cost_BT = cost_B[:, None].expand(-1, rows.n_columns)
        if self._z:
            cost_BT = cost_BT + self._z * rows.grid(scores_NR.logsumexp(dim=-1).square())
        return self._mean(cost_BT)

    def _keep_rows(self, kept_M: Tensor) -> None:
        self._first_ND, self._probs_NR = self._first_ND[kept_M], self._probs_NR[kept_M]
        self._gate_N, self._last_N = self._gate_N[kept_M], self._last_N[kept_M]
