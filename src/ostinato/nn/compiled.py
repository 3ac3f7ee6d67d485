"""Cached decoding by compiled kernels: what a stack runs for one new column, in place of its own sub-layers.

A token of decoding meets few rows and many small operations: what takes time is to start each of them. So sub-layers
that follow each other become one call, with norms, residuals and experts, where attention knows no relative positions
and all modules are ones that kernels know. Where there are more rows, a kernel reads the cached keys, and the rest is
the sub-layer's own code. Halting rules of many rows ask their gates by one call a round.

The depth loop stays `ostinato.nn.stack`'s: `compiled_step` gives it another `LoopProgram`. Nothing below it knows of
it, and `Stack.step` is its plain twin. What kernels run leaves no records of routing and halting. Where nothing but a
signal comes between rounds, all of them are one call, and so are rounds of few rows that may halt: the loop then leaves
out what it asks and notes round by round (`LoopProgram.in_one`).

Which modules kernels know is in `ostinato.nn.links`; others are called. Prepared calls live as long as the `packing()`
they were made in, in which weights do not change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from operator import is_
from threading import get_ident
from typing import Any, NamedTuple

import torch

from ostinato.kernels import (
    MOST_ROWS,
    AttentionLink,
    CachedKeys,
    Chain,
    FeedForwardLink,
    HaltsBy,
    NormOf,
    compiled_packing,
    read_cache,
)
from ostinato.nn.cache import Cache, KeyValues
from ostinato.nn.compiled_halting import compiled_rule, halting_in_rounds
from ostinato.nn.context import Pass, Round
from ostinato.nn.cross_attention import CrossAttention
from ostinato.nn.execution import DEFAULT_EXECUTION, Execution
from ostinato.nn.halting import NoHalting
from ostinato.nn.keys_in_place import KeyValuesInPlace, Moves
from ostinato.nn.links import can_read, knows_norm, link_of, norm_of
from ostinato.nn.positions import PositionSignal
from ostinato.nn.program import LoopProgram, Program
from ostinato.nn.rows import Rows
from ostinato.nn.self_attention import SelfAttention
from ostinato.nn.shapes import Bool, Float, Int, Tensor
from ostinato.nn.stack import Stack
from ostinato.nn.sub_layer import SubLayer
from ostinato.nn.types import StackOutput
from ostinato.plan import Use

_Link = AttentionLink | FeedForwardLink
_Find = Callable[[SubLayer], _Link | None]
_InPlace = list[tuple[int, "_SelfAttentionInPlace", KeyValuesInPlace]]


class _Starts(NamedTuple):
    """Where rounds after the first begin, before which a signal is added to the states.

    Args:
        places: the number of the first sub-layer of each, among all of the loop.
    """

    places: tuple[int, ...] = ()
    signal: PositionSignal | None = None


_NOWHERE = _Starts()
_MOST_ROWS_OF_EXPERTS = 256
"""Rows of one call where some sub-layers are of experts: plain code sorts and gathers more of them."""


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


class _Programs(NamedTuple):
    """What a stack runs, and what stands for it where one column is new.

    Args:
        plain: its own sub-layers. many, few: for any rows, and for few rows, none of them padding.
        calls: the segments of `few` that are one call; it may run where all of them take the rows.
        stretches: all that stand for sub-layers.
    """

    plain: Program
    many: Program
    few: Program
    calls: Sequence[_Stretch]
    stretches: Sequence[_Stretch]


class CompiledStack:
    """The cached steps of one stack. Its weights stay as they are while this lives."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._last: tuple[int | None, Execution, _Programs] | None = None
        self._links: dict[Use, _Link | None] = {}

    def step(
        self, embedded_BTE: Float[Tensor, "B T E"], cache: Cache, ids_BT: Int[Tensor, "B T *W"] | None = None
    ) -> StackOutput:
        """Run T new columns; keys and values are cached where kernels read them, whatever T is."""
        execution = cache.execution or DEFAULT_EXECUTION
        n_steps = None if cache.n_steps is None else int(cache.n_steps)
        if self._last is None or self._last[:2] != (n_steps, execution):
            self._last = n_steps, execution, self._programs(n_steps, execution)
        plain, many, few, calls, stretches = self._last[2]
        if not cache.self_kv and not cache.length:  # the first step of a search
            for stretch in stretches:  # what the search before has cached may be as much as this one is about to
                stretch.forget()
            moves = Moves()
            for segment in plain:
                for sub_layer in chain.from_iterable(chain.from_iterable(segment.rounds)):
                    if isinstance(sub_layer, SelfAttention) and can_read(sub_layer):
                        cache.self_kv[sub_layer.step] = KeyValuesInPlace(sub_layer.module, moves)
        program = plain
        if embedded_BTE.shape[1] == 1:
            has_padding = bool(calls) and cache.keep_BS is not None and not bool(cache.keep_BS[:, -1].all())
            takes = not has_padding and all(part.takes(embedded_BTE.shape[0], cache) for part in calls)
            program = few if takes else many
        return self._stack.step(embedded_BTE, cache, program, ids_BT=ids_BT)

    def _programs(self, n_steps: int | None, execution: Execution) -> _Programs:
        """Return what the stack runs, and what stands for it where one column is new."""
        plain = self._stack.program(n_steps, execution)
        find = self._link if execution.expert_backend == "auto" else _no_link
        gathers = execution.compaction != "never"
        many = [self._compiled(segment, find) for segment in plain]
        few, calls = list(many), []
        for index, (segment, compiled) in enumerate(zip(plain, many, strict=True)):
            last = self._last_norm(segment) if index == len(plain) - 1 else None
            part = (self._halting(segment, find, last) if gathers else None) or _whole(compiled, last)
            if part is not None:
                few[index] = compiled._replace(rule=NoHalting(), in_one=part.in_one, is_normed=last is not None)
                calls.append(part)
        made = chain.from_iterable(step for segment in many for steps in segment.rounds for step in steps)
        return _Programs(plain, many, few, calls, [*calls, *(one for one in made if isinstance(one, _Stretch))])

    def _link(self, sub_layer: SubLayer) -> _Link | None:
        """Return a sub-layer as a part of a call; made once for all rounds that use the same."""
        if isinstance(sub_layer, SelfAttention) and not can_read(sub_layer):  # that depends on the round
            return None
        if sub_layer.use not in self._links:
            self._links[sub_layer.use] = link_of(sub_layer)
        return self._links[sub_layer.use]

    def _compiled(self, segment: LoopProgram, find: _Find) -> LoopProgram:
        """Return what stands for a segment where one column is new."""
        if (by_step := _known(segment)) is None:
            return segment
        if segment.segment.phases:
            # Between steps one state may follow another: every step is a call.
            calls: Any = [[[stretch_of(s, find)] if s else [] for s in steps] for steps in by_step]
            return segment._replace(rounds=calls)
        rounds = [[s for step in steps for s in step] for steps in by_step]
        starts, halts = self._starts(segment, rounds), not isinstance(segment.rule, NoHalting)
        if not halts and not segment.acts_between_rounds and (all(rounds) or not starts.places):
            # Nothing but a signal comes between rounds: all of them are one call.
            whole = list(chain.from_iterable(rounds))
            return segment._replace(rounds=[[[stretch_of(whole, find, starts)]] if whole else []])
        stretches: Any = [[[stretch_of(steps, find)]] if steps else [] for steps in rounds]
        return segment._replace(rounds=stretches, rule=compiled_rule(segment.rule))

    def _last_norm(self, segment: LoopProgram) -> NormOf | None:
        """Return the norm at the end of the stack, where it follows the last segment at once and kernels know it."""
        norm, own = self._stack.final_norm, segment.segment
        return norm_of(norm) if own.end_map is None and own.end_norm is None and knows_norm(norm) else None

    def _halting(self, segment: LoopProgram, find: _Find, last: NormOf | None) -> _HaltingRounds | None:
        """Return what stands for a segment where one column of few rows is new, which may halt; None: nothing does.

        Args:
            last: a norm behind it.
        """
        by_step = None if segment.acts_between_rounds else _known(segment)
        rounds = [[_by_kernels(s) for step in steps for s in step] for steps in by_step or ()]
        parts = list(chain.from_iterable(rounds))
        if not parts:
            return None
        # What a halted row shows, it shows to the same weights in all rounds.
        if any([s.use for s in sub_layers] != [s.use for s in rounds[0]] for sub_layers in rounds):
            return None
        with_keys = [i for i, s in enumerate(rounds[0]) if isinstance(s, SelfAttention)]
        halts = halting_in_rounds(segment.rule, begins_with_keys=with_keys in ([], [0]))
        links = [find(s) for s in parts]
        known = [link for link in links if link is not None]
        if halts is None or len(known) < len(parts):
            return None
        return _HaltingRounds(parts, Chain(known, last), self._starts(segment, rounds), len(rounds), halts)

    def _starts(self, segment: LoopProgram, rounds: Sequence[Sequence[Any]]) -> _Starts:
        """Return where rounds after the first begin, counted in sub-layers of the loop, and the signal added there.

        A round without sub-layers would share its number with the next one: where there is a signal, rounds are merged
        only if none is empty.
        """
        signal = self._stack.signal
        if not segment.segment.is_loop or not signal.acts_on_rounds:
            return _NOWHERE
        return _Starts(tuple(accumulate(len(sub_layers) for sub_layers in rounds[:-1])), signal)


