"""Self-attention layers: our mixture of multi-head attentions, dense ones beside it, and a plain loop over experts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from forced_routing import Distribution, choose, inputs, load, router_matrix, shares
from layers import Absent, Contestant, layer
from torch import Tensor, nn

from ostinato.config.experts import ExpertAttentionConfig
from ostinato.config.sub_layers import AttentionConfig
from ostinato.kernels import BackendChoice
from ostinato.models.parts import build_sub_layer
from ostinato.nn.attention import Attention, Visibility
from ostinato.nn.experts import ExpertAttention
from ostinato.nn.relative import RelativeWindow

_ALL = Visibility()


@dataclass(frozen=True, slots=True)
class AttentionCell:
    """What all contestants have in common: (E, k, H, D, W) and the batch.

    Args:
        n_heads: H, of one expert. window: W of the relative positions; None: there are none.
    """

    n_experts: int
    k: int
    n_heads: int
    d_head: int
    window: int | None = None
    routing: Distribution = "uniform"
    n_sentences: int = 32
    length: int = 128
    d_model: int = 512

    @property
    def active_heads(self) -> int:
        """Heads that a token runs."""
        return self.k * self.n_heads

    @property
    def equal_heads(self) -> int:
        """Heads of the dense attention whose projections have the most nearly equal number of parameters."""
        return max(1, round(self.n_heads * (self.n_experts + 1) / 2))

    def key(self) -> dict[str, Any]:
        """Return it as data."""
        return asdict(self)

    def macs(self) -> int:
        """Return the multiply-accumulates of our layer for the batch, as `dense_macs` counts them."""
        inner = self.n_heads * self.d_head
        maps = self.d_model * (self.n_experts + 2 * inner + 2 * self.k * inner)
        return self.n_sentences * self.length * (maps + self._mixing(self.active_heads))

    def dense_macs(self, n_heads: int) -> int:
        """Return those of dense attention: four projections, queries times keys, weights times values, positions."""
        maps = 4 * self.d_model * n_heads * self.d_head
        return self.n_sentences * self.length * (maps + self._mixing(n_heads))

    def _mixing(self, n_heads: int) -> int:
        seen = 2 * self.length + (0 if self.window is None else 2 * self.window + 1)
        return n_heads * self.d_head * seen


@dataclass(frozen=True, slots=True)
class AttentionWork:
    """Inputs that carry the scores, the matrix that reads them, and what every router chooses."""

    cell: AttentionCell
    x_BTD: Tensor
    router_ED: Tensor
    experts_NK: Tensor

    def load(self) -> dict[str, float]:
        """Return how the experts are used."""
        return load(self.experts_NK, self.cell.n_experts)


def attention_work(cell: AttentionCell, seed: int = 1, device: torch.device | None = None) -> AttentionWork:
    """Draw the inputs of a cell; the same ones for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    E, k, n_tokens = cell.n_experts, cell.k, cell.n_sentences * cell.length
    experts_NK = choose(shares(cell.routing, E, k), k, n_tokens, generator)
    x_ND = inputs(experts_NK, E, cell.d_model, generator)
    router_ED = router_matrix(E, cell.d_model)
    return AttentionWork(
        cell, x_ND.view(cell.n_sentences, cell.length, -1).to(device), router_ED.to(device), experts_NK
    )


