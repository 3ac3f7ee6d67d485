"""Reads a model's weights apart into what the papers' equations name, so that the twins know nothing of packing."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True)
class Affine:
    """y = W x + b, W: [out, in]."""

    W: Tensor
    b: Tensor | None

    def __call__(self, x_D: Tensor) -> Tensor:
        y = (self.W * x_D).sum(-1)
        return y if self.b is None else y + self.b


@dataclass(frozen=True)
class Heads:
    """Projections of every head of an attention, and the output projection."""

    query: list[Affine]
    key: list[Affine]
    value: list[Affine]
    out: Affine
    d_head: int


def read_affine(linear: nn.Module, start: int = 0, end: int | None = None) -> Affine:
    """Return the rows start .. end of a linear layer."""
    weight, bias = linear.weight, linear.bias
    assert isinstance(weight, Tensor)
    return Affine(weight[start:end], None if bias is None else bias[start:end])  # type: ignore[index,arg-type]


def read_heads(module: nn.Module, n_heads: int, d_head: int) -> Heads:
    """Take packed projections apart: rows are queries, keys, values; within each, one head after the other."""
    blocks = []
    for block in range(3):
        first = block * n_heads * d_head
        starts = [first + head * d_head for head in range(n_heads)]
        blocks.append([read_affine(module.qkv, start, start + d_head) for start in starts])  # type: ignore[arg-type]
    return Heads(*blocks, out=read_affine(module.out), d_head=d_head)  # type: ignore[arg-type]
