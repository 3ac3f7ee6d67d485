"""Normalisation of states, in float32 whatever the autocast type."""

from __future__ import annotations

from typing import Literal

from torch import nn


def build_norm(kind: Literal["layer", "rms"], d_model: int, eps: float) -> nn.Module:
    """Return a norm over the last dimension.

    layer: (x - mean) / sqrt(var + eps) * weight + bias     Ba et al. 2016
    rms:   x / sqrt(mean(x^2) + eps) * weight               Zhang and Sennrich 2019; T5's "layer norm"
    """
    return nn.LayerNorm(d_model, eps=eps) if kind == "layer" else nn.RMSNorm(d_model, eps=eps)
