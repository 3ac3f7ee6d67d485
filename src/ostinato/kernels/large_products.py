"""Matrix products of many rows in float32 on a CPU, where torch's own leave a part of the processor unused.

    multiply    c = a b + bias, or added to what c holds
    product     y = x W^T + b, with gradients dx = dy W, dW = dy^T x

torch multiplies by MKL, which on processors of AMD uses AVX2, even where there is AVX-512 (Zen 4 and later), which does
twice as much at a time (Zen 5) or needs half as many instructions (Zen 4). There a compiled kernel of ours multiplies;
elsewhere, and few rows, torch does: the plain twin. (oneDNN, which torch has for convolutions, is as fast, but makes
code for every new number of rows, of which experts have another one at every step, and cannot add to a sum or write
where it is told.)
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ostinato.kernels import native

_LEAST_PRODUCTS = 2**20
"""Multiplications below which a call takes as long as what it saves."""
_FEWEST = 8
"""Rows, or columns, below which a tile is mostly empty, and the right side takes longer to copy than to multiply by."""


def multiply(
    a_ND: Tensor, b_DF: Tensor, out: Tensor | None = None, *, bias_F: Tensor | None = None, adds: bool = False
) -> Tensor:
    """Return a b + bias, `[N, F]`, without a gradient of its own where it is written to `out`.

    Args:
        out: where it is written; None: a new tensor. adds: adds it to what `out` holds, without a bias.
    """
    if not torch.is_grad_enabled() and _is_ours(a_ND, b_DF, bias_F, out):
        written = a_ND.new_empty(a_ND.shape[0], b_DF.shape[1]) if out is None else out
        native.large_product(a_ND, b_DF, bias_F, written, adds=adds)
        if out is not None:
            torch.autograd.graph.increment_version(out)
        return written
    if adds:  # not `addmm_`, which torch's counter of operations does not know
        assert out is not None
        bias_F = out
    return torch.mm(a_ND, b_DF, out=out) if bias_F is None else torch.addmm(bias_F, a_ND, b_DF, out=out)


def product(x: Tensor, weight_FD: Tensor, bias_F: Tensor | None) -> Tensor:
    """Return x W^T + b, `[..., F]`, of x `[..., D]`."""
    if torch.compiler.is_compiling() or not x.numel():  # compiled graphs must not depend on sizes
        return F.linear(x, weight_FD, bias_F)
    rows_ND = x.reshape(-1, x.shape[-1])
    if not _is_ours(rows_ND, weight_FD.t(), bias_F):
        return F.linear(x, weight_FD, bias_F)
    y_NF = _LargeProduct.apply(rows_ND, weight_FD, bias_F)  # type: ignore[no-untyped-call]
    return y_NF.view(*x.shape[:-1], y_NF.shape[1])  # type: ignore[no-any-return]


def _is_ours(a_ND: Tensor, b_DF: Tensor, bias_F: Tensor | None, out: Tensor | None = None) -> bool:
    """Return whether the kernel takes a product. Where sizes are wrong, torch's product says so."""
    (n_rows, n), n_columns = a_ND.shape, b_DF.shape[1]
    is_large = min(n_rows, n_columns) >= _FEWEST and n_rows * n * n_columns >= _LEAST_PRODUCTS
    if not is_large or not has_slow_products():
        return False
    fit = b_DF.shape[0] == n and 1 in a_ND.stride() and 1 in b_DF.stride()
    fit = fit and (bias_F is None or (bias_F.shape == (n_columns,) and bias_F.stride(0) == 1))
    fit = fit and (out is None or (out.shape == (n_rows, n_columns) and out.stride(1) == 1))
    return fit and native.takes(a_ND, b_DF, bias_F, out)


@lru_cache(maxsize=1)
def has_slow_products() -> bool:
    """Return whether torch multiplies by MKL on a processor of AMD with AVX-512; MKL uses Intel's."""
    has_mkl = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    if not has_mkl or not torch.backends.cpu.get_cpu_capability().startswith("AVX512"):
        return False
    try:
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux, where there are no kernels either
        return False


class _LargeProduct(torch.autograd.Function):
    """x W^T + b, with products of ours backwards, too."""

    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, weight_FD: Tensor, bias_F: Tensor | None) -> Tensor:
        ctx.save_for_backward(x_ND, weight_FD)
        return multiply(x_ND, weight_FD.t(), bias_F=bias_F)

    @staticmethod
    def backward(ctx: Any, grad_NF: Tensor) -> tuple[Tensor | None, ...]:
        x_ND, weight_FD = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            multiply(grad_NF, weight_FD) if needs_x else None,
            multiply(grad_NF.t(), x_ND) if needs_weight else None,
            grad_NF.sum(0) if needs_bias else None,
        )
