"""Which backend runs: a trial on the actual device decides what works, a measured order what is preferred.

A backend is tried on a small map of the widths it is wanted for, with an empty expert among three.

The choice is the same in every process on the same machine and torch: a choice by stopwatch would differ from run to
run, and a resumed training with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Literal, get_args

import torch
from torch import Tensor

from ostinato.errors import ConfigError, Problem
from ostinato.kernels.devices import without_autocast
from ostinato.kernels.dispatch import Dispatch, dispatch
from ostinato.system_errors import is_out_of_memory

Backend = Literal["loop", "segments", "padded", "grouped"]
Trial = Callable[..., list[Tensor]]
"""Called with a backend, a device, a type and the sizes of a map: returns output and all gradients on fixed small
numbers, and touches no random state."""
BackendChoice = Backend | Literal["auto", "dense"]
"""By name, or chosen. "dense": every expert for every row, for passes that are traced once (`DenseDispatch`)."""
# CPU: by the time of a feed-forward of experts, forward and backward. CUDA: the order has not been measured.
_PREFERRED: dict[str, tuple[Backend, ...]] = {
    "cpu": ("segments", "grouped", "padded", "loop"),
    "cuda": ("grouped", "padded", "segments", "loop"),
}
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}
_noted: ContextVar[dict[str, None] | None] = ContextVar("noted", default=None)


@contextmanager
def noting_backends() -> Iterator[dict[str, None]]:
    """Collect a line for every choice of a backend that is made inside, each once and in order."""
    lines: dict[str, None] = {}
    token = _noted.set(lines)
    try:
        yield lines
    finally:
        _noted.reset(token)


def choose_backend(
    name: BackendChoice, device: torch.device, dtype: torch.dtype, trial: Trial, *sizes: int | str
) -> Backend | Literal["dense"]:
    """Return the backend to use: the one named, or the first of the device's order that passes a trial of these sizes.

    Raises:
        ConfigError: the one named is unknown, or fails its trial here; says how.
    """
    if torch.compiler.is_compiling():  # no trial can be run; the others read numbers, for which a graph would end
        return "grouped" if name == "auto" else name
    if name == "auto":
        chosen, said = first_that_works(device, dtype, trial, *sizes)
        if (lines := _noted.get()) is not None:
            of = f"{trial.__name__.removeprefix('try_')} {'x'.join(map(str, sizes))}"
            lines[f"experts on {device} in {str(dtype).removeprefix('torch.')}, {of}: {said}"] = None
        return chosen
    if name == "dense":  # whoever names it has dispatched so
        return name
    if name not in get_args(Backend):
        reason = f"must be auto or one of {', '.join(get_args(Backend))}"
        raise ConfigError([Problem("backend", name, reason)])
    if (failure := _failure(name, device, dtype, trial, *sizes)) is not None:
        raise ConfigError([Problem("backend", name, f"does not work on {device} with {dtype}: {failure}")])
    return name


@lru_cache(maxsize=256)
def first_that_works(device: torch.device, dtype: torch.dtype, trial: Trial, *sizes: int | str) -> tuple[Backend, str]:
    """Return the first backend of the device's order that passes a trial of these sizes, and in words which one it is
    and why not those before it."""
    found: Backend = "loop"
    why_not = ""
    for name in _PREFERRED.get(device.type, _PREFERRED["cuda"]):
        found = name
        if (failure := _failure(name, device, dtype, trial, *sizes)) is None:
            break
        why_not += f"; not {name} ({failure})"
    return found, f"backend {found}{why_not}"


@lru_cache(maxsize=256)
def _failure(name: Backend, device: torch.device, dtype: torch.dtype, trial: Trial, *sizes: int | str) -> str | None:
    """Run a backend forward and backward; return what went wrong, None if nothing did."""
    if name == "loop":
        return None
    try:
        with (
            torch.enable_grad(),
            torch.inference_mode(False),
            without_autocast(device),
            # A step that will be recomputed counts what it saves, and must save as much when it is run again; the trial
            # runs only the first time. Hooks of its own keep what it saves out of that count.
            torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor),
        ):
            found, expected = (trial(backend, device, dtype, *sizes) for backend in (name, "loop"))
    except (RuntimeError, AttributeError, NotImplementedError, TypeError) as error:
        if is_out_of_memory(error):  # says nothing of the backend, and must not be kept as if it did
            raise
        return next(iter(str(error).strip().splitlines()), type(error).__name__)
    tolerance = _TOLERANCE.get(dtype, 5e-2)
    pairs = zip(found, expected, strict=True)
    # By norms: in a short type single numbers may cancel to almost nothing.
    is_equal = all((a.float() - b.float()).norm() <= tolerance * b.float().norm() for a, b in pairs)
    return None if is_equal else "its results differ from the plain loop's"


def small_dispatch(device: torch.device) -> Dispatch:
    """Return three rows sent to two of three experts each."""
    return dispatch(torch.tensor([[0, 2], [2, 0], [0, 2]], device=device), 3)


def numbers(shape: Sequence[int], device: torch.device, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    """Return fixed normal numbers that want a gradient; torch's own generator is not touched."""
    draws = torch.Generator().manual_seed(len(shape))
    values = scale * torch.randn(*shape, generator=draws, device="cpu")  # where its generator is
    return values.to(device, dtype).requires_grad_()


def with_gradients(y: Tensor, leaves: Sequence[Tensor]) -> list[Tensor]:
    """Return y and the gradients of <y, fixed numbers>: linear in y, so that its rounding changes none of them."""
    fixed = numbers(y.shape, y.device, y.dtype).detach()
    return [y.detach(), *torch.autograd.grad((y * fixed).sum(), leaves)]
