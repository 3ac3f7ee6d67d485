"""What stays exact under autocast: routers, gates and masses."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which operations keep the types of what they are given; nothing where they do anyway."""
    # To switch autocast off takes longer than a gate of few rows.
    kind = device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def at_least_float32(x: Tensor) -> Tensor:
    """Return x in float32, or in float64 where it is that."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
