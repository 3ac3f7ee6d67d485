"""The noise that loops start from in training."""

from __future__ import annotations

import pytest
import torch

from ostinato.nn.loops import NoiseState, _noise
from pretended import DEVICE, pretended_device

STD = 0.5


def _drawn(entry_BTD: torch.Tensor) -> torch.Tensor:
    return NoiseState(entry_BTD.shape[-1], STD, seed=0).train()(entry_BTD, torch.arange(entry_BTD.shape[1])[None])


def test_noise_of_training_is_normal_and_cut_off_at_three_deviations() -> None:
    torch.manual_seed(0)
    noise = _drawn(torch.empty(50, 100, 64)).flatten() / STD
    assert float(noise.abs().max()) <= 3 + 1e-5
    normal = torch.distributions.Normal(0.0, 1.0)
    points = torch.tensor([-2.9, -2.0, -1.0, 0.0, 0.5, 1.5, 2.5])
    lowest, highest = normal.cdf(torch.tensor([-3.0, 3.0]))
    expected = (normal.cdf(points) - lowest) / (highest - lowest)
    found = (noise[:, None] < points).float().mean(0)
    assert found.tolist() == pytest.approx(expected.tolist(), abs=4 * 0.5 / len(noise) ** 0.5)
    assert not torch.equal(_drawn(torch.empty(2, 3, 4)), _drawn(torch.empty(2, 3, 4)))
    assert _drawn(torch.empty(2, 3, 4, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_nobody_waits_for_noise_of_training() -> None:
    with pretended_device() as device:
        entry_BTD = torch.zeros(2, 3, 4, device=DEVICE)
        device.forget()
        _drawn(entry_BTD)
        assert not device.waits


def test_noise_of_a_position_does_not_depend_on_the_type_that_torch_makes_by_default() -> None:
    start = NoiseState(4, STD, seed=91).eval()
    given = torch.zeros(1, 3, 4), torch.arange(3)[None]
    torch.set_default_dtype(torch.float64)
    try:
        first = start(*given)
    finally:
        torch.set_default_dtype(torch.float32)
    _noise.cache_clear()
    assert torch.equal(start(*given), first)