def _no_link(sub_layer: SubLayer) -> None:
    """Let the code of all sub-layers run: one that multiplies experts by the backend asked for."""


def _known(segment: LoopProgram) -> list[list[list[SubLayer]]] | None:
    """Return the sub-layers of every step of every round, where all follow each other, as kernels know them."""
    if not all(isinstance(s, SubLayer) for s in chain.from_iterable(chain.from_iterable(segment.rounds))):
        return None
    return [[[s for s in step if isinstance(s, SubLayer)] for step in steps] for steps in segment.rounds]


def _whole(segment: LoopProgram, last: NormOf | None) -> _Stretch | None:
    """Return the one call that a compiled segment is, with a norm behind it; None where it is more than that."""
    if segment.acts_between_rounds or not isinstance(segment.rule, NoHalting) or len(segment.rounds) != 1:
        return None
    parts = list(chain.from_iterable(segment.rounds[0]))
    return parts[0].ending(last) if len(parts) == 1 and isinstance(parts[0], _Stretch) else None


class _Stretch:
    """Sub-layers that follow each other as one call; one by one where kernels do not know or take them.

    Args:
        sub_layers: what it stands for. chain: the call; None: there is none.
        most_rows: that it takes. otherwise: what runs in its place.
        starts: before which of them something is added to the states, and what, of the signal that was prepared.
    """

    def __init__(
        self,
        sub_layers: Sequence[SubLayer],
        chain: Chain | None,
        most_rows: int,
        otherwise: Sequence[Any],
        starts: _Starts = _NOWHERE,
    ) -> None:
        self._sub_layers, self._chain, self._most_rows, self._otherwise = sub_layers, chain, most_rows, otherwise
        self._self_attention = [(i, s) for i, s in enumerate(sub_layers) if isinstance(s, _SelfAttentionInPlace)]
        self._cross_attention = [(i, s) for i, s in enumerate(sub_layers) if isinstance(s, _CrossAttentionByKernel)]
        self._starts = starts
        self._in_place: _InPlace | None = None
        # Of the token before: what is still the same need not be said again.
        self._self_kv: dict[int, KeyValues] | None = None
        self._of_memory: tuple[Any, ...] = ()
        self._memory: list[CachedKeys] = []

    def ending(self, last: NormOf | None) -> _Stretch | None:
        """Return this with a norm behind it, for `in_one` alone; None where it is no one call."""
        if self._chain is None:
            return None
        return _Stretch(self._sub_layers, Chain(self._chain.links, last), self._most_rows, (), self._starts)

    def forget(self) -> None:
        """Hold nothing of a search."""
        self._in_place = self._self_kv = None
        self._of_memory, self._memory = (), []
        if self._chain is not None:
            self._chain.forget()
        for part in self._otherwise:
            if isinstance(part, _Stretch):
                part.forget()

    def takes(self, n_rows: int, cache: Cache) -> bool:
        """Return whether `in_one` takes a new column of so many rows, none of them padding."""
        return n_rows <= self._most_rows and self._caches(cache) is not None

    def in_one(self, states_ND: Float[Tensor, "N D"], run: Pass) -> Tensor:
        """Return the states after all rounds, whose sub-layers these are, and what may halt in them; all rows begin."""
        assert self._chain is not None
        here = Round(0, _all_rows(states_ND.shape[0]), None, None, run.positions, run.visibility)
        if (added_RND := self._added(run, here)) is not None:
            states_ND = states_ND + added_RND[0]
        self._read(self._chain, added_RND, run, here)
        return self._run(self._chain, states_ND.contiguous(), run, here)

    def _run(self, chain: Chain, states_ND: Tensor, run: Pass, here: Round) -> Tensor:
        return chain(states_ND)

    def __call__(self, states_ND: Float[Tensor, "N D"], run: Pass, here: Round) -> Tensor:
        """Return the states after the sub-layers."""
        visible_ND = None if here.visible is None else here.visible(states_ND)
        added_RND = self._added(run, here) if self._starts.places else None
        if self._chain is None or states_ND.shape[0] > self._most_rows or not self._can_write(run.cache, visible_ND):
            signals = {} if added_RND is None else dict(zip(self._starts.places, added_RND[1:], strict=True))
            for index, part in enumerate(self._otherwise):
                states_ND = part(states_ND + signals[index] if index in signals else states_ND, run, here)
            return states_ND
        self._read(self._chain, added_RND, run, here)
        return self._chain(states_ND.contiguous(), None if visible_ND is None else visible_ND.contiguous())

    def _added(self, run: Pass, here: Round) -> Float[Tensor, "R #N D"] | None:
        """Return what is added to all rows before every round, where the signal acts on rounds; None: it does not."""
        places, signal = self._starts
        if signal is None:
            return None
        added_RBTD = signal.of_rounds(run.signal, 1 + len(places))
        if added_RBTD.shape[1] == 1:
            return added_RBTD[:, 0].float().contiguous()
        return torch.stack([here.rows.take(added_BTD) for added_BTD in added_RBTD]).float()

    def _read(self, chain: Chain, added_RND: Tensor | None, run: Pass, here: Round) -> None:
        """Say what the call reads, and what it adds before rounds after the first."""
        assert run.cache is not None
        last = None
        for index, attention, cached in self._caches(run.cache) or ():
            chain.read(index, attention.next_keys(cached, run, here))
            assert last is None or (cached.length == last.length and cached.places_BS is last.places_BS)
            last = cached
        if last is not None:
            last.see(_in_rows(run.cache.keep_BS))
        of_memory = run.cross_kv, run.cache.memory_keep_BS, run.n_beams
        if not self._of_memory or not all(map(is_, of_memory, self._of_memory)):
            made: dict[str, CachedKeys] = {}
            for index, cross in self._cross_attention:
                if cross.use.weights not in made:
                    made[cross.use.weights] = cross.memory_keys(run)
                chain.read(index, made[cross.use.weights])
            self._of_memory, self._memory = of_memory, list(made.values())
        for keys in self._memory:
            keys.ask(here.rows.index_N)
        if added_RND is not None:
            chain.add(self._starts.places, added_RND[1:])

    def _can_write(self, cache: Cache | None, visible_ND: Tensor | None) -> bool:
        """Return whether the call can put keys and values of what is visible of its rows into the caches."""
        if visible_ND is not None and self._self_attention and [i for i, _ in self._self_attention] != [0]:
            return False
        assert cache is not None
        return self._caches(cache) is not None

    def _caches(self, cache: Cache) -> _InPlace | None:
        """Return the places of self-attention with what they cache; None where some of it is not in place."""
        if self._self_kv is not cache.self_kv:
            found = [(i, attention, attention.in_place(cache)) for i, attention in self._self_attention]
            known = [(i, attention, cached) for i, attention, cached in found if cached is not None]
            self._in_place, self._self_kv = known if len(known) == len(found) else None, cache.self_kv
        return self._in_place

    def prepare(self, run: Pass) -> None:
        """Nothing is recomputed in decoding."""

    def fill_cache(self, states_0D: Tensor, run: Pass, here: Round) -> None:
        """Cache the new column of a round in which no row takes part."""
        for sub_layer in self._sub_layers:
            sub_layer.fill_cache(states_0D, run, here)


