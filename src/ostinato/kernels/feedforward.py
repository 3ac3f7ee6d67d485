"""Feed-forwards of many experts as one map: y_n = sum_k g_nk f_{e_nk}(x_n),  f_e(x) = drop(act(x U_e + b_e)) V_e + c_e.

segments          an own backward over the whole map; keeps the hidden layer and nothing else
any other name    gather, grouped product, activation, grouped product, combine, differentiated by autograd
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ostinato.kernels.activation import GATES, Activation, activate
from ostinato.kernels.choose import Backend, BackendChoice, choose_backend, numbers, small_dispatch, with_gradients
from ostinato.kernels.dispatch import Dispatch
from ostinato.kernels.dropout import Draws, Kept, draw_kept, drop_by
from ostinato.kernels.linear import linear_by, product_dtype
from ostinato.kernels.segments import Order, SegmentedFeedForward


class ExpertWeights(NamedTuple):
    """Both maps of all experts, stacked; `up_EDF` is twice as wide as `down_EFD` is high with a gate."""

    up_EDF: Tensor
    up_bias_EF: Tensor | None
    down_EFD: Tensor
    down_bias_ED: Tensor | None


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
    weights = ExpertWeights(*(None if weight is None else weight.to(dtype) for weight in weights))  # type: ignore[arg-type]
    shape = (to.slots_M.shape[0], weights.down_EFD.shape[1])
    kept_MF = draw_kept(shape, dropout, x.device, draws) if dropout else None
    sizes = weights.up_EDF.shape[1], weights.down_EFD.shape[1], activation
    chosen = choose_backend(backend, x.device, dtype, try_feed_forward, *sizes)
    return feed_forward_by(chosen, x.to(dtype), weights, gates_NK, to, activation, kept_MF)


def feed_forward_by(
    backend: Backend | Literal["dense"],
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
        keeps = torch.is_grad_enabled()
        return SegmentedFeedForward.apply(x, *weights, gates_NK, kept, to, activation, order, scale, keeps)  # type: ignore[no-any-return, no-untyped-call]
    before = linear_by(backend, x, weights.up_EDF, weights.up_bias_EF, to, order, "places", None)
    hidden = activate(before, activation)
    if kept_MF is not None:
        hidden = drop_by(hidden, kept_MF)
    return linear_by(backend, hidden, weights.down_EFD, weights.down_bias_ED, to, "places", order, gates_NK)


def try_feed_forward(
    backend: Backend, device: torch.device, dtype: torch.dtype, d_model: int, d_ff: int, activation: Activation
) -> list[Tensor]:
    """Try maps of these widths: a `Trial`."""
    to = small_dispatch(device)
    E, D, F = to.n_experts, d_model, d_ff
    hidden = 2 * F if activation in GATES else F
    x, gates = numbers((to.n_rows, D), device, dtype), numbers((to.n_rows, to.n_chosen), device, dtype)
    # Biases of the first map keep its results away from 0, where rounding would decide what relu lets through.
    up_bias = (4.0 * numbers((E, hidden), device, dtype).detach().sign()).requires_grad_()
    up, down = numbers((E, D, hidden), device, dtype, D**-0.5), numbers((E, F, D), device, dtype, F**-0.5)
    down_bias = numbers((E, D), device, dtype)
    y = feed_forward_by(backend, x, ExpertWeights(up, up_bias, down, down_bias), gates, to, activation)
    return with_gradients(y, [x, gates, up, up_bias, down, down_bias])
