"""Parameter sets of experts: every token runs a few of many, chosen by a router.

    y = sum_k gate_k(x) f_{e_k(x)}(x)        Sparse Universal Transformer, section 2.2; X-MoE, section 2.1

Feed-forwards of experts, a sparse layer between two steps, and attention whose experts own queries and outputs.

Rows are sorted by expert once a decision and multiplied by the kernels' grouped products: what an update costs depends
on the experts a token gets, not on how many there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from ostinato.kernels import (
    GATES,
    Activation,
    BackendChoice,
    Dispatch,
    Draws,
    ExpertWeights,
    combine,
    dense_dispatch,
    dispatch,
    drop_activated,
    expert_feed_forward,
    gather,
    routed_linear,
)
from ostinato.nn.attention import MultiHead, QkNorm
from ostinato.nn.by_round import LowRank
from ostinato.nn.layers import Blocks, Linear, some_outputs
from ostinato.nn.routing import Gate, Router
from ostinato.nn.rows import Rows
from ostinato.nn.shapes import Float, Tensor
from ostinato.nn.types import Routing


@dataclass(frozen=True, slots=True)
class Decision:
    """Where every row of a pass goes: made once for a routed sub-layer, used by all its projections.

    Args:
        to: rows sorted by expert. logits_NE, probs_NE: None where there is one expert, and no router.
        experts_NK, gates_NK, weight_N: see `Routing`.
        backend: what multiplies the rows by their experts' weights, see `ostinato.kernels.choose_backend`.
        n_heads: see `Routing`.
    """

    to: Dispatch
    experts_NK: Tensor
    gates_NK: Tensor
    weight_N: Tensor
    logits_NE: Tensor | None = None
    probs_NE: Tensor | None = None
    backend: BackendChoice = "auto"
    n_heads: int = 1

    def routing(self, router: str, stack: str, step: int, rows: Rows, weight_N: Tensor | None = None) -> Routing | None:
        """Return what balance losses and analyses read; None where there was nothing to choose.

        Args:
            rows: those to record, the first of those that were routed. weight_N: what is left of them, in place of what
                they were routed with.
        """
        if self.logits_NE is None or self.probs_NE is None:
            return None
        weight_N = self.weight_N if weight_N is None else weight_N.to(self.weight_N.dtype)
        n, places_N = rows.n_rows, rows.places(weight_N.device)
        scores, chosen = (self.logits_NE[:n], self.probs_NE[:n]), (self.experts_NK[:n], self.gates_NK[:n])
        shape = rows.n_sentences, rows.n_columns
        return Routing(router, stack, step, *scores, *chosen, weight_N[:n], places_N, shape, self.n_heads)


class NamedRouter(NamedTuple):
    """A router of a parameter set.

    Args:
        name: ends the name of the router, where a set has several. n_experts, n_chosen, n_heads: see `Routing`.
    """

    name: str
    router: Router
    n_experts: int
    n_chosen: int
    n_heads: int = 1


class Routed(nn.Module):
    """A sub-layer with experts.

    Args:
        router: None for one expert, which always runs with gate 1. gate: from scores to experts.
        n_experts: E.
    """

    added: Mapping[str, LowRank] | None = None
    """What a round adds to maps of all experts, by the names of `blocks`."""

    n_router_heads = 1
    """Heads that choose among experts of their own."""

    def __init__(self, router: Router | None, gate: Gate, n_experts: int) -> None:
        super().__init__()
        self.router, self.gate, self.n_experts = router, gate, n_experts

    def named_routers(self) -> Iterator[NamedRouter]:
        """Yield the routers there are."""
        if self.router is not None:
            yield NamedRouter("", self.router, self.n_experts, self.gate.top_k)

    def route(
        self,
        x_ND: Float[Tensor, "N D"],
        weight_N: Tensor | None = None,
        *,
        backend: BackendChoice = "auto",
        draws: Draws = "auto",
    ) -> Decision:
        """Choose experts for every row that takes part; padding and halted tokens go nowhere.

        Args:
            weight_N: what is left of every token, 0 (or False) for padding and halted ones; None: 1 for all.
            backend: of the products that follow. draws: of a router's dropout, see `ostinato.kernels.dropout`.
        """
        return self.decide(self.router, x_ND, weight_N, self.n_router_heads, backend=backend, draws=draws)

    def decide(
        self,
        router: Router | None,
        x_ND: Float[Tensor, "N D"],
        weight_N: Tensor | None,
        n_heads: int,
        *,
        backend: BackendChoice,
        draws: Draws,
    ) -> Decision:
        """Choose experts by a router, every head among its own. Args: see `route`."""
        kept = None if weight_N is None else weight_N.to(torch.promote_types(x_ND.dtype, weight_N.dtype))
        weight_N = x_ND.new_ones(x_ND.shape[0]) if kept is None else kept
        send = dense_dispatch if backend == "dense" else dispatch
        if router is None:
            experts_NK = torch.zeros(x_ND.shape[0], 1, dtype=torch.long, device=x_ND.device)
            gates_NK = x_ND.new_ones(x_ND.shape[0], 1)
            return Decision(send(experts_NK, 1, kept), experts_NK, gates_NK, weight_N, backend=backend)
        logits_NE = router(x_ND, draws)
        scores_NE = logits_NE / router.temperature()
        if n_heads == 1:
            probs_NE, experts_NK, gates_NK = self.gate(scores_NE, training=self.training)
        else:
            n_choices = scores_NE.shape[0] * n_heads
            by_head = self.gate(scores_NE.reshape(n_choices, self.gate.n_experts), training=self.training)
            first_H1 = torch.arange(n_heads, device=x_ND.device)[:, None] * self.gate.n_experts
            experts_NHk = by_head.experts_NK.view(scores_NE.shape[0], n_heads, self.gate.top_k)
            experts_NK = (experts_NHk + first_H1).flatten(1)
            gates_NK, probs_NE = by_head.gates_NK.view_as(experts_NK), by_head.probs_NE.view_as(scores_NE) / n_heads
        to = send(experts_NK, scores_NE.shape[1], kept)
        return Decision(to, experts_NK, gates_NK, weight_N, logits_NE, probs_NE, backend, n_heads)


class ExpertMaps(nn.Module):
    """The two maps of every expert: dropout(act(x U_e + b_e)) V_e + c_e, weights stacked over the experts.

    Args:
        d_model, d_ff: widths of states and of one expert's hidden layer. dropout: of the hidden layer.
    """

    def __init__(
        self, n_experts: int, d_model: int, d_ff: int, activation: Activation, *, bias: bool, dropout: float
    ) -> None:
        super().__init__()
        self.activation, self.dropout = activation, dropout
        self.is_gated = activation in GATES
        hidden = 2 * d_ff if self.is_gated else d_ff
        # As in `FeedForward` the gate stands before the linear branch; weights are input x output, as products read.
        self.up_EDF = nn.Parameter(torch.empty(n_experts, d_model, hidden))
        self.down_EFD = nn.Parameter(torch.empty(n_experts, d_ff, d_model))
        self.up_bias_EF = nn.Parameter(torch.zeros(n_experts, hidden)) if bias else None
        self.down_bias_ED = nn.Parameter(torch.zeros(n_experts, d_model)) if bias else None

    def forward(
        self,
        x: Float[Tensor, "N D"],
        to: Dispatch,
        gates_NK: Tensor | None = None,
        *,
        backend: BackendChoice,
        draws: Draws,
        added: Mapping[str, LowRank] | None = None,
    ) -> Float[Tensor, "N D"]:
        """Map rows sorted by expert; with gates, rows of any order to the sum of their experts' results.

        Args:
            added: to the maps of all experts; with gates only.
        """
        if added is not None and gates_NK is not None:
            return self._with_added(added, x, to, gates_NK, backend=backend, draws=draws)
        weights = ExpertWeights(self.up_EDF, self.up_bias_EF, self.down_EFD, self.down_bias_ED)
        dropout = self.dropout if self.training else 0.0
        return expert_feed_forward(
            x, weights, gates_NK, to, self.activation, dropout=dropout, draws=draws, backend=backend
        )

    def _with_added(
        self,
        added: Mapping[str, LowRank],
        x_ND: Float[Tensor, "N D"],
        to: Dispatch,
        gates_NK: Tensor,
        *,
        backend: BackendChoice,
        draws: Draws,
    ) -> Float[Tensor, "N D"]:
        """Return the same where W_e + B A stands for W_e: a row's B A x before its experts, and B of a sum after."""
        own_MF = routed_linear(x_ND, self.up_EDF, self.up_bias_EF, to, reads="rows", backend=backend)
        before_MF = own_MF + gather(added["up"](x_ND), to)
        hidden_MF = drop_activated(before_MF, self.activation, self.dropout if self.training else 0.0, draws)
        maps = self.down_EFD, self.down_bias_ED
        y_ND = routed_linear(hidden_MF, *maps, to, writes="rows", gates_NK=gates_NK, backend=backend)
        return y_ND + added["down"].raised(combine(added["down"].a(hidden_MF), gates_NK, to))


