"""Multi-head attention on `scaled_dot_product_attention`, with packed projections.

attention(q, k, v) = softmax(scale * q k^T + bias + mask) v,   scale = 1 / sqrt(d_head)
output = concat_h(attention_h) W_O        Vaswani et al. 2017, eq. 1; Universal Transformers, section 2.1
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from ostinato.kernels import Draws, attend_dropped, attend_some
from ostinato.nn.layers import Dropping, Linear
from ostinato.nn.shapes import Bool, Float, Int, Tensor

# Finite, so that a row without any visible key (a padded query) gives numbers and not NaN; beside any real score the
# softmax of it is exactly zero.
_HIDDEN = -1e30


@dataclass(frozen=True, slots=True)
class Visibility:
    """Which keys a query may see.

    Args:
        is_causal: query t sees keys up to its own column, `offset` + t.
        keep_BS: True for real keys; None where all are.
        offset: columns before the first query (cached ones).
        prefix_BS: True for keys of the prefix, which see each other in both directions; given only where the queries
            are all the keys. None where there is no prefix, or where it is cached already: what comes after a prefix
            sees it anyway.
        columns_BA: the columns of the queries, where they are not all of them in order.
    """

    is_causal: bool = False
    keep_BS: Bool[Tensor, "B S"] | None = None
    offset: int = 0
    prefix_BS: Bool[Tensor, "B S"] | None = None
    columns_BA: Int[Tensor, "B A"] | None = None

    @property
    def is_plain_causal(self) -> bool:
        """Whether the order of the columns alone decides."""
        only_order = self.keep_BS is None and self.prefix_BS is None and self.columns_BA is None
        return self.is_causal and only_order

    def allowed(self, n_queries: int, n_keys: int, device: torch.device) -> Tensor | None:
        """Return True where a key is visible, `[B or 1, 1, T or 1, S]`; None where all are."""
        seen = self._in_order(n_queries, n_keys, device) if self.is_causal else None
        if self.keep_BS is not None:
            keep = self.keep_BS[:, None, None, :]
            seen = keep if seen is None else seen & keep
        return seen

    def _in_order(self, n_queries: int, n_keys: int, device: torch.device) -> Tensor | None:
        """Return which keys a query of a causal stack sees, padding aside; None: all."""
        if self.columns_BA is None and n_queries == 1:
            return None
        keys = torch.arange(n_keys, device=device)
        columns = keys[None, :n_queries] if self.columns_BA is None else self.columns_BA
        seen = keys <= columns[:, None, :, None] + self.offset
        if self.prefix_BS is None:
            return seen
        in_prefix = self.prefix_BS if self.columns_BA is None else self.prefix_BS.gather(1, self.columns_BA)
        return seen | (in_prefix[:, None, :, None] & self.prefix_BS[:, None, None, :])


class MultiHead(Dropping):
    """What dense attention and attention of experts have in common.

    Projections map rows `[N, D]` to rows: `queries` `[N, C H K]` (C choices of a token, side by side), `keys_values`
    `[N, 2 H K]`, and back with `output`. `attend` reads the rows of a sentence side by side, split into heads.
    """

    n_choices: int = 1
    """C, queries of one token: as many as it has experts."""

    def set_sizes(self, n_heads: int, d_head: int, dropout: float) -> None:
        """Note what does not depend on how the projections are made."""
        self.n_heads, self.d_head, self.dropout = n_heads, d_head, dropout
        self.inner = n_heads * d_head
        self.scale = d_head**-0.5

    def query_heads(self, q_BAI: Float[Tensor, "B A I"]) -> Float[Tensor, "B H Q K"]:
        """Return queries by head, Q = A C: the choices of a token are queries side by side."""
        B, A, _ = q_BAI.shape
        return q_BAI.reshape(B, A * self.n_choices, self.n_heads, self.d_head).transpose(1, 2)

    def key_value_heads(self, kv_BSI: Float[Tensor, "B S J"]) -> Float[Tensor, "2 B H S K"]:
        """Return keys and values by head."""
        B, S, _ = kv_BSI.shape
        return kv_BSI.view(B, S, 2, self.n_heads, self.d_head).permute(2, 0, 3, 1, 4)

    def attend(
        self,
        q_BHQK: Float[Tensor, "B H Q K"],
        k_BHSK: Float[Tensor, "B H S K"],
        v_BHSK: Float[Tensor, "B H S K"],
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
        is_plain_causal = visibility.is_plain_causal and bias is None and Q == S and Q > 1 and self.n_choices == 1
        mask = None if is_plain_causal else self._mask(visibility, bias, Q, S, q_BHQK)
        if self.training and self.dropout:
            given = (q_BHQK, k_BHSK, v_BHSK, mask, self.dropout, self.scale)
            x_BHQK = attend_dropped(*given, is_causal=is_plain_causal, draws=draws)
        elif ranges is not None and not is_plain_causal:
            x_BHQK = attend_some(q_BHQK, k_BHSK, v_BHSK, mask, self.scale, ranges)
        else:
            x_BHQK = F.scaled_dot_product_attention(
                q_BHQK, k_BHSK, v_BHSK, attn_mask=mask, is_causal=is_plain_causal, scale=self.scale
            )
        return x_BHQK.transpose(1, 2).reshape(x_BHQK.shape[0], Q // self.n_choices, self.n_choices * self.inner)

    def weights(
        self, q_BHQK: Tensor, k_BHSK: Tensor, visibility: Visibility, bias: Tensor | None = None
    ) -> Float[Tensor, "B H Q S"]:
        """Return the attention weights in float32, without dropout; only computed where they are asked for."""
        scores = self.scale * (q_BHQK.float() @ k_BHSK.float().transpose(-1, -2))
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
            return bias.to(like.dtype).masked_fill(~allowed, _HIDDEN)
        return torch.zeros(allowed.shape, dtype=like.dtype, device=like.device).masked_fill_(~allowed, _HIDDEN)


class Attention(MultiHead, nn.Module):
    """Projections of one parameter set, for self- or cross-attention.

    Args:
        d_model: width of the states. n_heads, d_head: heads and their width.
        bias: biases in the four projections. dropout: of the attention weights, in training.
    """

    def __init__(self, d_model: int, n_heads: int, d_head: int, *, bias: bool, dropout: float) -> None:
        super().__init__()
        self.set_sizes(n_heads, d_head, dropout)
        # Rows: queries, keys, values. Cross-attention uses the first third on one side, the rest on the other.
        self.qkv = Linear(d_model, 3 * self.inner, bias=bias)
        self.out = Linear(self.inner, d_model, bias=bias)

    def queries_keys_values(self, x_ND: Float[Tensor, "N D"], decision: None = None) -> tuple[Tensor, Tensor]:
        """Return queries, and keys and values, of the same rows: one product."""
        # The backward pass of split is one concatenation; that of tensor_split fills two tensors of the whole width.
        q, kv = self.qkv(x_ND).split((self.inner, 2 * self.inner), dim=-1)
        return q, kv

    def queries(self, x_ND: Float[Tensor, "N D"], decision: None = None) -> Float[Tensor, "N I"]:
        """Return queries."""
        return self.qkv(x_ND, slice(0, self.inner))  # type: ignore[no-any-return]

    def keys_values(self, x_ND: Float[Tensor, "*N D"]) -> Float[Tensor, "*N J"]:
        """Return keys and values side by side."""
        return self.qkv(x_ND, slice(self.inner, 3 * self.inner))  # type: ignore[no-any-return]

    def output(self, x_NI: Float[Tensor, "N I"], decision: None = None) -> Float[Tensor, "N D"]:
        """Return the output of all heads."""
        return self.out(x_NI)  # type: ignore[no-any-return]
