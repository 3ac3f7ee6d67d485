"""Mixture of multi-head attentions: an expert owns the queries and the output projection of H heads.

    q_j = W_Q^{e_j} x,   o_j = softmax(scale q_j K^T + bias + mask) V,   y = sum_j gate_j W_O^{e_j} o_j,   j = 1 .. k

Keys and values are shared by all experts and choices (Sparse Universal Transformer, section 2.3; MoA is H = 1). The k
choices of a token stand side by side as query positions t k .. t k + k - 1: keys and values are never copied.
"""

from __future__ import annotations

import torch
from torch import nn

from ostinato.kernels import routed_linear
from ostinato.nn.attention import MultiHead
from ostinato.nn.experts import Decision, Routed
from ostinato.nn.linear import Linear
from ostinato.nn.routing import Gate, Router
from ostinato.nn.shapes import Float, Tensor


class ExpertAttention(MultiHead, Routed):
    """Projections of one parameter set: one decision serves queries and outputs.

    Args:
        router, gate: who goes where. n_heads, d_head: H, of one expert, and their width.
        bias: in all projections. dropout: of the attention weights.
    """

    def __init__(
        self,
        router: Router | None,
        gate: Gate,
        d_model: int,
        n_heads: int,
        d_head: int,
        *,
        bias: bool,
        dropout: float,
    ) -> None:
        super().__init__(router, gate, gate.n_experts)
        self.set_sizes(n_heads, d_head, dropout)
        self.n_choices = gate.k
        self.query_EDI = nn.Parameter(torch.empty(gate.n_experts, d_model, self.inner))
        self.out_EID = nn.Parameter(torch.empty(gate.n_experts, self.inner, d_model))
        self.query_bias_EI = nn.Parameter(torch.zeros(gate.n_experts, self.inner)) if bias else None
        self.out_bias_ED = nn.Parameter(torch.zeros(gate.n_experts, d_model)) if bias else None
        self.kv = Linear(d_model, 2 * self.inner, bias=bias)

    def queries_keys_values(
        self, x_ND: Float[Tensor, "N D"], decision: Decision | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return queries, and keys and values, of the same rows."""
        return self.queries(x_ND, decision), self.keys_values(x_ND)

    def queries(self, x_ND: Float[Tensor, "N D"], decision: Decision | None = None) -> Float[Tensor, "N I"]:
        """Return queries of every row's choices, side by side; those of padding are 0."""
        assert decision is not None, "experts need the decision of route()"
        maps = (self.query_EDI, self.query_bias_EI)
        q_SI = routed_linear(x_ND, *maps, decision.to, reads="rows", writes="slots", backend=self.backend)
        return q_SI.view(x_ND.shape[0], -1)

    def keys_values(self, x_ND: Float[Tensor, "*N D"]) -> Float[Tensor, "*N J"]:
        """Return keys and values side by side."""
        return self.kv(x_ND)  # type: ignore[no-any-return]

    def output(self, x_NI: Float[Tensor, "N I"], decision: Decision | None = None) -> Float[Tensor, "N D"]:
        """Return the sum over a row's choices of its experts' outputs, weighted by their gates."""
        assert decision is not None, "experts need the decision of route()"
        return routed_linear(
            x_NI.reshape(-1, self.inner),
            self.out_EID,
            self.out_bias_ED,
            decision.to,
            reads="slots",
            writes="rows",
            gates_NK=decision.gates_NK,
            backend=self.backend,
        )
