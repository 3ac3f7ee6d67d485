"""Products of few rows with a matrix that is used many times: what decoding does at every token.

    y = x W^T + b        x: [N, D], W: [F, D], N small

Such a product takes as long as reading W does, so what counts is how W lies in memory. While `packing()` is on, a copy
is made when W is first used, and forgotten at the end: in between W must not change. The copy is packed in the form
oneDNN reads fastest, or, where a single row comes first, it is W^T, whose rows torch adds up as fast as memory gives
them (`summed_columns`). Whichever copy there is serves all products.

The plain twin is `torch.nn.functional.linear`: used without `packing()`, wherever gradients are wanted, on
accelerators, in other types than float32, and where torch has no such product.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

_log = logging.getLogger(__name__)
_WORTH_A_COPY = 2**15
"""Numbers in a matrix below which a single row is multiplied by the matrix as it is."""
_Session = list["PackedMatrix"]
"""What has been packed since `packing()` was switched on."""
_session: ContextVar[_Session | None] = ContextVar("packing", default=None)


@contextmanager
def packing(enabled: bool = True) -> Iterator[None]:
    """Make and use packed copies inside; the copies take as much memory as what is used of the weights.

    The weights must not change meanwhile. Inside another `packing()` its copies are used, and nothing is forgotten.
    """
    if not enabled or _session.get() is not None:
        yield
        return
    session: _Session = []
    token = _session.set(session)
    try:
        yield
    finally:
        _session.reset(token)
        for matrix in session:
            matrix.forget()


class PackedMatrix:
    """Copies of one matrix and of stretches of its rows."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Free the copies."""
        self._session: _Session | None = None
        self._packed: dict[tuple[int, int] | None, Tensor] = {}
        self._columns: dict[tuple[int, int] | None, Tensor] = {}

    def product(
        self, x_ND: Tensor, weight_FD: Tensor, bias_F: Tensor | None = None, rows: slice | None = None
    ) -> Tensor:
        """Return x W^T + b, `[..., F]`, of x `[..., D]`, or those outputs that `rows` names."""
        if rows is not None:
            bias_F = None if bias_F is None else bias_F[rows]
        session = _session.get()
        if session is None or not _fits(x_ND, weight_FD):
            return F.linear(x_ND, _part(weight_FD, rows), bias_F)
        if self._session is not session:
            self.forget()
            self._session = session
            session.append(self)
        key = None if rows is None else (rows.start, rows.stop)
        is_single = x_ND.numel() == x_ND.shape[-1]
        if (packed := self._packed.get(key)) is None:
            columns_DF = self._columns.get(key)
            if columns_DF is None and is_single and sums_columns_fast():
                part_FD = _part(weight_FD.detach(), rows)
                if part_FD.numel() < _WORTH_A_COPY:
                    return F.linear(x_ND, part_FD, bias_F)
                columns_DF = self._columns[key] = part_FD.t().contiguous()
            if columns_DF is not None:
                return summed_columns(x_ND, columns_DF, bias_F) if is_single else F.linear(x_ND, columns_DF.t(), bias_F)
            packed = self._packed[key] = _pack(_part(weight_FD.detach(), rows))
        return _product(x_ND, packed, bias_F)

    def __deepcopy__(self, memo: dict[int, object]) -> PackedMatrix:
        return PackedMatrix()

    def __reduce__(self) -> tuple[type[PackedMatrix], tuple[()]]:
        return PackedMatrix, ()


def summed_columns(x_1D: Tensor, columns_DF: Tensor, bias_F: Tensor | None) -> Tensor:
    """Return x W^T + b of a single row, `[..., F]`: the rows of W^T, `[D, F]`, weighted by x and added up.

    Every thread adds up its part of them, as a bag of embeddings: torch reads those several times faster than the
    matrix of a product with one row. Plain twin: `torch.nn.functional.linear`.
    """
    n_in, n_out = columns_DF.shape
    places_D, firsts_P = _bags(n_in, torch.get_num_threads())
    sums_PF = torch.embedding_bag(columns_DF, places_D, firsts_P, False, 0, False, x_1D.reshape(n_in))[0]
    y_F = sums_PF.sum(0)
    return (y_F if bias_F is None else y_F.add_(bias_F)).view(*x_1D.shape[:-1], n_out)


@lru_cache(maxsize=64)
def _bags(n: int, n_bags: int) -> tuple[Tensor, Tensor]:
    """Return the places 0 .. n - 1, and where each of the bags that share them begins."""
    with torch.inference_mode(False):
        return torch.arange(n), torch.arange(n_bags) * n // n_bags


@lru_cache(maxsize=1)
def sums_columns_fast() -> bool:
    """Return whether torch has the kernel that `summed_columns` lives on: on processors with AVX2 or AVX-512."""
    return torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


def _part(x: Tensor, rows: slice | None) -> Tensor:
    # The whole is not sliced: under autocast only a parameter itself is cast once for all its uses.
    return x if rows is None else x[rows]


def _fits(x_ND: Tensor, weight_FD: Tensor) -> bool:
    return (
        not torch.is_grad_enabled()
        and x_ND.dtype == weight_FD.dtype == torch.float32
        and x_ND.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
        and has_packed_products()
    )


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
