"""Attention of all queries, y = drop(softmax(s q k^T + m)) v, with own backward passes; and of some sentences.

In float32 on a CPU a compiled kernel runs both passes. It saves q, k, v, two numbers a query and, where weights are
dropped, one byte a weight. Otherwise torch's `scaled_dot_product_attention` runs; where bytes drop weights, which it
does not do, `_Attend` multiplies step by step, and saves the weights. Masks are finite: hidden keys have large negative
scores, and no row is looked at for whether it sees any.
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
from ostinato.kernels.native import FullAttention, is_transformed, takes

_FEW_QUERIES = 8


def hidden_score(dtype: torch.dtype) -> float:
    """Return what is added to the score of a key that is not seen: -1e30, in float16 half of the least number it has.

    Finite, so that a row without any visible key (a padded query) gives numbers and not NaN; beside any real score the
    softmax of it is exactly zero. Half, because scores are added to it.
    """
    return max(-1e30, torch.finfo(dtype).min / 2)


def attend(
    q_BHQK: Tensor,
    k_BGSK: Tensor,
    v_BGSK: Tensor,
    mask: Tensor | None,
    scale: float,
    *,
    is_causal: bool = False,
    dropout: float = 0.0,
    draws: Draws = "auto",
) -> Tensor:
    """Return what every query reads, `[B, H, Q, K]`, each weight dropped with probability `dropout`.

    Args:
        k_BGSK, v_BGSK: of G heads, G divides H: query head h reads head h // (H / G).
        mask: added to the scaled scores, `[B or 1, H or 1, Q or 1, S]`, finite; None: nothing.
        is_causal: query t sees keys up to t; only without a mask, and where Q = S.
        draws: see `ostinato.kernels.dropout`; "torch" leaves what is dropped to torch's own function.
    """
    kept = None
    if dropout:
        if not draws_bytes(dropout, q_BHQK.device, draws):
            k_BHSK, v_BHSK = (for_all_heads(x, q_BHQK.shape[1]) for x in (k_BGSK, v_BGSK))
            return F.scaled_dot_product_attention(
                q_BHQK, k_BHSK, v_BHSK, attn_mask=mask, dropout_p=dropout, is_causal=is_causal, scale=scale
            )
        kept = draw_kept((*q_BHQK.shape[:3], k_BGSK.shape[2]), dropout, q_BHQK.device)
    return attend_by(q_BHQK, k_BGSK, v_BGSK, mask, scale, kept, is_causal=is_causal)


def attend_by(
    q_BHQK: Tensor,
    k_BGSK: Tensor,
    v_BGSK: Tensor,
    mask: Tensor | None,
    scale: float,
    kept: Kept | None,
    *,
    is_causal: bool = False,
) -> Tensor:
    """Return what every query reads when these weights, `[B, H, Q, S]`, are kept; None: all."""
    if takes(q_BHQK, k_BGSK, v_BGSK, mask) and _fit(q_BHQK, k_BGSK, v_BGSK, mask, kept, is_causal=is_causal):
        given = (x if x.stride(-1) == 1 else x.contiguous() for x in (q_BHQK, k_BGSK, v_BGSK))
        return _AttendCompiled.apply(*given, mask, scale, *(kept or (None, 1.0)), is_causal)  # type: ignore[no-any-return, no-untyped-call]
    return attend_plainly(q_BHQK, k_BGSK, v_BGSK, mask, scale, kept, is_causal=is_causal)


def _fit(
    q_BHQK: Tensor, k_BGSK: Tensor, v_BGSK: Tensor, mask: Tensor | None, kept: Kept | None, *, is_causal: bool
) -> bool:
    """Return whether the compiled kernel takes these and pays here; wrong sizes are left to torch, which raises."""
    (B, H, Q, K), (_, G, S, _) = q_BHQK.shape, k_BGSK.shape
    if not S or not k_BGSK.shape == v_BGSK.shape == (B, G, S, K) or H % G or (is_causal and Q != S):
        return False
    # Threads share heads of keys: fewer of them than threads would leave some without work.
    if torch.get_num_threads() > B * G:
        return False
    if kept is not None and not (kept.bytes.shape == (B, H, Q, S) and kept.bytes.is_contiguous()):
        return False
    # Keys are copied, transposed: that pays for some queries, or where the backward pass is the kernel's, too.
    is_learning = torch.is_grad_enabled() and any(x.requires_grad for x in (q_BHQK, k_BGSK, v_BGSK))
    if Q < _FEW_QUERIES and not is_learning:
        return False
    if mask is None:
        return True
    is_spread = mask.dim() == 4 and all(n in (1, whole) for n, whole in zip(mask.shape, (B, H, Q, S), strict=True))
    return is_spread and not mask.requires_grad


def attend_plainly(
    q_BHQK: Tensor,
    k_BGSK: Tensor,
    v_BGSK: Tensor,
    mask: Tensor | None,
    scale: float,
    kept: Kept | None,
    *,
    is_causal: bool = False,
) -> Tensor:
    """Return what every query reads by operations of torch, in any type and on any device: the plain twin."""
    H, learns_mask = q_BHQK.shape[1], mask is not None and mask.requires_grad
    is_grouped = bool(k_BGSK.shape[1] != H)
    # On a GPU torch's flash kernel alone knows groups: 16 bits, no mask. Elsewhere it would write every weight down.
    is_fused = q_BHQK.is_cpu or (mask is None and product_dtype(q_BHQK).itemsize == 2)
    if is_grouped and (kept is not None or learns_mask or not is_fused):
        k_BGSK, v_BGSK = (for_all_heads(x, H) for x in (k_BGSK, v_BGSK))
        is_grouped = False
    if kept is None:
        return F.scaled_dot_product_attention(
            q_BHQK, k_BGSK, v_BGSK, attn_mask=mask, is_causal=is_causal, scale=scale, enable_gqa=is_grouped
        )
    dtype = product_dtype(q_BHQK)
    wide = _score_dtype(dtype)
    if is_causal:
        hidden = torch.full((q_BHQK.shape[2], k_BGSK.shape[2]), hidden_score(wide), dtype=wide, device=q_BHQK.device)
        mask = hidden.triu_(1)[None, None]
    q_BHQK, k_BHSK, v_BHSK = (x.to(dtype) for x in (q_BHQK, k_BGSK, v_BGSK))
    mask = None if mask is None else mask.to(wide)
    with without_autocast(q_BHQK.device):
        return _Attend.apply(q_BHQK, k_BHSK, v_BHSK, mask, scale, *kept)  # type: ignore[no-any-return, no-untyped-call]


def for_all_heads(x_BGSK: Tensor, H: int) -> Tensor:
    """Return keys or values of every one of H heads of queries."""
    n_groups = H // x_BGSK.shape[1]
    return x_BGSK if n_groups == 1 else x_BGSK.repeat_interleave(n_groups, dim=1)


def attend_some(
    q_BHQK: Tensor,
    k_BGSK: Tensor,
    v_BGSK: Tensor,
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
        of_part = mask if mask is None or mask.shape[0] == 1 else mask[part]
        read_BHQK[part] = attend(q_BHQK[part], k_BGSK[part], v_BGSK[part], of_part, scale)
    return read_BHQK


class _AttendCompiled(torch.autograd.Function):
    """One compiled call each way."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        scale: float,
        kept: Tensor | None,
        makes_up: float,
        is_causal: bool,
    ) -> Tensor:
        # The kernel reads a query's row of the mask with stride 1; one that is the same for all keys has stride 0.
        mask = None if mask is None else mask.expand(*mask.shape[:3], k.shape[2])
        if mask is not None and mask.stride(-1) != 1:
            mask = mask.contiguous()
        y, rows = FullAttention(q, k, v, mask, scale, kept, makes_up, is_causal=is_causal).read()
        ctx.save_for_backward(q, k, v, mask, kept, rows)
        ctx.given = scale, makes_up, is_causal
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, mask, kept, rows = ctx.saved_tensors
        scale, makes_up, is_causal = ctx.given
        if torch.is_grad_enabled() or is_transformed(grad):  # gradients of these gradients, or many at a time
            needed = [x for x, needs in zip((q, k, v), ctx.needs_input_grad, strict=False) if needs]
            with torch.enable_grad():
                all_kept = None if kept is None else Kept(kept, makes_up)
                y = attend_plainly(q, k, v, mask, scale, all_kept, is_causal=is_causal)
            found = iter(torch.autograd.grad(y, needed, grad, create_graph=torch.is_grad_enabled()))
            return *(next(found) if needs else None for needs in ctx.needs_input_grad[:3]), *[None] * 5
        grad = grad if grad.stride(-1) == 1 else grad.contiguous()
        is_self = q.untyped_storage().data_ptr() == k.untyped_storage().data_ptr()
        of_q, of_k, of_v = room_like([q, k, v]) if is_self else [*room_like([q]), *room_like([k, v])]
        back = FullAttention(q, k, v, mask, scale, kept, makes_up, is_causal=is_causal)
        back.gradients(grad, rows, of_q, of_k, of_v)
        return of_q, of_k, of_v, None, None, None, None, None


