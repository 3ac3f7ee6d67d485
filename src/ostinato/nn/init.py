"""Initialisations by name.

    name          weights of every projection W: [fan_out, fan_in]            embeddings
    xavier        U(-a, a), a = sqrt(6 / (fan_in + fan_out))                  N(0, 1 / d_model)      fairseq
    normal        N(0, 0.02^2); maps back to the states divided by            N(0, 0.02^2)           GPT-2
                  sqrt(2 * number of steps), all rounds counted
    unit_scaling  U(-a, a), a = sqrt(3 / fan_in)                              N(0, 1 / d_model)      tensor2tensor
    torch         U(-a, a), a = sqrt(1 / fan_in), biases likewise             N(0, 1 / d_model)      torch.nn.Linear
    depth_scaled  N(0, 2 / (steps * fan_in)) in steps, elsewhere              N(0, 1 / d_model)      MoEUT
                  N(0, 1 / fan_in)

Under depth_scaled the second maps of E feed-forward experts have the fan-in of all of them, E d_ff, outputs by experts
of heads that of all heads, and linear routers rows of equal length sqrt(2 / steps).

Experts are initialised one by one, as if each were a projection of its own; "fan_in" draws all of them from
U(-1 / fan_in, 1 / fan_in) and their biases from U(-1 / sqrt(fan_out), 1 / sqrt(fan_out)), much smaller (SUT). Routers
have their own initialisation. Depth-wise convolutions, whose outputs have one input a tap, take fan_in = fan_out =
kernel; under "normal" their deviation is 1 / sqrt(kernel), since 0.02 is made for hundreds of inputs and would all but
silence three or five.

Biases are zero except under "torch", and 1 in an LSTM's forget gates. Norms start at one and zero, tables of relative
positions at zero. What rounds have of their own is such that a new model is the one that shares all, but for gates
made of times. Packed projections are initialised block by block, as if they stood apart. A parameter set shared by many
steps is initialised once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from ostinato.nn.attention import Attention
from ostinato.nn.by_round import Deltas, LowRank, RoundTime, TimeModulation
from ostinato.nn.experts import ExpertAttention, ExpertMaps
from ostinato.nn.feedforward import FeedForward
from ostinato.nn.head_experts import HeadExpertAttention
from ostinato.nn.loops import LinearInjection
from ostinato.nn.recurrent import GlobalAttention, Lstm
from ostinato.nn.routing import LinearRouter, Router
from ostinato.nn.separable import SeparableConv

Init = Literal["xavier", "normal", "unit_scaling", "torch", "depth_scaled"]
ExpertInit = Literal["model", "fan_in"]


def init_attention(module: Attention, init: Init, n_steps: int) -> None:
    """Initialise queries, keys and values as three projections, the output projection, and its gate."""
    scale = _scale(init, n_steps)
    _init_linear(module.qkv, (module.inner, module.kv_inner, module.kv_inner), init, scale)
    if module.output_gate is not None:
        _init_linear(module.output_gate, 1, init, scale)
    _init_linear(module.out, 1, init, shrink=_shrink(init, n_steps))


def init_feed_forward(module: FeedForward, init: Init, n_steps: int) -> None:
    """Initialise the maps to the hidden layer (two blocks where it is gated) and back."""
    _init_linear(module.up, 2 if module.is_gated else 1, init, _scale(init, n_steps))
    _init_linear(module.down, 1, init, shrink=_shrink(init, n_steps))


def init_separable_conv(module: SeparableConv, init: Init, n_steps: int) -> None:
    """Initialise the two depth-wise convolutions and the two position-wise maps, each by its own fan-in."""
    for taps_KC in (module.taps_in_KD, module.taps_out_KF):
        kernel = taps_KC.shape[0]
        if init in ("normal", "depth_scaled"):
            nn.init.normal_(taps_KC, std=kernel**-0.5)
        else:
            a = math.sqrt((1 if init == "torch" else 3) / kernel)
            nn.init.uniform_(taps_KC, -a, a)
    _init_linear(module.up, 1, init, _scale(init, n_steps))
    _init_linear(module.down, 1, init, shrink=_shrink(init, n_steps))


def init_expert_attention(module: ExpertAttention, init: Init, expert_init: ExpertInit, n_steps: int) -> None:
    """Initialise keys and values as two projections, queries and outputs expert by expert."""
    scale, shrink = _scale(init, n_steps), _shrink(init, n_steps)
    _init_linear(module.kv, (module.kv_inner, module.kv_inner), init, scale)
    _init_experts(module.query_EDI, module.query_bias_EI, 1, init, expert_init, scale)
    _init_experts(module.out_EID, module.out_bias_ED, 1, init, expert_init, shrink)


def init_head_experts(module: HeadExpertAttention, init: Init, expert_init: ExpertInit, n_steps: int) -> None:
    """Initialise queries and keys as two projections, values and outputs expert by expert."""
    scale, shrink = _scale(init, n_steps), _shrink(init, n_steps)
    if init == "depth_scaled":
        shrink /= math.sqrt(module.n_heads)
    _init_linear(module.qk, (module.inner, module.kv_inner), init, scale)
    _init_experts(module.value_EDK, None, 1, init, expert_init, scale)
    _init_experts(module.out_EKD, None, 1, init, expert_init, shrink)


def init_expert_maps(module: ExpertMaps, init: Init, expert_init: ExpertInit, n_steps: int) -> None:
    """Initialise both maps of every expert."""
    scale, shrink = _scale(init, n_steps), _shrink(init, n_steps)
    if init == "depth_scaled":
        shrink /= math.sqrt(len(module.down_EFD))
    _init_experts(module.up_EDF, module.up_bias_EF, 2 if module.is_gated else 1, init, expert_init, scale)
    _init_experts(module.down_EFD, module.down_bias_ED, 1, init, expert_init, shrink)


@torch.no_grad()
def zero_second_maps(module: ExpertMaps) -> None:
    """Make every expert the zero map, whose first gradient reaches the second projection only (BASE layers)."""
    for parameter in (module.down_EFD, module.down_bias_ED):
        if parameter is not None:
            parameter.zero_()


def init_embedding(weight_VD: Tensor, init: Init) -> None:
    """Initialise an embedding matrix or an untied output projection."""
    nn.init.normal_(weight_VD, std=0.02 if init == "normal" else weight_VD.shape[1] ** -0.5)


def init_linear_injection(module: LinearInjection, init: Init, start: Literal["model", "input", "state"]) -> None:
    """Initialise both maps as halves of one; or one of them as the identity and the other as zero."""
    if start == "model":
        for linear in (module.state, module.input):
            block = linear.weight.detach()
            _init_map(block, 2 * block.shape[1], block.shape[0], init, 1.0)
        return
    kept, silent = (module.input, module.state) if start == "input" else (module.state, module.input)
    nn.init.eye_(kept.weight)
    nn.init.zeros_(silent.weight)


def init_deltas(deltas: Deltas, init: Init) -> None:
    """Initialise every A as a projection of its own; B stays 0."""
    for delta in deltas.values():
        assert isinstance(delta, LowRank)
        _init_linear(delta.a, delta.a.out_features // delta.rank, init)


def init_time(module: TimeModulation | RoundTime, init: Init) -> None:
    """Initialise the maps that make gates and scales of a round's time."""
    for linear in module.modules():
        if isinstance(linear, nn.Linear):
            # Gate and scale are projections of their own.
            _init_linear(linear, 2 if isinstance(module, TimeModulation) else 1, init)


