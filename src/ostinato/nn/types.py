"""What a stack returns beside its states. Side information is returned, never stored on modules.

Letters of the shape suffixes, here and in every file of `nn`: B sentences, T positions of the queries, S positions of
the keys, D model width, H heads, K head width, F feed-forward width, N rows (B * T or fewer), E experts, R rounds.

L: rows that were gathered away. Of queries: A rows of a sentence side by side, U sentences that have one, C choices of
a row, Q = A C. I: all heads of a row (and its choices) side by side, H K or C H K; J: its keys beside its values,
2 H_kv K. M: rows or columns counted in another way, as said there. Two letters have a second meaning: E is also the
width of embeddings (`embedded_BTE`) or of several states side by side (`states_NE`), and K the number of experts that a
row chooses (`experts_NK`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from ostinato.nn.shapes import Bool, Float, Int, Tensor

CaptureKey = tuple[str, int, str, str]
"""Stack, 0-based step, kind of sub-layer, and what: "input" (after the norms before it: what queries and routers are
made of), with it "values_input" (what a router of values is asked about), "output" (before the residual), "residual"
(after it and its norm), all `[B, T, D]` with zeros for rows that were gathered away; "weights" (of attention,
`[B, H, T C, S]`, the C choices of a token side by side) or "seconds" (that the sub-layer took, a number)."""


@dataclass(frozen=True, slots=True)
class Routing:
    """One routing decision: everything balance losses and analyses are functions of.

    Args:
        router: name of the router; steps that share it accumulate their losses.
        stack, step: where it happened.
        logits_NE: raw scores, before any temperature.
        probs_NE: full distribution over the experts.
        experts_NK, gates_NK: chosen experts and their gates.
        weight_N: 0 for padding and halted rows, else the mass that remains (1 without halting).
        rows_N: row -> flattened (sentence, position) index, after halted tokens were gathered away.
        shape_BT: sentences and positions of the pass.
        n_heads: that choose among experts of their own, which stand side by side: logits, probabilities and choices of
            one head after the other. Probabilities add up to 1 over all heads, to 1 / n_heads in each.
    """

    router: str
    stack: str
    step: int
    logits_NE: Float[Tensor, "N E"]
    probs_NE: Float[Tensor, "N E"]
    experts_NK: Int[Tensor, "N K"]
    gates_NK: Float[Tensor, "N K"]
    weight_N: Float[Tensor, "N"]
    rows_N: Int[Tensor, "N"]
    shape_BT: tuple[int, int] = (0, 1)
    n_heads: int = 1

    @classmethod
    def of_no_rows(
        cls, router: str, stack: str, step: int, sizes: tuple[int, int], like: Tensor, n_heads: int = 1
    ) -> Routing:
        """Return what a router decided where it was not asked.

        Args:
            sizes: E and K, of all heads. like: a tensor of the device and dtype of probabilities.
        """
        n_experts, k = sizes
        scores_0E, gates_0K = like.new_empty(0, n_experts), like.new_empty(0, k)
        nothing_0 = torch.empty(0, dtype=torch.long, device=like.device)
        experts_0K = nothing_0.view(0, 1).expand(0, k)
        values = scores_0E, scores_0E, experts_0K, gates_0K, like.new_empty(0), nothing_0
        return cls(router, stack, step, *values, n_heads=n_heads)


@dataclass(frozen=True, slots=True)
class HaltingTrace:
    """What every token did in every round.

    Args:
        probs_BTR: halting probability. remaining_BTR: mass not halted before the round. executed_BTR: the token took
            part in the round: it had not halted before (ACT's N_updates, whether or not its state is frozen then).
        weights_BTR: part of the round in the output (ACT that interpolates: of the mix at that time, of which later
            rounds leave less). R: rounds that ran.
    """

    probs_BTR: Float[Tensor, "B T R"]
    remaining_BTR: Float[Tensor, "B T R"]
    executed_BTR: Bool[Tensor, "B T R"]
    weights_BTR: Float[Tensor, "B T R"]


@dataclass(frozen=True, slots=True)
class StackOutput:
    """States after the last step, and side information.

    Args:
        states_BTD: output states (after the final norm of a pre-norm stack).
        halting: None where no token can halt. depth_cost: mean over real tokens, see the rule's `aux_loss`.
        routings: in the order they happened; none of sub-layers that compiled kernels ran in a cached step.
        captures: what `request` named, see `CaptureKey`.
        rounds: with "rounds" in the request, for each round of the loop what `states_BTD` would be if it were the last;
            made when it is called.
        left: with "rounds", the states that left each round of the loop.
        advance: with "rounds", the map of a round of the loop: from its 0-based number and the states that left the
            round before, of all tokens, to those that leave it, whatever halting says.
    """

    states_BTD: Float[Tensor, "B T D"]
    halting: HaltingTrace | None = None
    depth_cost: Tensor | None = None
    routings: tuple[Routing, ...] = ()
    captures: dict[CaptureKey, Tensor] = field(default_factory=dict)
    rounds: tuple[Callable[[], Tensor], ...] = ()
    left: tuple[Tensor, ...] = ()
    advance: Callable[[int, Tensor], Tensor] | None = None
