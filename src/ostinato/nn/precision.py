"""What stays exact under autocast: routers, gates and masses."""

from __future__ import annotations

import torch
from torch import Tensor


def at_least_float32(x: Tensor) -> Tensor:
    """Return x in float32, or in float64 where it is that."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
