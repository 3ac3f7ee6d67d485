"""What decoding could cost at best: its matrix products alone, into memory that is there already."""

from __future__ import annotations

from collections.abc import Callable

import torch
from decode_peers import Sizes

from ostinato.experiments.timing.workloads import Workload


def matmuls(sizes: Sizes, workload: Workload) -> Callable[[], None]:
    """Return a function that does all products of a search: projections, attention and output, with `torch.mm(out=)`.

    Matrices differ from layer to layer, as those of a model do; what is multiplied by them need not.
    """
    s, d = sizes, sizes.d_model
    n_source, rows = workload.batch_size * s.source_length, workload.batch_size * workload.beam
    maps = {"encoder": [(d, 3 * d), (d, d), (d, s.d_ff), (s.d_ff, d)], "memory": [(d, 2 * d)]}
    maps["decoder"] = [(d, 3 * d), (d, d), (d, d), (d, d), (d, s.d_ff), (s.d_ff, d)]
    weights = {
        part: [[torch.randn(shape) for shape in shapes] for _ in range(s.n_steps)] for part, shapes in maps.items()
    }
    output_DV = torch.randn(d, s.vocabulary)
    states = {n: {width: torch.randn(n, width) for width in (d, s.d_ff)} for n in (n_source, rows)}
    room = {n: {width: torch.empty(n, width) for width in (d, 2 * d, 3 * d, s.d_ff)} for n in (n_source, rows)}
    logits = torch.empty(rows, s.vocabulary)
    d_head = d // s.n_heads
    heads = rows * s.n_heads
    longest = max(s.source_length, s.target_length)
    keys = torch.randn(heads, longest, d_head)
    queries, mixed = torch.randn(heads, 1, d_head), torch.empty(heads, 1, d_head)
    scores = [torch.empty(heads, 1, length + 1) for length in range(longest)]

    def products(n: int, part: str) -> None:
        for layer in weights[part]:
            for weight in layer:
                torch.mm(states[n][weight.shape[0]], weight, out=room[n][weight.shape[1]])

    def attend(length: int) -> None:
        found = scores[length - 1]
        torch.bmm(queries, keys[:, :length].transpose(1, 2), out=found)
        torch.bmm(found, keys[:, :length], out=mixed)

    @torch.no_grad()
    def call() -> None:
        products(n_source, "encoder")
        products(n_source, "memory")
        for length in range(1, s.target_length + 1):
            products(rows, "decoder")
            for _ in range(s.n_steps):
                attend(length)
                attend(s.source_length)
            torch.mm(states[rows][d], output_DV, out=logits)

    return call