def init_projection(linear: nn.Linear, init: Init) -> None:
    """Initialise one projection that is no part of a step."""
    _init_linear(linear, 1, init)


@torch.no_grad()
def init_lstm(module: Lstm, init: Init) -> None:
    """Initialise every gate's maps as projections of their own; forget gates begin open, with a bias of 1.

    (Jozefowicz et al. 2015.) Under "torch" as `torch.nn.LSTM` does, U(-a, a), a = 1 / sqrt(units), biases too.
    """
    if init == "torch":
        module.lstm.reset_parameters()
        return
    for name, parameter in module.lstm.named_parameters():
        if name.startswith("weight"):
            for block in parameter.chunk(4):
                _init_map(block, block.shape[1], block.shape[0], init, 1.0)
        else:
            parameter.zero_()
            if name.startswith("bias_ih"):
                parameter.chunk(4)[1].fill_(1.0)


def init_global_attention(module: GlobalAttention, init: Init) -> None:
    """Initialise every map as a projection of its own."""
    for linear in (module.query, module.key, module.out):
        if linear is not None:
            _init_linear(linear, 1, init)
    if module.score_D is not None:
        _init_map(module.score_D.detach()[None], module.score_D.shape[0], 1, init, 1.0)


@torch.no_grad()
def init_router(router: Router, init: Init, n_steps: int) -> None:
    """Give the rows of a linear router equal lengths where the initialisation is scaled by depth."""
    if init == "depth_scaled" and isinstance(router, LinearRouter):
        rows_ED = router.experts_ED
        rows_ED.mul_(_scale(init, n_steps) / rows_ED.norm(dim=1, keepdim=True))


