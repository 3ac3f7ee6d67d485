"""Inference: evaluation mode without gradients, undone afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from ostinato.kernels import packing


@contextmanager
def inference(model: nn.Module, *, packs_weights: bool = True) -> Iterator[None]:
    """Put a model in evaluation mode without gradients; afterwards every module has its earlier mode.

    Do not yield from inside: gradients would stay off in the caller's code. The weights must not change.

    Args:
        packs_weights: copy weights into the form a CPU multiplies by fastest; see `ostinato.kernels.packed`.
    """
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.inference_mode(), packing(packs_weights):
            yield
    finally:
        for module in training:
            module.training = True
