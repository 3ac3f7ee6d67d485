"""What goes through the depth loop beside the states: what a pass knows, and what a round knows."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch

from ostinato.nn.attention import Visibility
from ostinato.nn.cache import Cache
from ostinato.nn.execution import Execution
from ostinato.nn.relative import Turns
from ostinato.nn.rows import Rows
from ostinato.nn.shapes import Bool, Int, Tensor
from ostinato.nn.types import CaptureKey, Routing

KeysOf = tuple[int, str, str | None, str | None, str | None, str | None, int | None]
"""What makes keys and values of a state: the segment and the weights; the norm, the delta, the modulation and the table
of values where there are some; the round, where its time changes the modulation."""


@dataclass(frozen=True, slots=True)
class HaltedRows:
    """Rows that were gathered away before a round.

    Args:
        places_L: b T + t of every row. visible_LD: what they look like to others from then on.
    """

    places_L: Int[Tensor, "L"]
    visible_LD: Tensor


class Keys(NamedTuple):
    """Keys and values by head of all columns of one step, or of several, side by side: M = n_sets S.

    Args:
        keep_BM: those that are seen; None: all are.
    """

    k_BHMK: Tensor
    v_BHMK: Tensor
    keep_BM: Bool[Tensor, "B M"] | None
    n_sets: int = 1


@dataclass(frozen=True, slots=True)
class Pass:
    """What one pass through a stack knows; made anew for every call.

    Args:
        visibility: of all new columns as queries. memory_visibility: of what cross-attention looks at.
        positions: of the new columns. key_positions: of all visible columns (cached ones first).
        execution: how to run.
        keep_BT: real tokens among the new columns; None where all are.
        ids_BT: their tokens, which tables of values are read by; None: not known.
        memory_BSD: what cross-attention looks at. cache: of a cached pass.
        recomputes: steps are run again in the backward pass. request: captures to return.
        signal: what the stack's signal has prepared of the new columns' positions (`ostinato.nn.positions`).
        cross_kv: keys and values of the memory, `[2, B, H, S, K]`, by parameter set, made once a pass or search.
        biases: of attention, where they depend on positions only, by table.
        turns: rotations of the new columns, by table and type.
        values: rows of the tables of values `[B, T, H_kv K]` of all new columns, by table.
        keys: keys and values by head of all columns, by the step that made them for others, too.
        halted_keys: places, keys and values `[L, 2 H K]` of the groups of `Round.halted`, by what made them.
        predict: from states that leave a round to logits, given for rules that stop by what is predicted.
        predicts_alone: no step behind the loop reads other tokens: `predict` takes the states of some, `[N, D]`, too.
        captures, routings, rounds: what is returned beside the states.
    """

    visibility: Visibility
    positions: Int[Tensor, "#B T"]
    key_positions: Int[Tensor, "#B S"]
    execution: Execution
    keep_BT: Bool[Tensor, "B T"] | None = None
    ids_BT: Int[Tensor, "B T *W"] | None = None
    memory_BSD: Tensor | None = None
    memory_visibility: Visibility = field(default_factory=Visibility)
    cache: Cache | None = None
    recomputes: bool = False
    request: Collection[str] = ()
    signal: Tensor | None = None
    cross_kv: dict[str, Tensor] = field(default_factory=dict)
    biases: dict[str, Tensor] = field(default_factory=dict)
    turns: dict[tuple[str, torch.dtype], Turns] = field(default_factory=dict)
    values: dict[str, Tensor] = field(default_factory=dict)
    keys: dict[int, Keys] = field(default_factory=dict)
    halted_keys: dict[KeysOf, list[tuple[Tensor, Tensor]]] = field(default_factory=dict)
    predict: Callable[[Tensor], Tensor] | None = None
    predicts_alone: bool = False
    captures: dict[CaptureKey, Tensor] = field(default_factory=dict)
    routings: list[Routing] = field(default_factory=list)
    rounds: list[Tensor] = field(default_factory=list)

    @property
    def n_beams(self) -> int:
        """Hypotheses that share a sentence's memory."""
        return 1 if self.cache is None else self.cache.n_beams

    def apart(self) -> Pass:
        """Return this pass for rounds that are run beside it: it knows the keys so far, and nothing of it is kept."""
        return replace(self, captures={}, routings=[], rounds=[], request=(), halted_keys={}, keys=dict(self.keys))

    def keep_N(self) -> Bool[Tensor, "N"] | None:
        """Return real tokens among the rows of all new columns; None where all are."""
        # With one new column, the mask is a view with gaps, and kernels read rows side by side.
        return None if self.keep_BT is None else self.keep_BT.flatten().contiguous()

    def source_lengths(self, n_sentences: int) -> Int[Tensor, "B"]:
        """Return the real tokens of every sentence's source: of the memory, where there is one, else its own."""
        # In a graph the memory itself may be gone: its keys are given, and its mask.
        keep_BS, memory_BSD = self.memory_visibility.keep_BS, self.memory_BSD
        if keep_BS is None and memory_BSD is None:
            keep_BS = self.keep_BT
        if keep_BS is None:
            n_columns = (self.positions if memory_BSD is None else memory_BSD).shape[1]
            return torch.full((n_sentences,), n_columns, device=self.positions.device)
        n_beams = n_sentences // keep_BS.shape[0]
        return keep_BS.sum(1) if n_beams == 1 else keep_BS.sum(1).repeat_interleave(n_beams)


@dataclass(frozen=True, slots=True)
class Round:
    """What one round knows. It never changes, so that a step can be run again when later rounds have run.

    Args:
        index: 0-based. rows: the tokens it computes.
        weight_N: how much of every row is left for this round, 0 where it does not take part; None: 1.
        visible: from states to those that keys and values are made of: a halted token shows its last visible state.
            None: all show their present states.
        positions_BA, visibility: of the rows as queries.
        halted: all rows that were gathered away so far, a group for every round before which there were any.
        time_D: what modulations of the round are made of (`ostinato.nn.by_round.RoundTime`); None: there is no such.
    """

    index: int | Tensor
    rows: Rows
    weight_N: Tensor | None
    visible: Callable[[Tensor], Tensor] | None
    positions_BA: Int[Tensor, "#B A"]
    visibility: Visibility
    halted: tuple[HaltedRows, ...] = ()
    time_D: Tensor | None = None

    @classmethod
    def of(
        cls,
        run: Pass,
        index: int | Tensor,
        rows: Rows,
        weight_N: Tensor | None,
        visible: Callable[[Tensor], Tensor] | None,
        halted: tuple[HaltedRows, ...],
        seen_BS: Bool[Tensor, "B S"] | None = None,
        time_D: Tensor | None = None,
    ) -> Round:
        """Return a round of a pass, given the rows that are left in it, and the columns that are seen in it."""
        if weight_N is None and rows.index_N is None and run.keep_BT is not None:
            weight_N = run.keep_BT.flatten()
        positions_BA = run.positions
        visibility = run.visibility if seen_BS is None else replace(run.visibility, keep_BS=seen_BS)
        if (columns_BA := rows.columns()) is not None:
            positions_BA = rows.of_sentences(positions_BA.expand(rows.n_sentences, -1)).gather(1, columns_BA)
            visibility = replace(visibility, columns_BA=columns_BA)
        return cls(index, rows, weight_N, visible, positions_BA, visibility, halted, time_D)
