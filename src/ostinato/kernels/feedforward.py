"""Feed-forwards of many experts as one map: y_n = sum_k g_nk f_{e_nk}(x_n),  f_e(x) = drop(act(x U_e + b_e)) V_e + c_e.

    segments          an own backward over the whole map, one expert at a time; keeps the hidden layer and nothing else
    any other name    gather, grouped product, activation, grouped product, combine, differentiated by autograd

The gradient of a gate needs no output of an expert: with d the gradient of y_n,
<d, a V + c> = <d V^T, a> + <d, c>, and d V^T is computed anyway.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ostinato.kernels.activation import Activation, activate, activation_gradient
from ostinato.kernels.choose import BackendChoice, choose_backend
from ostinato.kernels.dispatch import Dispatch
from ostinato.kernels.dropout import Draws, Kept, draw_kept, drop_by, factors
from ostinato.kernels.linear import linear_by, product_dtype
from ostinato.kernels.segments import MapGradients, Order, Side, gates_gradient, gates_of_places, occupied, product
from ostinato.kernels.trial import Backend, Trial, numbers, small_dispatch, with_gradients


class ExpertWeights(NamedTuple):
    """Both maps of all experts, stacked; `up_EDF` is twice as wide as `down_EFD` is high for geglu."""

    up_EDF: Tensor
    up_bias_EF: Tensor | None
    down_EFD: Tensor
    down_bias_ED: Tensor | None


@dataclass(frozen=True, slots=True)
class _Setting:
    """What is no tensor: `scale` makes up for dropped units, None where none are; `keeps` the hidden layer."""

    to: Dispatch
    activation: Activation
    order: Order
    scale: float | None
    keeps: bool


def expert_feed_forward(
    x: Tensor,
    weights: ExpertWeights,
    gates_NK: Tensor | None,
    to: Dispatch,
    activation: Activation,
    *,
    dropout: float = 0.0,
    draws: Draws = "auto",
    backend: BackendChoice = "auto",
) -> Tensor:
    """Return every row's experts' results, weighted by their gates, `[N, D]`; 0 for rows that take no part.

    Under autocast all products run in its type. The same units are dropped for every backend.

    Args:
        x: rows `[N, D]`; without gates places sorted by expert, `[M, D]`, and the result is in their order.
        gates_NK: None: see x. dropout: probability of a hidden unit, 0 in evaluation. draws: see `draw_kept`.
        backend: by name, or "auto": see `choose_backend`.

    Raises:
        ConfigError: a backend that is named and does not work here.
    """
    dtype = product_dtype(x)
    weights = ExpertWeights(
        weights.up_EDF.to(dtype),
        None if weights.up_bias_EF is None else weights.up_bias_EF.to(dtype),
        weights.down_EFD.to(dtype),
        None if weights.down_bias_ED is None else weights.down_bias_ED.to(dtype),
    )
    shape = (to.slots_M.shape[0], weights.down_EFD.shape[1])
    kept_MF = draw_kept(shape, dropout, x.device, draws) if dropout else None
    trial = FeedForwardTrial(weights.up_EDF.shape[1], weights.down_EFD.shape[1], activation)
    chosen = choose_backend(backend, x.device, dtype, trial)
    return feed_forward_by(chosen, x.to(dtype), weights, gates_NK, to, activation, kept_MF)


def feed_forward_by(
    backend: Backend,
    x: Tensor,
    weights: ExpertWeights,
    gates_NK: Tensor | None,
    to: Dispatch,
    activation: Activation,
    kept_MF: Kept | None = None,
) -> Tensor:
    """Run one backend, without a trial, with the units that are kept given; None: all."""
    order: Order = "places" if gates_NK is None else "rows"
    if backend == "segments":
        kept, scale = (None, None) if kept_MF is None else kept_MF
        setting = _Setting(to, activation, order, scale, torch.is_grad_enabled())
        return _FeedForward.apply(x, *weights, gates_NK, kept, setting)  # type: ignore[no-any-return, no-untyped-call]
    before = linear_by(backend, x, weights.up_EDF, weights.up_bias_EF, to, order, "places", None)
    hidden = activate(before, activation)
    if kept_MF is not None:
        hidden = drop_by(hidden, kept_MF)
    return linear_by(backend, hidden, weights.down_EFD, weights.down_bias_ED, to, "places", order, gates_NK)


@dataclass(frozen=True, slots=True)
class FeedForwardTrial(Trial):
    """Maps of these widths."""

    d_model: int
    d_ff: int
    activation: Activation

    def run(self, backend: Backend, device: torch.device, dtype: torch.dtype) -> list[Tensor]:
        """Return output and gradients."""
        to = small_dispatch(device)
        E, D, F = to.n_experts, self.d_model, self.d_ff
        hidden = 2 * F if self.activation == "geglu" else F
        x, gates = numbers((to.n_rows, D), device, dtype), numbers((to.n_rows, to.n_chosen), device, dtype)
        # Biases of the first map keep its results away from 0, where rounding would decide what relu lets through.
        weights = ExpertWeights(
            numbers((E, D, hidden), device, dtype, D**-0.5),
            (4.0 * numbers((E, hidden), device, dtype).detach().sign()).requires_grad_(),
            numbers((E, F, D), device, dtype, F**-0.5),
            numbers((E, D), device, dtype),
        )
        leaves = [x, gates, *(weight for weight in weights if weight is not None)]
        y = feed_forward_by(backend, x, weights, gates, to, self.activation)
        return with_gradients(y, leaves)


def _drop_(hidden: Tensor, units: Tensor | None, scale: float | None) -> Tensor:
    """Drop all but these units; None: what is dropped is 0 already, or will be."""
    if scale is None:
        return hidden
    return hidden.mul_(scale if units is None else factors(units, scale, hidden.dtype))


def _hidden(before: Tensor, activation: Activation, units: Tensor | None, scale: float | None) -> Tensor:
    """Return the hidden layer of one expert from what was kept of it; relu's is kept as it is (see `forward`)."""
    return before if activation == "relu" else _drop_(activate(before, activation), units, scale)


