"""Multi-head attention on `scaled_dot_product_attention`, with packed projections.

attention(q, k, v) = softmax(scale * q k^T + bias + mask) v,   scale = 1 / sqrt(d_head)
output = concat_h(attention_h) W_O        Vaswani et al. 2017, eq. 1; Universal Transformers, section 2.1
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

from ostinato.nn.shapes import Bool, Float, Tensor

if TYPE_CHECKING:
    from ostinato.nn.experts import Decision

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
    """

    is_causal: bool = False
    keep_BS: Bool[Tensor, "B S"] | None = None
    offset: int = 0
    prefix_BS: Bool[Tensor, "B S"] | None = None

    @property
    def is_plain_causal(self) -> bool:
        """Whether the order of the columns alone decides."""
        return self.is_causal and self.keep_BS is None and self.prefix_BS is None

    def allowed(self, n_queries: int, n_keys: int, device: torch.device) -> Tensor | None:
        """Return True where a key is visible, `[B or 1, 1, T or 1, S]`; None where all are."""
        seen: Tensor | None = None
        if self.is_causal and n_queries > 1:
            columns = torch.arange(n_keys, device=device)
            seen = (columns <= columns[:n_queries, None] + self.offset)[None, None]
            if self.prefix_BS is not None:
                seen = seen | (self.prefix_BS[:, None, :, None] & self.prefix_BS[:, None, None, :])
        if self.keep_BS is not None:
            keep = self.keep_BS[:, None, None, :]
            seen = keep if seen is None else seen & keep
        return seen


class MultiHead:
    """What all attention has in common, however its projections are made.

    output = project_out(mix(queries, keys, values))
    """

    training: bool
    n_choices: int = 1
    """Queries of one token: as many as it has experts."""

    def set_sizes(self, n_heads: int, d_head: int, dropout: float) -> None:
        """Note what does not depend on how the projections are made."""
        self.n_heads, self.d_head, self.dropout = n_heads, d_head, dropout
        self.inner = n_heads * d_head
        self.scale = d_head**-0.5

    def mix(
        self,
        q_BHQK: Float[Tensor, "B H Q K"],
        k_BHSK: Float[Tensor, "B H S K"],
        v_BHSK: Float[Tensor, "B H S K"],
        visibility: Visibility,
        bias: Tensor | None = None,
    ) -> Float[Tensor, "B H Q K"]:
        """Return what every query reads; Q = T `n_choices`, the choices of a token side by side.

        `bias` is added to the scaled scores, `[B or 1, H, Q or T, S]`.
        """
        Q, S = q_BHQK.shape[2], k_BHSK.shape[2]
        is_plain_causal = visibility.is_plain_causal and bias is None and Q == S and Q > 1 and self.n_choices == 1
        mask = None if is_plain_causal else self._mask(visibility, bias, Q, S, q_BHQK)
        return F.scaled_dot_product_attention(
            q_BHQK,
            k_BHSK,
            v_BHSK,
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=is_plain_causal,
            scale=self.scale,
        )

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

    def _heads(self, x_BTI: Tensor, n: int) -> tuple[Tensor, ...]:
        B, T, _ = x_BTI.shape
        return x_BTI.view(B, T, n, self.n_heads, self.d_head).permute(2, 0, 3, 1, 4).unbind(0)


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
        self.qkv = nn.Linear(d_model, 3 * self.inner, bias=bias)
        self.out = nn.Linear(self.inner, d_model, bias=bias)

    def route(
        self,
        x_BTD: Float[Tensor, "B T D"],
        keep_BT: Bool[Tensor, "B T"] | None,
        weight_BT: Float[Tensor, "B T"] | None = None,
    ) -> Decision | None:
        """Return where every token goes; None: all run all weights."""
        return None

    def project(self, x_BTD: Float[Tensor, "B T D"], decision: Decision | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of the same states, `[B, H, T, K]` each."""
        q, k, v = self._heads(self.qkv(x_BTD), 3)
        return q, k, v

    def project_queries(
        self, x_BTD: Float[Tensor, "B T D"], decision: Decision | None = None
    ) -> Float[Tensor, "B H T K"]:
        """Return queries."""
        return self._heads(self._rows(x_BTD, 0, 1), 1)[0]

    def project_keys_values(self, x_BSD: Float[Tensor, "B S D"]) -> tuple[Tensor, Tensor]:
        """Return keys and values, `[B, H, S, K]` each."""
        k, v = self._heads(self._rows(x_BSD, 1, 3), 2)
        return k, v

    def project_out(self, x_BHTK: Float[Tensor, "B H T K"], decision: Decision | None = None) -> Float[Tensor, "B T D"]:
        """Return the output of all heads side by side."""
        return self.out(x_BHTK.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _rows(self, x: Tensor, start: int, end: int) -> Tensor:
        rows = slice(start * self.inner, end * self.inner)
        return F.linear(x, self.qkv.weight[rows], None if self.qkv.bias is None else self.qkv.bias[rows])
