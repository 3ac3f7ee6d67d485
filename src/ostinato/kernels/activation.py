"""Activations of a feed-forward's hidden layer, with the gradients that kernels with an own backward need.

relu    max(0, u)                 gelu        u Phi(u)
relu2   max(0, u)^2               gelu_tanh   u (1 + tanh(sqrt(2 / pi) (u + 0.044715 u^3))) / 2     GPT-2
silu    u / (1 + e^-u)

geglu, geglu_tanh, swiglu         act(g) * u, act: gelu, gelu_tanh, silu; [g, u] the two halves of the map before it
                                  Shazeer 2020, eq. 6
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Activation = Literal["relu", "relu2", "gelu", "gelu_tanh", "silu", "geglu", "geglu_tanh", "swiglu"]
GATES: dict[Activation, Activation] = {"geglu": "gelu", "geglu_tanh": "gelu_tanh", "swiglu": "silu"}
"""What the gate of a gated activation is put through."""
_APPROXIMATION = {"gelu": "none", "gelu_tanh": "tanh"}


def activate(before: Tensor, activation: Activation) -> Tensor:
    """Return the hidden layer, `[..., F]`, of what its map gave, `[..., F]` or (gated) `[..., 2 F]`."""
    if activation in GATES:
        gate, linear = before.chunk(2, dim=-1)
        return activate(gate, GATES[activation]) * linear
    match activation:
        case "relu":
            return F.relu(before)
        case "relu2":
            return F.relu(before).square()
        case "silu":
            return F.silu(before)
        case _:
            return F.gelu(before, approximate=_APPROXIMATION[activation])


def activation_gradient(grad: Tensor, before: Tensor, activation: Activation) -> Tensor:
    """Return the gradient of what came before an activation, given that of its result; `grad` may be overwritten.

    relu reads signs alone: `before` may be its result, dropped out or not.
    """
    if activation in GATES:
        gate, linear = before.chunk(2, dim=-1)
        of_linear = grad * activate(gate, GATES[activation])
        return torch.cat([activation_gradient(grad.mul_(linear), gate, GATES[activation]), of_linear], dim=-1)
    match activation:
        case "relu":
            return torch.ops.aten.threshold_backward(grad, before, 0)  # type: ignore[no-any-return]
        case "relu2":
            return grad.mul_(F.relu(before)).mul_(2)
        case "silu":
            return torch.ops.aten.silu_backward(grad, before)  # type: ignore[no-any-return]
        case _:
            backward = torch.ops.aten.gelu_backward
            return backward(grad, before, approximate=_APPROXIMATION[activation])  # type: ignore[no-any-return]
