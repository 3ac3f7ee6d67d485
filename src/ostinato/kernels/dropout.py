"""Dropout whose random numbers cost little on a CPU: one 64-bit draw decides on eight elements, a byte on each.

drop(x) = x * kept / (1 - q),   kept ~ Bernoulli(1 - q) for every element by itself,   q = round(256 p) / 256

An element is dropped where its byte is below 256 q, so that the probability is q, at most 1/512 from the p asked for,
and the mean is kept exactly, for it is q that the scale makes up for. Bytes come from torch's global CPU generator:
what saves and restores its state (an interrupted run, steps that are recomputed) repeats the draws. What a backward
pass keeps is one byte an element, and nothing where the dropped result tells (relu).

On other devices, and for a p that rounds to 0 or 1, the draws are those of torch's own dropout; "torch" asks for them
everywhere, as the plain twin, and to repeat runs that were drawn so.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from ostinato.kernels import native
from ostinato.kernels.activation import Activation, activate

Draws = Literal["auto", "torch"]

_LEVELS = 256
_LEAST_WORD = -(2**63)


class Kept(NamedTuple):
    """What dropout keeps: 1 for a kept element and 0 for a dropped one, as bytes, and what makes up for the others."""

    bytes: Tensor
    scale: float


def realised(p: float) -> float:
    """Return the probability with which bytes drop an element when p is asked for."""
    return round(_LEVELS * p) / _LEVELS


def draws_bytes(p: float, device: torch.device, draws: Draws = "auto") -> bool:
    """Return whether elements are dropped by bytes rather than by torch's own dropout."""
    # What is compiled makes its own numbers, inside the operations around them.
    is_free = draws == "auto" and not torch.compiler.is_compiling()
    return is_free and device.type == "cpu" and 0.0 < realised(p) < 1.0


def draw_kept(shape: tuple[int, ...] | torch.Size, p: float, device: torch.device, draws: Draws = "auto") -> Kept:
    """Draw what is kept of so many elements, each dropped with probability p, 0 <= p < 1.

    Args:
        draws: "auto": by bytes where that is possible. "torch": by torch's draws of booleans.
    """
    if not draws_bytes(p, device, draws):
        dropped = torch.empty(shape, dtype=torch.bool, device=device).bernoulli_(p)
        return Kept(dropped.logical_not_().view(torch.uint8), 1.0 / (1.0 - p))
    level = round(_LEVELS * p)
    if native.takes() and draws_as_torch():
        kept = torch.empty(shape, dtype=torch.uint8, device=device)
        native.draw_kept(level, kept)
    else:
        kept = _draw_plainly(math.prod(shape), level).view(shape)
    return Kept(kept, 1.0 / (1.0 - realised(p)))


