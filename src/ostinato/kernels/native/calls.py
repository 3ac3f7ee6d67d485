"""The compiled kernels as functions of tensors: float32, on a CPU.

Types, shapes and strides are not checked here, and no gradient is recorded: callers see to both
(`ostinato.nn.compiled`, `kernels.packed` and `log_probs` in decoding; elsewhere `takes`, and `kernels.attention`,
`large_products`, `grouped_products` and `dropout`, which have the plain twins). Structures hold addresses, so every one
is kept beside the tensors it points into.

Letters: N rows, B hypotheses or sentences, H heads of width K, G heads of keys, C choices of a token, D, F widths,
Q queries, S keys.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_float, c_int32, c_int64, c_void_p
from functools import lru_cache
from threading import Lock

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from ostinato.kernels.native.build import SIGNATURES, library

_WORTH_A_THREAD = 2**14
_drawing = Lock()

_PLAIN = (Tensor, nn.Parameter)

_TYPES = {"p": c_void_p, "n": c_int64, "f": c_float}
_COUNTING = {"act_enter", "stick_halt", "full_attention", "large_product", "grouped_products"}
"""They return a number, the others nothing."""


class MatrixOf(ctypes.Structure):
    """A map: weight `[F, D]`, or those of experts, `[E, D, F]`; bias or none."""

    _fields_ = [("weight", c_void_p), ("bias", c_void_p), ("n_in", c_int64), ("n_out", c_int64)]

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None) -> MatrixOf:
        """Return the map; who calls keeps both."""
        n_in, n_out = weight.shape[1:] if weight.dim() == 3 else weight.shape[::-1]
        return cls(weight.data_ptr(), address(bias), n_in, n_out)


class _Seen(ctypes.Structure):
    _fields_ = [
        *(("length", c_int64), ("places", c_void_p), ("n_placed", c_int64)),
        *(("keep", c_void_p), ("keep_stride", c_int64)),
    ]


class Seen:
    """Which positions are seen of cached keys, by all sub-layers that look at the same ones."""

    def __init__(self) -> None:
        self.structure = _Seen()
        self._held: tuple[Tensor | None, Tensor | None] = (None, None)

    def set(self, length: int, places_BS: Tensor | None = None, keep_BS: Tensor | None = None) -> None:
        """Say what is read next.

        Args:
            length: positions, new ones included.
            places_BS: int32, rows of the buffer in which the first positions of every hypothesis lie; None: its own.
            keep_BS: real positions, rows contiguous; None: all.
        """
        found, (places, keep) = self.structure, self._held
        found.length, self._held = length, (places_BS, keep_BS)
        # To set an address takes longer than to see that it is still the same.
        if places is not places_BS:
            found.places, found.n_placed = address(places_BS), 0 if places_BS is None else places_BS.shape[1]
        if keep is not keep_BS:
            found.keep, found.keep_stride = address(keep_BS), 0 if keep_BS is None else keep_BS.stride(0)


class _Keys(ctypes.Structure):
    _fields_ = [
        *(("buffer", c_void_p), ("value_stride", c_int64), ("row_stride", c_int64), ("head_stride", c_int64)),
        *(("seen", c_void_p), ("n_beams", c_int64), ("rows", c_void_p)),
        *(("n_heads", c_int64), ("d_head", c_int64), ("n_choices", c_int64), ("scale", c_float)),
    ]


class CachedKeys:
    """Keys and values as attention finds them, `[2, R, H, room, K]`, and who reads what of them.

    Args:
        kv_2RHSK: a buffer, the last dimension contiguous, positions side by side. scale: of the scores.
        n_choices: C, queries of one token by head. seen: which positions are seen; None: see `see`.
        n_beams: hypotheses that share a row.
    """

    def __init__(
        self,
        kv_2RHSK: Tensor,
        scale: float,
        n_choices: int = 1,
        *,
        seen: Seen | None = None,
        n_beams: int = 1,
    ) -> None:
        self.kv_2RHSK, self.seen = kv_2RHSK, Seen() if seen is None else seen
        self._rows_N: Tensor | None = None
        _, self.n_rows, H, self.room, K = kv_2RHSK.shape
        value, row, head, _, _ = kv_2RHSK.stride()
        of_search = ctypes.addressof(self.seen.structure), n_beams, None
        self.keys = _Keys(kv_2RHSK.data_ptr(), value, row, head, *of_search, H, K, n_choices, scale)

    def see(self, length: int, places_BS: Tensor | None = None, keep_BS: Tensor | None = None) -> CachedKeys:
        """Say what is read next, see `Seen`, and return this."""
        self.seen.set(length, places_BS, keep_BS)
        return self

    def ask(self, rows_N: Tensor | None) -> None:
        """Say which hypothesis every query is of, int64; None: in order."""
        if self._rows_N is not rows_N:
            self._rows_N, self.keys.rows = rows_N, address(rows_N)


def few_rows(x_ND: Tensor, weight_FD: Tensor, bias_F: Tensor | None) -> Tensor:
    """Return x W^T + b, `[..., F]`, reading W once, as it lies. Plain twin: `torch.nn.functional.linear`."""
    x_ND, y_NF = x_ND.contiguous(), x_ND.new_empty(*x_ND.shape[:-1], weight_FD.shape[0])
    matrix, n_rows = MatrixOf.of(weight_FD, bias_F), x_ND.numel() // x_ND.shape[-1]
    kernels().few_rows(byref(matrix), x_ND.data_ptr(), y_NF.data_ptr(), n_rows, n_threads(n_rows * weight_FD.numel()))
    return y_NF


def log_probs(x_NV: Tensor, added_N: Tensor, never: tuple[int, ...]) -> Tensor:
    """Return added - log sum_v e^x of every row, as `added` is laid out, and set x = -inf in some columns.

    All contiguous. Plain twin: `torch.log_softmax`.

    Raises:
        IndexError: there is no such column.
    """
    (N, V), y_N = x_NV.shape, torch.empty_like(added_N)
    if not all(0 <= column < V for column in never):  # else kernels would write beside the row
        raise IndexError(f"there are {V} columns, and not all of {never}")
    given = x_NV.data_ptr(), added_N.data_ptr(), y_N.data_ptr(), N, V
    kernels().log_probs(*given, _numbers(never), len(never), n_threads(N * V))
    return y_N


@lru_cache(maxsize=64)
def _numbers(numbers: tuple[int, ...]) -> ctypes.Array[c_int64]:
    return (c_int64 * len(numbers))(*numbers)


def highest(x_NPV: Tensor, n: int, added_NP: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the n <= P V highest of all x + a of every row, highest first, their parts and their columns, `[N, n]`.

    All contiguous. Of equal numbers the first ones. Plain twin: `torch.topk`.
    """
    (N, P, V), values_Nn = x_NPV.shape, x_NPV.new_empty(x_NPV.shape[0], n)
    parts_Nn = torch.empty_like(values_Nn, dtype=torch.int64)
    columns_Nn = torch.empty_like(parts_Nn)
    found = values_Nn.data_ptr(), parts_Nn.data_ptr(), columns_Nn.data_ptr()
    kernels().highest(x_NPV.data_ptr(), added_NP.data_ptr(), N, P, V, n, *found, n_threads(x_NPV.numel()))
    return values_Nn, parts_Nn, columns_Nn


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
        byref(keys.keys), *of_queries, *of_new, y_NI.data_ptr(), n_threads(q_NI.numel() * keys.seen.structure.length)
    )
    return y_NI


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
        if kernels().full_attention(byref(self._structure), is_backward, n_threads(B * H * Q * S * K)):
            raise MemoryError(f"there is no memory for attention to {S:,} keys")


