"""Walking over the experts one by one: where the rows of each are read and where its results go.

The rows of one expert are taken out of their order and mapped while they are in the cache: the sorted rows of all
experts never stand in memory. What they give stands side by side, by place, until it is brought to its order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ostinato.kernels.dispatch import Dispatch, by_slot
from ostinato.kernels.memory import room_for_gradient

Order = Literal["rows", "slots", "places"]
"""How the rows of a tensor stand: N rows, N K slots (the choices of a row side by side), or M places sorted by expert.
"""


class Segment(NamedTuple):
    """An expert that has places: `start` to `end`, exclusive."""

    expert: int
    start: int
    end: int

    @property
    def places(self) -> slice:
        """The places of this expert."""
        return slice(self.start, self.end)

    @property
    def length(self) -> int:
        """How many they are."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a map: an order, and what leads from places to it (None: places themselves)."""

    order: Order
    to: Dispatch
    index_M: Tensor | None

    @classmethod
    def of(cls, order: Order, to: Dispatch) -> Side:
        """Return the side of an order."""
        return cls(order, to, {"rows": to.rows_M, "slots": to.slots_M, "places": None}[order])

    def take(self, x: Tensor, at: Segment) -> Tensor:
        """Return the rows of one expert; without an index a view."""
        if self.index_M is None:
            return x[at.places]
        return x.index_select(0, self.index_M[at.places])

    def bring(self, values_MF: Tensor, gates_M: Tensor | None = None) -> Tensor:
        """Return what stands by place in this order, weighted by gates of places: rows are sums over their places.

        Rows are bags of places, which torch adds up faster than it adds to rows (`Tensor.index_add_`, the plain twin).
        """
        if self.order == "rows":
            places_M, firsts_N = self.to.bags()
            weights_M = None if gates_M is None else gates_M[places_M]
            return torch.embedding_bag(values_MF, places_M, firsts_N, False, 0, False, weights_M)[0]
        if gates_M is not None:
            values_MF = values_MF * gates_M[:, None]
        return values_MF if self.order == "places" else by_slot(values_MF, self.to).flatten(0, 1)


def occupied(to: Dispatch) -> Iterator[Segment]:
    """Yield the experts that have places, in order."""
    for expert, (start, end) in enumerate(to.bounds()):
        if start < end:
            yield Segment(expert, start, end)


def product(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> Tensor:
    """Return x W + b, written to `out`."""
    return torch.mm(x, weight, out=out) if bias is None else torch.addmm(bias, x, weight, out=out)


def gates_of_places(gates_NK: Tensor | None, to: Dispatch, dtype: torch.dtype) -> Tensor | None:
    """Return the gate of every place, `[M]`."""
    return None if gates_NK is None else gates_NK.reshape(-1).index_select(0, to.slots_M).to(dtype)


def gates_gradient(grad_M: Tensor | None, gates_NK: Tensor | None, to: Dispatch) -> Tensor | None:
    """Return gradients of places as those of gates; 0 where a slot was left out."""
    if grad_M is None or gates_NK is None:
        return None
    flat = gates_NK.new_zeros(gates_NK.numel())
    return flat.index_copy_(0, to.slots_M, grad_M.to(flat.dtype)).view(gates_NK.shape)


class MapGradients:
    """Gradients of stacked weights and biases, filled expert by expert; those without rows are 0.

    Args:
        weight_EDF, bias_EF: what they are gradients of. needs_weight, needs_bias: which are wanted.
    """

    def __init__(self, weight_EDF: Tensor, bias_EF: Tensor | None, *, needs_weight: bool, needs_bias: bool) -> None:
        self.weight = room_for_gradient(weight_EDF) if needs_weight else None
        self.bias = None
        if needs_bias and bias_EF is not None:
            self.bias = torch.zeros_like(bias_EF, memory_format=torch.contiguous_format)

    def write(self, expert: int, x: Tensor, grad: Tensor) -> None:
        """Write the gradients of one expert, of the rows it read and the gradient of what it gave."""
        if self.weight is not None:
            torch.mm(x.t(), grad, out=self.weight[expert])
        if self.bias is not None:
            torch.sum(grad, 0, out=self.bias[expert])

    def skip_empty(self, to: Dispatch) -> None:
        """Set the gradients of experts without rows to 0; all others have been written."""
        if self.weight is not None:
            for expert, (start, end) in enumerate(to.bounds()):
                if start == end:
                    self.weight[expert].zero_()
