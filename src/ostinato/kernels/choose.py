"""Which backend runs: a trial on the actual device decides what works, a measured order what is preferred.

The choice is the same in every process on the same machine and torch: a choice by stopwatch would differ from run to
run, and a resumed training with it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache
from typing import Literal, get_args

import torch
from torch import Tensor

from ostinato.errors import ConfigError, Problem
from ostinato.kernels import backends
from ostinato.kernels.dispatch import Dispatch, dispatch

Backend = Literal["loop", "segments", "padded", "grouped"]
BackendChoice = Backend | Literal["auto"]
_Function = Callable[[Tensor, Tensor, Tensor | None, Dispatch], Tensor]

_FUNCTIONS: dict[Backend, _Function] = {
    "loop": backends.loop,
    "segments": backends.segments,
    "padded": backends.padded,
    "grouped": backends.grouped,
}
_PREFERRED: dict[str, tuple[Backend, ...]] = {
    "cpu": ("segments", "grouped", "padded", "loop"),
    "cuda": ("grouped", "padded", "segments", "loop"),
}
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
_log = logging.getLogger(__name__)


def grouped_linear(
    x_MD: Tensor,
    weight_EDF: Tensor,
    bias_EF: Tensor | None,
    to: Dispatch,
    *,
    backend: BackendChoice = "auto",
) -> Tensor:
    """Return y[m] = x[m] W[expert of m] + b[expert of m], `[M, F]`, for rows sorted by expert.

    Under autocast the product runs in its type, like any other.

    Args:
        x_MD: rows sorted by expert (`gather`). weight_EDF, bias_EF: stacked over the experts.
        backend: by name, or "auto": see `choose_backend`.

    Raises:
        ConfigError: a backend that is named and does not work here.
    """
    kind = x_MD.device.type
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        x_MD, weight_EDF = x_MD.to(dtype), weight_EDF.to(dtype)
        bias_EF = None if bias_EF is None else bias_EF.to(dtype)
    chosen = choose_backend(backend, x_MD.device, x_MD.dtype, weight_EDF.shape[1], weight_EDF.shape[2])
    return _FUNCTIONS[chosen](x_MD, weight_EDF, bias_EF, to)


def choose_backend(name: BackendChoice, device: torch.device, dtype: torch.dtype, d_in: int, d_out: int) -> Backend:
    """Return the backend to use: the one named, or the first of the device's order that passes a trial.

    Raises:
        ConfigError: the one named is unknown, or fails its trial here; says how.
    """
    if name == "auto":
        return _first_that_works(device, dtype, d_in, d_out)
    if name not in _FUNCTIONS:
        reason = f"must be auto or one of {', '.join(get_args(Backend))}"
        raise ConfigError([Problem("backend", name, reason)])
    if (failure := _failure(name, device, dtype, d_in, d_out)) is not None:
        raise ConfigError([Problem("backend", name, f"does not work on {device} with {dtype}: {failure}")])
    return name


@lru_cache(maxsize=256)
def _first_that_works(device: torch.device, dtype: torch.dtype, d_in: int, d_out: int) -> Backend:
    for name in _PREFERRED.get(device.type, _PREFERRED["cuda"]):
        if (failure := _failure(name, device, dtype, d_in, d_out)) is None:
            _log.info("experts of %d x %d on %s, %s: backend %s", d_in, d_out, device, dtype, name)
            return name
        _log.info("experts of %d x %d on %s, %s: not %s (%s)", d_in, d_out, device, dtype, name, failure)
    return "loop"


@lru_cache(maxsize=256)
def _failure(name: Backend, device: torch.device, dtype: torch.dtype, d_in: int, d_out: int) -> str | None:
    """Run a backend forward and backward, an empty expert among three; return what went wrong, None if nothing did."""
    if name == "loop":
        return None
    try:
        with torch.enable_grad(), torch.inference_mode(False), torch.autocast(device.type, enabled=False):
            found, expected = (_trial(one, device, dtype, d_in, d_out) for one in (name, "loop"))
    except (RuntimeError, AttributeError, NotImplementedError, TypeError) as error:
        return str(error).strip().splitlines()[0]
    tolerance = _TOLERANCE.get(dtype, 5e-2)
    is_equal = all(
        torch.allclose(a.float(), b.float(), rtol=tolerance, atol=tolerance)
        for a, b in zip(found, expected, strict=True)
    )
    return None if is_equal else "its results differ from the plain loop's"


def _trial(name: Backend, device: torch.device, dtype: torch.dtype, d_in: int, d_out: int) -> list[Tensor]:
    """Return output and gradients on fixed small numbers; no random state is touched."""

    def numbers(*shape: int) -> Tensor:
        count = 1
        for size in shape:
            count *= size
        values = torch.sin(torch.arange(count, device=device, dtype=torch.float32)).view(shape)
        return values.to(dtype).requires_grad_()

    to = dispatch(torch.tensor([[0, 2], [2, 0], [0, 2]], device=device), 3)
    x, weight, bias = numbers(6, d_in), numbers(3, d_in, d_out), numbers(3, d_out)
    y = _FUNCTIONS[name](x, weight, bias, to)
    grads = torch.autograd.grad((y * torch.cos(y.detach())).sum(), [x, weight, bias])
    return [y.detach(), *grads]
