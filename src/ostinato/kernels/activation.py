"""Activations of a feed-forward's hidden layer, with the gradients that kernels with an own backward need.

relu    max(0, u)                 gelu    u Phi(u)
geglu   gelu(g) * u,  [g, u] the two halves of the map before it        Shazeer 2020, eq. 6
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Activation = Literal["relu", "gelu", "geglu"]


def activate(before: Tensor, activation: Activation) -> Tensor:
    """Return the hidden layer, `[..., F]`, of what its map gave, `[..., F]` or (geglu) `[..., 2 F]`."""
    if activation == "geglu":
        gate, linear = before.chunk(2, dim=-1)
        return F.gelu(gate) * linear
    return F.relu(before) if activation == "relu" else F.gelu(before)


def activation_gradient(grad: Tensor, before: Tensor, activation: Activation) -> Tensor:
    """Return the gradient of what came before an activation, given that of its result; `grad` may be overwritten.

    relu reads signs alone: `before` may be its result, dropped out or not.
    """
    if activation == "relu":
        return torch.ops.aten.threshold_backward(grad, before, 0)  # type: ignore[no-any-return]
    if activation == "gelu":
        return torch.ops.aten.gelu_backward(grad, before)  # type: ignore[no-any-return]
    gate, linear = before.chunk(2, dim=-1)
    of_linear = grad * F.gelu(gate)
    return torch.cat([torch.ops.aten.gelu_backward(grad.mul_(linear), gate), of_linear], dim=-1)
