"""The buffer of keys and values against a plain one that copies everything at every change."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from ostinato.nn.attention import Attention
from ostinato.nn.cache import KeyValues
from ostinato.nn.keys_in_place import KeyValuesInPlace, Moves

H, K = 2, 3


class Plain:
    """Keys and values in a tensor of exactly their size."""

    def __init__(self, n_rows: int) -> None:
        self.kv = torch.zeros(2, n_rows, H, 0, K)

    def append(self, new: torch.Tensor) -> torch.Tensor:
        self.kv = torch.cat([self.kv, new], dim=3)
        return self.kv

    def select(self, rows: torch.Tensor) -> None:
        self.kv = self.kv[:, rows]


@st.composite
def moves(draw: st.DrawFn) -> list[tuple[str, int, int]]:
    """Draw what happens to a cache: positions that come, and hypotheses that move, multiply or leave."""
    kinds = st.sampled_from(["append", "append", "select"])
    return draw(st.lists(st.tuples(kinds, st.integers(1, 40), st.integers(0, 10_000)), min_size=1, max_size=12))


@given(st.integers(1, 4), moves())
def test_it_holds_what_a_plain_one_holds(n_rows: int, happens: list[tuple[str, int, int]]) -> None:
    ours, plain = KeyValues(), Plain(n_rows)
    for kind, size, seed in happens:
        generator = torch.Generator().manual_seed(seed)
        if kind == "append":
            # As projections give them: keys and values of a position side by side.
            new = torch.randn(n_rows, size, 2, H, K, generator=generator).permute(2, 0, 3, 1, 4)
            assert torch.equal(ours.append(new), plain.append(new))
            assert ours.length == plain.kv.shape[3]
        else:
            rows = torch.randint(n_rows, (1 + size % 6,), generator=generator)
            ours.select(rows)
            plain.select(rows)
            n_rows = len(rows)


def test_what_attention_reads_has_no_gaps_once_hypotheses_move_at_every_step() -> None:
    kv = KeyValues()
    for length in range(1, 6):
        kv.select(torch.arange(4))
        seen = kv.append(torch.randn(2, 4, H, 1, K))
        assert seen.shape[3] == length
        assert seen.is_contiguous()


def test_a_buffer_that_has_been_outgrown_is_freed() -> None:
    kv = KeyValues()
    for _ in range(33):
        kv.append(torch.randn(2, 1, H, 1, K))
    held = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
        for t in vars(kv).values()
        if t is not None and not isinstance(t, int)
    }
    assert sum(held.values()) == 4 * 2 * H * 64 * K


def test_two_buffers_take_turns() -> None:
    kv = KeyValues()
    places = []
    for _ in range(8):
        kv.select(torch.tensor([1, 0]))
        places.append(kv.append(torch.randn(2, 2, H, 1, K)).untyped_storage().data_ptr())
    assert len(set(places)) == 2
    assert places[:-2] == places[2:]


def read(kv: KeyValuesInPlace, n_rows: int) -> torch.Tensor:
    """Return what a kernel finds at every position of every hypothesis, `[2, B, H, S, K]`."""
    assert kv._kv_2RHSK is not None
    table, positions = kv.table().long(), torch.arange(kv.length)
    rows = [kv._kv_2RHSK[:, table[b], :, positions].permute(1, 2, 0, 3) for b in range(n_rows)]
    return torch.stack(rows, dim=1)


@given(st.integers(1, 4), moves())
def test_in_place_it_finds_what_a_plain_one_holds(n_rows: int, happens: list[tuple[str, int, int]]) -> None:
    attention = Attention(6, H, K, bias=False, dropout=0.0)
    shared = Moves()
    ours, plain = [KeyValuesInPlace(attention, shared) for _ in range(2)], Plain(n_rows)
    for kind, size, seed in happens:
        generator = torch.Generator().manual_seed(seed)
        if kind == "append":
            new = torch.randn(n_rows, size, 2, H, K, generator=generator).permute(2, 0, 3, 1, 4)
            for kv in ours if seed % 2 else ():
                assert torch.equal(kv.append(new), torch.cat([plain.kv, new], dim=3))
            for column in new.split(1, dim=3) if seed % 2 == 0 else ():
                for kv in ours:
                    keys = kv.next(n_rows, None)
                    keys.kv_2RHSK[:, :n_rows, :, kv.length - 1] = column.squeeze(3)  # as the kernel does
            plain.append(new)
        else:
            rows = torch.randint(n_rows, (1 + size % 6,), generator=generator)
            for kv in ours:
                kv.select(rows)
            assert ours[0].places_BS is ours[1].places_BS
            plain.select(rows)
            n_rows = len(rows)
        for kv in ours if ours[0].length else ():
            assert kv.length == plain.kv.shape[3]
            assert torch.equal(read(kv, n_rows), plain.kv)


def test_the_same_tensor_may_move_hypotheses_again_and_again() -> None:
    """Also when a block was full in between, and all positions were written in order."""
    attention, rows = Attention(6, H, K, bias=False, dropout=0.0), torch.tensor([1, 0])
    ours, plain = KeyValuesInPlace(attention, Moves()), Plain(2)
    for seed in range(80):
        new = torch.randn(2, 1, 2, H, K, generator=torch.Generator().manual_seed(seed)).permute(2, 0, 3, 1, 4)
        keys = ours.next(2, None)
        keys.kv_2RHSK[:, :2, :, ours.length - 1] = new.squeeze(3)
        plain.append(new)
        ours.select(rows)
        plain.select(rows)
        assert torch.equal(read(ours, 2), plain.kv)
