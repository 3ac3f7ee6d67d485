"""Choosing tokens by a router: in every round those with the highest scores take part, the others stay as they are.

    s = w_r h                             h: the states that round r starts from; w_r: one vector a round with a router
    chosen:  in training the k = max(1, floor(capacity_r T)) tokens of a sentence with the highest s, T its real tokens;
             outside training those with 1 - sigmoid(s) <= threshold, which no later token has a say in
    g = scale sigmoid(s), or scale s
    add:          h <- h + g C(h)                    C: the round, its own residual included
    interpolate:  h <- (1 - g) h + g C(h)            C(h) = h + f(h) gives h + g f(h)

Mixture-of-Recursions, expert choice (Bae et al. 2025, section 2.2): add, scale 0.1, chosen among those chosen before,
capacities R/R, (R - 1)/R .. 1/R. Mixture-of-Depths (Raposo et al. 2024): interpolate with s itself, chosen among all
tokens anew. CoTFormer, adaptive (Mohtashami et al. 2023): interpolate with sigmoid(s), and `keys: all`.

Attention of a round is among the tokens that take part in it: no other token of the round is seen ("recursion-wise"
keys). A segment may read the keys of its first round, or of all rounds so far, with who took part in those.

The highest scores of a sentence are known only once all of it is: in training a token's choice depends on later
tokens. The cost teaches the scores to tell alone who is chosen: the mean over real tokens of the sum over rounds of
BCE(sigmoid(s), chosen), in rounds that leave somebody out, of the tokens that they choose from; and z s^2 of every
round with a router, of the same tokens (Zoph et al. 2022, 2202.08906, equation 5, for one score a token).

While a training begins, rounds may leave out only a part of what they will (`Execution.left_out`): capacity c is then
1 - left_out (1 - c).

Where rounds choose among those chosen before, the others are gathered away as halted tokens are. Where they choose
anew, they are gathered away for a round, and come back behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F

from ostinato.nn.choosing import Chooser, ChooserPass, Routers
from ostinato.nn.context import Pass
from ostinato.nn.halting import where_active
from ostinato.nn.rows import Rows
from ostinato.nn.shapes import Bool, Float, Tensor

SelectGate = Literal["sigmoid", "score"]
SelectMix = Literal["add", "interpolate"]
_PARTS = 10**9
"""A capacity is so many parts of a whole: 0.53 of 100 tokens are 53, which float32 misses."""


class Select(Chooser):
    """The rule of one stack.

    Args:
        routers: the scores. capacities: of the rounds, repeated where there are more; None: R/R .. 1/R of R rounds.
            None in place of one: a round without a router, of all whom it could choose from.
        threshold: see the module; 0: none takes part, 1: all do. gate, mix, scale: see the module.
        freezes: rounds choose among those chosen before. z: weight of the squares of scores in the cost.
    """

    def __init__(
        self,
        routers: Routers,
        threshold: float,
        *,
        capacities: Sequence[float | None] | None = None,
        gate: SelectGate = "sigmoid",
        mix: SelectMix = "add",
        scale: float = 1.0,
        freezes: bool = True,
        z: float = 0.0,
    ) -> None:
        super().__init__(routers, z)
        self.threshold, self.capacities = threshold, capacities
        self.gate, self.mix, self.scale, self.freezes = gate, mix, scale, freezes

    def capacities_of(self, n_rounds: int) -> list[float | None]:
        """Return the capacities of so many rounds."""
        if self.capacities is None:
            return [(n_rounds - r) / n_rounds for r in range(n_rounds)]
        return [self.capacities[r % len(self.capacities)] for r in range(n_rounds)]

    def rounds_that_leave_out(self, n_rounds: int) -> list[int]:
        """Return the rounds, of so many, in which some tokens may not be seen."""
        leaves_out = [capacity is not None and capacity < 1.0 for capacity in self.capacities_of(n_rounds)]
        return [r for r in range(n_rounds) if any(leaves_out[0 if self.freezes else r : r + 1])]

    def start(self, states_ND: Float[Tensor, "N D"], rows: Rows, run: Pass, n_rounds: int | Tensor) -> SelectPass:
        """Begin a pass."""
        return SelectPass(self, states_ND, rows, run, self.capacities_of(int(n_rounds)))


class SelectPass(ChooserPass):
    """One pass: `candidates` are those a round chooses from, `gate` is g of the round, None where it has no router."""

    def __init__(
        self, rule: Select, states_ND: Tensor, rows: Rows, run: Pass, capacities: Sequence[float | None]
    ) -> None:
        super().__init__(rule, states_ND, rows, run, len(capacities))
        self._rule, self._capacities = rule, capacities
        self._candidates_N = self._keep_N
        self._gate_N: Tensor | None = None
        self._cost_BT = rows.grid(self._zeros_N)
        self._learns = rule.unit.training
        self.comes_back = not rule.freezes

    @property
    def is_over(self) -> bool:
        """Whether no token takes part any more: where rounds choose anew, none is left out for good."""
        return self._rule.freezes and super().is_over

    def active(self, index: int | Tensor, states_ND: Float[Tensor, "N D"]) -> Bool[Tensor, "N"] | None:
        """Ask the round's router."""
        # Never a tensor: rounds that choose are no loop of a graph.
        index = int(index)
        rule, capacity, candidates_N = self._rule, self._capacities[index], self._candidates_N
        if capacity is None:
            self._gate_N = None
            self._set_active(candidates_N)
            self._record(self._probs, self._runs_N().to(self._zeros_N.dtype))
            return self.active_N
        number = sum(one is not None for one in self._capacities[:index])
        scores_N = rule.unit(number, states_ND)
        prob_N = torch.sigmoid(scores_N)
        self._record(self._probs, prob_N)
        self._gate_N = rule.scale * (prob_N if rule.gate == "sigmoid" else scores_N)
        chosen_N = candidates_N
        if self._learns:
            capacity = 1.0 - self._run.execution.left_out * (1.0 - capacity)
        if rule.z:
            self._cost_BT = self._cost_BT + self.rows.grid(where_active(candidates_N, rule.z * scores_N.square(), 0.0))
        if capacity < 1.0:
            if rule.leaves_out:
                chosen_N = self._chosen(scores_N, prob_N, capacity)
            cost_N = F.softplus(-scores_N if chosen_N is None else torch.where(chosen_N, -scores_N, scores_N))
            self._cost_BT = self._cost_BT + self.rows.grid(where_active(candidates_N, cost_N, 0.0))
        self._set_active(chosen_N)
        if rule.freezes:
            self._candidates_N = self.active_N
        return self.active_N

    def _chosen(self, scores_N: Tensor, prob_N: Tensor, capacity: float) -> Bool[Tensor, "N"]:
        """Return who is chosen: the highest scores of a sentence, or, outside training, all that are high enough."""
        candidates_N, threshold = self._candidates_N, self._rule.threshold
        if not self._learns:
            is_high_N = 1.0 - prob_N.detach() <= threshold if threshold else torch.zeros_like(prob_N, dtype=torch.bool)
            return is_high_N if candidates_N is None else is_high_N & candidates_N
        found_N = where_active(candidates_N, scores_N.detach(), -torch.inf)
        places = self.rows.places(found_N.device)
        found_BT = found_N.new_full((self.rows.n_tokens,), -torch.inf).index_copy(0, places, found_N)
        found_BT = found_BT.view(self.rows.n_sentences, self.rows.n_columns)
        ranks_BT = found_BT.sort(dim=1, descending=True, stable=True).indices.argsort(dim=1)
        keep_BT = self._keep_BT
        n_real = found_BT.new_full((1,), found_BT.shape[1]) if keep_BT is None else keep_BT.sum(1, keepdim=True)
        # One part more: a share such as 1/3 may have been rounded down, and a third of 3 tokens is one.
        n_chosen = (n_real.long() * (int(capacity * _PARTS + 0.5) + 1)).div(_PARTS, rounding_mode="floor").clamp_min(1)
        return self.rows.take((ranks_BT < n_chosen) & found_BT.isfinite())

    def leave(
        self, index: int | Tensor, states_ND: Float[Tensor, "N D"], left_ND: Float[Tensor, "N D"]
    ) -> Float[Tensor, "N D"]:
        """Weigh what the round makes of those that take part; the others keep their states."""
        if self._gate_N is not None:
            gate_N1 = self._gate_N[:, None].to(left_ND.dtype)
            made_ND = left_ND if self._rule.mix == "add" else left_ND - states_ND
            left_ND = torch.addcmul(states_ND, gate_N1, made_ND)
        return where_active(self.active_N, left_ND, states_ND)

    def aux_loss(self) -> Tensor:
        """Return the mean over real tokens of how badly the scores alone tell who is chosen."""
        return self._mean(self._cost_BT)

    def _keep_rows(self, kept_M: Tensor) -> None:
        # Called when the round has chosen: those that are kept are those that were.
        self._candidates_N = None
        self._gate_N = None if self._gate_N is None else self._gate_N[kept_M]
