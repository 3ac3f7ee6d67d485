"""Cached decoding by compiled kernels: what a stack runs for one new column, in place of its own sub-layers.

A token of decoding meets few rows and many small operations: what takes time is to start each of them. So sub-layers
that follow each other become one call, with norms, residuals and experts, where attention knows no relative positions
and all modules are ones that kernels know. Where there are more rows, a kernel reads the cached keys, and the rest is
the sub-layer's own code. Halting rules ask their gates by one call a round.

The depth loop stays `ostinato.nn.stack`'s: `compiled_step` gives it another `LoopProgram`. Nothing below it knows of
it, and `Stack.step` is its plain twin. What kernels run leaves no records of routing and halting.

Which modules kernels know is in `ostinato.nn.links`; others are called. Prepared calls live as long as the `packing()`
they were made in, in which weights do not change.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain
from threading import get_ident
from typing import Any

import torch

from ostinato.kernels import (
    MOST_ROWS,
    AttentionLink,
    CachedKeys,
    Chain,
    FeedForwardLink,
    compiled_packing,
    read_cache,
)
from ostinato.nn.cache import Cache
from ostinato.nn.compiled_halting import compiled_rule
from ostinato.nn.context import Pass, Round
from ostinato.nn.cross_attention import CrossAttention
from ostinato.nn.execution import DEFAULT_EXECUTION, Execution
from ostinato.nn.halting import NoHalting
from ostinato.nn.keys_in_place import KeyValuesInPlace, Moves
from ostinato.nn.links import can_read, link_of
from ostinato.nn.program import LoopProgram, Program
from ostinato.nn.self_attention import SelfAttention
from ostinato.nn.shapes import Bool, Float, Int, Tensor
from ostinato.nn.stack import Stack
from ostinato.nn.sub_layer import SubLayer
from ostinato.nn.types import StackOutput

_TIMES_OF_EXPERTS = 8
"""Times as many rows, where all sub-layers are of experts: plain code sorts and gathers them."""


def compiled_step(
    stack: Stack,
    embedded_BTE: Float[Tensor, "B T E"],
    cache: Cache,
    ids_BT: Int[Tensor, "B T *W"] | None = None,
    request: Collection[str] = (),
) -> StackOutput:
    """Run new columns after the cached ones, by compiled kernels where they can: they capture nothing. Plain twin:
    `stack.step`."""
    execution = cache.execution or DEFAULT_EXECUTION
    is_known = execution.cached_rounds is None and not execution.static_cache
    packing = compiled_packing(embedded_BTE) if is_known and not request and not stack.banks.training else None
    if packing is None:
        return stack.step(embedded_BTE, cache, ids_BT=ids_BT, request=request)
    # A prepared call says what it reads before it is made: every thread needs its own.
    key = stack, get_ident()
    if key not in packing.compiled:
        packing.compiled[key] = CompiledStack(stack)
    compiled: CompiledStack = packing.compiled[key]
    return compiled.step(embedded_BTE, cache, ids_BT)


class CompiledStack:
    """The cached steps of one stack. Its weights stay as they are while this lives."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._programs: dict[tuple[Any, ...], tuple[Program, Program]] = {}

    def step(
        self, embedded_BTE: Float[Tensor, "B T E"], cache: Cache, ids_BT: Int[Tensor, "B T *W"] | None = None
    ) -> StackOutput:
        """Run T new columns; keys and values are cached where kernels read them, whatever T is."""
        execution = cache.execution or DEFAULT_EXECUTION
        plain, compiled = self._program(None if cache.n_steps is None else int(cache.n_steps), execution)
        if not cache.self_kv:  # the first step of a search
            moves = Moves()
            for segment in plain:
                for sub_layer in chain.from_iterable(chain.from_iterable(segment.rounds)):
                    if isinstance(sub_layer, SelfAttention) and can_read(sub_layer):
                        cache.self_kv[sub_layer.step] = KeyValuesInPlace(sub_layer.module, moves)
        program = compiled if embedded_BTE.shape[1] == 1 else plain
        return self._stack.step(embedded_BTE, cache, program, ids_BT=ids_BT)

    def _program(self, n_steps: int | None, execution: Execution) -> tuple[Program, Program]:
        """Return what the stack runs, and what stands for it where one column is new."""
        n_rounds = execution.rounds_of(self._stack.plan.stack) if n_steps is None else n_steps
        halting = execution.halting, execution.halting_threshold, execution.exit, execution.exit_scope
        key = n_rounds, *halting, execution.expert_backend, execution.paths.get(self._stack.plan.stack)
        if key not in self._programs:
            plain = self._stack.program(n_steps, execution)
            any_backend = execution.expert_backend == "auto"
            self._programs[key] = plain, [self._compiled(segment, any_backend) for segment in plain]
        return self._programs[key]

    def _compiled(self, segment: LoopProgram, any_backend: bool) -> LoopProgram:
        """Return what stands for a segment where one column is new."""
        if not all(isinstance(s, SubLayer) for s in chain.from_iterable(chain.from_iterable(segment.rounds))):
            return segment  # kernels know sub-layers that follow each other
        by_step = [[[s for s in step if isinstance(s, SubLayer)] for step in steps] for steps in segment.rounds]
        if segment.segment.phases:
            # Between steps one state may follow another: every step is a call.
            calls: Any = [[[_stretch_of(s, any_backend)] if s else [] for s in steps] for steps in by_step]
            return segment._replace(rounds=calls)
        rounds = [[s for step in steps for s in step] for steps in by_step]
        has_signal = segment.segment.is_loop and self._stack.signal.acts_on_rounds
        if isinstance(segment.rule, NoHalting) and not has_signal and not segment.acts_between_rounds:
            # Nothing happens between rounds: all of them are one call.
            rounds = [[sub_layer for steps in rounds for sub_layer in steps]]
        stretches: Any = [[[_stretch_of(steps, any_backend)]] if steps else [] for steps in rounds]
        return segment._replace(rounds=stretches, rule=compiled_rule(segment.rule))


