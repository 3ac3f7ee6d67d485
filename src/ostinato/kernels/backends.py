"""Rows grouped by expert times that expert's weights: y[m] = x[m] W[expert of m] + b[expert of m].

    loop       the plain twin: one expert after the other, stacked by torch.cat
    segments   one matrix product an expert, written into its place; own backward
    padded     experts padded to the longest, one batched product
    grouped    torch.nn.functional.grouped_mm

No backend indexes the stacked weights under autograd: there every expert's gradient would be a zero tensor as large as
all experts together.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from ostinato.kernels.dispatch import Dispatch


def loop(x_MD: Tensor, weight_EDF: Tensor, bias_EF: Tensor | None, to: Dispatch) -> Tensor:
    """Multiply expert by expert; `unbind` keeps the gradients of the experts apart."""
    weights = weight_EDF.unbind(0)
    parts = [x_MD[start:end] @ weights[e] for e, (start, end) in enumerate(to.bounds())]
    return _add_bias(torch.cat(parts), bias_EF, to)


def segments(x_MD: Tensor, weight_EDF: Tensor, bias_EF: Tensor | None, to: Dispatch) -> Tensor:
    """Multiply expert by expert into one result."""
    return _Segments.apply(x_MD, weight_EDF, bias_EF, to.bounds())  # type: ignore[no-any-return, no-untyped-call]


def padded(x_MD: Tensor, weight_EDF: Tensor, bias_EF: Tensor | None, to: Dispatch) -> Tensor:
    """Multiply all experts in one batch, each padded to the rows of the longest."""
    E, D, _ = weight_EDF.shape
    ends = to.ends_E.long()
    starts = F.pad(ends[:-1], (1, 0))
    longest = int((ends - starts).max()) if x_MD.shape[0] else 0
    places = torch.arange(x_MD.shape[0], device=x_MD.device) - starts[to.experts_M] + to.experts_M * longest
    batch = x_MD.new_zeros(E * longest, D).index_copy(0, places, x_MD).view(E, longest, D)
    product = torch.bmm(batch, weight_EDF).flatten(0, 1)
    return _add_bias(product.index_select(0, places), bias_EF, to)


def grouped(x_MD: Tensor, weight_EDF: Tensor, bias_EF: Tensor | None, to: Dispatch) -> Tensor:
    """Multiply by torch's grouped product."""
    if x_MD.shape[0] == 0:
        return _add_bias(x_MD @ weight_EDF[0], bias_EF, to) + 0.0 * weight_EDF.sum()
    product = F.grouped_mm(x_MD.contiguous(), weight_EDF, offs=to.ends_E)
    return _add_bias(_Contiguous.apply(product), bias_EF, to)  # type: ignore[no-untyped-call]


def _add_bias(y_MF: Tensor, bias_EF: Tensor | None, to: Dispatch) -> Tensor:
    return y_MF if bias_EF is None else y_MF + bias_EF.index_select(0, to.experts_M)


class _Contiguous(torch.autograd.Function):
    """Nothing forward; backward hands on a contiguous gradient: the grouped product refuses strides of 0."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.contiguous()


class _Segments(torch.autograd.Function):
    """One product an expert, forward and backward, without an intermediate tensor an expert."""

    @staticmethod
    def forward(
        ctx: Any, x_MD: Tensor, weight_EDF: Tensor, bias_EF: Tensor | None, bounds: list[tuple[int, int]]
    ) -> Tensor:
        ctx.save_for_backward(x_MD, weight_EDF)
        ctx.bounds, ctx.has_bias = bounds, bias_EF is not None
        y_MF = x_MD.new_empty(x_MD.shape[0], weight_EDF.shape[2])
        for e, (start, end) in enumerate(bounds):
            if start == end:
                continue
            if bias_EF is None:
                torch.mm(x_MD[start:end], weight_EDF[e], out=y_MF[start:end])
            else:
                torch.addmm(bias_EF[e], x_MD[start:end], weight_EDF[e], out=y_MF[start:end])
        return y_MF

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_MF: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        x_MD, weight_EDF = ctx.saved_tensors
        needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
        # A gradient of stride 0 (that of a sum) would make every product below copy it.
        grad_MF = grad_MF.contiguous()
        grad_x = torch.empty_like(x_MD, memory_format=torch.contiguous_format) if needs_x else None
        grad_weight = torch.empty_like(weight_EDF, memory_format=torch.contiguous_format) if needs_weight else None
        grad_bias = grad_MF.new_zeros(weight_EDF.shape[0], grad_MF.shape[1]) if needs_bias else None
        for e, (start, end) in enumerate(ctx.bounds):
            if start == end:
                if grad_weight is not None:
                    grad_weight[e].zero_()
                continue
            rows = grad_MF[start:end]
            if grad_x is not None:
                torch.mm(rows, weight_EDF[e].t(), out=grad_x[start:end])
            if grad_weight is not None:
                torch.mm(x_MD[start:end].t(), rows, out=grad_weight[e])
            if grad_bias is not None:
                torch.sum(rows, 0, out=grad_bias[e])
        return grad_x, grad_weight, grad_bias, None
