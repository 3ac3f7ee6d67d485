"""Seeding, saving and restoring the process's random states."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor


def seed_everything(seed: int) -> None:
    """Seed Python's, numpy's and torch's global generators."""
    random.seed(seed)
    # numpy's global generator is seeded only for the sake of code of others; ours passes generators around.
    np.random.seed(seed % 2**32)  # noqa: NPY002
    torch.manual_seed(seed)


def seed_rank(seed: int, rank: int, update: int) -> None:
    """Seed the generators of one process of several, so that no two draw the same numbers; rank 0 is left as it is.

    Args:
        update: after which the process joins the run.
    """
    if rank:
        words = np.random.SeedSequence([seed, rank, update]).generate_state(2, np.uint32)
        seed_everything(int(words[0]) << 31 ^ int(words[1]))


@dataclass(frozen=True, slots=True)
class RandomState:
    """All global generators at one moment.

    Args:
        python, numpy: as JSON-able lists. torch: by device: "cpu", "cuda:0", ...
    """

    python: list[Any]
    numpy: list[Any]
    torch: dict[str, Tensor]

    @classmethod
    def capture(cls) -> Self:
        """Return the present states."""
        version, words, gauss = random.getstate()
        name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002
        numpy_state = [name, np.asarray(keys).tolist(), int(position), int(has_gauss), float(cached)]
        tensors = {"cpu": torch.get_rng_state()}
        if torch.cuda.is_available():
            states = torch.cuda.get_rng_state_all()
            tensors |= {f"cuda:{index}": state for index, state in enumerate(states)}
        return cls([version, list(words), gauss], numpy_state, tensors)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able content."""
        tensors = {device: state.tolist() for device, state in self.torch.items()}
        return {"python": self.python, "numpy": self.numpy, "torch": tensors}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Self:
        """Read what `to_dict` returned."""
        tensors = {
            device: torch.tensor(state, dtype=torch.uint8, device="cpu") for device, state in content["torch"].items()
        }
        return cls(content["python"], content["numpy"], tensors)

    def restore(self) -> None:
        """Put the states back, except those of GPUs that are not there."""
        version, words, gauss = self.python
        random.setstate((version, tuple(words), gauss))
        name, keys, position, has_gauss, cached = self.numpy
        np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))  # noqa: NPY002
        torch.set_rng_state(self.torch["cpu"])
        n_gpus = torch.cuda.device_count() if len(self.torch) > 1 else 0
        for index in range(n_gpus):
            if (state := self.torch.get(f"cuda:{index}")) is not None:
                torch.cuda.set_rng_state(state, index)


@contextmanager
def preserved_randomness() -> Iterator[None]:
    """Leave every global generator as it was, whatever runs inside."""
    state = RandomState.capture()
    try:
        yield
    finally:
        state.restore()