class _HaltingRounds(_Stretch):
    """All rounds of a loop as one call, in which rows may halt.

    Args:
        sub_layers, chain: of all rounds. starts: see `_Stretch`.
        n_rounds: of the loop. halts: returns who halts, given the rows, the pass and that number.
    """

    def __init__(
        self,
        sub_layers: Sequence[SubLayer],
        chain: Chain,
        starts: _Starts,
        n_rounds: int,
        halts: Callable[[Rows, Pass, int], HaltsBy],
    ) -> None:
        super().__init__(sub_layers, chain, _most_rows(chain.links), (), starts)
        self._n_rounds, self._halts = n_rounds, halts

    def _run(self, chain: Chain, states_ND: Tensor, run: Pass, here: Round) -> Tensor:
        return chain.rounds(states_ND, self._n_rounds, self._halts(here.rows, run, self._n_rounds))


@lru_cache(maxsize=64)
def _all_rows(n_sentences: int) -> Rows:
    return Rows.all(n_sentences, 1)


def stretch_of(sub_layers: Sequence[SubLayer], find: _Find, starts: _Starts = _NOWHERE) -> _Stretch:
    """Return what stands for some sub-layers: one call, or one each, or their own code that reads caches by kernels.

    Args:
        find: returns a sub-layer as a part of a call, None where its own code must run. starts: see `_Stretch`.
    """
    parts = [_by_kernels(sub_layer) for sub_layer in sub_layers]
    links = [find(sub_layer) for sub_layer in sub_layers]
    singles = [_one_call([part], [link], [part]) for part, link in zip(parts, links, strict=True)]
    return _one_call(parts, links, parts if len(parts) == 1 else singles, starts)