class _Product(ctypes.Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("a", "b", "bias", "c")),
        *((name, c_int64) for name in ("n_rows", "n_columns", "n")),
        *((name, c_int64) for name in ("a_row", "a_column", "b_row", "b_column", "c_row")),
        *(("adds", c_int32), ("is_transposed", c_int32)),
        *((name, c_void_p) for name in ("a_index", "b_index", "weights", "sums")),
    ]

    @classmethod
    def of(cls, a_ND: Tensor, b_DF: Tensor, bias_F: Tensor | None, out_NF: Tensor) -> _Product:
        """Return the product c = a b + bias; who calls keeps all of them."""
        (N, D), F = a_ND.shape, b_DF.shape[1]
        given = a_ND.data_ptr(), b_DF.data_ptr(), address(bias_F), out_NF.data_ptr(), N, F, D
        is_transposed = a_ND.stride(1) != 1
        return cls(*given, *a_ND.stride(), *b_DF.stride(), out_NF.stride(0), False, is_transposed)


def large_product(a_ND: Tensor, b_DF: Tensor, bias_F: Tensor | None, out_NF: Tensor, *, adds: bool) -> None:
    """Write a b + bias to `out`, or add it to what is there.

    Args:
        a_ND, b_DF: rows or columns contiguous. bias_F: contiguous; None: none. out_NF: rows contiguous.
    """
    found = _Product.of(a_ND, b_DF, bias_F, out_NF)
    found.adds = adds
    if kernels().large_product(byref(found), n_threads(out_NF.numel() * a_ND.shape[1])):
        raise MemoryError(f"there is no memory for a product of {a_ND.shape[0]:,} rows")


class _GroupedProducts(ctypes.Structure):
    _fields_ = [
        *(("all", _Product), ("ends", c_void_p)),
        *(("n_groups", c_int64), ("b_group", c_int64), ("c_group", c_int64), ("is_by_sums", c_int32)),
    ]

    def run(self, n_products: int) -> None:
        if kernels().grouped_products(byref(self), n_threads(n_products)):
            raise MemoryError("there is no memory for products of experts")


