"""What depends on the device, in one place.

A CPU has done an operation when the call returns. An accelerator does it later, and the host runs ahead of it until it
needs a number: then it waits until everything before is done, and the accelerator has nothing to do until the host has
caught up. So numbers are read as seldom as can be (docs/gpu.md), and where a CPU is faster by looking first, or by
leaving rows out, and an accelerator by doing all of them, `runs_ahead` decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from ostinato.errors import ConfigError, Problem

_WITHOUT_FLOAT64 = ("mps",)
# Not asked of torch: a pass that torch 2.11 compiles may not ask.
_WITHOUT_AUTOCAST = ("meta",)


def runs_ahead(device: torch.device) -> bool:
    """Return whether the host runs ahead of a device, so that to read a number means to wait for it.

    What is being compiled runs ahead on any device: there are no numbers yet.
    """
    return device.type != "cpu" or torch.compiler.is_compiling()


def is_exporting() -> bool:
    """Return whether a pass is being traced as a graph for all data (torch.export).

    `torch.compiler.is_exporting` says so of every pass that torch 2.11 compiles; this is what it reads.
    """
    return torch.compiler._is_exporting_flag


def moved(x: Tensor, device: torch.device | str) -> Tensor:
    """Return x on a device; on the way to an accelerator without waiting until it has arrived, where that is safe.

    The other way there is a wait: the host may read the numbers at once.
    """
    kind = torch.device(device).type
    is_sent = kind == "cuda" and x.device.type == "cpu" and torch.cuda.is_available()
    if is_sent and not torch.compiler.is_compiling():  # which cannot trace it
        # From pageable memory the copy of a larger tensor blocks the host, and of a tensor that is not contiguous torch
        # first makes a copy there.
        x = x.contiguous().pin_memory()
    # mps may read the host's memory when it holds another tensor already (torch issue 189690).
    return x.to(device, non_blocking=kind not in ("cpu", "mps"))


def on_device(numbers: Sequence[Any], device: torch.device) -> Tensor:
    """Return numbers of the host on a device, without waiting until they have arrived where that is safe."""
    return moved(torch.tensor(numbers, device="cpu"), device)


def wait_for(device: torch.device) -> None:
    """Wait until a device has done its work, as a clock must that is read beside it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def places_where(mask_N: Tensor, n: int) -> Tensor:
    """Return the places at which the mask is True, in order.

    Args:
        n: how many they are, which on a CPU need not be known before.
    """
    if not runs_ahead(mask_N.device):
        return mask_N.nonzero().squeeze(1)
    return torch.nonzero_static(mask_N, size=n).squeeze(1)


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """Return the type that products on a device run in under the autocast that is on; None: there is none on.

    Devices that have no autocast (`meta`) never have one on.
    """
    kind = device.type
    if kind in _WITHOUT_AUTOCAST or not torch.is_autocast_enabled(kind):
        return None
    return torch.get_autocast_dtype(kind)


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which operations on a device keep the types they are given."""
    # To switch autocast off takes longer than a gate of few rows: only where it is on.
    return nullcontext() if autocast_dtype(device) is None else torch.autocast(device.type, enabled=False)


def has_float64(device: torch.device) -> bool:
    """Return whether a device has numbers of twice the precision."""
    return device.type not in _WITHOUT_FLOAT64


def float64(device: torch.device) -> torch.dtype:
    """Return the type of a device's numbers of twice the precision.

    Raises:
        ConfigError: it has none.
    """
    if not has_float64(device):
        needed = "rotary angles, buckets of distances, rounds by length, modulation by time, sampling"
        reason = f"has no float64, which this model or search needs ({needed}): must be cpu or cuda"
        raise ConfigError([Problem("device", device.type, reason)])
    return torch.float64


def mean_where(values: Tensor, keep: Tensor | None) -> Tensor:
    """Return the mean of the values where `keep` is True; None: of all. 0 where there is none.

    On a CPU these values are gathered; the size of what is gathered would have to be waited for.
    """
    if keep is None:
        return values.mean()
    if not runs_ahead(values.device):
        kept = values[keep]
        return kept.mean() if len(kept) else kept.sum()
    shape = (*keep.shape, *(1 for _ in range(values.ndim - keep.ndim)))
    kept = torch.where(keep.view(shape), values, 0.0)
    return kept.sum() / (keep.sum() * (values.numel() // max(keep.numel(), 1))).clamp(min=1)
