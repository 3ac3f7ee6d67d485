"""Tests that are written for a CPU, run on another device: what they make without saying where is made there.

`make test-gpu` runs the tests marked `device` so, on CUDA. `OSTINATO_DEVICE=pretended` runs them on the device that is
none (tests/pretended.py): an operation that is given tensors of both sides is an error there, as on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from pretended import DEVICE, pretend_model, pretended_device

_DRAWING = (torch.randn, torch.rand, torch.randint, torch.randperm)
_WHERE: list[torch.device] = []
M = TypeVar("M", bound=nn.Module)


@contextmanager
def elsewhere(name: str) -> Iterator[None]:
    """Make tensors on a device inside, wherever they are not told to be."""
    with ExitStack() as stack:
        if name == "pretended":
            stack.enter_context(pretended_device())
        where = DEVICE if name == "pretended" else torch.device(name)
        stack.enter_context(where)
        stack.enter_context(_DrawnOnTheHost(where))
        _WHERE.append(where)
        try:
            yield
        finally:
            _WHERE.clear()


def built(build: Callable[[], M]) -> M:
    """Return a model that is built on the CPU, with the numbers that are drawn there, and moved to where a test is."""
    if not _WHERE:
        return build()
    with torch.device("cpu"):
        model = build()
    if _WHERE != [DEVICE]:
        return model.to(_WHERE[0])
    pretend_model(model)
    return model


class _DrawnOnTheHost(TorchFunctionMode):
    """Numbers of a generator of the host are drawn there, and copied."""

    def __init__(self, where: torch.device) -> None:
        super().__init__()
        self.where = where

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in _DRAWING and kwargs.get("generator") is not None and kwargs.get("device") is None:
            needs_grad = kwargs.pop("requires_grad", False)
            return func(*args, **kwargs, device="cpu").to(self.where).requires_grad_(needs_grad)
        return func(*args, **kwargs)
