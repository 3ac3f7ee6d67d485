"""What sub-layers are made of: projections, norms, dropout, and what stays exact under autocast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from ostinato.kernels import Draws, PackedMatrix, active_packing, active_sums, drop, product
from ostinato.nn.shapes import Float, Tensor


class Linear(nn.Linear):
    """x W^T + b, or some of its outputs: `torch.nn.Linear` with faster ways to make the same product.

    In a training pass the gradients of a W that many steps use are added up in place (`ostinato.kernels.sums`). In
    decoding, packed copies of W are read (`ostinato.kernels.packed`). Products of many rows may be made by a kernel
    (`ostinato.kernels.large_products`).
    """

    takes_rows = True

    def __init__(self, in_features: int, out_features: int, *, bias: bool) -> None:
        super().__init__(in_features, out_features, bias=bias)
        self._packed = PackedMatrix()

    def forward(self, input: Float[Tensor, "*N D"], rows: slice | None = None) -> Float[Tensor, "*N F"]:
        """Return all outputs, or those that `rows` of W make."""
        if torch.compiler.is_compiling():  # it knows no context variables, and makes a backward pass of its own
            return F.linear(input, *((x if rows is None or x is None else x[rows]) for x in (self.weight, self.bias)))
        if (sums := active_sums.get()) is not None:
            return sums.product(input, self.weight, self.bias, rows)
        if active_packing.get() is not None:
            return self._packed.product(input, self.weight, self.bias, rows)
        if rows is None:
            return product(input, self.weight, self.bias)
        return product(input, self.weight[rows], None if self.bias is None else self.bias[rows])


def some_outputs(map: nn.Module, x: Float[Tensor, "*N D"], rows: slice | None) -> Float[Tensor, "*N F"]:
    """Return those outputs of a map that `rows` of its W make; what is around one (LoRA) makes all of them first."""
    if rows is None:
        return map(x)  # type: ignore[no-any-return]
    return map(x, rows) if getattr(map, "takes_rows", False) else map(x)[..., rows]  # type: ignore[no-any-return]


class Blocks(NamedTuple):
    """What a map of a parameter set gives, by what is made of the same ones.

    Args:
        reads: width of what it reads. heights: outputs of every block. n_keys: the last blocks, which make keys and
            values.
    """

    reads: int
    heights: Sequence[int]
    n_keys: int = 0


class Dropping:
    """A module that drops units with a probability, in training only."""

    training: bool
    dropout: float

    def drop(self, x: Tensor, draws: Draws = "auto") -> Tensor:
        """Return x; in training with units dropped.

        Args:
            draws: where random numbers come from, see `ostinato.kernels.dropout`.
        """
        return drop(x, self.dropout, draws) if self.training and self.dropout else x


def build_norm(
    kind: Literal["layer", "rms"],
    width: int,
    eps: float,
    *,
    weight: bool = True,
    bias: bool = True,
    unit_offset: bool = False,
) -> nn.LayerNorm | nn.RMSNorm:
    """Return a norm over the last dimension, in float32 whatever the autocast type.

    layer: (x - mean) / sqrt(var + eps) * weight + bias     Ba et al. 2016
    rms:   x / sqrt(mean(x^2) + eps) * weight               Zhang and Sennrich 2019; T5's "layer norm"

    Args:
        weight: False: neither weight nor bias. bias: of layer normalisation. unit_offset: of rms, see `OffsetRMSNorm`.
    """
    if kind == "layer":
        return nn.LayerNorm(width, eps=eps, elementwise_affine=weight, bias=bias)
    return (OffsetRMSNorm if unit_offset else nn.RMSNorm)(width, eps=eps, elementwise_affine=weight)


class OffsetRMSNorm(nn.RMSNorm):
    """x / sqrt(mean(x^2) + eps) * (1 + weight): a weight of zero, at which it starts, changes nothing (Gemma).

    Weight decay draws the factor to one, where it draws that of a plain norm to zero.
    """

    def reset_parameters(self) -> None:
        """Start at zero."""
        nn.init.zeros_(self.weight)

    def forward(self, x: Float[Tensor, "*N D"]) -> Float[Tensor, "*N D"]:
        """Return x, normed."""
        return F.rms_norm(x, self.normalized_shape, 1.0 + self.weight, self.eps)


def at_least_float32(x: Tensor) -> Tensor:
    """Return x in float32, or in float64 where it is that."""
    return x if x.dtype == torch.float32 else x.to(torch.promote_types(x.dtype, torch.float32))
