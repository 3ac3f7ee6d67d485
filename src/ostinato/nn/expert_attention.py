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
        self.kv = nn.Linear(d_model, 2 * self.inner, bias=bias)

    def project(self, x_BTD: Float[Tensor, "B T D"], decision: Decision | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries `[B, H, T k, K]`, keys and values `[B, H, T, K]` of the same states."""
        return self.project_queries(x_BTD, decision), *self.project_keys_values(x_BTD)

    def project_queries(
        self, x_BTD: Float[Tensor, "B T D"], decision: Decision | None = None
    ) -> Float[Tensor, "B H Q K"]:
        """Return queries of every token's choices, side by side; those of padding are 0."""
        assert decision is not None, "experts need the decision of route()"
        B, T, _ = x_BTD.shape
        x_ND, maps = x_BTD.flatten(0, 1), (self.query_EDI, self.query_bias_EI)
        q_SI = routed_linear(x_ND, *maps, decision.to, reads="rows", writes="slots", backend=self.backend)
        return q_SI.view(B, T * self.n_choices, self.n_heads, self.d_head).transpose(1, 2)

    def project_keys_values(self, x_BSD: Float[Tensor, "B S D"]) -> tuple[Tensor, Tensor]:
        """Return keys and values, `[B, H, S, K]` each."""
        k, v = self._heads(self.kv(x_BSD), 2)
        return k, v

    def project_out(self, x_BHQK: Float[Tensor, "B H Q K"], decision: Decision | None = None) -> Float[Tensor, "B T D"]:
        """Return the sum over a token's choices of its experts' outputs, weighted by their gates."""
        assert decision is not None, "experts need the decision of route()"
        B, _, Q, _ = x_BHQK.shape
        x_SI, maps = x_BHQK.transpose(1, 2).reshape(B * Q, self.inner), (self.out_EID, self.out_bias_ED)
        y_ND = routed_linear(
            x_SI,
            *maps,
            decision.to,
            reads="slots",
            writes="rows",
            gates_NK=decision.gates_NK,
            backend=self.backend,
        )
        return y_ND.view(B, Q // self.n_choices, -1)