class ExpertFeedForward(Routed):
    """Mixture of feed-forwards: the transition of one step.

    Args:
        router, gate: who goes where. maps: the experts. sum_bias: a vector added to the sum over them (JetMoE).
    """

    def __init__(self, router: Router | None, gate: Gate, maps: ExpertMaps, *, sum_bias: bool = False) -> None:
        n_experts, _, d_model = maps.down_EFD.shape
        super().__init__(router, gate, n_experts)
        self.experts = maps
        self.sum_bias_D = nn.Parameter(torch.zeros(d_model)) if sum_bias else None

    @property
    def blocks(self) -> dict[str, Blocks]:
        """Outputs of the maps of an expert, as of `FeedForward`."""
        _, d_ff, d_model = self.experts.down_EFD.shape
        return {"up": Blocks(d_model, (d_ff,) * (1 + self.experts.is_gated)), "down": Blocks(d_ff, (d_model,))}

    def forward(self, x_ND: Float[Tensor, "N D"], decision: Decision, draws: Draws = "auto") -> Float[Tensor, "N D"]:
        """Map every row by its experts; padding gives 0, or the bias of the sum."""
        to, gates_NK, backend = decision.to, decision.gates_NK, decision.backend
        y_ND: Tensor = self.experts(x_ND, to, gates_NK, backend=backend, draws=draws, added=self.added)
        return y_ND if self.sum_bias_D is None else y_ND + self.sum_bias_D


