"""The device that these tests are about: a real one where OSTINATO_DEVICE names it, else the pretended one.

`make test-gpu` sets it to `cuda`; `OSTINATO_DEVICE=cpu` shows that every test runs where there is none.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from typing import TypeVar

import torch
from torch import Tensor, nn

from pretended import DEVICE, numbers_of, pretend_model, pretended_device

NAME = os.environ.get("OSTINATO_DEVICE", "pretended")
IS_PRETENDED = NAME == "pretended"
device = DEVICE if IS_PRETENDED else torch.device(NAME)
TOLERANCE = 1e-5 if NAME in ("pretended", "cpu") else 1e-3
"""Relative to the largest value: a GPU sums in another order. Products are in float32, which is torch's default."""
M = TypeVar("M", bound=nn.Module)


def on_the_device(model: M) -> M:
    """Return a copy of a model on the device."""
    copied = deepcopy(model)
    if IS_PRETENDED:
        pretend_model(copied)
        return copied
    return copied.to(device)


@contextmanager
def running() -> Iterator[None]:
    """Run on the device inside."""
    with pretended_device() if IS_PRETENDED else nullcontext():
        yield


def read(x: Tensor) -> Tensor:
    """Return a tensor's numbers on the CPU."""
    return numbers_of(x.detach()).cpu()


def assert_close(found: Tensor, expected: Tensor, what: str) -> None:
    """Compare within the tolerance, relative to the largest value."""
    found, expected = read(found).double(), expected.detach().double()
    scale = max(1.0, float(expected.abs().max())) if expected.numel() else 1.0
    torch.testing.assert_close(found, expected, rtol=0.0, atol=TOLERANCE * scale, msg=lambda why: f"{what}: {why}")
