"""What time it is once a device has done all it was given."""

from __future__ import annotations

import time

import torch


def now(device: torch.device) -> float:
    """Return seconds of a clock that only goes forward, after the device's work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
