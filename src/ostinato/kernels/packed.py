"""Products with a matrix that is used many times and does not change meanwhile: what decoding does at every token.

    y = x W^T + b        x: [N, D], W: [F, D]

With few rows such a product takes as long as reading W does, so what counts is how W is read. While `packing()` is on,
up to some number of rows are multiplied by W as it lies, by kernels of ours where there is a compiler
(`ostinato.kernels.native`); for more rows a copy is packed in the form oneDNN reads fastest when W is first used, and
forgotten at the end: in between W must not change.

Whether packing is on is a context variable: it belongs to a search and not to the model, which other threads may use.

The plain twin is `torch.nn.functional.linear`: used without `packing()`, wherever gradients are wanted, on
accelerators, in other types than float32, and where torch has no such product.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ostinato.kernels.native import MOST_ROWS, few_rows, is_plain_float32, library

_log = logging.getLogger(__name__)
_LARGE_MATRIX, _MOST_ROWS_OF_LARGE = 2**22, 8
"""Numbers from which on a matrix is large, and rows up to which our kernels are faster than its packed copy, where
there is more than AVX2. Of smaller ones they are faster up to about a hundred rows, little slower up to `MOST_ROWS`."""


class Packing:
    """What belongs to one `packing()`.

    Attributes:
        matrices: those with packed copies. compiled: calls that were prepared, by owner (`ostinato.nn.compiled`).
    """

    def __init__(self) -> None:
        self.matrices: list[PackedMatrix] = []
        self.compiled: dict[Any, Any] = {}


active_packing: ContextVar[Packing | None] = ContextVar("packing", default=None)


@contextmanager
def packing(enabled: bool = True) -> Iterator[None]:
    """Make and use packed copies inside; the copies take as much memory as what is used of the weights.

    The weights must not change meanwhile. Inside another `packing()` its copies are used, and nothing is forgotten.
    """
    if not enabled or active_packing.get() is not None:
        yield
        return
    new = Packing()
    token = active_packing.set(new)
    try:
        yield
    finally:
        active_packing.reset(token)
        for matrix in new.matrices:
            matrix.forget()


def compiled_packing(x: Tensor) -> Packing | None:
    """Return the `packing()` that is on, where compiled kernels may run on x; None: plain code must."""
    found = active_packing.get()
    return found if found is not None and _is_plain_float(x) and library() is not None else None


class PackedMatrix:
    """Copies of one matrix and of stretches of its rows."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Free the copies."""
        self._made_in: Packing | None = None
        self._packed: dict[tuple[int, int] | None, Tensor] = {}

    def product(
        self, x_ND: Tensor, weight_FD: Tensor, bias_F: Tensor | None = None, rows: slice | None = None
    ) -> Tensor:
        """Return x W^T + b, `[..., F]`, of x `[..., D]`, or those outputs that `rows` names."""
        active, part_FD = active_packing.get(), weight_FD
        if rows is not None:
            # The whole is not sliced: under autocast only a parameter itself is cast once for all uses.
            part_FD, bias_F = weight_FD[rows], None if bias_F is None else bias_F[rows]
        if active is None or not _is_plain_float(x_ND):
            return F.linear(x_ND, part_FD, bias_F)
        maps = (part_FD,) if bias_F is None else (part_FD, bias_F)
        # Where sizes or types are wrong, torch's product says so.
        if x_ND.shape[-1] != part_FD.shape[1] or not all(
            x.dtype == torch.float32 and x.device.type == "cpu" and x.shape[0] == part_FD.shape[0] for x in maps
        ):
            return F.linear(x_ND, part_FD, bias_F)
        is_contiguous = part_FD.is_contiguous() and (bias_F is None or bias_F.is_contiguous())
        if x_ND.numel() <= _most_rows(part_FD) * x_ND.shape[-1] and library() is not None and is_contiguous:
            return few_rows(x_ND, part_FD, bias_F)
        if not has_packed_products():
            return F.linear(x_ND, part_FD, bias_F)
        if self._made_in is not active:
            self.forget()
            self._made_in = active
            active.matrices.append(self)
        key = None if rows is None else (rows.start, rows.stop)
        if (packed := self._packed.get(key)) is None:
            packed = self._packed[key] = _pack(part_FD.detach())
        return _product(x_ND, packed, bias_F)

    # For copies, too.
    def __reduce__(self) -> tuple[type[PackedMatrix], tuple[()]]:
        return PackedMatrix, ()


def _is_plain_float(x: Tensor) -> bool:
    return not torch.is_grad_enabled() and is_plain_float32(x)


def _most_rows(weight_FD: Tensor) -> int:
    """Return up to how many rows our kernels take, where a packed copy of the matrix would not be much faster."""
    is_large = weight_FD.numel() >= _LARGE_MATRIX and torch.backends.cpu.get_cpu_capability() != "AVX2"
    return _MOST_ROWS_OF_LARGE if is_large else MOST_ROWS


@lru_cache(maxsize=1)
def has_packed_products() -> bool:
    """Return whether this torch multiplies by packed matrices: tried once, on a small one."""
    try:
        with torch.no_grad(), torch.inference_mode(False):
            weight, x, bias = torch.eye(16)[:5] + 1, torch.arange(32.0).view(2, 16), torch.ones(5)
            works = torch.allclose(_product(x, _pack(weight), bias), F.linear(x, weight, bias), rtol=1e-5)
    except (RuntimeError, AttributeError, NotImplementedError, TypeError) as error:
        _log.info("no packed products: %s", str(error).strip().splitlines()[0])
        return False
    return bool(works)


def _pack(weight_FD: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight_FD, None)  # type: ignore[no-any-return]


def _product(x_ND: Tensor, packed: Tensor, bias_F: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x_ND, packed, bias_F, "none", [], "")  # type: ignore[no-any-return]