class _Stretch:
    """Sub-layers that follow each other as one call; one by one where kernels do not know or take them.

    Args:
        sub_layers: what it stands for. chain: the call; None: there is none.
        most_rows: that it takes. otherwise: what runs in its place.
    """

    def __init__(
        self, sub_layers: Sequence[SubLayer], chain: Chain | None, most_rows: int, otherwise: Sequence[Any]
    ) -> None:
        self._sub_layers, self._chain, self._most_rows, self._otherwise = sub_layers, chain, most_rows, otherwise
        self._self_attention = [(i, s) for i, s in enumerate(sub_layers) if isinstance(s, _SelfAttentionInPlace)]
        self._cross_attention = [(i, s) for i, s in enumerate(sub_layers) if isinstance(s, _CrossAttentionByKernel)]

    def __call__(self, states_ND: Float[Tensor, "N D"], run: Pass, here: Round) -> Tensor:
        """Return the states after the sub-layers."""
        visible_ND = None if here.visible is None else here.visible(states_ND)
        if self._chain is None or states_ND.shape[0] > self._most_rows or not self._can_write(run, visible_ND):
            for part in self._otherwise:
                states_ND = part(states_ND, run, here)
            return states_ND
        for index, attention in self._self_attention:
            self._chain.read(index, attention.next_keys(run, here))
        for index, cross in self._cross_attention:
            self._chain.read(index, cross.memory_keys(run, here))
        return self._chain(states_ND.contiguous(), None if visible_ND is None else visible_ND.contiguous())

    def _can_write(self, run: Pass, visible_ND: Tensor | None) -> bool:
        """Return whether the call can put keys and values of what is visible of its rows into the caches."""
        if visible_ND is not None and self._self_attention and [i for i, _ in self._self_attention] != [0]:
            return False
        return all(attention.in_place(run) is not None for _, attention in self._self_attention)

    def prepare(self, run: Pass) -> None:
        """Nothing is recomputed in decoding."""

    def fill_cache(self, states_0D: Tensor, run: Pass, here: Round) -> None:
        """Cache the new column of a round in which no row takes part."""
        for sub_layer in self._sub_layers:
            sub_layer.fill_cache(states_0D, run, here)


def _stretch_of(sub_layers: Sequence[SubLayer], any_backend: bool) -> _Stretch:
    """Return what stands for some sub-layers: one call, or one each, or their own code that reads caches by kernels."""
    parts = [_by_kernels(sub_layer) for sub_layer in sub_layers]
    links = [link_of(sub_layer) if any_backend else None for sub_layer in sub_layers]
    singles = [_one_call([part], [link], [part]) for part, link in zip(parts, links, strict=True)]
    return singles[0] if len(singles) == 1 else _one_call(parts, links, singles)


