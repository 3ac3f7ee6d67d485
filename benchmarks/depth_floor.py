"""What adaptive depth could cost at best: the same stack on tokens that stand in the order of their depths.

In every round the first rows are computed, as many as take part: slices, where the real stack gathers, scatters and
masks. Of tokens in the order of their depths, deepest first, it computes what the real stack does; of others only the
time counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from ostinato.nn.chains import Chains, chains_of
from ostinato.nn.passes import Here, Pass
from torch import Tensor

from ostinato.nn.attention import Attention, Visibility
from ostinato.nn.cache import Cache, KeyValues
from ostinato.nn.compiled import KeyValuesInPlace
from ostinato.nn.halting import WHOLE
from ostinato.nn.rows import Rows
from ostinato.nn.stack import Stack
from ostinato.nn.types import StackOutput
from ostinato.plan import Step, Use

Look = Callable[[Step, Attention, Tensor, int], tuple[Tensor, Tensor, Visibility]]
"""From a round's keys and values and its number of rows to all that there are to see, by head, and which of them."""
Memory = Callable[[Use, Attention], Tensor]


class DepthFloor:
    """Stands in for a stack that runs one dense layer every round, without relative positions, dropout and padding.

    Args:
        stack: whose plan and weights are run.
        depths_BT: rounds of every token.
    """

    def __init__(self, stack: Stack, depths_BT: Tensor) -> None:
        if not stack.plan.is_fully_shared or any(len(steps) > 1 for _, steps in stack.plan.rounds()):
            raise ValueError("the floor is that of a stack which runs the same weights once every round")
        self._stack, self._column = stack, 0
        runs_RBT = depths_BT > torch.arange(stack.plan.n_rounds)[:, None, None]
        # Columns of a sentence in a round: those of the mean sentence. Rows of one step of decoding: as many as run.
        self._columns_R: list[int] = [-(-int(n) // depths_BT.shape[0]) for n in runs_RBT.sum((1, 2))]
        self._rows_TR: list[list[int]] = runs_RBT.sum(1).t().tolist()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stack, name)

    def __call__(
        self, embedded_BTD: Tensor, *, memory_BSD: Tensor | None = None, positions_BT: Tensor | None = None, **_: Any
    ) -> StackOutput:
        """Run whole sentences."""
        T = embedded_BTD.shape[1]
        seen: list[Tensor] = []

        def look(step: Step, attention: Attention, kv: Tensor, n: int) -> tuple[Tensor, Tensor, Visibility]:
            seen[:] = [torch.cat([kv, seen[0][:, kv.shape[1] :]], 1) if kv.shape[1] < T else kv]
            return *attention.key_value_heads(seen[0]), Visibility(self._stack.is_causal)

        positions = torch.arange(T)[None] if positions_BT is None else positions_BT
        return self._rounds(embedded_BTD, 1, self._columns_R, positions, look, _projected(memory_BSD, {}))

    def step(self, embedded_B1D: Tensor, cache: Cache) -> StackOutput:
        """Run one new column after the cached ones, by compiled kernels where the stack itself would."""
        B = embedded_B1D.shape[0]
        rows_R = self._rows_TR[self._column]
        self._column = (self._column + 1) % len(self._rows_TR)
        chains = chains_of(embedded_B1D, self._stack.banks, self._stack, is_pre_norm=self._stack.is_pre_norm)
        if chains is not None:
            return self._by_chains(chains, embedded_B1D, cache, rows_R)
        seen: list[Tensor] = []

        def look(step: Step, attention: Attention, kv: Tensor, n: int) -> tuple[Tensor, Tensor, Visibility]:
            seen[:] = [torch.cat([kv, seen[0][kv.shape[0] :]]) if kv.shape[0] < B else kv]
            # Later tokens may be deeper, and look at this column of all sentences.
            k, v = cache.self_kv.setdefault(step.index, KeyValues()).append(attention.key_value_heads(seen[0]))
            return k, v, Visibility()

        memory = _projected(cache.memory_BSD, cache.cross_kv)
        output = self._rounds(embedded_B1D, 0, rows_R, torch.tensor([[cache.length]]), look, memory)
        cache.length += 1
        return output

    def _by_chains(self, chains: Chains, embedded_B1D: Tensor, cache: Cache, rows_R: list[int]) -> StackOutput:
        """Run one new column by kernels: in every round a chain of the first rows, and one copy of others' keys."""
        stack, B, states_ND = self._stack, embedded_B1D.shape[0], embedded_B1D.flatten(0, 1)
        positions = torch.tensor([[cache.length]])
        signal = stack.signal.prepare(positions, n_sentences=B, training=False)
        states_ND = states_ND if (start := stack.signal.at_start(signal)) is None else states_ND + start.flatten(0, 1)
        run = Pass(
            Visibility(), positions, positions, memory_BSD=cache.memory_BSD, cache=cache, cross_kv=cache.cross_kv
        )
        run.chains = chains
        halted: list[Tensor] = []
        kv_LJ = None
        for (index, (step,)), n in zip(stack.plan.rounds(), rows_R, strict=True):
            use = next(use for use in step.uses if use.kind == "self_attention")
            attention = stack.banks.attention(use.kind, use.weights)
            if n < len(states_ND):
                states_ND, gone_LD = states_ND.tensor_split((n,))
                halted.append(gone_LD)
                made_LJ = attention.keys_values(stack.banks.norm[use.norm](gone_LD) if stack.is_pre_norm else gone_LD)
                kv_LJ = made_LJ if kv_LJ is None else torch.cat([made_LJ, kv_LJ])
            here = Here(index, WHOLE, Rows(B, 1, torch.arange(n), n_queries=1), None, positions, run.visibility)
            if n:
                tick = stack.signal.at_round(signal, index)
                memory = _projected(cache.memory_BSD, cache.cross_kv)
                for other in step.uses:
                    if other.kind == "cross_attention":
                        memory(other, stack.banks.attention(other.kind, other.weights))
                entered_ND = states_ND if tick is None else states_ND + tick[0]
                left_ND = chains.run(entered_ND, [(step, other) for other in step.uses], run, here)
                if left_ND is None:
                    raise ValueError("kernels do not run these sub-layers, or not as many rows")
                states_ND = left_ND
            else:
                chains.cached(step, use, run)
                chains.next_keys(step, run, here)
            if kv_LJ is not None:
                kv = cache.self_kv[step.index]
                assert isinstance(kv, KeyValuesInPlace)
                kv.newest()[:, n:] = kv_LJ.view(-1, 2, attention.n_heads, attention.d_head).transpose(0, 1)
        output = torch.cat([states_ND, *reversed(halted)]).unsqueeze(1)
        name = stack.final_norm
        return StackOutput(output if name is None else stack.banks.norm[name](output), None, None, (), {})

    def _rounds(
        self, states: Tensor, dim: int, sizes_R: list[int], positions: Tensor, look: Look, memory: Memory
    ) -> StackOutput:
        """Run as many columns (dim 1) or sentences (dim 0) a round as `sizes_R` says."""
        signal = self._stack.signal.prepare(positions, n_sentences=states.shape[0], training=False)
        if (start := self._stack.signal.at_start(signal)) is not None:
            states = states + start
        halted: list[Tensor] = []
        for (index, (step,)), n in zip(self._stack.plan.rounds(), sizes_R, strict=True):
            gone = None
            if n < states.shape[dim]:
                states, gone = states.tensor_split((n,), dim)
                halted.append(gone)
            if n and (tick := self._stack.signal.at_round(signal, index)) is not None:
                states = states + tick[:, : states.shape[1]]
            for use in step.uses:
                if n or use.kind == "self_attention":
                    states = self._use(states, gone, dim, step, use, look, memory)
        output = torch.cat([states, *reversed(halted)], dim)
        name = self._stack.final_norm
        return StackOutput(output if name is None else self._stack.banks.norm[name](output), None, None, (), {})

    def _use(
        self, states: Tensor, gone: Tensor | None, dim: int, step: Step, use: Use, look: Look, memory: Memory
    ) -> Tensor:
        norm = self._stack.banks.norm[use.norm]
        before = norm if self._stack.is_pre_norm else _as_it_is
        inner = before(states)
        if use.kind == "ffn":
            output = self._stack.banks.feed_forward(use.weights)(inner, None)
        else:
            attention, (B, A, _) = self._stack.banks.attention(use.kind, use.weights), inner.shape
            rows = inner.flatten(0, 1)
            if use.kind == "self_attention":
                q, kv = attention.queries_keys_values(rows)
                kv = kv.view(B, A, 2 * attention.inner)
                if gone is not None:  # they are seen as they stopped from now on
                    kv = torch.cat([kv, attention.keys_values(before(gone))], dim)
                k, v, visibility = look(step, attention, kv, B)
                if not states.numel():
                    return states
            else:
                (k, v), q, visibility = memory(use, attention), attention.queries(rows), Visibility()
            heads = attention.query_heads(q.view(B, A, attention.inner))
            mixed = attention.mix(heads, k[:B], v[:B], visibility)
            output = attention.output(attention.join_heads(mixed).flatten(0, 1)).view_as(inner)
        return states + output if self._stack.is_pre_norm else norm(states + output)


def _as_it_is(states: Tensor) -> Tensor:
    return states


def _projected(memory_BSD: Tensor | None, known: dict[str, Tensor]) -> Memory:
    """Return a function that projects the memory once per parameter set."""

    def memory(use: Use, attention: Attention) -> Tensor:
        if use.weights not in known:
            known[use.weights] = attention.key_value_heads(attention.keys_values(memory_BSD)).contiguous()
        return known[use.weights]

    return memory
