"""Products with a matrix that serves many steps of a pass, whose gradients are added up as they are made.

    y_s = x_s W^T + b        dW = sum_s dy_s^T x_s        x_s: [N_s, D], W: [F, D]

Left to autograd, every step makes a gradient of W's size and adds it to the sum so far; one of some rows of W is first
written into zeros. Here the product itself adds to the sum, and to these rows only. The fewer rows a step has, the
larger the part of its time that saves.

A pass collects what it uses in a `GradientSums`, made for it by `summing()`. Each matrix enters the graph once, and all
its products hang on that one node, which autograd runs after the last of them and which hands on the sum.

The pass in which a product is made is a context variable and no argument: it concerns every product of a pass and no
layer between the loop and the product.

The plain twin is `product` (`ostinato.kernels.large_products`): used without `summing()`, under autocast, and for
weights that want no gradient. Gradients that are to be differentiated again are left to autograd.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ostinato.kernels.devices import autocast_dtype
from ostinato.kernels.large_products import multiply, product

active_sums: ContextVar[GradientSums | None] = ContextVar("gradient_sums", default=None)
"""Those of the `summing()` around; None: there is none."""


@contextmanager
def summing(sums: GradientSums | None = None) -> Iterator[None]:
    """Add up the gradients of what is used inside, each matrix's in place; inside another, begin anew.

    Args:
        sums: those of a pass a part of which is run again; None: a new pass.
    """
    token = active_sums.set(GradientSums() if sums is None else sums)
    try:
        yield
    finally:
        active_sums.reset(token)


class GradientSums:
    """The matrices that one pass has used so far."""

    def __init__(self) -> None:
        self._used: dict[int, tuple[Tensor, Tensor, _Sum]] = {}

    def product(self, x: Tensor, weight_FD: Tensor, bias_F: Tensor | None, rows: slice | None = None) -> Tensor:
        """Return x W^T + b, `[..., F]`, of x `[..., D]`, or those outputs that `rows` names."""
        if rows is not None and bias_F is not None:
            bias_F = bias_F[rows]
        adds_up = torch.is_grad_enabled() and weight_FD.requires_grad and x.dtype == weight_FD.dtype
        if not adds_up or autocast_dtype(x.device) is not None:
            return product(x, weight_FD if rows is None else weight_FD[rows], bias_F)
        if id(weight_FD) not in self._used:
            found = _Sum()
            self._used[id(weight_FD)] = weight_FD, _Enter.apply(weight_FD, found), found  # type: ignore[no-untyped-call]
        _, entered_FD, found = self._used[id(weight_FD)]
        y_NF = _Product.apply(x.reshape(-1, x.shape[-1]), entered_FD, bias_F, rows, found)  # type: ignore[no-untyped-call]
        return y_NF.view(*x.shape[:-1], y_NF.shape[-1])  # type: ignore[no-any-return]


class _Sum:
    """The gradient of one matrix so far, by backward pass.

    A pass that asks for no gradient of the weights adds to its sum too, but never takes it: the next one must not.
    """

    def __init__(self) -> None:
        self.by_pass: dict[int, Tensor] = {}

    def add(self, grad_NF: Tensor, x_ND: Tensor, weight_FD: Tensor, rows: slice | None) -> None:
        """Add dy^T x, to these rows of the gradient only."""
        key = torch._C._current_graph_task_id()  # every run of autograd's engine has a number of its own
        found = self.by_pass.get(key)
        if found is None and rows is None:
            self.by_pass[key] = multiply(grad_NF.t(), x_ND)
            return
        if found is None:
            found = self.by_pass[key] = torch.zeros_like(weight_FD, memory_format=torch.contiguous_format)
        found = found if rows is None else found[rows]
        multiply(grad_NF.t(), x_ND, found, adds=True)


class _Enter(torch.autograd.Function):
    """The identity; its gradient is the sum of what all products have added."""

    @staticmethod
    def forward(ctx: Any, weight_FD: Tensor, found: _Sum) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.found = found
        return weight_FD.view_as(weight_FD)

    @staticmethod
    def backward(ctx: Any, grad_FD: Tensor | None) -> tuple[Tensor | None, None]:
        found_FD = ctx.found.by_pass.pop(torch._C._current_graph_task_id(), None)
        if grad_FD is None or found_FD is None:
            return (grad_FD if found_FD is None else found_FD), None
        return found_FD + grad_FD, None


class _Product(torch.autograd.Function):
    """x W^T + b, the gradient of W added to its sum."""

    @staticmethod
    def forward(
        ctx: Any, x_ND: Tensor, weight_FD: Tensor, bias_F: Tensor | None, rows: slice | None, found: _Sum
    ) -> Tensor:
        ctx.save_for_backward(x_ND, weight_FD)
        ctx.rows, ctx.found = rows, found
        return multiply(x_ND, (weight_FD if rows is None else weight_FD[rows]).t(), bias_F=bias_F)

    @staticmethod
    def backward(ctx: Any, grad_NF: Tensor) -> tuple[Tensor | None, ...]:
        x_ND, weight_FD = ctx.saved_tensors
        needs_x, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        rows: slice | None = ctx.rows
        grad_x = multiply(grad_NF, weight_FD if rows is None else weight_FD[rows]) if needs_x else None
        grad_bias = grad_NF.sum(0) if needs_bias else None
        grad_weight = None
        if needs_weight and torch.is_grad_enabled():
            grad_weight = grad_NF.t() @ x_ND
            if rows is not None:  # zeros around them
                grad_weight = F.pad(grad_weight, (0, 0, rows.start, weight_FD.shape[0] - rows.stop))
        elif needs_weight:
            ctx.found.add(grad_NF, x_ND, weight_FD, rows)
        return grad_x, grad_weight, grad_bias, None, None
