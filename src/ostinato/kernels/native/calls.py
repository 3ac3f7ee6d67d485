"""The compiled kernels as functions of tensors: float32, on a CPU, rows contiguous, without gradients.

Nothing here looks at what it is given: who calls has made sure of types and shapes (`ostinato.nn.compiled`, `takes`).
Structures hold addresses, so every one is kept beside the tensors it points into.

Letters: N rows, B hypotheses, H heads of width K, C choices of a token, D, F widths, S cached positions.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_float, c_int64, c_void_p
from functools import lru_cache

import torch
from torch import Tensor

from ostinato.kernels.native.build import SIGNATURES, library

_WORTH_A_THREAD = 2**14

_TYPES = {"p": c_void_p, "n": c_int64, "f": c_float}
_COUNTING = {"act_enter", "stick_halt"}
"""They return a count, the others nothing."""


class MatrixOf(ctypes.Structure):
    """A map: weight `[F, D]`, or those of experts, `[E, D, F]`; bias or none."""

    _fields_ = [("weight", c_void_p), ("bias", c_void_p), ("n_in", c_int64), ("n_out", c_int64)]

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None) -> MatrixOf:
        """Return the map; who calls keeps both."""
        n_in, n_out = weight.shape[1:] if weight.dim() == 3 else weight.shape[::-1]
        return cls(weight.data_ptr(), address(bias), n_in, n_out)


class _Keys(ctypes.Structure):
    _fields_ = [
        *(("buffer", c_void_p), ("value_stride", c_int64), ("row_stride", c_int64), ("head_stride", c_int64)),
        *(("length", c_int64), ("places", c_void_p), ("n_placed", c_int64)),
        *(("keep", c_void_p), ("keep_stride", c_int64), ("n_beams", c_int64), ("rows", c_void_p)),
        *(("n_heads", c_int64), ("d_head", c_int64), ("n_choices", c_int64), ("scale", c_float)),
    ]


class CachedKeys:
    """Keys and values as attention finds them, `[2, R, H, room, K]`, and who reads what of them.

    Args:
        kv_2RHSK: a buffer, the last dimension contiguous, positions side by side. scale: of the scores.
        n_choices: C, queries of one token by head.
    """

    def __init__(self, kv_2RHSK: Tensor, scale: float, n_choices: int = 1) -> None:
        self.kv_2RHSK = kv_2RHSK
        _, _, H, S, K = kv_2RHSK.shape
        value, row, head, _, _ = kv_2RHSK.stride()
        self._held: tuple[Tensor | None, Tensor | None, Tensor | None] = (None, None, None)
        self.keys = _Keys(kv_2RHSK.data_ptr(), value, row, head, S, None, 0, None, 0, 1, None, H, K, n_choices, scale)

    def see(
        self,
        length: int,
        places_BS: Tensor | None = None,
        keep_BS: Tensor | None = None,
        rows_N: Tensor | None = None,
        n_beams: int = 1,
    ) -> CachedKeys:
        """Say what is read next, and return this.

        Args:
            length: positions, new ones included.
            places_BS: int32, rows of the buffer in which the first positions of every hypothesis lie; None: its own.
            keep_BS: real positions, rows contiguous; None: all.
            rows_N: the hypothesis of every query, int64; None: in order.
            n_beams: hypotheses that share a row of the buffer.
        """
        keys, (places, keep, rows) = self.keys, self._held
        keys.length, keys.n_beams = length, n_beams
        self._held = places_BS, keep_BS, rows_N
        # To set an address takes longer than to see that it is still the same.
        if places is not places_BS:
            keys.places, keys.n_placed = address(places_BS), 0 if places_BS is None else places_BS.shape[1]
        if keep is not keep_BS:
            keys.keep, keys.keep_stride = address(keep_BS), 0 if keep_BS is None else keep_BS.stride(0)
        if rows is not rows_N:
            keys.rows = address(rows_N)
        return self


def few_rows(x_ND: Tensor, weight_FD: Tensor, bias_F: Tensor | None) -> Tensor:
    """Return x W^T + b, `[..., F]`, reading W once, as it lies. Plain twin: `torch.nn.functional.linear`."""
    x_ND, y_NF = x_ND.contiguous(), x_ND.new_empty(*x_ND.shape[:-1], weight_FD.shape[0])
    matrix, n_rows = MatrixOf.of(weight_FD, bias_F), x_ND.numel() // x_ND.shape[-1]
    kernels().few_rows(byref(matrix), x_ND.data_ptr(), y_NF.data_ptr(), n_rows, n_threads(n_rows * weight_FD.numel()))
    return y_NF


def read_cache(keys: CachedKeys, q_NI: Tensor, new_BJ: Tensor | None = None) -> Tensor:
    """Return what every query reads, `[N, C H K]`, once new keys and values are at the last position.

    Args:
        q_NI: queries, rows of C H K numbers, which may lie apart. new_BJ: new keys and values of all hypotheses, rows
            of 2 H K numbers.
    """
    y_NI = room(*q_NI.shape)
    of_new = (None, 0, 0) if new_BJ is None else (new_BJ.data_ptr(), new_BJ.stride(0), new_BJ.shape[0])
    of_queries = (q_NI.data_ptr(), q_NI.stride(0), q_NI.shape[0])
    kernels().read_cache(
        byref(keys.keys), *of_queries, *of_new, y_NI.data_ptr(), n_threads(q_NI.numel() * keys.keys.length)
    )
    return y_NI


@lru_cache(maxsize=1)
def kernels() -> ctypes.CDLL:
    """Return the library, its functions told what they take.

    Raises:
        RuntimeError: there are no compiled kernels.
    """
    found = library()
    if found is None:
        raise RuntimeError("there are no compiled kernels on this machine")
    for name, signature in SIGNATURES.items():
        function = getattr(found, name)
        function.restype = c_int64 if name in _COUNTING else None
        function.argtypes = [_TYPES[letter] for letter in signature]
    return found


def room(*sizes: int) -> Tensor:
    """Return memory for so many numbers."""
    # Whatever torch's default type and device are: kernels know one type.
    return torch.empty(sizes, dtype=torch.float32, device="cpu")


def n_threads(n_products: int) -> int:
    """Return how many threads share some multiplications: one, where to wake others takes longer."""
    return torch.get_num_threads() if n_products > _WORTH_A_THREAD else 1


def address(x: Tensor | None) -> int | None:
    """Return where a tensor lies; None: there is none."""
    return None if x is None else x.data_ptr()
