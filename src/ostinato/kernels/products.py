"""Rows grouped by expert times that expert's weights: y[m] = x[m] W[expert of m].

    loop       the plain twin: one expert after the other, stacked by torch.cat
    padded     experts padded to the longest, one batched product
    grouped    torch.nn.functional.grouped_mm
    dense      one batched product of all rows by all experts (`DenseDispatch`)

None of them indexes the stacked weights under autograd: there every expert's gradient would be a zero tensor as large
as all experts together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ostinato.kernels.dispatch import Dispatch, zero_behind


def loop(x_MD: Tensor, weight_EDF: Tensor, to: Dispatch) -> Tensor:
    """Multiply expert by expert; `unbind` keeps the gradients of the experts apart."""
    weights = weight_EDF.unbind(0)
    behind = x_MD.new_zeros(x_MD.shape[0] - to.n_kept(), weight_EDF.shape[2])
    return torch.cat([*(x_MD[start:end] @ weights[e] for e, (start, end) in enumerate(to.bounds())), behind])


def padded(x_MD: Tensor, weight_EDF: Tensor, to: Dispatch) -> Tensor:
    """Multiply all experts in one batch, each padded to the rows of the longest."""
    E, D, _ = weight_EDF.shape
    n_kept, n_behind = to.n_kept(), x_MD.shape[0] - to.n_kept()
    x_MD, experts_M = x_MD[:n_kept], to.experts_M[:n_kept]
    ends = to.ends_E.long()
    starts = F.pad(ends[:-1], (1, 0))
    longest = int((ends - starts).max()) if x_MD.shape[0] else 0
    places = torch.arange(n_kept, device=x_MD.device) - starts[experts_M] + experts_M * longest
    batch = x_MD.new_zeros(E * longest, D).index_copy(0, places, x_MD).view(E, longest, D)
    product = torch.bmm(batch, weight_EDF).flatten(0, 1).index_select(0, places)
    return F.pad(product, (0, 0, 0, n_behind)) if n_behind else product


def grouped(x_MD: Tensor, weight_EDF: Tensor, to: Dispatch) -> Tensor:
    """Multiply by torch's grouped product, which leaves rows behind the last expert, and their gradient, unwritten."""
    if x_MD.shape[0] == 0:
        return x_MD @ weight_EDF[0] + 0.0 * weight_EDF.sum()
    product = F.grouped_mm(zero_behind(x_MD, to).contiguous(), weight_EDF, offs=to.ends_E)
    return zero_behind(_Contiguous.apply(product), to)  # type: ignore[no-untyped-call]


def dense(x_MD: Tensor, weight_EDF: Tensor, to: Dispatch) -> Tensor:
    """Multiply all rows by every expert."""
    return torch.bmm(x_MD.view(to.n_experts, to.n_rows, x_MD.shape[1]), weight_EDF).flatten(0, 1)


class _Contiguous(torch.autograd.Function):
    """The identity, whose gradient is made contiguous: the grouped product refuses strides of 0."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.contiguous()


PRODUCTS: dict[str, Callable[[Tensor, Tensor, Dispatch], Tensor]] = {
    "loop": loop,
    "padded": padded,
    "grouped": grouped,
    "dense": dense,
}
