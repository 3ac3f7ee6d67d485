"""What a loop has beside its steps: what its first round starts from, and how its input enters every round.

With e the states that enter the segment and h those that left the round before, round t runs its steps on

    none      u = h                                        h = e before the first round, unless something else is said
    add       u = h + e                                    Fan et al. 2024; Yang et al. 2023
    linear    u = W_h h + W_e e                            Huginn (Geiping et al. 2025), one map of [h; e] there
    decay     u = a * h + b * (B e)                        Parcae (Prairie et al. 2026)
              a = exp(-softplus(d) exp(A)), b = softplus(d), by channel
    beside    u = [h ; e]                                  loops of several states, which `run_round` tells apart

What is made of e alone (W_e e, b * (B e)) is made once a pass. Huginn's one map is W = [W_h | W_e] side by side.

Before the first round h is e, zeros, a learned vector, or noise. A loop of several states z_1 ... z_S has all of them
side by side in h = [z_1 ; ... ; z_S], each with a start of its own. A round changes one after the other, in phases:

    z_s = norm(steps(z_s + the sum of what the phase adds))        added are other states, or e

HRM-Text: z_1 = 0, z_2 = e; three phases z_1 = norm(F(z_1 + z_2)), then one z_2 = norm(G(z_2 + z_1)). HRM (Wang et al.
2025, 2506.21734) and TRM (Jolicoeur-Martineau 2025, 2510.04871) add e to z_1, too; in TRM F is G.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import nn

from ostinato.kernels import is_exporting
from ostinato.nn.context import Pass, Round
from ostinato.nn.layers import Linear, at_least_float32
from ostinato.nn.positions import highest_position
from ostinato.nn.shapes import Float, Int, Tensor
from ostinato.nn.sub_layer import Runnable, run_steps
from ostinato.plan import Segment

_CUT = 3.0
"""Standard deviations at which noise is cut off."""
_START_OF_DECAY = -math.log(math.sqrt(1 / 5))
"""softplus(d) of a new model, so that a = sqrt(1/5) = 0.447."""
_POSITIONS_A_TABLE = 256
POSITIONS_OF_A_GRAPH = 16 * _POSITIONS_A_TABLE
"""For so many positions an exported model has noise (`NoiseState`)."""


class Injection(nn.Module):
    """u = h + e; the base of those with weights."""

    def prepare(self, entry_BTD: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Return what of e is the same in all rounds."""
        return entry_BTD

    def forward(self, states_ND: Float[Tensor, "N D"], prepared_ND: Float[Tensor, "N D"]) -> Float[Tensor, "N D"]:
        """Return u, given h and what was prepared of e, row by row."""
        return states_ND + prepared_ND


class LinearInjection(Injection):
    """u = W_h h + W_e e, without biases."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.state = Linear(d_model, d_model, bias=False)
        self.input = Linear(d_model, d_model, bias=False)

    def prepare(self, entry_BTD: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Return W_e e."""
        return at_least_float32(self.input(entry_BTD))

    def forward(self, states_ND: Float[Tensor, "N D"], prepared_ND: Float[Tensor, "N D"]) -> Float[Tensor, "N D"]:
        """Return W_h h + W_e e."""
        return at_least_float32(self.state(states_ND)) + prepared_ND


class DecayInjection(Injection):
    """u = a * h + b * (B e), a = exp(-softplus(d) exp(A)), b = softplus(d), by channel (Prairie et al. 2026).

    A is `rate_D`, which starts at 0; d is `step_D`, which starts so that a = 0.447; B is `input`, which starts as I.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.rate_D = nn.Parameter(torch.zeros(d_model))
        self.step_D = nn.Parameter(torch.full((d_model,), math.log(math.expm1(_START_OF_DECAY))))
        self.input = Linear(d_model, d_model, bias=False)
        nn.init.eye_(self.input.weight)

    def prepare(self, entry_BTD: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Return b * (B e)."""
        return F.softplus(self.step_D) * at_least_float32(self.input(entry_BTD))

    def forward(self, states_ND: Float[Tensor, "N D"], prepared_ND: Float[Tensor, "N D"]) -> Float[Tensor, "N D"]:
        """Return a * h + b * (B e)."""
        decay_D = torch.exp(-F.softplus(self.step_D) * torch.exp(self.rate_D))
        return torch.addcmul(prepared_ND, decay_D, states_ND)


class BesideInjection(Injection):
    """u = [h ; e]: what phases add of e, they find behind the states."""

    def forward(self, states_NE: Float[Tensor, "N E"], prepared_ND: Float[Tensor, "N D"]) -> Float[Tensor, "N J"]:
        """Return states and input side by side."""
        return torch.cat([states_NE, prepared_ND], dim=-1)


