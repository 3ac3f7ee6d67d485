"""What rounds have of their own, by their equations: times, gates and scales, and maps with something added."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from reference.weights import read_affine


def silu(x_D: Tensor) -> Tensor:
    return x_D * torch.sigmoid(x_D)


def time_of(module: Any, before: float, step: float) -> Tensor:
    """c = F_1(tau) + F_2(d), F(t) = W_2 silu(W_1 [cos(t w), sin(t w)] + b_1) + b_2."""
    parts = []
    for maps, value in ((module.before, before), (module.step, step)):
        angles = torch.tensor([value * 10_000 ** (-i / 128) for i in range(128)], dtype=torch.float64)
        waves = torch.cat([angles.cos(), angles.sin()]).to(maps[0].weight.dtype)
        parts.append(read_affine(maps[1])(silu(read_affine(maps[0])(waves))))
    return parts[0] + parts[1]


def gate_and_scale(module: Any, time_D: Tensor | None) -> tuple[Tensor, Tensor]:
    """(g, s): learned, or W silu(c) + b."""
    if time_D is None:
        return module.gate_D, module.scale_D
    made = read_affine(module.map)(silu(time_D))
    return made[: len(made) // 2], made[len(made) // 2 :]


def with_added(module: Any, deltas: Any, heights: dict[str, list[int]]) -> Any:
    """Return a parameter set whose every map is W + B A, block by block; what has no map of that name is as it was.

    Args:
        heights: rows of W in every block of a map.
    """
    found = SimpleNamespace(qk_bias=getattr(module, "qk_bias", None), output_gate=None)
    for name, blocks in heights.items():
        linear, added_FD = getattr(module, name), _product(deltas[name], blocks)
        rest = linear.weight[len(added_FD) :]  # keys and values of a memory are those of all rounds
        weight = torch.cat([linear.weight[: len(added_FD)] + added_FD, rest])
        setattr(found, name, SimpleNamespace(weight=weight, bias=linear.bias))
    return found


def experts_with_added(module: Any, deltas: Any, heights: dict[str, list[int]]) -> Any:
    """Return a parameter set of experts: the maps of every expert are W_e + B A, keys and values as in `with_added`.

    Args:
        heights: rows of W in every block of a map; maps of experts are stacked, inputs x outputs.
    """
    holder = module.experts if "up" in heights else module
    found = SimpleNamespace(**vars(holder) | holder._parameters | holder._modules)
    stacked = {"up": "up_EDF", "down": "down_EFD", "query": "query_EDI", "out": "out_EID"}
    for name, blocks in heights.items():
        added_FD = _product(deltas[name], blocks)
        if name in stacked:
            maps = [one + added_FD.T for one in getattr(holder, stacked[name])]
            setattr(found, stacked[name], torch.stack(maps))
        else:
            linear = getattr(holder, name)
            setattr(found, name, SimpleNamespace(weight=linear.weight + added_FD, bias=linear.bias))
    if holder is module:
        return found
    return SimpleNamespace(experts=found, router=module.router, sum_bias_D=module.sum_bias_D)


def _product(delta: Any, blocks: list[int]) -> Tensor:
    """B A of every block, one below the other."""
    rank, first, parts = delta.a.weight.shape[0] // len(blocks), 0, []
    for i, height in enumerate(blocks):
        parts.append(delta.b_FR[first : first + height] @ delta.a.weight[i * rank : (i + 1) * rank])
        first += height
    return torch.cat(parts)
