"""Projections, whose products are as fast in decoding as the device allows."""

from __future__ import annotations

from torch import nn

from ostinato.kernels import PackedMatrix, current_sums
from ostinato.nn.shapes import Float, Tensor


class Linear(nn.Linear):
    """x W^T + b, or some of its outputs: `torch.nn.Linear`, with packed copies of W where nothing is learned.

    Where the same W is learned by many steps, its gradients are added up in place: see `ostinato.kernels.sums`.
    """

    def __init__(self, in_features: int, out_features: int, *, bias: bool) -> None:
        super().__init__(in_features, out_features, bias=bias)
        self._packed = PackedMatrix()

    def forward(self, input: Float[Tensor, "*N D"]) -> Float[Tensor, "*N F"]:
        """Return all outputs."""
        return self._product(input, None)

    def part(self, x: Float[Tensor, "*N D"], start: int, end: int) -> Float[Tensor, "*N P"]:
        """Return outputs `start` to `end` only."""
        return self._product(x, slice(start, end))

    def _product(self, x: Tensor, rows: slice | None) -> Tensor:
        if (sums := current_sums()) is not None:
            return sums.product(x, self.weight, self.bias, rows)
        return self._packed.product(x, self.weight, self.bias, rows)
