"""What a backend is tried on: a small map of the widths it is wanted for, an empty expert among three."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from ostinato.kernels.dispatch import Dispatch, dispatch

Backend = Literal["loop", "segments", "padded", "grouped"]


class Trial(ABC):
    """A map that a backend is to compute; equal trials have equal results."""

    @abstractmethod
    def run(self, backend: Backend, device: torch.device, dtype: torch.dtype) -> list[Tensor]:
        """Return output and all gradients on fixed small numbers; no random state is touched."""


def small_dispatch(device: torch.device) -> Dispatch:
    """Return three rows sent to two of three experts each."""
    return dispatch(torch.tensor([[0, 2], [2, 0], [0, 2]], device=device), 3)


def numbers(shape: Sequence[int], device: torch.device, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    """Return fixed normal numbers that want a gradient; torch's own generator is not touched."""
    values = scale * torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))
    return values.to(device, dtype).requires_grad_()


def with_gradients(y: Tensor, leaves: Sequence[Tensor]) -> list[Tensor]:
    """Return y and the gradients of its product with fixed numbers: of what y was rounded to, nothing depends."""
    fixed = numbers(y.shape, y.device, y.dtype).detach()
    return [y.detach(), *torch.autograd.grad((y * fixed).sum(), leaves)]