class _FeedForward(torch.autograd.Function):
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
        setting: _Setting,
    ) -> Tensor:
        to, side = setting.to, Side.of(setting.order, setting.to)
        out_MD = x.new_empty(to.slots_M.shape[0], down_EFD.shape[2])
        kept_MF = x.new_empty(to.slots_M.shape[0] if setting.keeps else to.longest(), up_EDF.shape[2])
        for at in occupied(to):
            e = at.expert
            kept = kept_MF[at.places if setting.keeps else slice(at.length)]
            units = None if units_MF is None else units_MF[at.places]
            product(side.take(x, at), up_EDF[e], None if up_bias_EF is None else up_bias_EF[e], kept)
            if setting.activation == "relu":
                _drop_(kept.clamp_min_(0.0), units, setting.scale)
            hidden = _hidden(kept, setting.activation, units, setting.scale)
            product(hidden, down_EFD[e], None if down_bias_ED is None else down_bias_ED[e], out_MD[at.places])
        if setting.keeps:
            # Where relu's result is 0 nothing comes back, whether it was dropped or not.
            units_MF = None if setting.activation == "relu" else units_MF
            ctx.save_for_backward(x, up_EDF, up_bias_EF, down_EFD, down_bias_ED, gates_NK, units_MF, kept_MF)
            ctx.setting = setting
        return side.bring(out_MD, gates_of_places(gates_NK, to, x.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, up_EDF, up_bias_EF, down_EFD, down_bias_ED, gates_NK, units_MF, kept_MF = ctx.saved_tensors
        setting: _Setting = ctx.setting
        to, side = setting.to, Side.of(setting.order, setting.to)
        needs_x, needs_up, needs_up_bias, needs_down, needs_down_bias, needs_gates, *_ = ctx.needs_input_grad
        up = MapGradients(up_EDF, up_bias_EF, needs_weight=needs_up, needs_bias=needs_up_bias)
        down = MapGradients(down_EFD, down_bias_ED, needs_weight=needs_down, needs_bias=needs_down_bias)
        grad_x_MD = x.new_empty(to.slots_M.shape[0], x.shape[1]) if needs_x else None
        gates_M = gates_of_places(gates_NK, to, x.dtype)
        gates_M1 = None if gates_M is None else gates_M[:, None]
        grad_gates_M = x.new_empty(to.slots_M.shape[0]) if needs_gates else None
        wide = x.new_empty(to.longest(), down_EFD.shape[1])
        for at in occupied(to):
            e, kept = at.expert, kept_MF[at.places]
            units = None if units_MF is None else units_MF[at.places]
            hidden = _hidden(kept, setting.activation, units, setting.scale)
            grad_y = side.take(grad, at)
            grad_hidden = torch.mm(grad_y, down_EFD[e].t(), out=wide[: at.length])
            if grad_gates_M is not None:
                torch.sum(grad_hidden * hidden, 1, out=grad_gates_M[at.places])
                if down_bias_ED is not None:
                    grad_gates_M[at.places].addmv_(grad_y, down_bias_ED[e])
            if gates_M1 is not None:
                grad_y = grad_y.mul_(gates_M1[at.places])
                grad_hidden.mul_(gates_M1[at.places])
            down.write(e, hidden, grad_y)
            grad_before = activation_gradient(_drop_(grad_hidden, units, setting.scale), kept, setting.activation)
            up.write(e, side.take(x, at), grad_before)
            if grad_x_MD is not None:
                torch.mm(grad_before, up_EDF[e].t(), out=grad_x_MD[at.places])
        up.skip_empty(to)
        down.skip_empty(to)
        grad_x = None if grad_x_MD is None else side.bring(grad_x_MD)
        grad_gates = gates_gradient(grad_gates_M, gates_NK, to)
        return grad_x, up.weight, up.bias, down.weight, down.bias, grad_gates, None, None
