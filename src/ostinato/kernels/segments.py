"""The backend `segments`: maps of experts with their own backward passes, rows taken from where they lie.

The sorted rows of all experts never stand in memory (`grouped_products`). What maps give stands side by side, by place,
until it is brought to its order.

The gradient of a gate needs no output of an expert: with d the gradient of y_n,
<d, a V + c> = <d V^T, a> + <d, c>, and d V^T is computed anyway.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ostinato.kernels.activation import Activation, activate, activation_gradient
from ostinato.kernels.devices import without_autocast
from ostinato.kernels.dispatch import Dispatch, by_slot, gates_gradient, gates_of_places
from ostinato.kernels.dropout import drop_relu_, drop_relu_gradient, factors
from ostinato.kernels.grouped_products import Placed, gradients, products, room, row_products

_PARTS = 4
"""In how many parts, of as many experts each, a hidden layer is made that nobody keeps."""
Order = Literal["rows", "slots", "places"]
"""How the rows of a tensor stand: N rows, N K slots (the choices of a row side by side), or M places sorted by expert.
"""


class Side:
    """Input or output of a map: the order of its rows, and which row stands at a place (None: rows are places)."""

    def __init__(self, order: Order, to: Dispatch) -> None:
        self.order, self.to = order, to
        self.index_M = {"rows": to.rows_M, "slots": to.slots_M, "places": None}[order]

    def placed(self, x: Tensor, places: slice = slice(None)) -> Placed:
        """Return rows of this order as those of some places.

        Raises:
            IndexError: there are not as many rows as were dispatched.
        """
        n_slots = self.to.n_rows * self.to.n_chosen
        expected = {"rows": self.to.n_rows, "slots": n_slots, "places": self.to.slots_M.shape[0]}[self.order]
        if x.shape[0] != expected:  # kernels read without looking
            raise IndexError(f"{x.shape[0]:,} {self.order} where {expected:,} were dispatched")
        return Placed(x[places]) if self.index_M is None else Placed(x, self.index_M[places])

    def bring(self, values_MF: Tensor, gates_M: Tensor | None = None) -> Tensor:
        """Return values by place, `[M, F]`, times their gates, in this side's order; a row is the sum over its places.

        Rows are summed by `embedding_bag`, which is faster than `Tensor.index_add_`, the plain twin.
        """
        if self.order == "rows":
            places_M, firsts_N = self.to.bags()
            weights_M = None if gates_M is None else gates_M[places_M]
            return torch.embedding_bag(values_MF, places_M, firsts_N, False, 0, False, weights_M)[0]
        if gates_M is not None:
            values_MF = values_MF * gates_M[:, None]
        return values_MF if self.order == "places" else by_slot(values_MF, self.to).flatten(0, 1)


def _of_gates(
    read: Placed, grad_read_MD: Tensor, grad_y: Placed, bias_EF: Tensor | None, gates_NK: Tensor, to: Dispatch
) -> Tensor | None:
    """Return the gradient of the gates.

    Args:
        read: what the weighted map read. grad_read_MD: d V^T. grad_y: d, of rows. bias_EF: the map's.
    """
    found_M = row_products(read, grad_read_MD)
    if bias_EF is not None:  # of all rows and biases, which are few numbers
        with without_autocast(found_M.device):
            found_M += (grad_y.rows_ND @ bias_EF.t())[to.rows_M, to.experts_M]
    # Where there is no expert, rows may hold anything.
    return gates_gradient(found_M if to.kept_M1 is None else torch.where(to.kept_M1[:, 0], found_M, 0.0), gates_NK, to)


class SegmentedLinear(torch.autograd.Function):
    """x W + b of every expert."""

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
        """Return x W + b in the order `writes`, of x in the order `reads`."""
        ctx.save_for_backward(x, weight_EDF, bias_EF, gates_NK)
        ctx.to, ctx.reads, ctx.writes = to, reads, writes
        out_MF = products(Side(reads, to).placed(x), weight_EDF, bias_EF, to)
        return Side(writes, to).bring(out_MF, None if gates_NK is None else gates_of_places(gates_NK, to, x.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of rows, weights, biases and gates."""
        x, weight_EDF, bias_EF, gates_NK = ctx.saved_tensors
        needs_x, needs_weight, needs_bias, needs_gates, *_ = ctx.needs_input_grad
        to: Dispatch = ctx.to
        source = Side(ctx.reads, to)
        rows, grad_y = source.placed(x), Side(ctx.writes, to).placed(grad)
        gates_M = None if gates_NK is None else gates_of_places(gates_NK, to, x.dtype)
        of_x = of_gates = None
        if needs_x or needs_gates:
            grad_x_MD = products(grad_y, weight_EDF.transpose(1, 2), None, to)
            of_gates = _of_gates(rows, grad_x_MD, grad_y, bias_EF, gates_NK, to) if needs_gates else None
            of_x = source.bring(grad_x_MD, gates_M) if needs_x else None
        needed = {"needs_weight": needs_weight, "needs_bias": needs_bias}
        of_maps = gradients(rows, grad_y, gates_M, to, weight_EDF, bias_EF, **needed)
        return of_x, *of_maps, of_gates, None, None, None


