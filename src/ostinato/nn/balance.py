"""Balance losses: pure functions of the routing decisions of one router.

A router that is used at several steps has one loss over all of them: the rows of all its `Routing`s together, row x
with the weight w_x (0 for padding and halted tokens, else the mass that remains, or 1), normalised to sum to 1. Every
loss is a mean, so that batch size and padding do not scale it. With E experts, k of them a row; collapsed: one expert
has all of the probability and of the gates:

    loss                  formula                                        balanced            collapsed
    switch                E sum_e P_e F_e                                1                   E / k
    hypersphere           E sum_e F1_e mean_x softmax_e(s_x / tau_0)     1                   near E
    mutual_information    sum_x w_x H(p_x) - H(P)                        -log E (sharp)      0
    z                     sum_x w_x logsumexp(s_x)^2                     (log E)^2 (s = 0)
    importance            Var(I) / mean(I)^2                             0                   E - 1
    sequence_entropy      - mean_b H(P_b)                                -log E              0

P = sum_x w_x p_x: mean probabilities; P_b: of the rows of one sentence, over all steps. F: fraction of the chosen
places, F1: of the first choices; both without gradient. I: summed gates of every expert. H: entropy in nats.

Where every head chooses among experts of its own, E are those of a head, and losses are means over heads, but
importance, which compares the experts of all heads; sequence_entropy is less by the logarithm of the number of heads.

Every function takes routings, or the `JoinedRoutings` made of them once where several functions read the same ones.
Where rows are spread over processes, their sums are added up and never their losses: see `JoinedRoutings.of`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from ostinato.nn.shapes import Float, Tensor
from ostinato.nn.types import Routing


def switch(routings: Sequence[Routing] | JoinedRoutings) -> Tensor:
    """Return E sum_e P_e F_e (Fedus et al. 2022, eq. 4, over all chosen places; SUT's ablation)."""
    rows = JoinedRoutings.of(routings)
    return rows.n_experts * (rows.mean(rows.probs_NE) * rows.fraction(rows.experts_NK)).sum()


def hypersphere(routings: Sequence[Routing] | JoinedRoutings, temperature: float) -> Tensor:
    """Return E sum_e F1_e mean_x softmax_e(s_x / tau_0), tau_0 a constant (X-MoE, section 2.4)."""
    rows = JoinedRoutings.of(routings)
    probs_NE = torch.softmax(rows.of_heads(rows.logits_NE) / temperature, 2).flatten(1) / rows.n_heads
    first_NH = rows.of_heads(rows.experts_NK)[:, :, 0]
    return rows.n_experts * (rows.mean(probs_NE) * rows.fraction(first_NH)).sum()


def mutual_information(routings: Sequence[Routing] | JoinedRoutings) -> Tensor:
    """Return sum_x w_x H(p_x) - H(P), the negative mutual information of rows and experts, in [-log E, 0].

    To be minimised: sharp rows, uniform use. (SUT, equation 1, in the sign its explanation asks for.)
    """
    rows = JoinedRoutings.of(routings)
    return rows.mean(_entropy(rows.probs_NE)) - _entropy(rows.mean(rows.probs_NE))


def z(routings: Sequence[Routing] | JoinedRoutings) -> Tensor:
    """Return the mean squared logsumexp of the raw scores (Zoph et al. 2022, eq. 5)."""
    rows = JoinedRoutings.of(routings)
    return rows.mean(torch.logsumexp(rows.of_heads(rows.logits_NE), 2).square().mean(1))


def importance(routings: Sequence[Routing] | JoinedRoutings) -> Tensor:
    """Return the squared coefficient of variation of the summed gates (Shazeer et al. 2017, eq. 7)."""
    rows = JoinedRoutings.of(routings)
    gates = torch.zeros_like(rows.probs_NE).scatter(1, rows.experts_NK, rows.gates_NK.to(rows.probs_NE.dtype))
    total_E = rows.mean(gates)
    mean = total_E.mean()
    return ((total_E - mean).square().mean() / mean.square().clamp_min(torch.finfo(mean.dtype).tiny)).nan_to_num(0.0)


def sequence_entropy(routings: Sequence[Routing] | JoinedRoutings) -> Tensor:
    """Return - mean_b H(P_b), P_b the mean probabilities over the tokens and steps of a sentence, in [-log E, 0].

    Sentences without rows do not count. (MoEUT, section 2.1: use is to be even within every sequence.)
    """
    rows = JoinedRoutings.of(routings)
    weight_B = rows.weight_N.new_zeros(rows.n_sentences).index_add(0, rows.sentences_N, rows.weight_N)
    sums_BE = rows.probs_NE.new_zeros(rows.n_sentences, rows.n_experts)
    sums_BE = sums_BE.index_add(0, rows.sentences_N, rows.weight_N[:, None] * rows.probs_NE)
    counts_B = weight_B.detach() > 0
    entropy_B = _entropy(sums_BE / weight_B.clamp_min(torch.finfo(weight_B.dtype).tiny)[:, None])
    n = rows.all_reduce(counts_B.sum().to(entropy_B.dtype))
    return -rows.all_reduce(torch.where(counts_B, entropy_B, 0.0).sum()) / n.clamp_min(1)


@dataclass(frozen=True, slots=True)
class Load:
    """How a router used its experts; on the device, so that a reader of several waits once.

    Args:
        fraction_E: of the chosen places; 0 for dead experts. entropy: of it, in nats (log E: even).
        row_entropy: mean H(p_x), over heads, too, where each chooses among experts of its own. total: summed weight
            of the rows.
    """

    fraction_E: Float[Tensor, "E"]
    entropy: Float[Tensor, ""]
    row_entropy: Float[Tensor, ""]
    total: Float[Tensor, ""]


@torch.no_grad()
def load(routings: Sequence[Routing] | JoinedRoutings) -> Load:
    """Return how the experts were used over all routings of one router; rows of weight 0 do not count."""
    rows = JoinedRoutings.of(routings)
    fraction_E = rows.fraction(rows.experts_NK)
    # Over all heads it is more by the logarithm of their number, which is no choice of the router's.
    row_entropy = rows.mean(_entropy(rows.probs_NE) - math.log(rows.n_heads))
    return Load(fraction_E, _entropy(fraction_E), row_entropy, rows.total)


Sum = Callable[[Tensor], Tensor]
"""An all-reduce: from a sum over this process's rows to the sum over the rows of all processes."""


def no_reduction(values: Tensor) -> Tensor:
    """Return the sums as they are: there are no other rows."""
    return values


@dataclass(frozen=True, slots=True)
class JoinedRoutings:
    """The rows of all routings of one router.

    `total` is the sum of their weights, `all_reduce` adds up over processes. `sentences_N`: the sentence of every row;
    those of a second stack are numbered on after those of the first.

    A loss is a function of sums over all rows. No part of a sum may depend on another sum: its gradient would be needed
    from the rows of all processes, and each has its own alone.
    """

    routings: Sequence[Routing]
    probs_NE: Tensor
    experts_NK: Tensor
    gates_NK: Tensor
    weight_N: Tensor
    total: Tensor
    sentences_N: Tensor
    n_sentences: int
    n_heads: int = 1
    all_reduce: Sum = no_reduction

    @classmethod
    def of(
        cls, routings: Sequence[Routing] | JoinedRoutings, all_reduce: Sum = no_reduction, *, uniform: bool = False
    ) -> JoinedRoutings:
        """Join routings; what is joined already is returned as it is.

        Args:
            uniform: every row that takes part has the weight 1, a constant, in place of the mass that remains.
            all_reduce: adds up what rows of several processes sum to; every process calls it the same number of times.

        Raises:
            ValueError: there is none.
        """
        if isinstance(routings, JoinedRoutings):
            return routings
        if not routings:
            raise ValueError("a balance loss needs at least one routing")
        weight_N = torch.cat([r.weight_N for r in routings])
        weight_N = (weight_N > 0 if uniform else weight_N).to(routings[0].probs_NE.dtype)
        sizes: dict[str, int] = {}
        for r in routings:
            sizes[r.stack] = max(sizes.get(r.stack, 0), r.shape_BT[0])
        first = dict(zip(sizes, accumulate(sizes.values(), initial=0), strict=False))
        sentences_N = torch.cat([first[r.stack] + r.rows_N.div(r.shape_BT[1], rounding_mode="floor") for r in routings])
        return cls(
            routings,
            _joined([r.probs_NE for r in routings], weight_N),
            torch.cat([r.experts_NK for r in routings]),
            _joined([r.gates_NK for r in routings], weight_N),
            weight_N,
            all_reduce(weight_N.sum()),
            sentences_N,
            sum(sizes.values()),
            routings[0].n_heads,
            all_reduce,
        )

    @property
    def logits_NE(self) -> Tensor:
        """Return the raw scores, joined by each loss that reads them: they are as large as the probabilities."""
        return _joined([r.logits_NE for r in self.routings], self.weight_N)

    @property
    def n_experts(self) -> int:
        """Return E, of all heads."""
        return self.probs_NE.shape[1]

    def of_heads(self, values_NE: Tensor) -> Tensor:
        """Return what experts or choices have by head, `[N, H, ...]`."""
        return values_NE.view(len(values_NE), self.n_heads, values_NE.shape[1] // self.n_heads)

    def mean(self, values: Tensor) -> Tensor:
        """Return the weighted mean over the rows of values `[N]` or `[N, E]`; 0 where no row has any weight."""
        # No product of matrices: autocast would round one.
        weight = self.weight_N if values.ndim == 1 else self.weight_N[:, None]
        return self._part(self.all_reduce((weight * values).sum(0)))

    @torch.no_grad()
    def fraction(self, experts_NK: Tensor) -> Tensor:
        """Return every expert's part of the choices, rows by their weight."""
        counts = torch.zeros(self.n_experts, dtype=self.weight_N.dtype, device=self.weight_N.device)
        per_choice = self.weight_N[:, None].expand_as(experts_NK)
        # Divided when added up: sums of whole weights are exact, those of thirds are 0.3 % off after 400,000 rows.
        counts = counts.index_add(0, experts_NK.reshape(-1), per_choice.reshape(-1)) / experts_NK.shape[1]
        return self._part(self.all_reduce(counts))

    def _part(self, sums: Tensor) -> Tensor:
        return sums / self.total.clamp_min(torch.finfo(self.total.dtype).tiny)


def _joined(values: Sequence[Tensor], weight_N: Tensor) -> Tensor:
    """Return values `[N, ...]` of all routings, 0 where a row has no weight.

    Padding may hold anything, and NaN times 0 is NaN. Overwritten, not left out: an accelerator need not wait.
    """
    return torch.cat(list(values)).masked_fill_((weight_N == 0)[:, None], 0.0)


def _entropy(probs: Tensor) -> Tensor:
    """Return H over the last dimension, 0 log 0 = 0.

    The gradient at 0 is large but finite: an infinite one, times that of the softmax that underflowed, would be NaN.
    """
    return -(probs * probs.clamp_min(torch.finfo(probs.dtype).tiny).log()).sum(-1)
