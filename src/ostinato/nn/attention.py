"""Multi-head attention on `scaled_dot_product_attention`, with packed projections.

attention(q, k, v) = softmax(scale * q k^T + bias + mask) v,   scale = 1 / sqrt(d_head) if no other is given
output = concat_h(attention_h) W_O        Vaswani et al. 2017, eq. 1; Universal Transformers, section 2.1

Heads of queries may share those of keys and values, G = H / H_kv each: query head h reads key head h // G (Ainslie et
al. 2023, grouped queries). q and k may be normed by head (`QkNorm`), and what heads read may be multiplied by
sigmoid(W_G x) before W_O.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from ostinato.kernels import (
    Draws,
    attend,
    attend_some,
    for_all_heads,
    hidden_score,
    is_exporting,
    split,
    without_autocast,
)
from ostinato.nn.layers import Blocks, Dropping, Linear, at_least_float32, some_outputs
from ostinato.nn.shapes import Bool, Float, Int, Tensor


@dataclass(frozen=True, slots=True)
class Visibility:
    """Which keys a query may see.

    Args:
        is_causal: query t sees keys up to its own column, `offset` + t.
        keep_BS: True for keys that are seen, of all sets of keys; None where all are.
        offset: columns before the first query (cached ones).
        prefix_BS: True for keys of the prefix, which see each other in both directions; None where there is no
            prefix, or where it is cached already: what comes after a prefix sees it anyway.
        columns_BA: the column of every query, counted from `offset`; None: query t is column t. Like `near_BAS` it has
            rows only for sentences that have a query (Q in the shape checks). The other masks have one for every
            sentence, until `of_sentences` takes those of the same sentences.
        near_BAS: True for keys within a query's reach; None where all are.
        texts_BS: number of the text that every column belongs to, where several texts stand in a row: a query sees keys
            of its own text only. Given only where the queries are all the keys; None: a row is one text.
        n_sets: sets of keys that stand side by side, each of all columns.
    """

    is_causal: bool = False
    keep_BS: Bool[Tensor, "B M"] | None = None
    offset: int = 0
    prefix_BS: Bool[Tensor, "B S"] | None = None
    columns_BA: Int[Tensor, "Q A"] | None = None
    near_BAS: Bool[Tensor, "#Q A S"] | None = None
    texts_BS: Int[Tensor, "B S"] | None = None
    n_sets: int = 1

    @property
    def is_plain_causal(self) -> bool:
        """Whether the order of the columns alone decides."""
        others = (self.keep_BS, self.prefix_BS, self.columns_BA, self.near_BAS, self.texts_BS)
        return self.is_causal and self.n_sets == 1 and all(one is None for one in others)

    def allowed(self, n_queries: int, n_keys: int, device: torch.device) -> Tensor | None:
        """Return True where a key is visible, `[B or 1, 1, T or 1, S]`; None where all are."""
        seen = self._in_order(n_queries, n_keys // self.n_sets, device) if self.is_causal else None
        if self.near_BAS is not None:
            near = self.near_BAS[:, None]
            seen = near if seen is None else seen & near
        if self.texts_BS is not None:
            of_queries_BA = self.texts_BS if self.columns_BA is None else self.texts_BS.gather(1, self.columns_BA)
            same = (of_queries_BA[:, :, None] == self.texts_BS[:, None, :])[:, None]
            seen = same if seen is None else seen & same
        if seen is not None and self.n_sets > 1:
            seen = seen.repeat(1, 1, 1, self.n_sets)
        if self.keep_BS is not None:
            keep = self.keep_BS[:, None, None, :]
            seen = keep if seen is None else seen & keep
        return seen

    def of_sentences(self, part: Callable[[Tensor], Tensor]) -> Visibility:
        """Return what queries of some sentences see; `columns_BA` and `near_BAS` are of these already.

        Args:
            part: what some sentences have of something that all have.
        """
        keep_BS, prefix_BS, texts_BS = (
            None if x is None else part(x) for x in (self.keep_BS, self.prefix_BS, self.texts_BS)
        )
        return replace(self, keep_BS=keep_BS, prefix_BS=prefix_BS, texts_BS=texts_BS)

    def _in_order(self, n_queries: int, n_keys: int, device: torch.device) -> Tensor | None:
        """Return which keys a query of a causal stack sees, padding aside; None: all."""
        if self.columns_BA is None and n_queries == 1:
            return None
        keys = torch.arange(n_keys, device=device)
        columns = keys[None, :n_queries] if self.columns_BA is None else self.columns_BA
        seen = keys <= columns[:, None, :, None] + self.offset
        if self.prefix_BS is None:
            return seen
        if self.columns_BA is None:
            in_prefix = self.prefix_BS[:, self.offset :]
        else:
            in_prefix = self.prefix_BS.gather(1, self.columns_BA)
        return seen | (in_prefix[:, None, :, None] & self.prefix_BS[:, None, None, :])


BiasKind = bool | Literal["qkv", "qk"]
"""Projections that have biases: all, none, those of queries, keys and values, or those of queries and keys."""


class QkNorm(NamedTuple):
    """An RMS norm of the queries and keys of every head: x / sqrt(mean(x^2) + eps) * weight_K.

    Args:
        eps: added to the mean. has_weight: learned weights, one set for queries and one for keys.
        follows_rotation: rotary positions turn queries and keys first.
    """

    eps: float
    has_weight: bool = True
    follows_rotation: bool = False


class MultiHead(Dropping):
    """What dense attention and attention of experts have in common.

    Projections map rows `[N, D]` to rows: `queries` `[N, C H K]` (C choices of a token, side by side), `keys_values`
    `[N, 2 H_kv K]`, and back with `output`. `attend` reads the rows of a sentence side by side, split into heads.
    """

    n_choices: int = 1
    """C, queries of one token: as many as it has experts."""
    has_value_experts: bool = False
    """Whether a token's values are made by experts that it chooses."""
    q_norm: nn.Module | None
    k_norm: nn.Module | None
    output_gate: Linear | None

    def set_sizes(
        self,
        n_heads: int,
        d_head: int,
        dropout: float,
        *,
        n_kv_heads: int | None = None,
        scale: float | None = None,
        qk_norm: QkNorm | None = None,
    ) -> None:
        """Note what does not depend on how the projections are made, and make the norms of queries and keys.

        Args:
            n_heads, n_kv_heads: H and H_kv, which divides it; None: H. d_head: K. dropout: of the weights.
            scale: factor of the scores; None: 1 / sqrt(K).
        """
        self.n_heads, self.d_head, self.dropout = n_heads, d_head, dropout
        self.n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
        self.n_groups = n_heads // self.n_kv_heads
        self.inner, self.kv_inner = n_heads * d_head, self.n_kv_heads * d_head
        self.scale = d_head**-0.5 if scale is None else scale
        self.norm_follows_rotation = qk_norm is not None and qk_norm.follows_rotation
        self.q_norm = self.k_norm = self.output_gate = None
        if qk_norm is not None:
            self.q_norm, self.k_norm = (nn.RMSNorm(d_head, qk_norm.eps, qk_norm.has_weight) for _ in range(2))

    @property
    def is_read_plainly(self) -> bool:
        """Whether a head reads keys and values of its own, as they were projected: what compiled kernels know."""
        parts = ("attend", "query_heads", "key_value_heads", "normed_and_turned", "_mask")
        is_own = all(getattr(type(self), name) is getattr(MultiHead, name) for name in parts)
        return is_own and self.n_groups == 1 and self.q_norm is None

    def normed_and_turned(
        self, x_BHTK: Tensor, norm: nn.Module | None, turn: Callable[[Tensor], Tensor] | None
    ) -> Float[Tensor, "B H T K"]:
        """Return queries or keys as they enter the product.

        Args:
            norm: `q_norm` or `k_norm`. turn: rotation by position; None: there is none.
        """
        if norm is not None and not self.norm_follows_rotation:
            x_BHTK = norm(at_least_float32(x_BHTK)).to(x_BHTK.dtype)
        if turn is not None:
            x_BHTK = turn(x_BHTK)
        if norm is not None and self.norm_follows_rotation:
            x_BHTK = norm(at_least_float32(x_BHTK)).to(x_BHTK.dtype)
        return x_BHTK

    def gated(self, x_NI: Float[Tensor, "N I"], read_ND: Float[Tensor, "N D"]) -> Float[Tensor, "N I"]:
        """Return what the heads read, times sigmoid(W_G x) where there is such a gate."""
        return x_NI if self.output_gate is None else x_NI * torch.sigmoid(self.output_gate(read_ND))

    def query_heads(self, q_BAI: Float[Tensor, "B A I"]) -> Float[Tensor, "B H Q K"]:
        """Return queries by head, Q = A C: the choices of a token are queries side by side."""
        B, A, _ = q_BAI.shape
        return q_BAI.reshape(B, A * self.n_choices, self.n_heads, self.d_head).transpose(1, 2)

    def key_value_heads(self, kv_BSI: Float[Tensor, "B S J"]) -> Float[Tensor, "2 B H S K"]:
        """Return keys and values by head, H_kv of them."""
        B, S, _ = kv_BSI.shape
        return kv_BSI.view(B, S, 2, self.n_kv_heads, self.d_head).permute(2, 0, 3, 1, 4)

    def attend(
        self,
        q_BHQK: Float[Tensor, "B H Q K"],
        k_BHSK: Float[Tensor, "B G S K"],
        v_BHSK: Float[Tensor, "B G S K"],
        visibility: Visibility,
        bias: Tensor | None = None,
        *,
        ranges: Sequence[tuple[int, int]] | None = None,
        draws: Draws = "auto",
    ) -> Float[Tensor, "B A I"]:
        """Return what every token reads, its heads and choices side by side.

        Args:
            bias: added to the scaled scores, `[B or 1, H, Q or A, S]`.
            ranges: sentences that have queries, (first, end) each: the others' keys are not read, and zeros are
                returned for them; None: all have.
            draws: where the random numbers of dropout come from, see `ostinato.kernels.dropout`.
        """
        Q, S = q_BHQK.shape[2], k_BHSK.shape[2]
        if is_exporting():  # fused kernels are no part of a graph, and lay out their result as they like
            x_BHQK = self.weights(q_BHQK, k_BHSK, visibility, bias) @ for_all_heads(v_BHSK, self.n_heads)
            return x_BHQK.transpose(1, 2).reshape(x_BHQK.shape[0], Q // self.n_choices, self.n_choices * self.inner)
        is_plain_causal = visibility.is_plain_causal and bias is None and Q == S and Q > 1 and self.n_choices == 1
        mask = None if is_plain_causal else self._mask(visibility, bias, Q, S, q_BHQK)
        dropout = self.dropout if self.training else 0.0
        if ranges is not None and not is_plain_causal and not dropout:
            x_BHQK = attend_some(q_BHQK, k_BHSK, v_BHSK, mask, self.scale, ranges)
        elif Q == 1 and self.n_groups > 1 and not self.training:
            x_BHQK = self._attend_in_groups(q_BHQK, k_BHSK, v_BHSK, mask)
        else:
            x_BHQK = attend(
                q_BHQK, k_BHSK, v_BHSK, mask, self.scale, is_causal=is_plain_causal, dropout=dropout, draws=draws
            )
        return x_BHQK.transpose(1, 2).reshape(x_BHQK.shape[0], Q // self.n_choices, self.n_choices * self.inner)

    def _attend_in_groups(self, q_BH1K: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, mask: Tensor | None) -> Tensor:
        """Return what one query a sentence reads: the heads that share keys are queries side by side."""
        B, H, _, K = q_BH1K.shape
        if mask is not None and mask.shape[1] == H:
            mask = mask.reshape(mask.shape[0], self.n_kv_heads, self.n_groups, -1)
        q_BHGK = q_BH1K.reshape(B, self.n_kv_heads, self.n_groups, K)
        x_BHGK = F.scaled_dot_product_attention(q_BHGK, k_BHSK, v_BHSK, attn_mask=mask, scale=self.scale)
        return x_BHGK.reshape(B, H, 1, K)

    def weights(
        self, q_BHQK: Tensor, k_BHSK: Tensor, visibility: Visibility, bias: Tensor | None = None
    ) -> Float[Tensor, "B H Q S"]:
        """Return the attention weights in float32 under autocast too, without dropout; only where asked for."""
        with without_autocast(q_BHQK.device):
            scores = self.scale * (q_BHQK.float() @ for_all_heads(k_BHSK, self.n_heads).float().transpose(-1, -2))
            mask = self._mask(visibility, bias, q_BHQK.shape[2], k_BHSK.shape[2], scores)
            return torch.softmax(scores if mask is None else scores + mask, -1)

    def _mask(self, visibility: Visibility, bias: Tensor | None, Q: int, S: int, like: Tensor) -> Tensor | None:
        """Return hidden keys and bias as one additive tensor, for every choice of a token the same."""
        allowed = visibility.allowed(Q // self.n_choices, S, like.device)
        if self.n_choices > 1:
            if allowed is not None and allowed.shape[2] > 1:
                allowed = allowed.repeat_interleave(self.n_choices, dim=2)
            if bias is not None and bias.shape[2] != Q:
                bias = bias.repeat_interleave(self.n_choices, dim=2)
        if allowed is None:
            return None if bias is None else bias.to(like.dtype)
        if bias is not None:
            return bias.to(like.dtype).masked_fill(~allowed, hidden_score(like.dtype))
        shown = torch.zeros(allowed.shape, dtype=like.dtype, device=like.device)
        return shown.masked_fill_(~allowed, hidden_score(like.dtype))


class Attention(MultiHead, nn.Module):
    """Projections of one parameter set, for self- or cross-attention.

    Args:
        d_model: width of the states. n_heads, d_head: heads and their width.
        bias: which projections have biases. dropout: of the attention weights, in training.
        n_kv_heads, scale, qk_norm: see `MultiHead.set_sizes`.
        output_gate: what heads read is multiplied by sigmoid(W_G x).
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        d_head: int,
        *,
        bias: BiasKind,
        dropout: float,
        n_kv_heads: int | None = None,
        scale: float | None = None,
        qk_norm: QkNorm | None = None,
        output_gate: bool = False,
    ) -> None:
        super().__init__()
        self.set_sizes(n_heads, d_head, dropout, n_kv_heads=n_kv_heads, scale=scale, qk_norm=qk_norm)
        # Rows: queries, keys, values. Cross-attention uses the first ones on one side, the rest on the other.
        self.qkv = Linear(d_model, self.inner + 2 * self.kv_inner, bias=bias in (True, "qkv"))
        self.qk_bias = nn.Parameter(torch.zeros(self.inner + self.kv_inner)) if bias == "qk" else None
        self.output_gate = Linear(d_model, self.inner, bias=False) if output_gate else None
        self.out = Linear(self.inner, d_model, bias=bias is True)

    @property
    def blocks(self) -> dict[str, Blocks]:
        """Outputs of every map: queries, keys, values; gate; output."""
        d_model = self.out.out_features
        own = {"qkv": Blocks(d_model, (self.inner, self.kv_inner, self.kv_inner), n_keys=2)}
        own |= {} if self.output_gate is None else {"output_gate": Blocks(d_model, (self.inner,))}
        return own | {"out": Blocks(self.inner, (d_model,))}

    def queries_keys_values(
        self, x_ND: Float[Tensor, "N D"], decision: None = None, valued_ND: Float[Tensor, "N D"] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return queries, and keys and values, of the same rows: one product.

        Args:
            valued_ND: what values are made of; None: what the others are.
        """
        if valued_ND is not None:
            qk = some_outputs(self.qkv, x_ND, slice(0, self.inner + self.kv_inner))
            q, k = split(qk, (self.inner, self.kv_inner))
            return self._biased_queries(q), self._biased_keys(torch.cat([k, self._values(valued_ND)], -1))
        q, kv = split(self.qkv(x_ND), (self.inner, 2 * self.kv_inner))
        return (q, kv) if self.qk_bias is None else (self._biased_queries(q), self._biased_keys(kv))

    def queries(self, x_ND: Float[Tensor, "N D"], decision: None = None) -> Float[Tensor, "N I"]:
        """Return queries."""
        return self._biased_queries(some_outputs(self.qkv, x_ND, slice(0, self.inner)))

    def keys_values(
        self, x_ND: Float[Tensor, "*N D"], valued_ND: Float[Tensor, "*N D"] | None = None
    ) -> Float[Tensor, "*N J"]:
        """Return keys and values side by side, the values of other states where there are some."""
        if valued_ND is not None:
            k = some_outputs(self.qkv, x_ND, slice(self.inner, self.inner + self.kv_inner))
            return self._biased_keys(torch.cat([k, self._values(valued_ND)], -1))
        return self._biased_keys(some_outputs(self.qkv, x_ND, slice(self.inner, self.inner + 2 * self.kv_inner)))

    def _values(self, x_ND: Tensor) -> Tensor:
        first = self.inner + self.kv_inner
        return some_outputs(self.qkv, x_ND, slice(first, first + self.kv_inner))

    def output(self, x_NI: Float[Tensor, "N I"], decision: None = None) -> Float[Tensor, "N D"]:
        """Return the output of all heads."""
        return self.out(x_NI)  # type: ignore[no-any-return]

    def _biased_queries(self, q_NI: Tensor) -> Tensor:
        return q_NI if self.qk_bias is None else q_NI + self.qk_bias[: self.inner].to(q_NI.dtype)

    def _biased_keys(self, kv_NJ: Tensor) -> Tensor:
        if self.qk_bias is None:
            return kv_NJ
        return kv_NJ + F.pad(self.qk_bias[self.inner :], (0, self.kv_inner)).to(kv_NJ.dtype)