def _score_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type of scores and softmax where products run in `dtype`: rounded scores lose more than weights do."""
    return torch.promote_types(dtype, torch.float32)


class _Attend(torch.autograd.Function):
    """Batches of B H products; the dropped weights are made anew in the backward pass.

    Scores and the softmax, forwards and backwards, are at least float32, the weights that are saved in the products'
    type.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, kept: Tensor, makes_up: float
    ) -> Tensor:
        B, H, Q, _ = q.shape
        S = k.shape[2]
        q, k, v = (x.flatten(0, 1) for x in (q, k, v))
        wide_q, wide_k = (x.to(_score_dtype(x.dtype)) for x in (q, k))
        if mask is None:
            scores = torch.bmm(wide_q, wide_k.transpose(1, 2)).mul_(scale)
        else:
            added = mask.expand(B, H, Q, S).reshape(B * H, Q, S)
            scores = torch.baddbmm(added, wide_q, wide_k.transpose(1, 2), alpha=scale)
        weights = torch.softmax(scores, -1).to(q.dtype)
        kept = kept.reshape(weights.shape)
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
        wide = _score_dtype(q.dtype)
        of_scores = torch.ops.aten._softmax_backward_data(of_weights.to(wide), weights.to(wide), -1, wide)
        of_mask = None
        if ctx.needs_input_grad[3]:
            of_mask = of_scores.view(B, H, *of_scores.shape[1:]).sum_to_size(ctx.mask_shape)
        of_scores = (of_scores.mul_(ctx.scale) if of_mask is None else of_scores * ctx.scale).to(q.dtype)
        of_q, of_k = torch.bmm(of_scores, k), torch.bmm(of_scores.transpose(1, 2), q)
        return *(x.view(B, H, *x.shape[1:]) for x in (of_q, of_k, of_v)), of_mask, None, None, None