class SparseLayer(Routed):
    """A layer of experts that stands between two steps: every expert is a stack of feed-forward sub-layers.

        x_i = x_{i-1} + f_i(norm_i(x_{i-1})),   x_0 = x,   y = sum_k gate_k (x_n - x)

    The caller adds y to x, so that x enters once whatever the gate is (X-MoE, section 3; BASE layers write the same as
    g expert(x) + (1 - g) x).

    Args:
        layers: maps of the sub-layers. d_model, eps: of their norms, one weight and bias an expert.
    """

    def __init__(self, router: Router | None, gate: Gate, layers: list[ExpertMaps], d_model: int, eps: float) -> None:
        n_experts = layers[0].up_EDF.shape[0]
        super().__init__(router, gate, n_experts)
        self.experts = nn.ModuleList(layers)
        self.eps = eps
        self.norm_weights = nn.ParameterList(torch.ones(n_experts, d_model) for _ in layers)
        self.norm_biases = nn.ParameterList(torch.zeros(n_experts, d_model) for _ in layers)

    def forward(self, x_ND: Float[Tensor, "N D"], decision: Decision, draws: Draws = "auto") -> Float[Tensor, "N D"]:
        """Return what is added to the states; padding gives 0."""
        to = decision.to
        entered_MD = x_MD = gather(x_ND, to)
        for maps, weight_ED, bias_ED in zip(self.experts, self.norm_weights, self.norm_biases, strict=True):
            normed_MD = F.layer_norm(x_MD, x_MD.shape[1:], eps=self.eps)
            normed_MD = normed_MD * weight_ED.index_select(0, to.experts_M) + bias_ED.index_select(0, to.experts_M)
            x_MD = x_MD + maps(normed_MD, to, backend=decision.backend, draws=draws)
        return combine(x_MD - entered_MD, decision.gates_NK, to)


