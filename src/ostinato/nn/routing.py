"""Routers and gates: which experts a row goes to, and with what weight.

    router   h -> raw scores s, one an expert, in float32 also under autocast
    gate     s -> K chosen experts and their weights

    linear        s = E h                                         Switch Transformer; X-MoE, section 2.1 (baseline)
    mlp           s = E tanh(W h + b)                             Sparse Universal Transformer, section 2.2
    hypersphere   s = (W h . e_i) / (|W h| |e_i|), then s / tau   X-MoE, section 2.3

What a router chose is returned as a `Routing`, of which all balance losses and analyses are functions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from ostinato.kernels import Draws, without_autocast
from ostinato.nn.layers import Dropping, Linear, at_least_float32
from ostinato.nn.shapes import Float, Int, Tensor

GateKind = Literal["softmax", "topk_softmax", "sigmoid"]
# SUT's denominator: the chosen probabilities are divided by their sum and this.
_EPS = 1e-6
_SMALLEST_NORM = 1e-6


class Choice(NamedTuple):
    """What a gate decided: full distribution, chosen experts, their gates."""

    probs_NE: Tensor
    experts_NK: Tensor
    gates_NK: Tensor


class Router(nn.Module, ABC):
    """A map from rows to scores.

    Args:
        d_model: width of a row. n_experts: scores a row.
    """

    def __init__(self, d_model: int, n_experts: int) -> None:
        super().__init__()
        self.d_model, self.n_experts = d_model, n_experts

    def forward(self, h_ND: Float[Tensor, "N D"], draws: Draws = "auto") -> Float[Tensor, "N E"]:
        """Return raw scores in float32, before any temperature.

        Args:
            draws: of a router's dropout, see `ostinato.kernels.dropout`.
        """
        with without_autocast(h_ND.device):
            return self._scores(at_least_float32(h_ND), draws)

    def temperature(self) -> Tensor | float:
        """Return what scores are divided by before the gate."""
        return 1.0

    @torch.no_grad()
    def project(self) -> None:
        """Project parameters back onto their constraints, where they have some; called after every optimiser step."""

    def projected(self, h_ND: Float[Tensor, "N D"]) -> Tensor | None:
        """Return the rows in the space in which experts are told apart, `[N, C]`; None where that is their own."""
        return None

    @abstractmethod
    def _scores(self, h_ND: Tensor, draws: Draws) -> Tensor:
        """Return raw scores of rows that are at least float32."""


class LinearRouter(Router):
    """s = E h, no bias."""

    def __init__(self, d_model: int, n_experts: int) -> None:
        super().__init__(d_model, n_experts)
        self.experts_ED = nn.Parameter(torch.empty(n_experts, d_model))
        nn.init.normal_(self.experts_ED, std=d_model**-0.5)

    def _scores(self, h_ND: Tensor, draws: Draws) -> Tensor:
        return F.linear(h_ND, self.experts_ED)


class MlpRouter(Dropping, Router):
    """s = E dropout(tanh(W h + b)); torch's initialisation, as in SUT.

    Args:
        dropout: of the hidden layer, in training.
    """

    def __init__(self, d_model: int, n_experts: int, dropout: float = 0.0) -> None:
        super().__init__(d_model, n_experts)
        self.hidden = Linear(d_model, d_model, bias=True)
        self.scores = Linear(d_model, n_experts, bias=False)
        self.dropout = dropout

    def projected(self, h_ND: Float[Tensor, "N D"]) -> Tensor:
        """Return tanh(W h + b)."""
        return torch.tanh(self.hidden(h_ND))

    def _scores(self, h_ND: Tensor, draws: Draws) -> Tensor:
        return self.scores(self.drop(self.projected(h_ND), draws))  # type: ignore[no-any-return]


class HypersphereRouter(Router):
    """Cosine of a projected row with every expert's embedding, divided by a learned temperature.

        s_i = (W h . e_i) / (|W h| |e_i|) in [-1, 1],   gate of s / tau

    The score does not depend on |e_i|, but the step an update turns e_i by does: the norm is held at `norm` (0.1) by
    `project`. tau is learned, never below `floor`. Ablations: `has_projection=False` (W = 1), `is_normalised=False`
    (s_i = W h . e_i), `learns_temperature=False`.

    Args:
        d_router: width d_e of the embeddings (about half the number of experts). temperature: tau at the start: 0.3
            for softmax gates, 0.07 for sigmoid gates.
    """

    def __init__(
        self,
        d_model: int,
        n_experts: int,
        d_router: int,
        *,
        temperature: float = 0.3,
        floor: float = 1e-4,
        norm: float = 0.1,
        has_projection: bool = True,
        is_normalised: bool = True,
        learns_temperature: bool = True,
    ) -> None:
        super().__init__(d_model, n_experts)
        width = d_router if has_projection else d_model
        self.projection = nn.Linear(d_model, width, bias=False) if has_projection else None
        self.experts_EC = nn.Parameter(torch.empty(n_experts, width))
        self.norm, self.floor, self.is_normalised = norm, floor, is_normalised
        self.tau = nn.Parameter(torch.tensor(float(temperature)), requires_grad=learns_temperature)
        nn.init.normal_(self.experts_EC)
        with torch.no_grad():
            self._hold_norm()

    def temperature(self) -> Tensor:
        """Return max(tau, floor), with the gradient of tau: at the floor the loss can still raise it."""
        # The difference is exactly 0, so that rounding never takes the value below the floor.
        return self.tau.detach().clamp_min(self.floor) + (self.tau - self.tau.detach())

    @torch.no_grad()
    def project(self) -> None:
        """Give every expert's embedding its norm again, and bring tau back to its floor.

        Without normalisation norms are free; what is frozen stays as it is.
        """
        # By `data`, of whose changes autograd is not told: a pass before this one may still wait for its gradient, in
        # which what is held already changes nothing.
        if self.is_normalised and self.experts_EC.requires_grad:
            self._hold_norm()
        if self.tau.requires_grad:
            self.tau.data.clamp_(min=self.floor)

    def projected(self, h_ND: Float[Tensor, "N D"]) -> Tensor | None:
        """Return W h, on the unit sphere where scores are cosines."""
        if self.projection is None and not self.is_normalised:
            return None
        z_NC = self._rows(h_ND)
        return F.normalize(z_NC, dim=1, eps=_SMALLEST_NORM) if self.is_normalised else z_NC

    def _hold_norm(self) -> None:
        self.experts_EC.data.mul_(self.norm / self.experts_EC.norm(dim=1, keepdim=True).clamp_min(_SMALLEST_NORM))

    def _rows(self, h_ND: Tensor) -> Tensor:
        return h_ND if self.projection is None else self.projection(h_ND)

    def _scores(self, h_ND: Tensor, draws: Draws) -> Tensor:
        z_NC = self._rows(h_ND)
        if not self.is_normalised:
            return F.linear(z_NC, self.experts_EC)
        return F.linear(F.normalize(z_NC, dim=1, eps=_SMALLEST_NORM), F.normalize(self.experts_EC, dim=1))


@dataclass(frozen=True, slots=True)
class Gate:
    """From scores to chosen experts and their weights.

        softmax        p = softmax(s) over all, the K largest; renormalised: g_k = p_k / (sum of the chosen p + 1e-6)
        topk_softmax   softmax over the K largest scores
        sigmoid        g_k = sigmoid(s_k) of the K largest

    Args:
        top_k: K, experts a row. is_renormalised: see softmax. n_sampled: in training, that many of the K are not the
            next largest but drawn without replacement from the remaining probabilities (SUT's sample_topk).

    Raises:
        ValueError: a gate that is always 1, and so gives the router no gradient; top_k outside [1, E], or n_sampled
            outside [0, top_k].
    """

    kind: GateKind
    top_k: int
    n_experts: int
    is_renormalised: bool = False
    n_sampled: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.top_k <= self.n_experts:
            raise ValueError(f"top_k must be in [1, {self.n_experts}], the number of experts, got {self.top_k}")
        if not 0 <= self.n_sampled <= self.top_k:
            raise ValueError(f"n_sampled must be in [0, {self.top_k}], got {self.n_sampled}")
        is_constant = self.kind == "topk_softmax" or (self.kind == "softmax" and self.is_renormalised)
        if self.n_experts > 1 and self.top_k == 1 and is_constant:
            raise ValueError(
                "one expert of several, renormalised, always has gate 1: its router would get no gradient; use "
                "top_k >= 2, or a gate that is not renormalised"
            )

    def __call__(self, scores_NE: Float[Tensor, "N E"], *, training: bool = False) -> Choice:
        """Choose experts by scores already divided by their temperature."""
        probs_NE = torch.softmax(scores_NE, 1)
        experts_NK = self._choose(scores_NE.detach(), probs_NE.detach(), training)
        if self.kind == "sigmoid":
            gates_NK = torch.sigmoid(scores_NE.gather(1, experts_NK))
        elif self.kind == "topk_softmax":
            gates_NK = torch.softmax(scores_NE.gather(1, experts_NK), 1)
        else:
            gates_NK = probs_NE.gather(1, experts_NK)
            if self.is_renormalised:
                gates_NK = gates_NK / (gates_NK.sum(1, keepdim=True) + _EPS)
        return Choice(probs_NE, experts_NK, gates_NK)

    def _choose(self, scores_NE: Tensor, probs_NE: Tensor, training: bool) -> Int[Tensor, "N K"]:
        n_sampled = self.n_sampled if training and scores_NE.shape[0] else 0
        # By scores: probabilities underflow, and those at 0 are all alike.
        top_NK = scores_NE.topk(self.top_k - n_sampled, dim=1).indices
        if not n_sampled:
            return top_NK
        left_NE = (probs_NE + _EPS).scatter(1, top_NK, 0.0)
        return torch.cat([top_NK, torch.multinomial(left_NE, n_sampled)], dim=1)
