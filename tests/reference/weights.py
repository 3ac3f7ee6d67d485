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


def read_heads(module: nn.Module, n_heads: int, n_kv_heads: int, d_head: int) -> Heads:
    """Take packed projections apart: rows are queries, keys, values; within each, one head after the other.

    Heads of queries that share a head of keys and values are neighbours. Vectors that are added to queries and keys
    alone stand in one tensor, queries first.
    """
    first = 0
    blocks: list[list[Affine]] = []
    for n in (n_heads, n_kv_heads, n_kv_heads):
        maps = [read_affine(module.qkv, first + h * d_head, first + (h + 1) * d_head) for h in range(n)]  # type: ignore[arg-type]
        if module.qk_bias is not None and len(blocks) < 2:
            rows = [slice(first + h * d_head, first + (h + 1) * d_head) for h in range(n)]
            maps = [Affine(one.W, module.qk_bias[row]) for one, row in zip(maps, rows, strict=True)]  # type: ignore[index]
        blocks.append([maps[h // (n_heads // n)] for h in range(n_heads)])
        first += n * d_head
    return Heads(*blocks, out=read_affine(module.out), d_head=d_head)  # type: ignore[arg-type]


def of_token(module: nn.Module, head: int, keyed_D: Tensor, token: int) -> Tensor:
    """Return what a token adds to its value of one head of keys: 2 sigmoid(w x[:C]) times its row of the head."""
    table_VJ, gate_HC = module.table_VJ, module.gate.weight  # type: ignore[union-attr]
    assert isinstance(table_VJ, Tensor)
    assert isinstance(gate_HC, Tensor)
    n_heads, width = gate_HC.shape
    d_head = table_VJ.shape[1] // n_heads
    row_K = table_VJ[token, head * d_head : (head + 1) * d_head]
    return 2 * (gate_HC[head] * keyed_D[:width]).sum().sigmoid() * row_K
