"""Attention whose weights are dropped, y = drop(softmax(s q k^T + m)) v, with an own backward; and of some sentences.

torch's fused kernels drop no weights on a CPU; what it falls back to draws one random number a weight and looks for
rows that see nothing, which masks here never have (hidden keys are large and finite). Kept for the backward pass are
q, k, v, the weights and one byte a weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from ostinato.kernels.devices import without_autocast
from ostinato.kernels.dropout import Draws, Kept, draw_kept, draws_bytes, factors
from ostinato.kernels.linear import product_dtype


def hidden_score(dtype: torch.dtype) -> float:
    """Return what is added to the score of a key that is not seen: -1e30, in float16 half of the least number it has.

    Finite, so that a row without any visible key (a padded query) gives numbers and not NaN; beside any real score the
    softmax of it is exactly zero. Half, because scores are added to it.
    """
    return max(-1e30, torch.finfo(dtype).min / 2)


def attend_dropped(
    q_BHQK: Tensor,
    k_BHSK: Tensor,
    v_BHSK: Tensor,
    mask: Tensor | None,
    p: float,
    scale: float,
    *,
    is_causal: bool = False,
    draws: Draws = "auto",
) -> Tensor:
    """Return what every query reads, `[B, H, Q, K]`, each weight dropped with probability p.

    Args:
        mask: added to the scaled scores, `[B or 1, H or 1, Q or 1, S]`, finite; None: nothing.
        is_causal: query t sees keys up to t; only without a mask, and where Q = S.
        draws: see `ostinato.kernels.dropout`; "torch" leaves all to torch's own function.
    """
    if not draws_bytes(p, q_BHQK.device, draws):
        return F.scaled_dot_product_attention(
            q_BHQK, k_BHSK, v_BHSK, attn_mask=mask, dropout_p=p, is_causal=is_causal, scale=scale
        )
    kept = draw_kept((*q_BHQK.shape[:3], k_BHSK.shape[2]), p, q_BHQK.device)
    return attend_by(q_BHQK, k_BHSK, v_BHSK, mask, scale, kept, is_causal=is_causal)


def attend_by(
    q_BHQK: Tensor,
    k_BHSK: Tensor,
    v_BHSK: Tensor,
    mask: Tensor | None,
    scale: float,
    kept: Kept,
    *,
    is_causal: bool = False,
) -> Tensor:
    """Return what every query reads when these weights, `[B, H, Q, S]`, are kept."""
    dtype = product_dtype(q_BHQK)
    if is_causal:
        hidden = torch.full((q_BHQK.shape[2], k_BHSK.shape[2]), hidden_score(dtype), dtype=dtype, device=q_BHQK.device)
        mask = hidden.triu_(1)[None, None]
    q_BHQK, k_BHSK, v_BHSK = (x.to(dtype) for x in (q_BHQK, k_BHSK, v_BHSK))
    mask = None if mask is None else mask.to(dtype)
    with without_autocast(q_BHQK.device):
        return _Attend.apply(q_BHQK, k_BHSK, v_BHSK, mask, scale, *kept)  # type: ignore[no-any-return, no-untyped-call]


def attend_some(
    q_BHQK: Tensor,
    k_BHSK: Tensor,
    v_BHSK: Tensor,
    mask: Tensor | None,
    scale: float,
    ranges: Sequence[tuple[int, int]],
) -> Tensor:
    """Return what the queries of some sentences read, `[B, H, Q, K]`, zeros for the others, nothing dropped.

    Keys and values lie in large buffers: to gather those of the sentences would take longer than to read them all,
    slices cost nothing.

    Args:
        mask: added to the scaled scores, `[B or 1, H or 1, Q or 1, S]`; None: nothing.
        ranges: of sentences, (first, end) each, in order.
    """
    read_BHQK = torch.zeros_like(q_BHQK)
    for first, end in ranges:
        part = slice(first, end)
        read_BHQK[part] = F.scaled_dot_product_attention(
            q_BHQK[part],
            k_BHSK[part],
            v_BHSK[part],
            attn_mask=mask if mask is None or mask.shape[0] == 1 else mask[part],
            scale=scale,
        )
    return read_BHQK


class _Attend(torch.autograd.Function):
    """Batches of B H products; the dropped weights are made anew in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, kept: Tensor, makes_up: float
    ) -> Tensor:
        B, H, Q, _ = q.shape
        S = k.shape[2]
        q, k, v = (x.flatten(0, 1) for x in (q, k, v))
        if mask is None:
            scores = torch.bmm(q, k.transpose(1, 2)).mul_(scale)
        else:
            added = mask.expand(B, H, Q, S).reshape(B * H, Q, S)
            scores = torch.baddbmm(added, q, k.transpose(1, 2), alpha=scale)
        weights = torch.softmax(scores, -1)
        kept = kept.view_as(weights)
        y = torch.bmm(factors(kept, makes_up, q.dtype).mul_(weights), v)
        ctx.save_for_backward(q, k, v, weights, kept)
        ctx.scale, ctx.makes_up = scale, makes_up
        ctx.heads, ctx.mask_shape = (B, H), None if mask is None else mask.shape
        return y.view(B, H, Q, -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, weights, kept = ctx.saved_tensors
        B, H = ctx.heads
        grad = grad.flatten(0, 1)
        multiply = factors(kept, ctx.makes_up, q.dtype)
        of_weights = torch.bmm(grad, v.transpose(1, 2)).mul_(multiply)
        of_v = torch.bmm(multiply.mul_(weights).transpose(1, 2), grad)
        of_scores = torch.ops.aten._softmax_backward_data(of_weights, weights, -1, q.dtype)
        of_mask = None
        if ctx.needs_input_grad[3]:
            of_mask = of_scores.view(B, H, *of_scores.shape[1:]).sum_to_size(ctx.mask_shape)
        of_scores = of_scores.mul_(ctx.scale) if of_mask is None else of_scores * ctx.scale
        of_q, of_k = torch.bmm(of_scores, k), torch.bmm(of_scores.transpose(1, 2), q)
        return *(x.view(B, H, *x.shape[1:]) for x in (of_q, of_k, of_v)), of_mask, None, None, None
