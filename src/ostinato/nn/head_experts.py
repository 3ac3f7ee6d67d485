"""Attention whose heads have experts of their values and of their outputs; queries and keys are dense.

    v_s^h = sum_j g^V_j V^{h, e_j} x_s,   e_j, g^V_j: the k experts of head h that token s chooses for its value
    o_t^h = softmax(scale q_t^h (k^h)^T + bias + mask) v^h
    y_t   = sum_h sum_j g^O_j O^{h, e_j} o_t^h,   chosen by token t for its output

SwitchHead (Csordas et al. 2023, arXiv 2312.07987), MoEUT (Csordas et al. 2024, 2405.16039). The scores of both choices
are made of what queries and keys are made of. Every head has E experts on each side, which stand side by side: head h
has the numbers h E .. h E + E - 1, and a token runs k of each head: keys and values are as wide as without experts.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from ostinato.kernels import BackendChoice, Draws, routed_linear
from ostinato.nn.attention import MultiHead, QkNorm
from ostinato.nn.experts import Decision, NamedRouter, Routed
from ostinato.nn.layers import Linear, some_outputs
from ostinato.nn.routing import Gate, Router
from ostinato.nn.shapes import Float, Tensor


class HeadExpertAttention(MultiHead, Routed):
    """See the module.

    Args:
        router, value_router: of outputs and of values; scores of all heads side by side. gate: of a head's E experts.
        d_model: width of the states. n_heads, d_head: heads and their width.
        n_kv_heads, scale, qk_norm: see `MultiHead.set_sizes`. dropout: of the attention weights.
    """

    has_value_experts = True

    def __init__(
        self,
        router: Router,
        value_router: Router,
        gate: Gate,
        d_model: int,
        n_heads: int,
        d_head: int,
        *,
        dropout: float,
        n_kv_heads: int | None = None,
        scale: float | None = None,
        qk_norm: QkNorm | None = None,
    ) -> None:
        super().__init__(router, gate, n_heads * gate.n_experts)
        self.n_router_heads = n_heads
        self.value_router = value_router
        self.set_sizes(n_heads, d_head, dropout, n_kv_heads=n_kv_heads, scale=scale, qk_norm=qk_norm)
        self.qk = Linear(d_model, self.inner + self.kv_inner, bias=False)
        self.value_EDK = nn.Parameter(torch.empty(self.n_kv_heads * gate.n_experts, d_model, d_head))
        self.out_EKD = nn.Parameter(torch.empty(n_heads * gate.n_experts, d_head, d_model))

    def named_routers(self) -> Iterator[NamedRouter]:
        """Yield both routers."""
        for name, router, n_heads in (("", self.router, self.n_heads), ("values", self.value_router, self.n_kv_heads)):
            assert router is not None  # it is given
            yield NamedRouter(name, router, n_heads * self.gate.n_experts, n_heads * self.gate.top_k, n_heads)

    def route_values(
        self,
        x_ND: Float[Tensor, "N D"],
        weight_N: Tensor | None = None,
        *,
        backend: BackendChoice = "auto",
        draws: Draws = "auto",
    ) -> Decision:
        """Choose experts of values. Args: see `Routed`."""
        return self.decide(self.value_router, x_ND, weight_N, self.n_kv_heads, backend=backend, draws=draws)

    def queries_keys_values(
        self, x_ND: Float[Tensor, "N D"], decision: Decision, valued_ND: Tensor | None, to: Decision
    ) -> tuple[Tensor, Tensor]:
        """Return queries, and keys and values, of the same rows.

        Args:
            valued_ND: what values are made of; None: what the others are. to: of `route_values`.
        """
        q, k = self.qk(x_ND).split((self.inner, self.kv_inner), dim=-1)
        return q, torch.cat([k, self._values(x_ND if valued_ND is None else valued_ND, to)], -1)

    def queries(self, x_ND: Float[Tensor, "N D"], decision: Decision) -> Float[Tensor, "N I"]:
        """Return queries."""
        return some_outputs(self.qk, x_ND, slice(0, self.inner))

    def keys_values(self, x_ND: Float[Tensor, "N D"], valued_ND: Tensor | None, to: Decision) -> Float[Tensor, "N J"]:
        """Return keys and values side by side. Args: see `queries_keys_values`."""
        k = some_outputs(self.qk, x_ND, slice(self.inner, self.inner + self.kv_inner))
        return torch.cat([k, self._values(x_ND if valued_ND is None else valued_ND, to)], -1)

    def output(self, x_NI: Float[Tensor, "N I"], decision: Decision) -> Float[Tensor, "N D"]:
        """Return the sum over heads and their chosen experts of outputs, weighted by gates."""
        N, k = x_NI.shape[0], self.gate.top_k
        heads_NHkK = x_NI.view(N, self.n_heads, 1, self.d_head).expand(-1, -1, k, -1)
        return routed_linear(
            heads_NHkK.reshape(N * self.n_heads * k, self.d_head),
            self.out_EKD,
            None,
            decision.to,
            reads="slots",
            writes="rows",
            gates_NK=decision.gates_NK,
            backend=decision.backend,
        )

    def _values(self, x_ND: Tensor, to: Decision) -> Float[Tensor, "N J"]:
        """Return the values of all heads; those of padding are 0."""
        v_SK = routed_linear(x_ND, self.value_EDK, None, to.to, reads="rows", writes="slots", backend=to.backend)
        v_NHkK = v_SK.view(x_ND.shape[0], self.n_kv_heads, self.gate.top_k, self.d_head)
        gates_NHk1 = to.gates_NK.to(v_SK.dtype).view(*v_NHkK.shape[:3], 1)
        return (v_NHkK * gates_NHk1).sum(2).flatten(1)
