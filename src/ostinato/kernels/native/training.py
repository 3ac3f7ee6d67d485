"""The compiled kernels that take part in training: attention of all queries, large products, and dropout.

Tensors are float32 on a CPU. What is called here knows no autograd; `ostinato.kernels.attention`, `large_products` and
`dropout` do, and have the plain twins.

Letters: B sentences, H heads of width K, G heads of keys, Q queries, S keys; N rows, D and F widths.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_float, c_int32, c_int64, c_void_p

import torch
from torch import Tensor

from ostinato.kernels.devices import is_plain_float32
from ostinato.kernels.native.build import library
from ostinato.kernels.native.calls import address, kernels, n_threads


def takes(*tensors: Tensor | None) -> bool:
    """Return whether compiled kernels may run on these, which may want gradients."""
    return is_plain_float32(*tensors) and library() is not None


class _Heads(ctypes.Structure):
    _fields_ = [("start", c_void_p), ("by_sentence", c_int64), ("by_head", c_int64), ("by_position", c_int64)]

    @classmethod
    def of(cls, x_BHTK: Tensor) -> _Heads:
        return cls(x_BHTK.data_ptr(), *x_BHTK.stride()[:3])


class _FullAttention(ctypes.Structure):
    _fields_ = [
        *((name, _Heads) for name in ("q", "k", "v", "y", "of_q", "of_k", "of_v")),
        *(("mask", c_void_p), ("mask_by_sentence", c_int64), ("mask_by_head", c_int64), ("mask_by_query", c_int64)),
        *(("kept", c_void_p), ("rows", c_void_p)),
        *((name, c_int64) for name in ("n_sentences", "n_heads", "n_kv_heads", "n_queries", "n_keys", "d_head")),
        *(("scale", c_float), ("makes_up", c_float), ("is_causal", c_int32)),
    ]


class FullAttention:
    """Attention of all queries, y = (kept softmax(scale q k^T + mask)) v, and its gradients.

    Args:
        q_BHQK, k_BGSK, v_BGSK: heads in any order in memory, the numbers of a head side by side; G divides H.
        mask: added to the scores, `[B or 1, H or 1, Q or 1, S]`, keys side by side, finite; None: nothing.
        kept_BHQS: one byte a weight, contiguous; None: all are kept. makes_up: what kept weights are multiplied by.
        is_causal: query t sees keys up to t.
    """

    def __init__(
        self,
        q_BHQK: Tensor,
        k_BGSK: Tensor,
        v_BGSK: Tensor,
        mask: Tensor | None,
        scale: float,
        kept_BHQS: Tensor | None,
        makes_up: float,
        *,
        is_causal: bool,
    ) -> None:
        self._tensors = q_BHQK, k_BGSK, v_BGSK, mask, kept_BHQS
        (B, H, Q, K), (_, G, S, _) = q_BHQK.shape, k_BGSK.shape
        self._sizes = B, H, G, Q, S, K
        found = self._structure = _FullAttention()
        found.q, found.k, found.v = (_Heads.of(x) for x in (q_BHQK, k_BGSK, v_BGSK))
        if mask is not None:
            strides = (0 if n == 1 else stride for n, stride in zip(mask.shape[:3], mask.stride(), strict=False))
            found.mask = mask.data_ptr()
            found.mask_by_sentence, found.mask_by_head, found.mask_by_query = strides
        found.kept = address(kept_BHQS)
        found.n_sentences, found.n_heads, found.n_kv_heads, found.n_queries, found.n_keys, found.d_head = self._sizes
        found.scale, found.makes_up, found.is_causal = scale, makes_up, is_causal

    def read(self) -> tuple[Tensor, Tensor]:
        """Return what every query reads, `[B, H, Q, K]`, and what the gradients need of every row, `[B, H, Q, 2]`.

        The heads of a position lie side by side in memory.
        """
        B, H, _, Q, _, K = self._sizes
        q_BHQK = self._tensors[0]
        y_BHQK, rows_BHQ2 = q_BHQK.new_empty(B, Q, H, K).transpose(1, 2), q_BHQK.new_empty(B, H, Q, 2)
        self._run(y_BHQK, rows_BHQ2, is_backward=False)
        return y_BHQK, rows_BHQ2

    def gradients(self, grad_BHQK: Tensor, rows_BHQ2: Tensor, of_q: Tensor, of_k: Tensor, of_v: Tensor) -> None:
        """Write the gradients of queries, keys and values, given that of what was read."""
        found = self._structure
        found.of_q, found.of_k, found.of_v = (_Heads.of(x) for x in (of_q, of_k, of_v))
        self._run(grad_BHQK, rows_BHQ2, is_backward=True)

    def _run(self, y_BHQK: Tensor, rows_BHQ2: Tensor, *, is_backward: bool) -> None:
        B, H, _, Q, S, K = self._sizes
        self._structure.y, self._structure.rows = _Heads.of(y_BHQK), rows_BHQ2.data_ptr()
        kernels().full_attention(byref(self._structure), is_backward, n_threads(B * H * Q * S * K))


class _LargeProduct(ctypes.Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("a", "b", "bias", "c")),
        *((name, c_int64) for name in ("n_rows", "n_columns", "n")),
        *((name, c_int64) for name in ("a_row", "a_column", "b_row", "b_column", "c_row")),
        ("adds", c_int32),
    ]


def large_product(a_ND: Tensor, b_DF: Tensor, bias_F: Tensor | None, out_NF: Tensor, *, adds: bool) -> None:
    """Write a b + bias to `out`, or add it to what is there.

    Args:
        a_ND, b_DF: rows or columns contiguous. bias_F: contiguous; None: none. out_NF: rows contiguous.
    """
    (N, D), F = a_ND.shape, b_DF.shape[1]
    given = a_ND.data_ptr(), b_DF.data_ptr(), address(bias_F), out_NF.data_ptr(), N, F, D
    found = _LargeProduct(*given, *a_ND.stride(), *b_DF.stride(), out_NF.stride(0), adds)
    kernels().large_product(byref(found), n_threads(N * F * D))


def draw_kept(level: int, kept: Tensor) -> None:
    """Write 1 into a contiguous tensor of bytes where the next byte of torch's generator is at least `level`, else 0.

    Args:
        level: 1 to 255.
    """
    state = torch.get_rng_state()
    kernels().draw_kept(state.data_ptr(), level, kept.data_ptr(), kept.numel())
    torch.set_rng_state(state)


def drop(x: Tensor, kept: Tensor, scale: float) -> Tensor:
    """Return scale kept x; both contiguous."""
    y = torch.empty_like(x)
    kernels().drop(x.data_ptr(), kept.data_ptr(), scale, y.data_ptr(), x.numel(), n_threads(x.numel()))
    return y


def add_dropped(residual: Tensor, x: Tensor, kept: Tensor, scale: float) -> Tensor:
    """Return residual + scale kept x; all contiguous."""
    y = torch.empty_like(x)
    given = residual.data_ptr(), x.data_ptr(), kept.data_ptr(), scale, y.data_ptr()
    kernels().add_dropped(*given, x.numel(), n_threads(x.numel()))
    return y


def drop_relu(x: Tensor, kept: Tensor, scale: float) -> None:
    """Replace x by scale kept max(0, x); both contiguous."""
    kernels().drop_relu(x.data_ptr(), kept.data_ptr(), scale, x.numel(), n_threads(x.numel()))


def drop_relu_gradient(grad: Tensor, y: Tensor, scale: float) -> Tensor:
    """Return the gradient of x, given that of the result y of `drop_relu`; both contiguous."""
    of_x = torch.empty_like(y)
    given = grad.data_ptr(), y.data_ptr(), scale, of_x.data_ptr()
    kernels().drop_relu_back(*given, y.numel(), n_threads(y.numel()))
    return of_x
