"""Absolute positions against the formulas of the papers."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch

from ostinato.config.model import Seq2SeqConfig
from ostinato.models import build_model
from ostinato.nn.positions import Coordinates, Sinusoidal, positions_from_keep, sinusoids
from reference.equations import coordinate, sinusoid

D = 10


def test_sinusoids_are_the_papers_far_beyond_any_table() -> None:
    values = torch.tensor([0, 1, 255, 256, 5000])
    expected = torch.stack([sinusoid(int(v), D) for v in values])
    torch.testing.assert_close(sinusoids(values, D).double(), expected, rtol=0, atol=1e-7)


def test_sinusoids_count_from_zero_and_are_added_once() -> None:
    signal = Sinusoidal(D)
    prepared = signal.prepare(torch.arange(4)[None])
    start = signal.at_start(prepared)
    assert start is not None
    expected = torch.stack([sinusoid(i, D) for i in range(4)])
    torch.testing.assert_close(start[0].double(), expected, rtol=0, atol=1e-7)
    assert signal.at_round(prepared, 0) is None


def test_coordinates_count_positions_and_rounds_from_one_and_come_back_every_round() -> None:
    signal = Coordinates(D)
    prepared = signal.prepare(torch.arange(4)[None])
    assert signal.at_start(prepared) is None
    for index in (0, 1, 300):
        tick = signal.at_round(prepared, index)
        assert tick is not None
        expected = torch.stack([coordinate(i + 1, index + 1, D) for i in range(4)])
        torch.testing.assert_close(tick[0].double(), expected, rtol=0, atol=3e-7)


def test_a_random_offset_moves_whole_sentences_in_training_only() -> None:
    torch.manual_seed(0)
    signal = Coordinates(D, random_offset=7)
    positions = torch.arange(3)[None]
    still = signal.prepare(positions)
    moved = signal.prepare(positions, offset_B=signal.draw_offset(40, positions.device))
    assert still is not None
    assert moved is not None
    assert still.shape[0] == 1
    table = torch.stack([sinusoid(i, D) for i in range(20)])
    offsets = set()
    for row in moved.double():
        (first,) = (table - row[0]).abs().amax(-1).lt(1e-6).nonzero().flatten().tolist()
        torch.testing.assert_close(row, table[first : first + 3], rtol=0, atol=1e-6)
        offsets.add(first - 1)
    assert offsets == set(range(8))


@pytest.mark.parametrize("draws", ["apart", "shared"])
def test_offsets_of_source_and_target_are_drawn_apart_or_once(draws: Literal["apart", "shared"]) -> None:
    attention = {"n_heads": 2}
    stack = {"positions": {"kind": "coordinates", "random_offset": 9}, "n_steps": 1, "self_attention": attention}
    decoder = stack | {"cross_attention": attention}
    sizes = {"d_model": D, "source_vocab_size": 9, "target_vocab_size": 9}
    config = Seq2SeqConfig.model_validate(sizes | {"encoder": stack, "decoder": decoder, "random_offsets": draws})
    torch.manual_seed(0)
    model = build_model(config).train()
    found: dict[str, list[int]] = {"encoder": [], "decoder": []}
    table = torch.stack([sinusoid(i, D) for i in range(20)])
    for name, one in model.stacks.items():

        def prepare(*args: Any, _name: str = name, _signal: Any = one.signal, **given: Any) -> Any:
            moved = type(_signal).prepare(_signal, *args, **given)
            for row in moved.double():
                found[_name] += (table - row[0]).abs().amax(-1).lt(1e-6).nonzero().flatten().tolist()
            return moved

        one.signal.prepare = prepare
    ids = torch.full((40, 3), 4)
    model(ids, ids)
    assert len(found["encoder"]) == len(found["decoder"]) == 40
    assert (found["encoder"] == found["decoder"]) == (draws == "shared")
    assert set(found["encoder"]) == set(range(1, 11))
    model.eval()
    with torch.no_grad():
        model(ids, ids)
    assert {*found["encoder"][40:], *found["decoder"][40:]} == {1}


def test_positions_count_real_tokens_only() -> None:
    keep_BT = torch.tensor([[True, True, True], [False, False, True], [False, True, True], [True, True, False]])
    found = positions_from_keep(keep_BT)
    for row, keep in zip(found.tolist(), keep_BT.tolist(), strict=True):
        real = [position for position, is_real in zip(row, keep, strict=True) if is_real]
        assert real == list(range(len(real)))


@pytest.mark.parametrize("n_sentences", [1, 2])
def test_what_all_rounds_add_is_what_each_of_them_adds(n_sentences: int) -> None:
    signal = Coordinates(D)
    prepared = signal.prepare(torch.arange(3).expand(n_sentences, -1))
    added = [signal.at_round(prepared, index) for index in range(4)]
    expected = torch.stack([one for one in added if one is not None])
    assert torch.equal(signal.of_rounds(prepared, 4), expected)
    assert torch.equal(super(Coordinates, signal).of_rounds(prepared, 4), expected)


@pytest.mark.parametrize("kind", [Sinusoidal, Coordinates])
@pytest.mark.parametrize("first", [0, 250, 511])
def test_positions_that_follow_each_other_need_not_be_read(kind: type[Sinusoidal], first: int) -> None:
    signal, positions = kind(D, in_halves=True), torch.arange(first, first + 7)[None]
    found, expected = signal.prepare(positions, first=first), signal.prepare(positions)
    assert found is not None
    assert expected is not None
    assert torch.equal(found, expected)