def _one_call(
    parts: Sequence[SubLayer], links: Sequence[_Link | None], otherwise: Sequence[Any], starts: _Starts = _NOWHERE
) -> _Stretch:
    known = [link for link in links if link is not None]
    if len(known) < len(links):
        return _Stretch(parts, None, 0, otherwise, starts)
    return _Stretch(parts, Chain(known), _most_rows(known), otherwise, starts)


def _most_rows(links: Sequence[_Link]) -> int:
    return min(_MOST_ROWS_OF_EXPERTS if link.call.route else MOST_ROWS for link in links)


# Sub-layers that run plain code and only read caches by a kernel.


class _SelfAttentionInPlace(SelfAttention):
    """A self-attention that reads `KeyValuesInPlace` by a kernel."""

    def in_place(self, cache: Cache) -> KeyValuesInPlace | None:
        """Return the cached keys and values of its step; None where these are plain ones."""
        found = cache.self_kv.get(self.step)
        return found if isinstance(found, KeyValuesInPlace) else None

    def next_keys(self, cached: KeyValuesInPlace, run: Pass, here: Round) -> CachedKeys:
        """Return what a kernel reads at the new position, where keys and values of the rows are still to be written."""
        keys = cached.next(here.rows.n_sentences, here.rows.index_N)
        if here.halted:
            newest_2RHK, new = cached.newest(), self.newly_halted(run, here)
            made = [self.keys_values(self.module, rows.visible_LD[:0], [rows], run, here) for rows in new]
            for places_L, halted_LJ in self.of_halted(new, made, run, here):
                halted_2LHK = halted_LJ.view(-1, 2, *newest_2RHK.shape[2:]).transpose(0, 1)
                newest_2RHK.index_copy_(1, places_L, halted_2LHK)  # quicker than by an index
        return keys

    def read(self, attention: Any, q_NI: Tensor, kv_MJ: Tensor, run: Pass, here: Round) -> Float[Tensor, "N I"]:
        """See `SelfAttention`."""
        assert run.cache is not None
        if (cached := self.in_place(run.cache)) is None:
            return super().read(attention, q_NI, kv_MJ, run, here)
        keys = cached.next(here.rows.n_sentences, here.rows.index_N)
        cached.see(_in_rows(run.cache.keep_BS))
        return read_cache(keys, q_NI, kv_MJ)

    def fill_cache(self, states_0D: Tensor, run: Pass, here: Round) -> None:
        """See `SelfAttention`."""
        assert run.cache is not None
        if (cached := self.in_place(run.cache)) is None:
            super().fill_cache(states_0D, run, here)
        else:
            self.next_keys(cached, run, here)


class _CrossAttentionByKernel(CrossAttention):
    """A cross-attention that reads the memory by a kernel."""

    def memory_keys(self, run: Pass) -> CachedKeys:
        """Return the keys of the sentences' memory."""
        assert run.cache is not None
        kv_2BHSK, keep_BS = self.memory(run), _in_rows(run.cache.memory_keep_BS)
        keys = CachedKeys(kv_2BHSK, self.module.scale, self.module.n_choices, n_beams=run.n_beams)
        return keys.see(kv_2BHSK.shape[3], None, keep_BS)

    def read(self, attention: Any, q_NI: Tensor, run: Pass, here: Round) -> Float[Tensor, "N I"]:
        """See `CrossAttention`."""
        keys = self.memory_keys(run)
        keys.ask(here.rows.index_N)
        return read_cache(keys, q_NI)


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