def _one_call(
    parts: Sequence[SubLayer], links: Sequence[AttentionLink | FeedForwardLink | None], otherwise: Sequence[Any]
) -> _Stretch:
    known = [link for link in links if link is not None]
    if len(known) < len(links):
        return _Stretch(parts, None, 0, otherwise)
    most_rows = MOST_ROWS * (_TIMES_OF_EXPERTS if all(link.call.route for link in known) else 1)
    return _Stretch(parts, Chain(known), most_rows, otherwise)


# Sub-layers that run plain code and only read caches by a kernel.


class _SelfAttentionInPlace(SelfAttention):
    """A self-attention that reads `KeyValuesInPlace` by a kernel."""

    def in_place(self, run: Pass) -> KeyValuesInPlace | None:
        """Return the cache of its step; None where that is a plain one."""
        assert run.cache is not None
        found = run.cache.self_kv.get(self.step)
        return found if isinstance(found, KeyValuesInPlace) else None

    def next_keys(self, run: Pass, here: Round) -> CachedKeys:
        """Return what a kernel reads at the new position, where keys and values of the rows are still to be written."""
        cached = self.in_place(run)
        assert run.cache is not None
        assert cached is not None
        keys = cached.next(here.rows.n_sentences, _in_rows(run.cache.keep_BS), here.rows.index_N)
        if here.halted:
            newest_2RHK, new = cached.newest(), self.newly_halted(run, here)
            made = [self.keys_values(self.module, rows.visible_LD[:0], [rows], run, here) for rows in new]
            for places_L, halted_LJ in self.of_halted(new, made, run, here):
                halted_2LHK = halted_LJ.view(-1, 2, *newest_2RHK.shape[2:]).transpose(0, 1)
                newest_2RHK.index_copy_(1, places_L, halted_2LHK)  # quicker than by an index
        return keys

    def read(self, attention: Any, q_NI: Tensor, kv_MJ: Tensor, run: Pass, here: Round) -> Float[Tensor, "N I"]:
        """See `SelfAttention`."""
        if (cached := self.in_place(run)) is None:
            return super().read(attention, q_NI, kv_MJ, run, here)
        assert run.cache is not None
        keys = cached.next(here.rows.n_sentences, _in_rows(run.cache.keep_BS), here.rows.index_N)
        return read_cache(keys, q_NI, kv_MJ)

    def fill_cache(self, states_0D: Tensor, run: Pass, here: Round) -> None:
        """See `SelfAttention`."""
        if self.in_place(run) is None:
            super().fill_cache(states_0D, run, here)
        else:
            self.next_keys(run, here)


class _CrossAttentionByKernel(CrossAttention):
    """A cross-attention that reads the memory by a kernel."""

    def memory_keys(self, run: Pass, here: Round) -> CachedKeys:
        """Return the keys of the sentences' memory, kept as long as these are."""
        assert run.cache is not None
        kv_2BHSK = self.memory(run)
        keys: CachedKeys | None = run.cache.prepared.get(self.use.weights)
        if keys is None or keys.kv_2RHSK is not kv_2BHSK:
            keys = CachedKeys(kv_2BHSK, self.module.scale, self.module.n_choices)
            run.cache.prepared[self.use.weights] = keys
        keep_BS = _in_rows(run.cache.memory_keep_BS)
        return keys.see(kv_2BHSK.shape[3], None, keep_BS, here.rows.index_N, run.n_beams)

    def read(self, attention: Any, q_NI: Tensor, run: Pass, here: Round) -> Float[Tensor, "N I"]:
        """See `CrossAttention`."""
        return read_cache(self.memory_keys(run, here), q_NI)


def _by_kernels(sub_layer: SubLayer) -> SubLayer:
    """Return a sub-layer with the same parts that reads its cache by a kernel, where a kernel can."""
    kind: type[SubLayer]
    if isinstance(sub_layer, SelfAttention) and can_read(sub_layer):
        kind = _SelfAttentionInPlace
    elif isinstance(sub_layer, CrossAttention) and sub_layer.module.is_read_plainly:
        kind = _CrossAttentionByKernel
    else:
        return sub_layer
    found = kind.__new__(kind)
    found.__dict__.update(sub_layer.__dict__)
    return found


def _in_rows(keep_BS: Bool[Tensor, "B S"] | None) -> Bool[Tensor, "B S"] | None:
    """Return a keep mask whose rows lie in one stretch of memory each."""
    if keep_BS is None or (keep_BS.stride(1) == 1 and keep_BS.dtype == torch.bool):
        return keep_BS
    return keep_BS.bool().contiguous()
