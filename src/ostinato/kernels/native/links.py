"""Sub-layers of a new position a sentence as compiled kernels, any number of them in one call.

Structures hold addresses, so every one is kept beside the tensors it points into. Letters: N rows, D, F widths, E
experts, C width of what their scores are made of.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_float, c_int32, c_int64, c_void_p
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ostinato.kernels.activation import GATES, Activation
from ostinato.kernels.native.calls import CachedKeys, MatrixOf, address, kernels, n_threads, room
from ostinato.kernels.native.gates import HaltsBy

_ACTIVATIONS: dict[Activation, int] = {"relu": 1, "gelu": 2, "relu2": 3, "gelu_tanh": 4, "silu": 5}
_TANH = 6
_GATES = {"softmax": 0, "topk_softmax": 1, "sigmoid": 2}


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
        top_k, gate, is_renormalised: see `ostinato.nn.routing.Gate`.
    """

    scores_EC: Tensor
    hidden: tuple[Tensor, Tensor | None] | None
    has_tanh: bool
    is_normalised: bool
    temperature: float
    top_k: int
    gate: str
    is_renormalised: bool


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
        gate = route.top_k, _GATES[route.gate], route.is_renormalised
        scores = MatrixOf.of(route.scores_EC, None)
        return cls(hidden, scores, route.is_normalised, *gate, _TANH * route.has_tanh, 1.0 / route.temperature)


class _Attention(ctypes.Structure):
    _fields_ = [
        *(("norm", _Norm), ("route", c_void_p)),
        *(("queries", MatrixOf), ("keys_values", MatrixOf), ("output", MatrixOf)),
    ]


class _FeedForward(ctypes.Structure):
    _fields_ = [("norm", _Norm), ("route", c_void_p), ("up", MatrixOf), ("down", MatrixOf), ("activation", c_int64)]


class _Link(ctypes.Structure):
    _fields_ = [
        *(("attention", c_void_p), ("feed_forward", c_void_p), ("keys", c_void_p)),
        *(("added", c_void_p), ("added_stride", c_int64)),
    ]


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
        self.top_k, hidden = (1, None) if route is None else (route.top_k, route.hidden)
        self.width = 0 if hidden is None else hidden[0].shape[0]
        run = [weight if weight.dim() == 2 else weight[: self.top_k] for weight, _ in maps]
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
        of_norm, maps = _Norm.of(norm, is_before=is_before), (MatrixOf.of(*queries), made)
        self.call = _Attention(of_norm, routes.address, *maps, MatrixOf.of(*output))
        # Queries, keys and values, what is read, and what a router makes in between.
        self.width = 2 * routes.top_k * maps[0].n_out + made.n_out + routes.width
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
        first, second = MatrixOf.of(*up), MatrixOf.of(*down)
        of_norm = _Norm.of(norm, is_before=is_before)
        self.call = _FeedForward(
            of_norm, routes.address, first, second, _ACTIVATIONS[GATES.get(activation, activation)]
        )
        self.width = routes.top_k * (second.n_in + (first.n_out if activation in GATES else 0)) + routes.width
        self.n_weights = routes.n_weights


class Chain:
    """Sub-layers that follow each other, in one call: of one round, or of several.

    Args:
        last: a norm of what leaves the last one; None: there is none.
    """

    def __init__(self, links: Sequence[AttentionLink | FeedForwardLink], last: NormOf | None = None) -> None:
        self.links, self._held, self._last = links, last, _Norm.of(last, is_before=False)
        self._links = (_Link * len(links))()
        for made, link in zip(self._links, links, strict=True):
            name = "attention" if isinstance(link, AttentionLink) else "feed_forward"
            setattr(made, name, ctypes.addressof(link.call))
        self._width = max(link.width for link in links)
        self._n_weights = sum(link.n_weights for link in links)
        self._keys: list[CachedKeys | None] = [None] * len(links)
        self._work, self._added = room(0), room(0)

    def forget(self) -> None:
        """Hold no keys; what is read has to be said anew."""
        self._keys = [None] * len(self._keys)

    def read(self, index: int, keys: CachedKeys) -> None:
        """Say what the attention at this place in the chain reads."""
        if self._keys[index] is not keys:
            self._keys[index] = keys
            self._links[index].keys = ctypes.addressof(keys.keys)

    def add(self, places: Sequence[int], added_RND: Tensor) -> None:
        """Say what is added to the states before the sub-layers at some places, not the first: `[R, N, D]`, or
        `[R, 1, D]`, contiguous."""
        self._added, (_, N, D) = added_RND, added_RND.shape
        start, size = added_RND.data_ptr(), N * D * added_RND.element_size()
        for number, place in enumerate(places):
            link = self._links[place]
            link.added, link.added_stride = start + number * size, D if N > 1 else 0

    def __call__(self, x_ND: Tensor, shown_ND: Tensor | None = None) -> Tensor:
        """Return the states after the last sub-layer, and the last norm.

        Args:
            shown_ND: what an attention in the first place makes keys and values of; None: the states. New keys and
                values are put at the last position.
        """
        N, D = x_ND.shape
        y_ND = torch.empty_like(x_ND)
        addresses = (byref(self._last), x_ND.data_ptr(), address(shown_ND), y_ND.data_ptr(), self._room(N, D))
        kernels().chain(self._links, len(self._links), *addresses, N, D, n_threads(N * self._n_weights))
        return y_ND

    def rounds(self, x_ND: Tensor, n_rounds: int, rule: HaltsBy) -> Tensor:
        """Run up to `n_rounds` rounds of the same sub-layers, in which rows may halt; return their outputs, `[N, D]`.

        An output is the mix of states by the gate's weights or, where the rule is numbers of rounds, the last state;
        then comes the last norm. Keys and values of all rows are put at the last position of every round: those of rows
        that have halted are made of their last state (stick-breaking: of their output so far).

        Raises:
            ValueError: a rule of another number of rows.
        """
        (N, D), n_links = x_ND.shape, len(self.links) // n_rounds
        if rule.n_rows not in (None, N):  # else kernels would read beyond them
            raise ValueError(f"rounds are prescribed for {rule.n_rows} rows, and there are {N}")
        y_ND = torch.empty_like(x_ND)
        addresses = (x_ND.data_ptr(), y_ND.data_ptr(), self._room(N, D))
        threads = n_threads(N * self._n_weights // n_rounds)
        rules = byref(self._last), byref(rule.structure)
        kernels().rounds(self._links, n_links, n_rounds, *rules, *addresses, N, D, threads)
        return y_ND

    def _room(self, N: int, D: int) -> int:
        """Return where there is memory for what lies between sub-layers."""
        if self._work.numel() < (n := N * (D + self._width)):
            self._work = room(n)
        return self._work.data_ptr()
