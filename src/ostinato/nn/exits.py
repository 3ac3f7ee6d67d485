"""Exits: a token stops after the first round whose result is good enough, and that round's state is its output.

After round t a criterion gives every token a confidence in [0, 1]; it stops once that reaches the threshold. With h the
state that left the round, h' the one before, and p, p' what the model would predict from them:

    gate            sum_{q <= t} p_q,  p_t = l_t prod_{q < t} (1 - l_q),  l_t = sigmoid(w h + b); learned (Ouro)
    change          1 - ||h - h'|| / ||h||
    cosine          cos(h, h')
    agreement       exp(-KL(p' || p))
    certainty       1 - H(p) / log V
    settled         1 - |H(p) - H(p')| / log V
    margin          largest minus second largest of p
    stable          1 - 1 / (1 + n),  n rounds for which the most likely token has not changed

so that Huginn's ||h - h'|| / ||h|| < 0.03 is a threshold of 0.97, and its five equal predictions are one of 5/6. At
threshold 1 no token stops early, and none does in training with a gate. All but the gate need no training: a model may
be trained without, and stop early afterwards.

Predictions are those of the whole rest of the stack. Where no step follows the loop, only the tokens that still run are
predicted for. Where steps with attention follow it, a token's prediction after round t is made beside the other tokens'
states after round t, in cached decoding beside those that earlier tokens stopped with: there a token may stop after
another round than in a pass over the whole sentence (so it is with Huginn).

A token that has stopped is frozen, as halted tokens are. With `freezes` false all rounds go on and only the output is
chosen (as in the public code of Ouro): the plain twin, which saves nothing.

In training the weights of a gate's rounds are the distribution p_t, the last with what is left: the loss is
sum_t p_t loss_t, less a weight times the entropy of p, which keeps all rounds in use (`aux_loss` is -H(p)).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch

from ostinato.nn.act import ActUnit
from ostinato.nn.context import Pass
from ostinato.nn.execution import CriterionAtTest
from ostinato.nn.graph import is_first
from ostinato.nn.halting import HaltingPass, HaltingRule, Visible, where_active
from ostinato.nn.rows import Rows
from ostinato.nn.shapes import Bool, Float, Tensor

Criterion = Literal["gate"] | CriterionAtTest
OF_STATES = ("gate", "change", "cosine")
"""Criteria that need no predictions."""
_TINY = 1e-30


class Exit(HaltingRule):
    """The rule of one stack.

    Args:
        criterion: see the module. threshold: in [0, 1]; 0: after round 1.
        unit: the gate, for that criterion only. freezes: see the module.
        is_sequence: the mean confidence of a sentence's real tokens decides for all of them.
    """

    def __init__(
        self,
        criterion: Criterion,
        threshold: float,
        *,
        unit: ActUnit | None = None,
        freezes: bool = True,
        is_sequence: bool = False,
    ) -> None:
        self.criterion, self.threshold, self.unit = criterion, threshold, unit
        self.freezes, self.is_sequence = freezes, is_sequence

    def start(self, states_ND: Float[Tensor, "N D"], rows: Rows, run: Pass, n_rounds: int | Tensor) -> ExitPass:
        """Begin a pass."""
        return ExitPass(self, states_ND, rows, run, n_rounds)


class ExitPass(HaltingPass):
    """One pass: `total` is the gate's probability given out so far; `chosen` are outputs of a pass that goes on."""

    def __init__(self, rule: Exit, states_ND: Tensor, rows: Rows, run: Pass, n_rounds: int | Tensor) -> None:
        super().__init__(states_ND, rows, run)
        self._rule, self._n_rounds = rule, n_rounds
        self._predict: Callable[[Tensor], Tensor] | None = run.predict
        self._predicts_alone = run.predicts_alone
        learns = rule.unit is not None and rule.unit.training
        self._threshold = math.inf if learns or rule.threshold >= 1.0 else rule.threshold
        self._next_N = self._keep_N
        self._total_N, self._unchanged_N = self._zeros_N, self._zeros_N
        self._before_NV: Tensor | None = None
        self._chosen_ND = states_ND

    def active(self, index: int | Tensor, states_ND: Float[Tensor, "N D"]) -> Bool[Tensor, "N"] | None:
        """Those that have not stopped."""
        self._set_active(self._next_N)
        return self.active_N

    def enter(
        self, index: int | Tensor, states_ND: Float[Tensor, "N D"], entered_ND: Float[Tensor, "N D"]
    ) -> tuple[Tensor | None, Visible]:
        """Tokens that have stopped show the state that left their last round."""
        active_N = self.active_N
        self._record(self._executed, self._runs_N())
        self._record(self._left, 1.0 - self._total_N)
        if active_N is None or not self._rule.freezes:
            return None, None
        weight_N = active_N.to(self._total_N.dtype)
        return weight_N, (lambda later_ND: where_active(active_N, later_ND, states_ND)) if not is_first(index) else None

    def leave(
        self, index: int | Tensor, states_ND: Float[Tensor, "N D"], left_ND: Float[Tensor, "N D"]
    ) -> Float[Tensor, "N D"]:
        """Ask the criterion who stops after this round."""
        rule, active_N = self._rule, self.active_N
        # In a loop of a graph it is not known, and decides nothing but what is recorded.
        is_last = not self._as_graph and bool(index == self._n_rounds - 1)
        if rule.unit is not None:
            confidence_N, weight_N = self._ask_gate(left_ND, is_last)
        else:
            confidence_N = self._confidence(states_ND, left_ND, is_last)
            weight_N = torch.full_like(self._total_N, float(is_last))
        if rule.is_sequence:
            confidence_N = self._mean_of_sentences(confidence_N)
        stops_N = confidence_N.detach() >= self._threshold
        if rule.unit is None:
            # The round after which a token stops is all of its output.
            weight_N = torch.where(stops_N, 1.0, weight_N)
        self._record(self._weights, where_active(active_N, weight_N, 0.0))
        self._next_N = ~stops_N if active_N is None else active_N & ~stops_N
        if rule.freezes:
            return where_active(active_N, left_ND, states_ND)
        self._chosen_ND = where_active(active_N, left_ND, self._chosen_ND)
        return left_ND

    def _ask_gate(self, left_ND: Tensor, is_last: bool) -> tuple[Tensor, Tensor]:
        """Return the probability given out so far, and that of this round; the last one takes what is left."""
        assert self._rule.unit is not None
        rest_N, prob_N = 1.0 - self._total_N, self._rule.unit(left_ND)
        weight_N = rest_N if is_last else rest_N * prob_N
        total_N = self._total_N + rest_N * prob_N
        if not is_last:
            # Who stops gives out all that is left, so that weights add up to one.
            stops_N = total_N.detach() >= self._threshold
            weight_N = torch.where(stops_N, rest_N, weight_N)
        self._record(self._probs, prob_N)
        self._total_N = where_active(self.active_N, total_N, self._total_N)
        return total_N, weight_N

    def _confidence(self, states_ND: Tensor, left_ND: Tensor, is_last: bool) -> Tensor:
        """Return the confidence of every row; 0 after a first round that has nothing to be compared with."""
        criterion = self._rule.criterion
        if criterion in OF_STATES:
            found_N = self._of_states(states_ND, left_ND)
        elif is_last:  # whose predictions would decide nothing
            found_N = torch.zeros_like(self._total_N)
        else:
            found_N = self._of_predictions(states_ND, left_ND)
        found_N = found_N.to(self._total_N.dtype).clamp(0.0, 1.0)
        self._record(self._probs, found_N)
        return found_N

    def _of_states(self, states_ND: Tensor, left_ND: Tensor) -> Tensor:
        if self._rule.criterion == "cosine":
            return torch.cosine_similarity(states_ND.float(), left_ND.float(), dim=-1)
        change_N = (left_ND - states_ND).norm(dim=-1)
        near_N: Tensor = 1.0 - change_N / left_ND.norm(dim=-1).clamp_min(1e-12)
        return near_N

    def _of_predictions(self, states_ND: Tensor, left_ND: Tensor) -> Tensor:
        """Compare the distributions that are predicted after this round and after the one before."""
        assert self._predict is not None  # a stack has given it
        if self._predicts_alone:
            logits_NV = self._predict(left_ND)
        else:
            logits_NV = self.rows.take(self._predict(self.output(where_active(self.active_N, left_ND, states_ND))))
        now_NV = torch.log_softmax(logits_NV, -1)
        before_NV, self._before_NV = self._before_NV, now_NV
        highest, criterion = math.log(now_NV.shape[-1]), self._rule.criterion
        if criterion == "margin":
            first_N, second_N = now_NV.exp().topk(2).values.unbind(-1)
            return first_N - second_N
        if criterion == "certainty":
            return 1.0 - _entropy(now_NV) / highest
        if before_NV is None:
            return torch.zeros_like(self._total_N)
        if criterion == "settled":
            return 1.0 - (_entropy(now_NV) - _entropy(before_NV)).abs() / highest
        if criterion == "stable":
            is_same_N = now_NV.argmax(-1) == before_NV.argmax(-1)
            self._unchanged_N = torch.where(is_same_N, self._unchanged_N + 1.0, 0.0)
            return self._unchanged_N / (1.0 + self._unchanged_N)  # rounded once: n / (n + 1) reaches a threshold of it
        divergence_N = (before_NV.exp() * (before_NV - now_NV)).sum(-1)
        return torch.exp(-divergence_N)

    def aux_loss(self) -> Tensor | None:
        """Return -H(p) of a gate's distribution over rounds, as the mean over real tokens; None of other criteria."""
        if self._rule.unit is None or not self._weights:
            return None
        weights_BTR = torch.stack(self._weights, -1)
        return self._mean((weights_BTR * weights_BTR.clamp_min(_TINY).log()).sum(-1))

    def _final(self, states_ND: Tensor) -> Tensor:
        return states_ND if self._rule.freezes else self._chosen_ND

    def _keep_rows(self, kept_M: Tensor) -> None:
        self._total_N, self._unchanged_N = self._total_N[kept_M], self._unchanged_N[kept_M]
        self._before_NV = None if self._before_NV is None else self._before_NV.index_select(0, kept_M)


def _entropy(logs_NV: Tensor) -> Tensor:
    return -(logs_NV.exp() * logs_NV).sum(-1)
