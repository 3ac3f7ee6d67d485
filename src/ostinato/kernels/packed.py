"""Products of few rows with a matrix that is used many times: what decoding does at every token.

    y = x W^T + b        x: [N, D], W: [F, D], N small

Such a product takes as long as reading W does, so what counts is how W lies in memory. While `packing()` is on, a copy
is packed in the form oneDNN reads fastest when W is first used, and forgotten at the end: in between W must not change.
A single row is an exception: there W itself is read as fast, if its longer side is contiguous (`lay_out`) and every
thread reads a part of it.

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
from torch import Tensor, nn

_log = logging.getLogger(__name__)
_WORTH_THREADS, _LEAST_OUTPUTS = 2**15, 64
"""Numbers in a matrix, and outputs of a part, below which splitting it takes longer than it saves."""
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
    """Copies of one matrix and of stretches of its rows.

    Args:
        is_table: the matrix is a table of embeddings, which cannot be laid out as one pleases: where a single row comes
            first, the copy is the transposed matrix. Whichever copy there is serves all products.
    """

    def __init__(self, is_table: bool = False) -> None:
        self._is_table = is_table
        self.forget()

    def forget(self) -> None:
        """Free the copies."""
        self._session: _Session | None = None
        self._packed: dict[tuple[int, int] | None, Tensor] = {}
        self._transposed_DF: Tensor | None = None

    def product(
        self, x_ND: Tensor, weight_FD: Tensor, bias_F: Tensor | None = None, rows: slice | None = None
    ) -> Tensor:
        """Return x W^T + b, `[..., F]`, of x `[..., D]`, or those outputs that `rows` names."""
        session = _session.get()
        if session is None or not _fits(x_ND, weight_FD):
            return F.linear(x_ND, _part(weight_FD, rows), None if bias_F is None else _part(bias_F, rows))
        is_single = x_ND.numel() == x_ND.shape[-1]
        if is_single and not self._is_table:
            return by_threads(x_ND, _part(weight_FD, rows), None if bias_F is None else _part(bias_F, rows))
        if self._session is not session:
            self.forget()
            self._session = session
            session.append(self)
            if is_single:
                self._transposed_DF = weight_FD.detach().t().contiguous()
        if self._transposed_DF is not None:
            product = by_threads if is_single else F.linear
            return product(x_ND, _part(self._transposed_DF.t(), rows), None if bias_F is None else _part(bias_F, rows))
        key = None if rows is None else (rows.start, rows.stop)
        if (packed := self._packed.get(key)) is None:
            packed = self._packed[key] = _pack(_part(weight_FD.detach(), rows))
        return _product(x_ND, packed, None if bias_F is None else _part(bias_F, rows))

    def __deepcopy__(self, memo: dict[int, object]) -> PackedMatrix:
        return PackedMatrix(self._is_table)

    def __reduce__(self) -> tuple[type[PackedMatrix], tuple[bool]]:
        return PackedMatrix, (self._is_table,)


def by_threads(x_1D: Tensor, weight_FD: Tensor, bias_F: Tensor | None) -> Tensor:
    """Return x W^T + b of a single row, `[..., F]`, each thread with its part of the outputs.

    torch gives such a product to one thread; of several matrices each has its own. Plain twin:
    `torch.nn.functional.linear`, which small matrices, and outputs that do not divide, take.
    """
    n_out, n_in = weight_FD.shape
    parts = min(torch.get_num_threads(), n_out // _LEAST_OUTPUTS)
    if parts < 2 or n_out % parts or weight_FD.numel() < _WORTH_THREADS:
        return F.linear(x_1D, weight_FD, bias_F)
    x_P1D = x_1D.reshape(1, 1, n_in).expand(parts, 1, n_in)
    weight_PDO = weight_FD.view(parts, -1, n_in).transpose(1, 2)
    if bias_F is None:
        y_P1O = torch.bmm(x_P1D, weight_PDO)
    else:
        y_P1O = torch.baddbmm(bias_F.view(parts, 1, -1), x_P1D, weight_PDO)
    return y_P1O.reshape(*x_1D.shape[:-1], n_out)


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


@torch.no_grad()
def lay_out(module: nn.Module) -> None:
    """Store the weights of every projection, `[out, in]`, with the longer side contiguous.

    Shapes, values and names are the same, and files hold the usual order. Autograd gives gradients the strides of their
    parameter, and optimisers their state: to be called before there are any.
    """
    for linear in module.modules():
        if isinstance(linear, nn.Linear) and linear.out_features > linear.in_features:
            linear.weight.data = linear.weight.data.t().contiguous().t()


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