def split(x: Tensor, sizes: Sequence[int]) -> tuple[Tensor, ...]:
    """Return parts of x along its last dimension, of these sizes.

    One product makes queries, keys and values of all heads, side by side; attention reads them where they lie, and lays
    out their gradients in the same way (`room_like`). So these are joined without a copy. The plain twin is
    `torch.split`, whose backward pass copies all of them.
    """
    if not _has_own_backward(x):
        return x.split(list(sizes), -1)  # type: ignore[no-any-return, no-untyped-call]
    return _Split.apply(x, tuple(sizes))  # type: ignore[no-any-return, no-untyped-call]


def unbind(x: Tensor) -> tuple[Tensor, ...]:
    """Return the parts of x along its first dimension; of their gradients see `split`. Plain twin: `torch.unbind`."""
    return _Unbind.apply(x) if _has_own_backward(x) else x.unbind(0)  # type: ignore[no-untyped-call]


def room_like(parts: Sequence[Tensor]) -> list[Tensor]:
    """Return uninitialised tensors of the shapes of some heads, `[B, H, T, K]`: in memory every position has its heads
    side by side, and where these are parts of one tensor, in order and without gaps, so are the new ones."""
    first, place = parts[0], parts[0].storage_offset()
    B, _, T, K = first.shape
    heads = [part.shape[1] for part in parts]
    strides = T * sum(heads) * K, K, sum(heads) * K, 1
    for part in parts:
        is_next = part.storage_offset() == place and part.stride() == strides and part.shape[2] == T
        if not is_next or not _share_memory(part, first):
            return [part.new_empty(part.transpose(1, 2).shape).transpose(1, 2) for part in parts]
        place += part.shape[1] * K
    return [room.transpose(1, 2) for room in first.new_empty(B, T, sum(heads), K).split(heads, 2)]  # type: ignore[no-untyped-call]


def _has_own_backward(x: Tensor) -> bool:
    # The gradient of a leaf stays with it, where gradients are added up in place: it must have memory of its own.
    # What costs nothing is asked first: decoding comes here at every token.
    return x.requires_grad and torch.is_grad_enabled() and not is_transformed(x) and not x.is_leaf


def _share_memory(a: Tensor, b: Tensor) -> bool:
    place = a.untyped_storage().data_ptr()  # 0 where there is no memory (meta)
    return place != 0 and place == b.untyped_storage().data_ptr() and a.dtype == b.dtype


def _joined(parts: Sequence[Tensor], dim: int) -> Tensor:
    """Return the parts behind each other: a view on all of them where they lie so, a copy elsewhere."""
    # Gradients that are to be differentiated again depend on all parts; a view would on the first alone.
    if torch.is_grad_enabled() or is_transformed(*parts):
        return torch.cat(list(parts), dim)
    first, place = parts[0], parts[0].storage_offset()
    for part in parts:
        is_next = part.storage_offset() == place and part.stride() == first.stride() and _share_memory(part, first)
        if not is_next:
            return torch.cat(list(parts), dim)
        place += part.shape[dim] * first.stride(dim)
    shape = list(first.shape)
    shape[dim] = sum(part.shape[dim] for part in parts)
    return first.as_strided(shape, first.stride())


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, sizes: tuple[int, ...]) -> tuple[Tensor, ...]:
        return x.split(list(sizes), -1)  # type: ignore[no-any-return, no-untyped-call]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _joined(grads, -1), None


class _Unbind(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, ...]:
        return x.unbind(0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        if torch.is_grad_enabled() or is_transformed(*grads):  # as in `_joined`, and they may have no memory to lie in
            return torch.stack(grads)
        # With a first dimension of one number, whose stride tells how far the next part is away.
        distance = max(0, grads[-1].storage_offset() - grads[0].storage_offset()) // max(1, len(grads) - 1)
        return _joined([grad.as_strided((1, *grad.shape), (distance, *grad.stride())) for grad in grads], 0)
