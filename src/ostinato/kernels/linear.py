"""Linear maps of many experts: every row is multiplied by the weights of each expert it was sent to.

    y[place m] = x[place m] W[expert of m] + b[expert of m]

in any order of rows, chosen slots or sorted places before and after; written to rows, the results of a row's experts
are summed, weighted by their gates.

    segments          an own backward over the whole map, one expert at a time
    any other name    gather, grouped product (`products`), scatter, differentiated by autograd
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ostinato.kernels.choose import BackendChoice, choose_backend
from ostinato.kernels.dispatch import Dispatch, combine, from_slots, gather, to_slots
from ostinato.kernels.products import PRODUCTS
from ostinato.kernels.segments import MapGradients, Order, Side, gates_gradient, gates_of_places, occupied, product
from ostinato.kernels.trial import Backend, Trial, numbers, small_dispatch, with_gradients


def routed_linear(
    x: Tensor,
    weight_EDF: Tensor,
    bias_EF: Tensor | None,
    to: Dispatch,
    *,
    reads: Order = "places",
    writes: Order = "places",
    gates_NK: Tensor | None = None,
    backend: BackendChoice = "auto",
) -> Tensor:
    """Return x W + b of every place's expert; 0 where a row or slot takes no part.

    Under autocast the product runs in its type, like any other.

    Args:
        x: in the order `reads`: rows `[N, D]`, slots `[N K, D]`, or places `[M, D]`. The result is in that of `writes`.
        weight_EDF, bias_EF: stacked over the experts.
        gates_NK: given exactly where it writes rows.
        backend: by name, or "auto": see `choose_backend`.

    Raises:
        ConfigError: a backend that is named and does not work here.
    """
    dtype = product_dtype(x)
    bias_EF = None if bias_EF is None else bias_EF.to(dtype)
    chosen = choose_backend(backend, x.device, dtype, LinearTrial(weight_EDF.shape[1], weight_EDF.shape[2]))
    return linear_by(chosen, x.to(dtype), weight_EDF.to(dtype), bias_EF, to, reads, writes, gates_NK)


def linear_by(
    backend: Backend,
    x: Tensor,
    weight_EDF: Tensor,
    bias_EF: Tensor | None,
    to: Dispatch,
    reads: Order,
    writes: Order,
    gates_NK: Tensor | None,
) -> Tensor:
    """Run one backend, without a trial."""
    if backend == "segments":
        setting = _Setting(to, reads, writes)
        return _Linear.apply(x, weight_EDF, bias_EF, gates_NK, setting)  # type: ignore[no-any-return, no-untyped-call]
    if reads != "places":
        x = gather(x, to) if reads == "rows" else from_slots(x, to)
    y_MF = PRODUCTS[backend](x, weight_EDF, bias_EF, to)
    if writes == "slots":
        return to_slots(y_MF, to)
    return y_MF if gates_NK is None else combine(y_MF, gates_NK, to)


def product_dtype(x: Tensor) -> torch.dtype:
    """Return the type that products with x run in: autocast's, where it is on."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


@dataclass(frozen=True, slots=True)
class LinearTrial(Trial):
    """A map of these widths."""

    d_in: int
    d_out: int

    def run(self, backend: Backend, device: torch.device, dtype: torch.dtype) -> list[Tensor]:
        """Return output and gradients."""
        to = small_dispatch(device)
        x, gates = numbers((to.n_rows, self.d_in), device, dtype), numbers((to.n_rows, to.n_chosen), device, dtype)
        weight = numbers((to.n_experts, self.d_in, self.d_out), device, dtype, self.d_in**-0.5)
        bias = numbers((to.n_experts, self.d_out), device, dtype)
        y = linear_by(backend, x, weight, bias, to, "rows", "rows", gates)
        return with_gradients(y, [x, weight, bias, gates])


class _Setting(NamedTuple):
    """What is no tensor."""

    to: Dispatch
    reads: Order
    writes: Order


class _Linear(torch.autograd.Function):
    """One product an expert; the rows of an expert are the only copies there are."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight_EDF: Tensor, bias_EF: Tensor | None, gates_NK: Tensor | None, setting: _Setting
    ) -> Tensor:
        to, source, target = setting.to, Side.of(setting.reads, setting.to), Side.of(setting.writes, setting.to)
        ctx.save_for_backward(x, weight_EDF, bias_EF, gates_NK)
        ctx.setting = setting
        out_MF = x.new_empty(to.slots_M.shape[0], weight_EDF.shape[2])
        for at in occupied(to):
            bias_F = None if bias_EF is None else bias_EF[at.expert]
            product(source.take(x, at), weight_EDF[at.expert], bias_F, out_MF[at.places])
        return target.bring(out_MF, gates_of_places(gates_NK, to, x.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight_EDF, bias_EF, gates_NK = ctx.saved_tensors
        needs_x, needs_weight, needs_bias, needs_gates, _ = ctx.needs_input_grad
        to: Dispatch = ctx.setting.to
        source, target = Side.of(ctx.setting.reads, to), Side.of(ctx.setting.writes, to)
        grads = MapGradients(weight_EDF, bias_EF, needs_weight=needs_weight, needs_bias=needs_bias)
        gates_M = gates_of_places(gates_NK, to, x.dtype)
        gates_M1 = None if gates_M is None else gates_M[:, None]
        grad_gates_M = x.new_empty(to.slots_M.shape[0]) if needs_gates else None
        grad_x_MD = x.new_empty(to.slots_M.shape[0], x.shape[1]) if needs_x or needs_gates else None
        for at in occupied(to):
            rows, grad_y, weight = source.take(x, at), target.take(grad, at), weight_EDF[at.expert]
            if grad_x_MD is not None:
                grad_rows = torch.mm(grad_y, weight.t(), out=grad_x_MD[at.places])
            if grad_gates_M is not None:
                torch.sum(grad_rows * rows, 1, out=grad_gates_M[at.places])
                if bias_EF is not None:
                    grad_gates_M[at.places].addmv_(grad_y, bias_EF[at.expert])
            if gates_M1 is not None:
                grad_y = grad_y * gates_M1[at.places]
            grads.write(at.expert, rows, grad_y)
        grads.skip_empty(to)
        grad_x = source.bring(grad_x_MD, gates_M) if grad_x_MD is not None and needs_x else None
        return grad_x, grads.weight, grads.bias, gates_gradient(grad_gates_M, gates_NK, to), None
