"""The highest of many numbers, found by blocks, against ranking all of them."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from ostinato.decoding.proposals import highest


@given(st.integers(1, 4), st.integers(8, 300), st.integers(1, 8), st.integers(1, 16), st.integers(0, 99), st.booleans())
def test_by_blocks_it_finds_what_ranking_everything_finds(
    n_rows: int, n_numbers: int, n: int, width: int, seed: int, has_ties: bool
) -> None:
    make = torch.Generator().manual_seed(seed)
    x = torch.randn(n_rows, n_numbers, generator=make)
    x = x.round() if has_ties else x
    x[:, :: 1 + seed % 7] = -torch.inf
    values, places = highest(x, n, width=width, least=0)
    assert torch.equal(values, x.topk(n, dim=1).values)
    assert torch.equal(x.gather(1, places), values)
    assert all(len(set(row)) == n for row in places.tolist())
