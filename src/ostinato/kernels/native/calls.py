"""The compiled kernels as functions of tensors: float32, on a CPU, rows contiguous, without gradients.

Nothing here looks at what it is given: who calls has made sure of types and shapes (`ostinato.nn.one_call`). Structures
hold addresses, so every one is kept beside the tensors it points into.

Letters: N rows, B hypotheses, H heads of width K, C choices of a token, D, F widths, S cached positions.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_float, c_int32, c_int64, c_void_p
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ostinato.kernels.activation import Activation
from ostinato.kernels.native.build import library

_ACTIVATIONS: dict[Activation | None, int] = {None: 0, "relu": 1, "gelu": 2, "geglu": 3}
_TANH = 4
_GATES = {"softmax": 0, "topk_softmax": 1, "sigmoid": 2}

_WORTH_A_THREAD = 2**14

_TYPES = {"p": c_void_p, "n": c_int64, "f": c_float}
_SIGNATURES = {
    "few_rows": "pppnn",
    "read_cache": "ppnnpnnpn",
    "chain": "pnppppnnn",
    "act_enter": "ppnpfnppp",
    "act_after": "pppnppnn",
    "stick_halt": "ppnpfpppppn",
}
"""What the functions take, in order: p an address, n a count, f a number."""
_COUNTING = {"act_enter", "stick_halt"}
"""They return a count, the others nothing."""


class NormOf(NamedTuple):
    """A norm over the last dimension: (x - mean) / sqrt(var + eps), or x / sqrt(mean(x^2) + eps), weighted."""

    is_rms: bool
    weight_D: Tensor | None
    bias_D: Tensor | None
    width: int
    eps: float


class RouteOf(NamedTuple):
    """A router and its gate: scores = (hidden or x) W^T / temperature, of which the k highest are chosen.

    Args:
        scores_EC: W. hidden: a map before it and its bias; None: there is none. has_tanh: behind that map.
        is_normalised: scores are cosines; rows of W have length 1 already.
        k, gate, is_renormalised: see `ostinato.nn.routing.Gate`.
    """

    scores_EC: Tensor
    hidden: tuple[Tensor, Tensor | None] | None
    has_tanh: bool
    is_normalised: bool
    temperature: float
    k: int
    gate: str
    is_renormalised: bool


class MatrixOf(ctypes.Structure):
    """A map: weight `[F, D]`, bias `[F]` or none."""

    _fields_ = [("weight", c_void_p), ("bias", c_void_p), ("n_in", c_int64), ("n_out", c_int64)]

    @classmethod
    def of(cls, weight_FD: Tensor, bias_F: Tensor | None) -> MatrixOf:
        """Return the map; who calls keeps both."""
        return cls(weight_FD.data_ptr(), address(bias_F), weight_FD.shape[1], weight_FD.shape[0])

    @classmethod
    def of_part(cls, weight: Tensor, bias: Tensor | None) -> MatrixOf:
        """Return a map, or those of experts, `[E, D, F]`, of which a router chooses."""
        if weight.dim() == 2:
            return cls.of(weight, bias)
        return cls(weight.data_ptr(), address(bias), weight.shape[1], weight.shape[2])


class _Norm(ctypes.Structure):
    _fields_ = [
        *(("weight", c_void_p), ("bias", c_void_p), ("width", c_int64)),
        *(("eps", c_float), ("kind", c_int32), ("is_before", c_int32)),
    ]

    @classmethod
    def of(cls, norm: NormOf | None, *, is_before: bool) -> _Norm:
        if norm is None:
            return cls()
        return cls(address(norm.weight_D), address(norm.bias_D), norm.width, norm.eps, norm.is_rms, is_before)


class _Route(ctypes.Structure):
    _fields_ = [
        *(("hidden", MatrixOf), ("scores", MatrixOf), ("is_normalised", c_int64)),
        *(("n_chosen", c_int64), ("gate", c_int64), ("is_renormalised", c_int64)),
        *(("hidden_activation", c_int64), ("factor", c_float)),
    ]

    @classmethod
    def of(cls, route: RouteOf) -> _Route:
        hidden = MatrixOf() if route.hidden is None else MatrixOf.of(*route.hidden)
        gate = route.k, _GATES[route.gate], route.is_renormalised
        scores = MatrixOf.of(route.scores_EC, None)
        return cls(hidden, scores, route.is_normalised, *gate, _TANH * route.has_tanh, 1.0 / route.temperature)


class _Attention(ctypes.Structure):
    _fields_ = [
        *(("norm", _Norm), ("route", c_void_p)),
        *(("queries", MatrixOf), ("keys_values", MatrixOf), ("output", MatrixOf)),
    ]


class _FeedForward(ctypes.Structure):
    _fields_ = [("norm", _Norm), ("route", c_void_p), ("up", MatrixOf), ("down", MatrixOf), ("activation", c_int64)]


class _Keys(ctypes.Structure):
    _fields_ = [
        *(("buffer", c_void_p), ("value_stride", c_int64), ("row_stride", c_int64), ("head_stride", c_int64)),
        *(("length", c_int64), ("places", c_void_p), ("n_placed", c_int64)),
        *(("keep", c_void_p), ("keep_stride", c_int64), ("n_beams", c_int64), ("rows", c_void_p)),
        *(("n_heads", c_int64), ("d_head", c_int64), ("n_choices", c_int64), ("scale", c_float)),
    ]


class _Link(ctypes.Structure):
    _fields_ = [("attention", c_void_p), ("feed_forward", c_void_p), ("keys", c_void_p)]


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


Map = tuple[Tensor, Tensor | None]
"""Weight and bias: `[F, D]` and `[F]`, or those of experts, `[E, D, F]` and `[E, F]`."""


class _Routes:
    """Where the rows of a sub-layer go: to experts, or all the same way.

    Args:
        route: None: there are no experts. maps: all of the sub-layer's.
    """

    def __init__(self, route: RouteOf | None, *maps: Map) -> None:
        self._route = None if route is None else _Route.of(route)
        self.address = None if self._route is None else ctypes.addressof(self._route)
        self.k, hidden = (1, None) if route is None else (route.k, route.hidden)
        self.width = 0 if hidden is None else hidden[0].shape[0]
        run = [weight if weight.dim() == 2 else weight[: self.k] for weight, _ in maps]
        self.n_weights = sum(weight.numel() for weight in run)


class AttentionLink:
    """One attention sub-layer of a new position a sentence: norm, projections, reading, and what they are added to.

    Args:
        norm: None: there is none. is_before: pre-norm.
        queries, keys_values, output: keys_values None: they are made elsewhere.
        route: with it queries and output are those of experts.
    """

    def __init__(
        self,
        norm: NormOf | None,
        *,
        is_before: bool,
        queries: Map,
        keys_values: Map | None,
        output: Map,
        route: RouteOf | None = None,
    ) -> None:
        made = MatrixOf() if keys_values is None else MatrixOf.of(*keys_values)
        routes = _Routes(route, queries, output, *(() if keys_values is None else (keys_values,)))
        self._held: Any = (norm, queries, keys_values, output, route, routes)
        of_norm, maps = _Norm.of(norm, is_before=is_before), (MatrixOf.of_part(*queries), made)
        self.call = _Attention(of_norm, routes.address, *maps, MatrixOf.of_part(*output))
        # Queries, keys and values, what is read, and what a router makes in between.
        self.width = 2 * routes.k * maps[0].n_out + made.n_out + routes.width
        self.n_weights = routes.n_weights


class FeedForwardLink:
    """One feed-forward sub-layer: norm, both maps, and what they are added to. Arguments as of `AttentionLink`."""

    def __init__(
        self,
        norm: NormOf | None,
        activation: Activation,
        *,
        is_before: bool,
        up: Map,
        down: Map,
        route: RouteOf | None = None,
    ) -> None:
        routes = _Routes(route, up, down)
        self._held: Any = (norm, up, down, route, routes)
        first, second = MatrixOf.of_part(*up), MatrixOf.of_part(*down)
        of_norm = _Norm.of(norm, is_before=is_before)
        self.call = _FeedForward(of_norm, routes.address, first, second, _ACTIVATIONS[activation])
        self.width = routes.k * (second.n_in + (first.n_out if activation == "geglu" else 0)) + routes.width
        self.n_weights = routes.n_weights


class Chain:
    """Sub-layers that follow each other, in one call."""

    def __init__(self, links: Sequence[AttentionLink | FeedForwardLink]) -> None:
        self._held: Any = links
        self._links = (_Link * len(links))()
        for made, link in zip(self._links, links, strict=True):
            name = "attention" if isinstance(link, AttentionLink) else "feed_forward"
            setattr(made, name, ctypes.addressof(link.call))
        self._width = max(link.width for link in links)
        self._n_weights = sum(link.n_weights for link in links)
        self._keys: list[CachedKeys | None] = [None] * len(links)

    def read(self, index: int, keys: CachedKeys) -> None:
        """Say what the attention at this place in the chain reads."""
        if self._keys[index] is not keys:
            self._keys[index] = keys
            self._links[index].keys = ctypes.addressof(keys.keys)

    def __call__(self, x_ND: Tensor, shown_ND: Tensor | None = None) -> Tensor:
        """Return the states after the last sub-layer.

        Args:
            shown_ND: what an attention in the first place makes keys and values of; None: the states. New keys and
                values are put at the last position.
        """
        N, D = x_ND.shape
        y_ND, work = torch.empty_like(x_ND), room(N * (D + self._width))
        addresses = (x_ND.data_ptr(), address(shown_ND), y_ND.data_ptr(), work.data_ptr())
        kernels().chain(self._links, len(self._links), *addresses, N, D, n_threads(N * self._n_weights))
        return y_ND


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
    for name, signature in _SIGNATURES.items():
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