def grouped_products(
    x_ND: Tensor,
    index_M: Tensor | None,
    weight_EDF: Tensor,
    bias_EF: Tensor | None,
    ends_E: Tensor,
    out_MF: Tensor,
) -> None:
    """Write x W + b to `out`, of every place's row and expert.

    Args:
        x_ND: rows contiguous. index_M: int64, the row of every place; None: rows are places.
        weight_EDF: rows or columns contiguous. bias_EF: contiguous. ends_E: int32, where the places of an expert end.
        out_MF: rows contiguous.
    """
    found = _GroupedProducts(_Product.of(x_ND, weight_EDF[0], bias_EF, out_MF))
    found.all.a_index, found.ends, found.n_groups = address(index_M), ends_E.data_ptr(), ends_E.shape[0]
    found.b_group = weight_EDF.stride(0)
    found.run(out_MF.numel() * x_ND.shape[1])


def grouped_gradients(
    x_ND: Tensor,
    x_index_M: Tensor | None,
    grad_NF: Tensor,
    grad_index_M: Tensor | None,
    gates_M: Tensor | None,
    ends_E: Tensor,
    of_weight_EDF: Tensor,
    of_bias_EF: Tensor | None,
) -> None:
    """Write the sums over an expert's places of x^T g dy and of g dy.

    Args:
        x_ND, grad_NF: rows contiguous. x_index_M, grad_index_M: int64, the row of every place; None: rows are places.
        gates_M: g, contiguous; None: 1. of_weight_EDF, of_bias_EF: contiguous; of the latter None: not wanted.
    """
    found = _GroupedProducts(_Product.of(x_ND.t(), grad_NF, None, of_weight_EDF[0]))
    found.all.is_transposed, found.is_by_sums = True, True
    found.all.a_index, found.all.b_index = address(x_index_M), address(grad_index_M)
    found.all.weights, found.all.sums = address(gates_M), address(of_bias_EF)
    found.ends, found.n_groups, found.c_group = ends_E.data_ptr(), ends_E.shape[0], of_weight_EDF.stride(0)
    n_places = max(x.shape[0] for x in (x_ND, grad_NF))
    found.run(n_places * of_weight_EDF[0].numel())


def row_products(a_ND: Tensor, index_M: Tensor | None, b_MD: Tensor) -> Tensor:
    """Return the product of every row of b and its row of a, `[M]`.

    Args:
        a_ND, b_MD: rows contiguous. index_M: int64, the row of a; None: the same.
    """
    (M, D), y_M = b_MD.shape, b_MD.new_empty(b_MD.shape[0])
    of_a, of_b = (a_ND.data_ptr(), a_ND.stride(0), address(index_M)), (b_MD.data_ptr(), b_MD.stride(0))
    kernels().row_products(*of_a, *of_b, y_M.data_ptr(), M, D, n_threads(M * D))
    return y_M


def draw_kept(level: int, kept: Tensor, generator: torch.Generator = torch.default_generator) -> None:
    """Write 1 into a contiguous tensor of bytes where the next byte of a generator is at least `level`, else 0.

    Args:
        level: 1 to 255. generator: torch's, of the CPU.
    """
    # Of two threads that draw at once the second goes on where the first has ended. Draws of torch's own wait for no
    # lock of ours: a thread that makes them at the same time may get the same numbers.
    with _drawing:
        state = generator.get_state()
        kernels().draw_kept(state.data_ptr(), level, kept.data_ptr(), kept.numel())
        generator.set_state(state)


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


def drop_relu_gradient(grad: Tensor, y: Tensor, scale: float, out: Tensor) -> None:
    """Write the gradient of x, given that of the result y of `drop_relu`; all contiguous, `out` perhaps `grad`."""
    given = grad.data_ptr(), y.data_ptr(), scale, out.data_ptr()
    kernels().drop_relu_gradient(*given, y.numel(), n_threads(y.numel()))


def takes(*tensors: Tensor | None) -> bool:
    """Return whether compiled kernels may run on these, which may want gradients."""
    return is_plain_float32(*tensors) and has_kernels()


def is_transformed(*tensors: Tensor | None) -> bool:
    """Return whether operations on tensors are traced, counted or transformed: compiled, exported, by `torch.func`, as
    batched gradients, by forward-mode differentiation. Then only torch's own operations may be used: others go unseen.
    """
    if torch.compiler.is_compiling() or is_in_torch_dispatch_mode() or torch._C._are_functorch_transforms_active():
        return True
    if forward_ad._current_level >= 0:
        return True
    is_wrapped, is_batch = torch._C._functorch.is_functorch_wrapped_tensor, torch._C._functorch.is_legacy_batchedtensor
    return any(x is not None and (is_wrapped(x) or is_batch(x)) for x in tensors)


def is_plain_float32(*tensors: Tensor | None) -> bool:
    """Return whether these are numbers on a CPU that stay float32, and nothing transforms what is done with them."""
    for x in tensors:  # a loop, which is faster than a generator: decoding asks this of every token
        if x is not None and (type(x) not in _PLAIN or not x.is_cpu or x.dtype is not torch.float32):
            return False
    if torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") is not torch.float32:
        return False
    return not is_transformed(*tensors)


@lru_cache(maxsize=1)
def has_kernels() -> bool:
    """Return whether there are compiled kernels on this machine."""
    return library() is not None


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