def _drop_(x: Tensor, units: Tensor | None, scale: float | None) -> Tensor:
    """Drop all of x but these units; None: what is dropped is 0 already, or will be."""
    if scale is None:
        return x
    return x.mul_(scale if units is None else factors(units, scale, x.dtype))


def _hidden(before: Tensor, activation: Activation, units: Tensor | None, scale: float | None) -> Tensor:
    """Return the hidden layer; relu's in the place of `before`."""
    if activation != "relu":
        return _drop_(activate(before, activation), units, scale)
    return before.clamp_min_(0.0) if units is None or scale is None else drop_relu_(before, units, scale)


class SegmentedFeedForward(torch.autograd.Function):
    """The whole map, forward and backward."""

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
        """Return the results in the order of x, which is `order`.

        Args:
            scale: makes up for dropped units; None where none are. keeps: the hidden layer, for a backward pass.
        """
        side = Side(order, to)
        out_MD = room(x, to, to.slots_M.shape[0], down_EFD.shape[2])
        # The hidden layer would be the largest tensor of all: what is not kept stands for some experts at a time.
        n = -(-to.n_experts // _PARTS)
        for experts in [None] if keeps else [slice(e, e + n) for e in range(0, to.n_experts, n)]:
            places = to.places(experts)
            before = products(side.placed(x, places), up_EDF, up_bias_EF, to, experts)
            units = None if units_MF is None else units_MF[places]
            hidden = Placed(_hidden(before, activation, units, scale))
            products(hidden, down_EFD, down_bias_ED, to, experts, out_MD[places])
        if keeps:
            # Where relu's result is 0 nothing comes back, whether it was dropped or not.
            units_MF = None if activation == "relu" else units_MF
            ctx.save_for_backward(x, up_EDF, up_bias_EF, down_EFD, down_bias_ED, gates_NK, units_MF, before)
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
        gates_M = None if gates_NK is None else gates_of_places(gates_NK, to, x.dtype)
        grad_y = side.placed(grad)
        hidden = Placed(kept_MF if activation == "relu" else _hidden(kept_MF, activation, units_MF, scale))
        grad_hidden_MF = products(grad_y, down_EFD.transpose(1, 2), None, to)
        of_gates = _of_gates(hidden, grad_hidden_MF, grad_y, down_bias_ED, gates_NK, to) if needs_gates else None
        needed = {"needs_weight": needs_down, "needs_bias": needs_down_bias}
        of_down = gradients(hidden, grad_y, gates_M, to, down_EFD, down_bias_ED, **needed)
        del hidden
        if gates_M is not None:
            grad_hidden_MF.mul_(gates_M[:, None])
        if activation == "relu":
            grad_before_MF = drop_relu_gradient(
                grad_hidden_MF, kept_MF, 1.0 if scale is None else scale, grad_hidden_MF
            )
        else:
            grad_before_MF = activation_gradient(_drop_(grad_hidden_MF, units_MF, scale), kept_MF, activation)
        del grad_hidden_MF
        before = Placed(grad_before_MF)
        needed = {"needs_weight": needs_up, "needs_bias": needs_up_bias}
        of_up = gradients(side.placed(x), before, None, to, up_EDF, up_bias_EF, **needed)
        of_x = side.bring(products(before, up_EDF.transpose(1, 2), None, to)) if needs_x else None
        return of_x, *of_up, *of_down, of_gates, *[None] * 6