class ExpertAttention(MultiHead, Routed):
    """Mixture of multi-head attentions: an expert owns the queries and the output projection of H heads.

        q_j = W_Q^{e_j} x,   o_j = softmax(scale q_j K^T + bias + mask) V,   y = sum_j gate_j W_O^{e_j} o_j

    j = 1 .. k. Keys and values are shared by all experts and choices (Sparse Universal Transformer, section 2.3; MoA is
    H = 1). The k choices of a token stand side by side as query positions t k .. t k + k - 1: keys and values are never
    copied. One decision serves queries and outputs.

    Args:
        router, gate: who goes where. n_heads, d_head: H, of one expert, and their width.
        n_kv_heads, scale, qk_norm: see `MultiHead.set_sizes`.
        bias: in all projections. sum_bias: a vector added to the sum over experts (JetMoE). dropout: of the attention
            weights.
    """

    def __init__(
        self,
        router: Router | None,
        gate: Gate,
        d_model: int,
        n_heads: int,
        d_head: int,
        *,
        bias: bool | Literal["qkv"],
        dropout: float,
        sum_bias: bool = False,
        n_kv_heads: int | None = None,
        scale: float | None = None,
        qk_norm: QkNorm | None = None,
    ) -> None:
        super().__init__(router, gate, gate.n_experts)
        self.set_sizes(n_heads, d_head, dropout, n_kv_heads=n_kv_heads, scale=scale, qk_norm=qk_norm)
        self.n_choices = gate.top_k
        self.query_EDI = nn.Parameter(torch.empty(gate.n_experts, d_model, self.inner))
        self.out_EID = nn.Parameter(torch.empty(gate.n_experts, self.inner, d_model))
        self.query_bias_EI = nn.Parameter(torch.zeros(gate.n_experts, self.inner)) if bias else None
        self.out_bias_ED = nn.Parameter(torch.zeros(gate.n_experts, d_model)) if bias is True else None
        self.sum_bias_D = nn.Parameter(torch.zeros(d_model)) if sum_bias else None
        self.kv = Linear(d_model, 2 * self.kv_inner, bias=bool(bias))

    @property
    def blocks(self) -> dict[str, Blocks]:
        """Outputs of every map: queries of an expert; keys and values of all; output of an expert."""
        d_model = self.kv.in_features
        kv = Blocks(d_model, (self.kv_inner, self.kv_inner), n_keys=2)
        return {"query": Blocks(d_model, (self.inner,)), "kv": kv, "out": Blocks(self.inner, (d_model,))}

    def queries_keys_values(
        self, x_ND: Float[Tensor, "N D"], decision: Decision, valued_ND: Float[Tensor, "N D"] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return queries, and keys and values, of the same rows."""
        return self.queries(x_ND, decision), self.keys_values(x_ND, valued_ND)

    def queries(self, x_ND: Float[Tensor, "N D"], decision: Decision) -> Float[Tensor, "N I"]:
        """Return queries of every row's choices, side by side; those of padding are 0, but for what a round adds."""
        maps = (self.query_EDI, self.query_bias_EI)
        q_SI = routed_linear(x_ND, *maps, decision.to, reads="rows", writes="slots", backend=decision.backend)
        q_NI = q_SI.view(x_ND.shape[0], -1)
        return q_NI if self.added is None else q_NI + self.added["query"](x_ND).repeat(1, self.n_choices)

    def keys_values(
        self, x_ND: Float[Tensor, "*N D"], valued_ND: Float[Tensor, "*N D"] | None = None
    ) -> Float[Tensor, "*N J"]:
        """Return keys and values side by side, the values of other states where there are some."""
        if valued_ND is None:
            return self.kv(x_ND)  # type: ignore[no-any-return]
        n = self.kv_inner
        k, v = some_outputs(self.kv, x_ND, slice(0, n)), some_outputs(self.kv, valued_ND, slice(n, 2 * n))
        return torch.cat([k, v], -1)

    def output(self, x_NI: Float[Tensor, "N I"], decision: Decision) -> Float[Tensor, "N D"]:
        """Return the sum over a row's choices of its experts' outputs, weighted by their gates."""
        y_ND = routed_linear(
            x_NI.reshape(-1, self.inner),
            self.out_EID,
            self.out_bias_ED,
            decision.to,
            reads="slots",
            writes="rows",
            gates_NK=decision.gates_NK,
            backend=decision.backend,
        )
        if self.added is not None:
            mapped_NKR = self.added["out"].a(x_NI.reshape(-1, self.n_choices, self.inner))
            gates_NK1 = decision.gates_NK[..., None].to(mapped_NKR.dtype)
            y_ND = y_ND + self.added["out"].raised((mapped_NKR * gates_NK1).sum(1))
        return y_ND if self.sum_bias_D is None else y_ND + self.sum_bias_D
