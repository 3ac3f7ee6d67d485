"""Rows laid side by side, against one copy into another."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from architectures import draws
from ostinato.nn.rows import lay_rows, put_rows

WIDTH = 3


def twin(parts: list[tuple[Tensor, Tensor]], n: int) -> Tensor:
    laid = put_rows(parts[0][1], parts[0][0], n)
    for places, rows in parts[1:]:
        laid = laid.index_copy(0, places, rows)
    return laid


@draws(40)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.integers(0, 2), st.integers(0, 9))
def test_rows_and_their_gradients_are_those_of_copies(sizes: list[int], n_empty: int, seed: int) -> None:
    make = torch.Generator().manual_seed(seed)
    n = sum(sizes) + n_empty
    places = torch.randperm(n, generator=make)[: sum(sizes)].split(sizes)
    rows = [torch.randn(size, WIDTH, generator=make).requires_grad_(k != 1) for k, size in enumerate(sizes)]
    weights = torch.randn(n, WIDTH, generator=make)
    found = []
    for lay in (twin, lay_rows):
        laid = lay(list(zip(places, rows, strict=True)), n)
        learned = [part for part in rows if part.requires_grad]
        found.append([laid, *torch.autograd.grad((laid.square() * weights).sum(), learned)])
    for expected, actual in zip(*found, strict=True):
        assert torch.equal(actual, expected)
