"""Parts of a tensor whose gradients, where they lie side by side in memory as the parts do, are joined without a copy.

One product makes queries, keys and values of all heads, side by side in one tensor; compiled attention reads them where
they lie, and lays out their gradients in the same way (`room_like`). The plain twins are `torch.split` and
`torch.unbind`, whose backward passes copy all gradients into a new tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def split(x: Tensor, sizes: Sequence[int]) -> tuple[Tensor, ...]:
    """Return parts of x along its last dimension, of these sizes."""
    if not _has_own_backward(x):
        return x.split(list(sizes), -1)  # type: ignore[no-any-return, no-untyped-call]
    return _Split.apply(x, tuple(sizes))  # type: ignore[no-any-return, no-untyped-call]


def unbind(x: Tensor) -> tuple[Tensor, ...]:
    """Return the parts of x along its first dimension."""
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
    is_traced = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    return x.requires_grad and torch.is_grad_enabled() and not is_traced


def _share_memory(a: Tensor, b: Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() and a.dtype == b.dtype


def _joined(parts: Sequence[Tensor], dim: int) -> Tensor:
    """Return the parts behind each other: a view on all of them where they lie so, a copy elsewhere."""
    first, place = parts[0], parts[0].storage_offset()
    for part in parts:
        is_next = part.storage_offset() == place and part.stride() == first.stride() and _share_memory(part, first)
        # Gradients that are to be differentiated again depend on all parts; a view would on the first alone.
        if not is_next or torch.is_grad_enabled():
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
        if torch.is_grad_enabled():
            return torch.stack(grads)
        # A new first dimension, whose stride is the distance between the parts.
        distance = max(0, grads[-1].storage_offset() - grads[0].storage_offset()) // max(1, len(grads) - 1)
        return _joined([grad.as_strided((1, *grad.shape), (distance, *grad.stride())) for grad in grads], 0)
