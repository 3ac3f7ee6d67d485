"""Products of rows by the weights of their experts; the rows sorted by expert never stand in memory.

    products     y_m = x_m W_e + b_e                                      of every place m, e its expert
    gradients    dW_e = sum_m x_m^T g_m dy_m      db_e = sum_m g_m dy_m    over the places m of an expert
    row_products <a_m, b_m>

Rows are taken from where they lie by the number of the row that stands at a place. In float32 on a CPU a compiled
kernel does all experts in one call; the plain twin takes the rows of one expert after the other and multiplies them
(`multiply`).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ostinato.kernels import native
from ostinato.kernels.dispatch import Dispatch
from ostinato.kernels.large_products import multiply
from ostinato.kernels.memory import room_for_gradient

_LEAST_PRODUCTS = 2**20
"""Multiplications of all experts below which a call takes as long as what it saves."""
_FEWEST = 64
"""Rows of an expert, in the mean, below which its weights take too long to copy beside to multiply by."""


class Placed(NamedTuple):
    """Rows, and the number of the row that stands at every place, `[M]`; None: rows are places."""

    rows_ND: Tensor
    index_M: Tensor | None = None

    def at(self, places: slice) -> Tensor:
        """Return the rows of some places; without an index a view."""
        return self.rows_ND[places] if self.index_M is None else self.rows_ND.index_select(0, self.index_M[places])


def products(
    x: Placed,
    weight_EDF: Tensor,
    bias_EF: Tensor | None,
    to: Dispatch,
    experts: slice | None = None,
    out_MF: Tensor | None = None,
) -> Tensor:
    """Return x W + b by place, `[M, F]`; 0 where places have no expert.

    Args:
        experts: do their places alone, M of them, which x and `out` are of; None: all. What a number is does not
            depend on it.
        out_MF: where it is written; None: a new tensor.
    """
    places = to.places(experts)
    if out_MF is None:
        out_MF = room(x.rows_ND, to, places.stop - places.start, weight_EDF.shape[2])
    if _is_ours(x, weight_EDF, bias_EF, to):
        ends_E = to.ends_E
        if experts is not None:
            weight_EDF, bias_EF = weight_EDF[experts], None if bias_EF is None else bias_EF[experts]
            ends_E = ends_E[experts] - places.start
        native.grouped_products(*x, weight_EDF, bias_EF, ends_E, out_MF)
        return out_MF
    bounds = to.bounds()
    for e in range(len(bounds))[slice(None) if experts is None else experts]:
        start, end = bounds[e]
        if start < end:
            at, bias_F = slice(start - places.start, end - places.start), None if bias_EF is None else bias_EF[e]
            multiply(x.at(at), weight_EDF[e], out_MF[at], bias_F=bias_F)
    return out_MF


def gradients(
    x: Placed,
    grad: Placed,
    gates_M: Tensor | None,
    to: Dispatch,
    weight_EDF: Tensor,
    bias_EF: Tensor | None,
    *,
    needs_weight: bool,
    needs_bias: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of weights and biases, given what they were multiplied by and the gradient of the results.

    Args:
        gates_M: what the gradient is multiplied by at every place; None: 1.
        weight_EDF, bias_EF: what they are gradients of. needs_weight, needs_bias: which are wanted; None for others.
    """
    of_weight = room_for_gradient(weight_EDF) if needs_weight else None
    of_bias = None
    if needs_bias and bias_EF is not None:
        of_bias = torch.zeros_like(bias_EF, memory_format=torch.contiguous_format)
    if of_weight is not None and _is_ours(x, of_weight, of_bias, to) and native.takes(gates_M) and _fits(grad):
        native.grouped_gradients(*x, *grad, gates_M, to.ends_E, of_weight, of_bias)
        return of_weight, of_bias
    for expert, (start, end) in enumerate(to.bounds()):
        at = slice(start, end)
        grad_y = grad.at(at) if gates_M is None else grad.at(at) * gates_M[at, None]
        if of_weight is not None:
            multiply(x.at(at).t(), grad_y, of_weight[expert])
        if of_bias is not None:
            torch.sum(grad_y, 0, out=of_bias[expert])
    return of_weight, of_bias


def row_products(a: Placed, b_MD: Tensor) -> Tensor:
    """Return <a, b> of every place, `[M]`."""
    if native.takes(a.rows_ND, b_MD) and _fits(a, Placed(b_MD)):
        return native.row_products(*a, b_MD)
    return (a.at(slice(None)) * b_MD).sum(1)


def room(x: Tensor, to: Dispatch, *sizes: int) -> Tensor:
    """Return room for something of places; 0 where no expert will write it."""
    return x.new_empty(sizes) if to.kept_M1 is None else x.new_zeros(sizes)


def _is_ours(x: Placed, weight_EDF: Tensor, bias_EF: Tensor | None, to: Dispatch) -> bool:
    """Return whether the kernel takes a product. Where weights do not fit, torch's product says so."""
    E, D, F = weight_EDF.shape
    M = to.slots_M.shape[0]
    if M < _FEWEST * E or M * D * F < _LEAST_PRODUCTS or not _fits(x):
        return False
    if x.rows_ND.shape[1] != D or to.n_experts != E:
        return False
    has_fitting_bias = bias_EF is None or (bias_EF.is_contiguous() and bias_EF.shape == (E, F))
    return has_fitting_bias and 1 in weight_EDF.stride()[1:] and native.takes(x.rows_ND, weight_EDF, bias_EF)


def _fits(*sides: Placed) -> bool:
    """Return whether the numbers of a row lie side by side."""
    return all(side.rows_ND.stride(1) == 1 for side in sides)
