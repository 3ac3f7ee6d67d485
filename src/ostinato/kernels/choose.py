"""Which backend runs: a trial on the actual device decides what works, a measured order what is preferred.

The choice is the same in every process on the same machine and torch: a choice by stopwatch would differ from run to
run, and a resumed training with it.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Literal, get_args

import torch

from ostinato.errors import ConfigError, Problem
from ostinato.kernels.trial import Backend, Trial

BackendChoice = Backend | Literal["auto"]
# CPU: by the time of a feed-forward of experts, forward and backward. CUDA: the order has not been measured.
_PREFERRED: dict[str, tuple[Backend, ...]] = {
    "cpu": ("segments", "grouped", "padded", "loop"),
    "cuda": ("grouped", "padded", "segments", "loop"),
}
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}
_log = logging.getLogger(__name__)


def choose_backend(name: BackendChoice, device: torch.device, dtype: torch.dtype, trial: Trial) -> Backend:
    """Return the backend to use: the one named, or the first of the device's order that passes a trial.

    Raises:
        ConfigError: the one named is unknown, or fails its trial here; says how.
    """
    if name == "auto":
        return _first_that_works(device, dtype, trial)
    if name not in get_args(Backend):
        reason = f"must be auto or one of {', '.join(get_args(Backend))}"
        raise ConfigError([Problem("backend", name, reason)])
    if (failure := _failure(name, device, dtype, trial)) is not None:
        raise ConfigError([Problem("backend", name, f"does not work on {device} with {dtype}: {failure}")])
    return name


@lru_cache(maxsize=256)
def _first_that_works(device: torch.device, dtype: torch.dtype, trial: Trial) -> Backend:
    for name in _PREFERRED.get(device.type, _PREFERRED["cuda"]):
        if (failure := _failure(name, device, dtype, trial)) is None:
            _log.info("%s on %s, %s: backend %s", trial, device, dtype, name)
            return name
        _log.info("%s on %s, %s: not %s (%s)", trial, device, dtype, name, failure)
    return "loop"


def _kept(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


@lru_cache(maxsize=256)
def _failure(name: Backend, device: torch.device, dtype: torch.dtype, trial: Trial) -> str | None:
    """Run a backend forward and backward; return what went wrong, None if nothing did."""
    if name == "loop":
        return None
    try:
        with (
            torch.enable_grad(),
            torch.inference_mode(False),
            torch.autocast(device.type, enabled=False),
            # Inside a step that will be recomputed, what the trial keeps is none of the step's: it is not run again.
            torch.autograd.graph.saved_tensors_hooks(_kept, _kept),
        ):
            found, expected = trial.run(name, device, dtype), trial.run("loop", device, dtype)
    except (RuntimeError, AttributeError, NotImplementedError, TypeError) as error:
        return str(error).strip().splitlines()[0]
    tolerance = _TOLERANCE.get(dtype, 5e-2)
    pairs = zip(found, expected, strict=True)
    # By norms: in a short type single numbers may cancel to almost nothing.
    is_equal = all((a.float() - b.float()).norm() <= tolerance * b.float().norm() for a, b in pairs)
    return None if is_equal else "its results differ from the plain loop's"
