"""Initialisations by name.

    name          weights of every projection W: [fan_out, fan_in]            embeddings
    xavier        U(-a, a), a = sqrt(6 / (fan_in + fan_out))                  N(0, 1 / d_model)      fairseq
    normal        N(0, 0.02^2); maps back to the states divided by            N(0, 0.02^2)           GPT-2
                  sqrt(2 * number of steps)
    unit_scaling  U(-a, a), a = sqrt(3 / fan_in)                              N(0, 1 / d_model)      tensor2tensor
    torch         U(-a, a), a = sqrt(1 / fan_in), biases likewise             N(0, 1 / d_model)      torch.nn.Linear

Depth-wise convolutions, whose outputs have one input a tap, take fan_in = fan_out = kernel; under "normal" their
deviation is 1 / sqrt(kernel), since 0.02 is made for hundreds of inputs and would all but silence three or five.
Biases are zero except under "torch". Norms start at one and zero, tables of relative positions at zero. Packed
projections are initialised block by block, as if they stood apart. A parameter set shared by many steps is
initialised once.
"""

from __future__ import annotations

import math
from typing import Literal

from torch import Tensor, nn

from ostinato.nn.attention import Attention
from ostinato.nn.feedforward import FeedForward
from ostinato.nn.separable import SeparableConv

Init = Literal["xavier", "normal", "unit_scaling", "torch"]


def init_attention(module: Attention, init: Init, n_steps: int) -> None:
    """Initialise queries, keys and values as three projections, and the output projection."""
    _init_linear(module.qkv, 3, init)
    _init_linear(module.out, 1, init, shrink=_shrink(init, n_steps))


def init_feed_forward(module: FeedForward, init: Init, n_steps: int) -> None:
    """Initialise the maps to the hidden layer (two blocks where it is gated) and back."""
    _init_linear(module.up, 2 if module.is_gated else 1, init)
    _init_linear(module.down, 1, init, shrink=_shrink(init, n_steps))


def init_separable_conv(module: SeparableConv, init: Init, n_steps: int) -> None:
    """Initialise the two depth-wise convolutions and the two position-wise maps, each by its own fan-in."""
    for taps_KC in (module.taps_in_KD, module.taps_out_KF):
        kernel = taps_KC.shape[0]
        if init == "normal":
            nn.init.normal_(taps_KC, std=kernel**-0.5)
        else:
            a = math.sqrt((1 if init == "torch" else 3) / kernel)
            nn.init.uniform_(taps_KC, -a, a)
    _init_linear(module.up, 1, init)
    _init_linear(module.down, 1, init, shrink=_shrink(init, n_steps))


def init_embedding(weight_VD: Tensor, init: Init) -> None:
    """Initialise an embedding matrix or an untied output projection."""
    nn.init.normal_(weight_VD, std=0.02 if init == "normal" else weight_VD.shape[1] ** -0.5)


def _shrink(init: Init, n_steps: int) -> float:
    return 1.0 / math.sqrt(2 * n_steps) if init == "normal" else 1.0


def _init_linear(linear: nn.Linear, n_blocks: int, init: Init, shrink: float = 1.0) -> None:
    for block in linear.weight.detach().chunk(n_blocks):
        fan_out, fan_in = block.shape
        if init == "normal":
            nn.init.normal_(block, std=0.02 * shrink)
        elif init == "xavier":
            nn.init.uniform_(block, -math.sqrt(6 / (fan_in + fan_out)), math.sqrt(6 / (fan_in + fan_out)))
        else:
            a = math.sqrt((3 if init == "unit_scaling" else 1) / fan_in)
            nn.init.uniform_(block, -a, a)
    if linear.bias is not None:
        if init == "torch":
            a = 1 / math.sqrt(linear.in_features)
            nn.init.uniform_(linear.bias, -a, a)
        else:
            nn.init.zeros_(linear.bias)