def _draw_plainly(n: int, level: int, generator: torch.Generator | None = None) -> Tensor:
    """Return 1 for each of the next n bytes of a generator (None: torch's) that is at least `level`, else 0."""
    # All 64 bits: without bounds the sign would always be 0, and every eighth byte below 128.
    words = torch.empty(-(-n // 8), dtype=torch.int64, device="cpu").random_(_LEAST_WORD, None, generator=generator)
    # In place and byte to byte: a comparison that makes booleans takes ten times as long.
    return words.view(torch.uint8)[:n].ge_(level)


@lru_cache(maxsize=1)
def draws_as_torch() -> bool:
    """Return whether the compiled kernel goes on from the state of torch's generators as torch does: tried once."""
    plain, compiled = torch.Generator("cpu"), torch.Generator("cpu")
    try:
        for n in (1, 1237, 20_001):  # some words, and more than the generator makes at a time
            for generator in (plain, compiled):
                generator.manual_seed(n)
            kept = torch.empty(n, dtype=torch.uint8, device="cpu")
            native.draw_kept(100, kept, compiled)
            is_same = torch.equal(kept, _draw_plainly(n, 100, plain))
            if not (is_same and torch.equal(compiled.get_state(), plain.get_state())):
                return False
    except RuntimeError:  # a state of another form
        return False
    return True


def drop(x: Tensor, p: float, draws: Draws = "auto") -> Tensor:
    """Return x with every element dropped with probability p, and the others scaled up."""
    if not p:
        return x
    if not draws_bytes(p, x.device, draws):
        return F.dropout(x, p)
    return drop_by(x, draw_kept(x.shape, p, x.device))


def drop_by(x: Tensor, kept: Kept) -> Tensor:
    """Return what is kept of x, scaled up."""
    return _Drop.apply(x, *kept)  # type: ignore[no-any-return, no-untyped-call]


def add_dropped(residual: Tensor, x: Tensor, p: float, draws: Draws = "auto") -> Tensor:
    """Return residual + drop(x), of one shape, in one pass over them."""
    if not draws_bytes(p, x.device, draws) or residual.dtype != x.dtype:
        return residual + drop(x, p, draws)
    return add_by(residual, x, draw_kept(x.shape, p, x.device))


def add_by(residual: Tensor, x: Tensor, kept: Kept) -> Tensor:
    """Return the residual plus what is kept of x, scaled up."""
    return _AddDropped.apply(residual, x, *kept)  # type: ignore[no-any-return, no-untyped-call]


def drop_activated(before: Tensor, activation: Activation, p: float, draws: Draws = "auto") -> Tensor:
    """Return drop(act(before)). `before` may be overwritten: nothing else must need it."""
    if activation != "relu" or not draws_bytes(p, before.device, draws):
        return drop(activate(before, activation), p, draws)
    return drop_relu_by(before, draw_kept(before.shape, p, before.device))


def drop_relu_by(before: Tensor, kept: Kept) -> Tensor:
    """Return what is kept of relu(before), scaled up, in the place of `before`."""
    return _DropRelu.apply(before, *kept)  # type: ignore[no-any-return, no-untyped-call]


def factors(kept: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    """Return by how much every element is multiplied: 0 or the scale."""
    return kept.to(dtype).mul_(scale)


def _is_compiled(kept: Tensor | None, *tensors: Tensor) -> bool:
    """Return whether compiled kernels take these, which go through memory once; plain code makes the factors first."""
    fit = all(x.is_contiguous() and x.shape == tensors[0].shape for x in tensors)
    fit = fit and (kept is None or (kept.shape == tensors[0].shape and kept.is_contiguous()))
    return native.takes(*tensors) and fit


def _dropped(x: Tensor, kept: Tensor, scale: float) -> Tensor:
    return native.drop(x, kept, scale) if _is_compiled(kept, x) else factors(kept, scale, x.dtype).mul_(x)


class _Drop(torch.autograd.Function):
    """y = f x with the factors f, made anew in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kept: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(kept)
        ctx.scale = scale
        return _dropped(x, kept, scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (kept,) = ctx.saved_tensors
        return _dropped(grad, kept, ctx.scale), None, None


class _AddDropped(torch.autograd.Function):
    """y = r + f x."""

    @staticmethod
    def forward(ctx: Any, residual: Tensor, x: Tensor, kept: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(kept)
        ctx.scale = scale
        if _is_compiled(kept, residual, x):
            return native.add_dropped(residual, x, kept, scale)
        y = kept.to(x.dtype)
        return torch.addcmul(residual, x, y, value=scale, out=y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (kept,) = ctx.saved_tensors
        return grad, _dropped(grad, kept, ctx.scale) if ctx.needs_input_grad[1] else None, None, None


def drop_relu_(x: Tensor, kept: Tensor, scale: float) -> Tensor:
    """Replace x by scale kept max(0, x)."""
    if _is_compiled(kept, x):
        native.drop_relu(x, kept, scale)
        torch.autograd.graph.increment_version(x)  # who has saved x for a backward pass must hear of it
        return x
    return x.clamp_min_(0.0).mul_(factors(kept, scale, x.dtype))


def drop_relu_gradient(grad: Tensor, y: Tensor, scale: float, out: Tensor | None = None) -> Tensor:
    """Return the gradient of x, given that of the result y of `drop_relu_`.

    Args:
        out: where it is written, perhaps `grad`; None: a new tensor.
    """
    out = torch.empty_like(grad) if out is None else out
    if _is_compiled(None, grad, y, out):
        native.drop_relu_gradient(grad, y, scale, out)
        return out
    torch.ops.aten.threshold_backward.grad_input(grad, y, 0, grad_input=out)
    return out if scale == 1.0 else out.mul_(scale)


class _DropRelu(torch.autograd.Function):
    """y = f max(0, x) in place of x. Where y is 0, x was below 0 or dropped: the gradient needs nothing else."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kept: Tensor, scale: float) -> Tensor:
        # The result of a linear map is a view, and autograd copies the whole gradient of a view that was changed in
        # place, twice. Detached, it is a new result that happens to lie in the same memory.
        if x.is_leaf and ctx.needs_input_grad[0]:
            raise RuntimeError("a leaf that wants a gradient cannot be changed in place")
        y = drop_relu_(x.detach(), kept, scale)
        ctx.save_for_backward(y)
        ctx.scale = scale
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (y,) = ctx.saved_tensors
        return drop_relu_gradient(grad, y, ctx.scale), None, None