def _scale(init: Init, n_steps: int) -> float:
    """Return the factor of all maps of a step."""
    return math.sqrt(2 / n_steps) if init == "depth_scaled" else 1.0


def _shrink(init: Init, n_steps: int) -> float:
    """Return the factor of maps back to the states."""
    return 1.0 / math.sqrt(2 * n_steps) if init == "normal" else _scale(init, n_steps)


def _init_experts(
    weight_EIO: Tensor, bias_EO: Tensor | None, n_blocks: int, init: Init, expert_init: ExpertInit, shrink: float = 1.0
) -> None:
    for weight_IO in weight_EIO.detach():
        for block in weight_IO.chunk(n_blocks, dim=1):
            if expert_init == "fan_in":
                nn.init.uniform_(block, -1 / block.shape[0], 1 / block.shape[0])
            else:
                _init_map(block, block.shape[0], block.shape[1], init, shrink)
    if bias_EO is not None and (init == "torch" or expert_init == "fan_in"):
        fan = weight_EIO.shape[2] if expert_init == "fan_in" else weight_EIO.shape[1]
        nn.init.uniform_(bias_EO, -(fan**-0.5), fan**-0.5)


def _init_map(block: Tensor, fan_in: int, fan_out: int, init: Init, shrink: float) -> None:
    if init == "normal":
        nn.init.normal_(block, std=0.02 * shrink)
        return
    if init == "depth_scaled":
        nn.init.normal_(block, std=fan_in**-0.5 * shrink)
        return
    if init == "xavier":
        a = math.sqrt(6 / (fan_in + fan_out))
    else:
        a = math.sqrt((3 if init == "unit_scaling" else 1) / fan_in)
    nn.init.uniform_(block, -a, a)


def _init_linear(linear: nn.Linear, blocks: int | Sequence[int], init: Init, shrink: float = 1.0) -> None:
    """Initialise projections packed into one: so many of equal height, or of these heights."""
    heights = [linear.out_features // blocks] * blocks if isinstance(blocks, int) else list(blocks)
    for block in torch.split(linear.weight.detach(), heights):
        fan_out, fan_in = block.shape
        _init_map(block, fan_in, fan_out, init, shrink)
    if linear.bias is not None:
        if init == "torch":
            a = 1 / math.sqrt(linear.in_features)
            nn.init.uniform_(linear.bias, -a, a)
        else:
            nn.init.zeros_(linear.bias)
