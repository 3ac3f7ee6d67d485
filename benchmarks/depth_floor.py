"""What adaptive depth could cost at best: the same stack on tokens that stand in the order of their depths.

In every round the first rows are computed, as many as take part: slices, where the real stack gathers, scatters and
masks. Of tokens in the order of their depths, deepest first, it computes what the real stack does; of others only the
time counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from forced_depth import ForcedDepths
from torch import Tensor

from ostinato.kernels import MOST_ROWS
from ostinato.nn.cache import KeyValues
from ostinato.nn.context import Keys, Pass, Round
from ostinato.nn.program import Program
from ostinato.nn.rows import Rows
from ostinato.nn.self_attention import SelfAttention
from ostinato.nn.stack import Stack
from ostinato.nn.sub_layer import SubLayer
from ostinato.nn.types import StackOutput


class DepthFloor(Stack):
    """A stack with another depth loop: it runs one dense layer every round, without relative positions, dropout and
    padding.

    Args:
        stack: whose plan and weights are run.
        depths_BT: rounds of every token.
    """

    def __init__(self, stack: Stack, depths_BT: Tensor) -> None:
        if not stack.plan.is_fully_shared or any(len(steps) > 1 for steps in stack.plan.loop.rounds()):
            raise ValueError("the floor is that of a stack which runs the same weights once every round")
        self.__dict__.update(stack.__dict__)
        self.halting = ForcedDepths(depths_BT.sort(dim=0, descending=True).values)
        self._column = 0
        runs_RBT = depths_BT > torch.arange(stack.plan.n_rounds)[:, None, None]
        # Columns of a sentence in a round: those of the mean sentence. Rows of one step of decoding: as many as run.
        self._columns_R: list[int] = [-(-int(n) // depths_BT.shape[0]) for n in runs_RBT.sum((1, 2))]
        self._rows_TR: list[list[int]] = runs_RBT.sum(1).t().tolist()

    def _loop(self, states_BTD: Tensor, run: Pass, program: Program) -> StackOutput:
        """Run the first columns of whole sentences, and of the one new column of a cached pass the first sentences."""
        if not isinstance(program[0].rounds[0][0][0], SubLayer):
            # Kernels run all rounds in one call, in which rows in the order of their depths stay where they are.
            if len(states_BTD) > MOST_ROWS:
                raise ValueError(f"kernels run at most {MOST_ROWS} rows in one call, not {len(states_BTD)}")
            return super()._loop(states_BTD, run, program)
        ((own, *_),) = self.program(None, run.execution)
        dim, sizes_R = (1, self._columns_R) if run.cache is None else (0, self._rows_of_column())
        for sub_layer in own[0][0]:
            sub_layer.prepare(run)
        start = self.signal.at_start(run.signal)
        states = states_BTD if start is None else states_BTD + start
        # Of tokens that have halted: states, and keys and values. Those that halted last stand first.
        halted: list[Tensor] = []
        halted_kv: Tensor | None = None
        for index, ((step,), n) in enumerate(zip(own, sizes_R, strict=True)):
            if n < states.shape[dim]:
                states, new = states.tensor_split((n,), dim)
                halted.insert(0, new)
                attention = own[index][0][0]
                assert isinstance(attention, SelfAttention), "a step begins with self-attention"
                of_none = Round(index, Rows.all(*new.shape[:2]), None, None, run.positions, run.visibility)
                new_kv = attention.keys_values(attention.module, new.flatten(0, 1), (), run, of_none)
                new_kv = new_kv.view(*new.shape[:2], -1)
                halted_kv = new_kv if halted_kv is None else torch.cat([new_kv, halted_kv], dim)
            if n and (tick := self.signal.at_round(run.signal, index)) is not None:
                states = states + tick[:, : states.shape[1]]
            # Later tokens of a cached pass may go deeper, and look at these.
            if n or run.cache is not None:
                states = _run_sliced(states, step, run, index, halted_kv)
        states = torch.cat([states, *halted], dim)
        return StackOutput(states if self.final_norm is None else self.final_norm(states))

    def _rows_of_column(self) -> list[int]:
        """Return the sentences that take part in every round of the next column."""
        rows_R = self._rows_TR[self._column]
        self._column = (self._column + 1) % len(self._rows_TR)
        return rows_R


class _SlicedSelfAttention(SelfAttention):
    """Self-attention of the first columns or sentences, to themselves and to the others as they were when they halted.

    Args:
        halted_kv: keys and values of the others.
    """

    def __init__(self, attention: SelfAttention, halted_kv: Tensor | None) -> None:
        self.__dict__.update(attention.__dict__)
        self._halted_kv = halted_kv

    def remember(self, attention: Any, kv_MJ: Tensor, run: Pass, here: Round) -> Keys:
        """Return keys and values that the rows look at; add those of all sentences to the cache."""
        n = here.rows.n_sentences
        kv = kv_MJ.view(n, here.rows.n_columns, kv_MJ.shape[1])
        if self._halted_kv is not None:
            kv = torch.cat([kv, self._halted_kv], 1 if run.cache is None else 0)
        kv_2BHTK: Tensor = attention.key_value_heads(kv)
        if run.cache is not None:
            kv_2BHTK = run.cache.self_kv.setdefault(self.step, KeyValues()).append(kv_2BHTK)[:, :n]
        return Keys(*kv_2BHTK.unbind(0), here.visibility.keep_BS)


def _run_sliced(states: Tensor, step: Sequence[Any], run: Pass, index: int, halted_kv: Tensor | None) -> Tensor:
    """Run a step on slices, `[B, n, D]` or `[n, 1, D]`."""
    n, n_columns, _ = states.shape
    here = Round(index, Rows.all(n, n_columns), None, None, run.positions, run.visibility)
    if run.cache is not None:
        run = replace(run, cross_kv={name: kv_2BHSK[:, :n] for name, kv_2BHSK in run.cross_kv.items()})
    states_ND = states.flatten(0, 1)
    for sub_layer in step:
        if isinstance(sub_layer, SelfAttention):
            sub_layer = _SlicedSelfAttention(sub_layer, halted_kv)
        if n:
            states_ND = sub_layer(states_ND, run, here)
        else:
            sub_layer.fill_cache(states_ND, run, here)
    return states_ND.view_as(states)
