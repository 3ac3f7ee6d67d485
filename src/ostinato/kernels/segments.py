"""The backend `segments`: maps of experts one by one, with their own backward passes.

The rows of one expert are taken out of their order and mapped while they are in the cache: the sorted rows of all
experts never stand in memory. What they give stands side by side, by place, until it is brought to its order.

The gradient of a gate needs no output of an expert: with d the gradient of y_n,
<d, a V + c> = <d V^T, a> + <d, c>, and d V^T is computed anyway.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ostinato.kernels.activation import Activation, activate, activation_gradient
from ostinato.kernels.dispatch import Dispatch, by_slot, gates_gradient, gates_of_places
from ostinato.kernels.dropout import factors
from ostinato.kernels.large_products import multiply
from ostinato.kernels.memory import room_for_gradient

Order = Literal["rows", "slots", "places"]
"""How the rows of a tensor stand: N rows, N K slots (the choices of a row side by side), or M places sorted by expert.
"""


class Segment(NamedTuple):
    """An expert, the places that it has, and how many they are."""

    expert: int
    places: slice
    length: int


class Side:
    """One side of a map: an order, and what leads from places to it (None: places themselves)."""

    def __init__(self, order: Order, to: Dispatch) -> None:
        self.order, self.to = order, to
        self.index_M = {"rows": to.rows_M, "slots": to.slots_M, "places": None}[order]

    def take(self, x: Tensor, at: Segment) -> Tensor:
        """Return the rows of one expert; without an index a view."""
        if self.index_M is None:
            return x[at.places]
        return x.index_select(0, self.index_M[at.places])

    def bring(self, values_MF: Tensor, gates_M: Tensor | None = None) -> Tensor:
        """Return what stands by place in this order, weighted by gates of places: rows are sums over their places.

        Rows are bags of places, which torch adds up faster than it adds to rows (`Tensor.index_add_`, the plain twin).
        """
        if self.order == "rows":
            places_M, firsts_N = self.to.bags()
            weights_M = None if gates_M is None else gates_M[places_M]
            return torch.embedding_bag(values_MF, places_M, firsts_N, False, 0, False, weights_M)[0]
        if gates_M is not None:
            values_MF = values_MF * gates_M[:, None]
        return values_MF if self.order == "places" else by_slot(values_MF, self.to).flatten(0, 1)


def room(x: Tensor, to: Dispatch, *width: int) -> Tensor:
    """Return room for something of every place; 0 where no expert will write it."""
    shape = to.slots_M.shape[0], *width
    return x.new_empty(shape) if to.kept_M1 is None else x.new_zeros(shape)


def occupied(to: Dispatch) -> Iterator[Segment]:
    """Yield the experts that have places, in order."""
    for expert, (start, end) in enumerate(to.bounds()):
        if start < end:
            yield Segment(expert, slice(start, end), end - start)


class MapGradients:
    """Gradients of stacked weights and biases, filled expert by expert; those without rows are 0.

    Args:
        weight_EDF, bias_EF: what they are gradients of. needs_weight, needs_bias: which are wanted.
    """

    def __init__(self, weight_EDF: Tensor, bias_EF: Tensor | None, *, needs_weight: bool, needs_bias: bool) -> None:
        self.weight = room_for_gradient(weight_EDF) if needs_weight else None
        self.bias = None
        if needs_bias and bias_EF is not None:
            self.bias = torch.zeros_like(bias_EF, memory_format=torch.contiguous_format)

    def write(self, expert: int, x: Tensor, grad: Tensor) -> None:
        """Write the gradients of one expert, of the rows it read and the gradient of what it gave."""
        if self.weight is not None:
            multiply(x.t(), grad, self.weight[expert])
        if self.bias is not None:
            torch.sum(grad, 0, out=self.bias[expert])

    def skip_empty(self, to: Dispatch) -> None:
        """Set the gradients of experts without rows to 0; all others have been written."""
        if self.weight is not None:
            for expert, (start, end) in enumerate(to.bounds()):
                if start == end:
                    self.weight[expert].zero_()


class SegmentedLinear(torch.autograd.Function):
    """x W + b of every expert: one product each; the rows of an expert are the only copies there are."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight_EDF: Tensor,
        bias_EF: Tensor | None,
        gates_NK: Tensor | None,
        to: Dispatch,
        reads: Order,
        writes: Order,
    ) -> Tensor:
        """Map rows to rows."""
        source, target = Side(reads, to), Side(writes, to)
        ctx.save_for_backward(x, weight_EDF, bias_EF, gates_NK)
        ctx.to, ctx.reads, ctx.writes = to, reads, writes
        out_MF = room(x, to, weight_EDF.shape[2])
        for at in occupied(to):
            bias_F = None if bias_EF is None else bias_EF[at.expert]
            multiply(source.take(x, at), weight_EDF[at.expert], out_MF[at.places], bias_F=bias_F)
        return target.bring(out_MF, None if gates_NK is None else gates_of_places(gates_NK, to, x.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of rows, weights, biases and gates."""
        x, weight_EDF, bias_EF, gates_NK = ctx.saved_tensors
        needs_x, needs_weight, needs_bias, needs_gates, *_ = ctx.needs_input_grad
        to: Dispatch = ctx.to
        source, target = Side(ctx.reads, to), Side(ctx.writes, to)
        grads = MapGradients(weight_EDF, bias_EF, needs_weight=needs_weight, needs_bias=needs_bias)
        gates_M = None if gates_NK is None else gates_of_places(gates_NK, to, x.dtype)
        gates_M1 = None if gates_M is None else gates_M[:, None]
        grad_gates_M = room(x, to) if needs_gates else None
        grad_x_MD = room(x, to, x.shape[1]) if needs_x or needs_gates else None
        for at in occupied(to):
            rows, grad_y, weight = source.take(x, at), target.take(grad, at), weight_EDF[at.expert]
            if grad_x_MD is not None:
                grad_rows = multiply(grad_y, weight.t(), grad_x_MD[at.places])
            if grad_gates_M is not None:
                torch.sum(grad_rows * rows, 1, out=grad_gates_M[at.places])
                if bias_EF is not None:
                    grad_gates_M[at.places].addmv_(grad_y, bias_EF[at.expert])
            if gates_M1 is not None:
                grad_y = grad_y * gates_M1[at.places]
            grads.write(at.expert, rows, grad_y)
        grads.skip_empty(to)
        grad_x = source.bring(grad_x_MD, gates_M) if grad_x_MD is not None and needs_x else None
        return grad_x, grads.weight, grads.bias, gates_gradient(grad_gates_M, gates_NK, to), None, None, None


def _drop_(hidden: Tensor, units: Tensor | None, scale: float | None) -> Tensor:
    """Drop all but these units; None: what is dropped is 0 already, or will be."""
    if scale is None:
        return hidden
    return hidden.mul_(scale if units is None else factors(units, scale, hidden.dtype))


def _hidden(before: Tensor, activation: Activation, units: Tensor | None, scale: float | None) -> Tensor:
    """Return the hidden layer of one expert from what was kept of it; relu's is kept as it is (see `forward`)."""
    return before if activation == "relu" else _drop_(activate(before, activation), units, scale)


class SegmentedFeedForward(torch.autograd.Function):
    """The whole map, one expert after the other, forward and backward."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        up_EDF: Tensor,
        up_bias_EF: Tensor | None,
        down_EFD: Tensor,
        down_bias_ED: Tensor | None,
        gates_NK: Tensor | None,
        units_MF: Tensor | None,
        to: Dispatch,
        activation: Activation,
        order: Order,
        scale: float | None,
        keeps: bool,
    ) -> Tensor:
        """Map rows to rows.

        Args:
            scale: makes up for dropped units; None where none are. keeps: the hidden layer, for a backward pass.
        """
        side = Side(order, to)
        out_MD = room(x, to, down_EFD.shape[2])
        kept_MF = x.new_empty(to.slots_M.shape[0] if keeps else to.longest(), up_EDF.shape[2])
        for at in occupied(to):
            e = at.expert
            kept = kept_MF[at.places if keeps else slice(at.length)]
            units = None if units_MF is None else units_MF[at.places]
            multiply(side.take(x, at), up_EDF[e], kept, bias_F=None if up_bias_EF is None else up_bias_EF[e])
            if activation == "relu":
                _drop_(kept.clamp_min_(0.0), units, scale)
            hidden = _hidden(kept, activation, units, scale)
            down_bias_D = None if down_bias_ED is None else down_bias_ED[e]
            multiply(hidden, down_EFD[e], out_MD[at.places], bias_F=down_bias_D)
        if keeps:
            # Where relu's result is 0 nothing comes back, whether it was dropped or not.
            units_MF = None if activation == "relu" else units_MF
            ctx.save_for_backward(x, up_EDF, up_bias_EF, down_EFD, down_bias_ED, gates_NK, units_MF, kept_MF)
            ctx.to, ctx.activation, ctx.order, ctx.scale = to, activation, order, scale
        return side.bring(out_MD, None if gates_NK is None else gates_of_places(gates_NK, to, x.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of rows, weights, biases and gates."""
        x, up_EDF, up_bias_EF, down_EFD, down_bias_ED, gates_NK, units_MF, kept_MF = ctx.saved_tensors
        to: Dispatch = ctx.to
        activation, scale, side = ctx.activation, ctx.scale, Side(ctx.order, to)
        needs_x, needs_up, needs_up_bias, needs_down, needs_down_bias, needs_gates, *_ = ctx.needs_input_grad
        up = MapGradients(up_EDF, up_bias_EF, needs_weight=needs_up, needs_bias=needs_up_bias)
        down = MapGradients(down_EFD, down_bias_ED, needs_weight=needs_down, needs_bias=needs_down_bias)
        grad_x_MD = room(x, to, x.shape[1]) if needs_x else None
        gates_M = None if gates_NK is None else gates_of_places(gates_NK, to, x.dtype)
        gates_M1 = None if gates_M is None else gates_M[:, None]
        grad_gates_M = room(x, to) if needs_gates else None
        wide = x.new_empty(to.longest(), down_EFD.shape[1])
        for at in occupied(to):
            e, kept = at.expert, kept_MF[at.places]
            units = None if units_MF is None else units_MF[at.places]
            hidden = _hidden(kept, activation, units, scale)
            grad_y = side.take(grad, at)
            grad_hidden = multiply(grad_y, down_EFD[e].t(), wide[: at.length])
            if grad_gates_M is not None:
                torch.sum(grad_hidden * hidden, 1, out=grad_gates_M[at.places])
                if down_bias_ED is not None:
                    grad_gates_M[at.places].addmv_(grad_y, down_bias_ED[e])
            if gates_M1 is not None:
                grad_y = grad_y.mul_(gates_M1[at.places])
                grad_hidden.mul_(gates_M1[at.places])
            down.write(e, hidden, grad_y)
            grad_before = activation_gradient(_drop_(grad_hidden, units, scale), kept, activation)
            up.write(e, side.take(x, at), grad_before)
            if grad_x_MD is not None:
                multiply(grad_before, up_EDF[e].t(), grad_x_MD[at.places])
        up.skip_empty(to)
        down.skip_empty(to)
        grad_x = None if grad_x_MD is None else side.bring(grad_x_MD)
        grad_gates = gates_gradient(grad_gates_M, gates_NK, to)
        return grad_x, up.weight, up.bias, down.weight, down.bias, grad_gates, *[None] * 6