def run_round(
    segment: Segment,
    steps: Sequence[Sequence[Runnable]],
    states_NE: Float[Tensor, "N E"],
    run: Pass,
    here: Round,
    norms: nn.ModuleDict,
) -> Float[Tensor, "N F"]:
    """Return the states after the steps of a round: one state, or several side by side, one after the other.

    Args:
        states_NE: after injection; of several states, with what entered the segment behind them where it is added.
    """
    if not segment.phases:
        return run_steps(steps, states_NE, run, here)
    # Only whole sentences stop in such a loop, and no token that goes on sees theirs.
    here = replace(here, visible=None, halted=())
    n, first = segment.n_states, 0
    states = list(states_NE.chunk(n if segment.inject is None else n + 1, dim=-1))
    n_learn = run.execution.repeats_with_gradient(here.index, segment.n_rounds)
    for phase in segment.phases:
        with torch.no_grad() if phase.left > n_learn else nullcontext():
            state_ND = states[phase.state]
            for other in phase.adds:
                state_ND = state_ND + states[other]
            state_ND = run_steps(steps[first : first + phase.n_steps], state_ND, run, here)
            states[phase.state] = state_ND if phase.norm is None else norms[phase.norm](state_ND)
        first += phase.n_steps
    return torch.cat(states[:n], dim=-1)


def state_that_leaves(segment: Segment, states: Float[Tensor, "*B E"]) -> Float[Tensor, "*B D"]:
    """Return, of several states side by side, the one that the last phase changes."""
    if not segment.phases:
        return states
    return states.chunk(segment.n_states, dim=-1)[segment.phases[-1].state].contiguous()


class InputState(nn.Module):
    """h = e, for one of several states."""

    def forward(self, entry_BTD: Float[Tensor, "B T D"], positions: Int[Tensor, "#B T"]) -> Float[Tensor, "B T D"]:
        """Return what entered the segment."""
        return entry_BTD


class ZeroState(nn.Module):
    """h = 0."""

    def forward(self, entry_BTD: Float[Tensor, "B T D"], positions: Int[Tensor, "#B T"]) -> Float[Tensor, "B T D"]:
        """Return h before the first round, given e and the positions of its tokens."""
        return torch.zeros_like(entry_BTD)


class LearnedState(nn.Module):
    """h is one vector, learned; it starts at N(0, std^2), or N(0, 1 / D)."""

    def __init__(self, d_model: int, std: float | None = None) -> None:
        super().__init__()
        self.vector_D = nn.Parameter(torch.randn(d_model) * (d_model**-0.5 if std is None else std))

    def forward(self, entry_BTD: Float[Tensor, "B T D"], positions: Int[Tensor, "#B T"]) -> Float[Tensor, "B T D"]:
        """Return the vector, once a token."""
        return torch.zeros_like(entry_BTD) + self.vector_D


class NoiseState(nn.Module):
    """h is normal noise cut off at three standard deviations: drawn anew in training, else a function of the position.

    Args:
        std: its standard deviation before it is cut off. seed: of the noise outside training.
    """

    def __init__(self, d_model: int, std: float, seed: int) -> None:
        super().__init__()
        self.d_model, self.std, self.seed = d_model, std, seed

    def forward(self, entry_BTD: Float[Tensor, "B T D"], positions: Int[Tensor, "#B T"]) -> Float[Tensor, "B T D"]:
        """Return noise."""
        if self.training:
            return self.std * _cut_normal(entry_BTD)
        # Tables of so many positions each: a longer sentence adds tables, and changes none.
        highest = POSITIONS_OF_A_GRAPH - 1 if is_exporting() else highest_position(positions)
        tables = [
            _noise(self.seed + first, self.d_model, positions.device)
            for first in range(0, highest + 1, _POSITIONS_A_TABLE)
        ]
        return (self.std * torch.cat(tables)[positions]).to(entry_BTD.dtype).expand_as(entry_BTD)


class SeveralStates(nn.ModuleList):
    """The starts of several states side by side."""

    def forward(self, entry_BTD: Float[Tensor, "B T D"], positions: Int[Tensor, "#B T"]) -> Float[Tensor, "B T E"]:
        """Return what all of them are before the first round."""
        return torch.cat([start(entry_BTD, positions) for start in self], dim=-1)


def _cut_normal(like_BTD: Tensor) -> Float[Tensor, "B T D"]:
    """Return normal noise that is cut off, of a tensor's shape: sqrt(2) erf^-1(u), u uniform.

    `trunc_normal_` draws again what lies outside, until nothing does: a GPU's host would wait to know, and a compiled
    pass would end there.
    """
    most = math.erf(_CUT / math.sqrt(2))
    u_BTD = torch.empty_like(at_least_float32(like_BTD)).uniform_(-most, most)
    return (math.sqrt(2) * torch.erfinv(u_BTD)).to(like_BTD.dtype)


@lru_cache(maxsize=64)
def _noise(seed: int, d_model: int, device: torch.device) -> Tensor:
    # Tables first made while evaluating must also serve training: no inference tensors.
    with torch.inference_mode(False), torch.no_grad():
        draws = torch.Generator().manual_seed(seed)
        # Where its generator is; and the numbers of a seed differ by type, whatever torch's default is.
        table = torch.empty(_POSITIONS_A_TABLE, d_model, dtype=torch.float32, device="cpu")
        return nn.init.trunc_normal_(table, a=-_CUT, b=_CUT, generator=draws).to(device)
