"""Linear maps of many experts: every row is multiplied by the weights of each expert it was sent to.

    y[place m] = x[place m] W[expert of m] + b[expert of m]

in any order of rows, chosen slots or sorted places before and after; written to rows, the results of a row's experts
are summed, weighted by their gates.

    segments          an own backward over the whole map, rows taken from where they lie
    any other name    gather, grouped product (`products`), scatter, differentiated by autograd
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ostinato.kernels.choose import Backend, BackendChoice, choose_backend, numbers, small_dispatch, with_gradients
from ostinato.kernels.devices import autocast_dtype
from ostinato.kernels.dispatch import Dispatch, combine, gather, reorder, zero_behind
from ostinato.kernels.products import PRODUCTS
from ostinato.kernels.segments import Order, SegmentedLinear


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
    chosen = choose_backend(backend, x.device, dtype, try_linear, *weight_EDF.shape[1:])
    return linear_by(chosen, x.to(dtype), weight_EDF.to(dtype), bias_EF, to, reads, writes, gates_NK)


def linear_by(
    backend: Backend | Literal["dense"],
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
        return SegmentedLinear.apply(x, weight_EDF, bias_EF, gates_NK, to, reads, writes)  # type: ignore[no-any-return, no-untyped-call]
    if reads != "places":
        x = gather(x, to) if reads == "rows" else reorder(x, to, to_slots=False)
    y_MF = PRODUCTS[backend](x, weight_EDF, to)
    if bias_EF is not None:
        y_MF = y_MF + zero_behind(bias_EF.index_select(0, to.experts_M), to)
    if writes == "slots":
        return reorder(y_MF, to, to_slots=True)
    return y_MF if gates_NK is None else combine(y_MF, gates_NK, to)


def product_dtype(x: Tensor) -> torch.dtype:
    """Return the type that products with x run in: autocast's, where it is on."""
    return autocast_dtype(x.device) or x.dtype


def try_linear(backend: Backend, device: torch.device, dtype: torch.dtype, d_in: int, d_out: int) -> list[Tensor]:
    """Try a map of these widths: a `Trial`."""
    to = small_dispatch(device)
    x, gates = numbers((to.n_rows, d_in), device, dtype), numbers((to.n_rows, to.n_chosen), device, dtype)
    weight = numbers((to.n_experts, d_in, d_out), device, dtype, d_in**-0.5)
    bias = numbers((to.n_experts, d_out), device, dtype)
    y = linear_by(backend, x, weight, bias, to, "rows", "rows", gates)
    return with_gradients(y, [x, weight, bias, gates])