class SelfAttention(nn.Module):
    """One step's self-attention, with relative positions where there is a window.

    Args:
        attention: our projections, dense or of experts. length: of every sentence.
        backend: of the experts' products.
    """

    def __init__(
        self, attention: Attention | ExpertAttention, window: int | None, length: int, backend: BackendChoice = "auto"
    ) -> None:
        super().__init__()
        self.attention, self.backend = attention, backend
        self.relation = None if window is None else RelativeWindow(attention.n_heads, attention.d_head, window)
        places_T = torch.arange(length)
        distance_1TT = (places_T - places_T[:, None])[None]
        self.register_buffer("distance_1QT", distance_1TT.repeat_interleave(attention.n_choices, dim=1))

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return what is added to the states."""
        x_ND = x_BTD.flatten(0, 1)
        has_experts = isinstance(self.attention, ExpertAttention)
        decision = self.attention.route(x_ND, backend=self.backend) if has_experts else None
        q_NI, kv_NI = self.attention.queries_keys_values(x_ND, decision)
        q = self.attention.query_heads(q_NI.view(*x_BTD.shape[:2], -1))
        k, v = self.attention.key_value_heads(kv_NI.view(*x_BTD.shape[:2], -1))
        bias = None
        if self.relation is not None:
            bias = self.relation.bias(q, self.distance_1QT, self.attention.scale, False)
        read_BTI = self.attention.attend(q, k, v, _ALL, bias)
        return self.attention.output(read_BTI.flatten(0, 1), decision).view_as(x_BTD)


class LoopAttention(nn.Module):
    """The plain reference: a linear map an expert, one expert after the other; one attention a choice.

    Args:
        work: sizes, and the router's matrix.
    """

    def __init__(self, work: AttentionWork) -> None:
        super().__init__()
        self.cell = cell = work.cell
        inner = cell.n_heads * cell.d_head
        self.router_ED = nn.Parameter(work.router_ED.clone())
        self.queries = nn.ModuleList(nn.Linear(cell.d_model, inner, bias=False) for _ in range(cell.n_experts))
        self.outs = nn.ModuleList(nn.Linear(inner, cell.d_model, bias=False) for _ in range(cell.n_experts))
        self.kv = nn.Linear(cell.d_model, 2 * inner, bias=False)
        self.relation = None if cell.window is None else RelativeWindow(cell.n_heads, cell.d_head, cell.window)
        places_T = torch.arange(cell.length)
        self.register_buffer("distance_1TT", (places_T - places_T[:, None])[None])

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return what is added to the states."""
        cell, (B, T, _) = self.cell, x_BTD.shape
        H, K, n = cell.n_heads, cell.d_head, cell.k
        x_ND = x_BTD.flatten(0, 1)
        gates_NK, experts_NK = torch.softmax(F.linear(x_ND, self.router_ED), 1).topk(n, dim=1)
        if n > 1:
            gates_NK = gates_NK / gates_NK.sum(1, keepdim=True)
        slots = [(experts_NK.flatten() == e).nonzero().squeeze(1) for e in range(cell.n_experts)]
        parts = [query(x_ND[mine // n]) for query, mine in zip(self.queries, slots, strict=True)]
        q_SI = torch.zeros(B * T * n, H * K, device=x_ND.device).index_copy(0, torch.cat(slots), torch.cat(parts))
        key, value = self.kv(x_BTD).view(B, T, 2, H, K).permute(2, 0, 3, 1, 4)
        read = [self._mix(q, key, value) for q in q_SI.view(B, T, n, H, K).permute(2, 0, 3, 1, 4)]
        read_SI = torch.stack(read).permute(1, 3, 0, 2, 4).reshape(B * T * n, H * K)
        y_ND = torch.zeros_like(x_ND)
        for out, mine in zip(self.outs, slots, strict=True):
            y_ND = y_ND.index_add(0, mine // n, out(read_SI[mine]) * gates_NK.flatten()[mine, None])
        return y_ND.view_as(x_BTD)

    def _mix(self, q_BHTK: Tensor, key: Tensor, value: Tensor) -> Tensor:
        bias = None
        if self.relation is not None:
            bias = self.relation.bias(q_BHTK, self.distance_1TT, self.cell.d_head**-0.5, False)
        return F.scaled_dot_product_attention(q_BHTK, key, value, attn_mask=bias)


def dense_attention(work: AttentionWork, n_heads: int, name: str) -> Contestant:
    """Our dense multi-head attention."""
    cell = work.cell
    settings = AttentionConfig(n_heads=n_heads, d_head=cell.d_head, bias=False)
    attention = build_sub_layer(settings, cell.d_model, "xavier", n_steps=1, eps=1e-5)
    module = SelfAttention(attention, cell.window, cell.length).to(work.x_BTD.device)
    return layer(name, "dense", module, work.x_BTD, note=f"{n_heads} heads")


def our_attention(work: AttentionWork, backend: BackendChoice = "auto") -> SelfAttention:
    """Return our mixture, whose router reads the prescribed scores."""
    cell = work.cell
    settings = ExpertAttentionConfig(n_experts=cell.n_experts, top_k=cell.k, n_heads=cell.n_heads, d_head=cell.d_head)
    attention = build_sub_layer(settings, cell.d_model, "xavier", n_steps=1, eps=1e-5)
    with torch.no_grad():
        attention.router.experts_ED.copy_(work.router_ED)
    return SelfAttention(attention, cell.window, cell.length, backend).to(work.x_BTD.device)


def torch_attention(work: AttentionWork) -> Contestant | Absent:
    """torch.nn.MultiheadAttention, where its width and its lack of relative positions allow."""
    cell, name = work.cell, "torch MultiheadAttention"
    if cell.window is not None:
        return Absent(name, "has no relative positions")
    if cell.active_heads * cell.d_head != cell.d_model:
        return Absent(name, f"its heads together are as wide as the model, {cell.d_model}")
    module = nn.MultiheadAttention(cell.d_model, cell.active_heads, bias=False, batch_first=True)
    module.to(work.x_BTD.device)
    return layer(name, "peer", module, work.x_BTD, run=lambda x: module(x, x, x, need_weights=False)[0])
