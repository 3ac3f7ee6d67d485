"""What rounds that share their weights may have of their own.

    deltas       every map W of a sub-layer becomes W + B_r A_r, of low rank             Bae et al. 2024, Relaxed
                 B starts at 0, so that a new model is the one that shares all           Recursive Transformers
                 experts: W_e + B_r A_r, the same for all experts of a sub-layer, so
                 that what they give becomes sum_k g_k W_e x_k + B_r sum_k g_k A_r x_k   (theirs are dense)
                 cross-attention: queries, gate and output; its keys and values are
                 made of the memory once a pass, for all rounds
    vectors      h + d_r before the round, d_r learned, from 0                           CoTFormer, depth embedding
    modulation   x + g f(norm(x) (1 + s)) for every sub-layer, with vectors g and s
                 by round: learned for every round, from g = 1 and s = 0                 as in FiLM, Perez et al. 2017
                 by time:  (g, s) = W SiLU(c) + b, c = F_1(tau_r) + F_2(d_r)             LoopFormer, Jeddi et al. 2026

d_r is the length of the step of round r, tau_r the sum of those before it, and F a function of one number:

    F(t) = W_2 SiLU(W_1 [cos(t w), sin(t w)] + b_1) + b_2,   w_i = 10000^(-i / 128), i = 0 .. 127

What a round does not have beside its weights, norms and these, it shares. Norms of a round are names in the plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ostinato.kernels import float64, without_autocast
from ostinato.nn.layers import Blocks, Linear, some_outputs
from ostinato.nn.shapes import Float, Tensor

N_SINUSOIDS = 256
"""What F makes of its number, sines and cosines together."""


class LowRank(nn.Module):
    """B A x of one map whose outputs are blocks: every block has an A and a B of its own.

    Args:
        width: of x. heights: outputs of every block. rank: r, rows of every A.
    """

    takes_rows = True

    def __init__(self, width: int, heights: Sequence[int], rank: int) -> None:
        super().__init__()
        self.rank, self.ends = rank, list(accumulate(heights, initial=0))
        # Rows: the A of one block after the other. B likewise.
        self.a = Linear(width, rank * len(heights), bias=False)
        self.b_FR = nn.Parameter(torch.zeros(sum(heights), rank))

    def forward(self, x: Float[Tensor, "*N D"], rows: slice | None = None) -> Float[Tensor, "*N F"]:
        """Return all outputs, or those that `rows` of W make: whole blocks."""
        start, end = (0, self.ends[-1]) if rows is None else (rows.start, rows.stop)
        first, last = self.ends.index(start), self.ends.index(end)
        mapped = some_outputs(self.a, x, None if rows is None else slice(first * self.rank, last * self.rank))
        if last - first == 1 == len(self.ends) - 1:
            return F.linear(mapped, self.b_FR)
        parts: Sequence[Tensor] = mapped.split(self.rank, -1)  # type: ignore[no-untyped-call]
        blocks = zip(parts, pairwise(self.ends[first : last + 1]), strict=True)
        return torch.cat([F.linear(part, self.b_FR[low:high]) for part, (low, high) in blocks], -1)

    def raised(self, mapped_NR: Float[Tensor, "N R"]) -> Float[Tensor, "N F"]:
        """Return B of what A gave: of a sum of rows, where experts give one. There is one block."""
        return F.linear(mapped_NR, self.b_FR)


class Deltas(nn.ModuleDict):
    """What one use of a parameter set adds to its maps, by the map's name.

    Args:
        blocks: of every map. rank: of all of them.
    """

    def __init__(self, blocks: Mapping[str, Blocks], rank: int) -> None:
        super().__init__({name: LowRank(one.reads, one.heights, rank) for name, one in blocks.items()})

    def added_to(self, module: Any) -> Any:
        """Return the parameter set with these added to its maps; the set itself stays as it is."""
        kind: Any = type(module)
        found, own = kind.__new__(kind), module._modules  # not `copy`, which a compiled pass cannot follow
        found.__dict__.update(module.__dict__)
        found._modules = {**own, **{name: _Sum(own[name], delta) for name, delta in self.items() if name in own}}
        # Maps of experts are no modules: their set adds to them itself.
        if of_experts := {name: delta for name, delta in self.items() if name not in own}:
            found.__dict__["added"] = of_experts
        return found


class _Sum(nn.Module):
    """W x + B A x."""

    takes_rows = True

    def __init__(self, whole: nn.Module, delta: nn.Module) -> None:
        super().__init__()
        self.whole, self.delta = whole, delta

    def forward(self, x: Float[Tensor, "*N D"], rows: slice | None = None) -> Float[Tensor, "*N F"]:
        """Return all outputs, or those that `rows` of W make."""
        return some_outputs(self.whole, x, rows) + some_outputs(self.delta, x, rows)


class RoundVectors(nn.Module):
    """A vector for every round; rounds beyond have the last one."""

    def __init__(self, n_rounds: int, d_model: int) -> None:
        super().__init__()
        self.table_RD = nn.Parameter(torch.zeros(n_rounds, d_model))

    def of_round(self, index: int) -> Float[Tensor, "D"]:
        """Return that of the 0-based round `index`."""
        return self.table_RD[min(index, len(self.table_RD) - 1)]


class Modulation(nn.Module):
    """A gate and a scale that are learned for one use."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.gate_D = nn.Parameter(torch.ones(d_model))
        self.scale_D = nn.Parameter(torch.zeros(d_model))

    def of_time(self, time_D: Float[Tensor, "D"] | None) -> tuple[Float[Tensor, "D"], Float[Tensor, "D"]]:
        """Return g and s, whatever the time."""
        return self.gate_D, self.scale_D


class TimeModulation(nn.Module):
    """A gate and a scale that are made of the time of a round: (g, s) = W SiLU(c) + b, g first."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.map = nn.Linear(d_model, 2 * d_model)

    def of_time(self, time_D: Float[Tensor, "D"]) -> tuple[Float[Tensor, "D"], Float[Tensor, "D"]]:
        """Return g and s, given c."""
        with without_autocast(time_D.device):
            gate_D, scale_D = _mapped(self.map, F.silu(time_D)).chunk(2)
        return gate_D, scale_D


class RoundTime(nn.Module):
    """c = F_1(tau) + F_2(d) of a round; see the module."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.before, self.step = (
            nn.ModuleList([nn.Linear(N_SINUSOIDS, d_model), nn.Linear(d_model, d_model)]) for _ in range(2)
        )

    def forward(self, before: float, step: float) -> Float[Tensor, "D"]:
        """Return c.

        Args:
            before: tau, the sum of the steps before. step: d, the length of the step.
        """
        return _of_number(self.before, before) + _of_number(self.step, step)


def _of_number(maps: nn.ModuleList, value: float) -> Float[Tensor, "D"]:
    """Return F(t)."""
    first, second = maps
    like, half = first.weight, N_SINUSOIDS // 2
    assert isinstance(like, Tensor)
    with without_autocast(like.device):
        exponents = torch.arange(half, dtype=float64(like.device), device=like.device) / half
        angles = value * 10_000.0**-exponents
        waves = torch.cat([angles.cos(), angles.sin()]).to(like.dtype)
        return _mapped(second, F.silu(_mapped(first, waves)))


def _mapped(linear: nn.Module, x_D: Tensor) -> Tensor:
    """Return W x + b of one vector."""
    weight_FD, bias_F = linear.weight, linear.bias
    assert isinstance(weight_FD, Tensor)
    assert isinstance(bias_F, Tensor)
    return torch.mv(weight_FD, x_D) + bias_F
