"""Cached decoding by compiled kernels: what a stack runs for one new column, in place of its own sub-layers.

A token of decoding meets few rows and many small operations: what takes time is to start each of them. So sub-layers
that follow each other become one call, with norms, residuals and experts, where attention knows no relative positions
and all modules are ones that kernels know. Where there are more rows, a kernel reads the cached keys, and the rest is
the sub-layer's own code. Halting rules ask their gates by one call a round.

The depth loop stays `ostinato.nn.stack`'s: `compiled_step` gives it another `LoopProgram`. Nothing below it knows of
it, and `Stack.step` is its plain twin. What kernels run leaves no records of routing and halting.

Kernels know exactly the modules of this library, as they are. A module that was replaced, changed or has hooks is
called. Prepared calls live as long as the `packing()` they were made in, in which weights do not change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from threading import get_ident
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ostinato.kernels import (
    MOST_ROWS,
    ActGate,
    AttentionLink,
    CachedKeys,
    Chain,
    FeedForwardLink,
    NormOf,
    RouteOf,
    StickBreakingGate,
    compiled_packing,
    read_cache,
)
from ostinato.nn.act import BELOW_ONE, Act, ActPass, ActUnit
from ostinato.nn.attention import Attention, MultiHead
from ostinato.nn.cache import Cache, KeyValues
from ostinato.nn.context import Pass, Round
from ostinato.nn.cross_attention import CrossAttention
from ostinato.nn.execution import DEFAULT_EXECUTION, Execution
from ostinato.nn.experts import ExpertAttention, ExpertFeedForward, ExpertMaps, Routed
from ostinato.nn.feedforward import FeedForward, FeedForwardSubLayer
from ostinato.nn.halting import HaltingPass, HaltingRule, NoHalting, Visible
from ostinato.nn.layers import Linear, OffsetRMSNorm
from ostinato.nn.relative import RelativePositions
from ostinato.nn.routing import Gate, HypersphereRouter, LinearRouter, MlpRouter, Router
from ostinato.nn.rows import Rows
from ostinato.nn.self_attention import SelfAttention
from ostinato.nn.shapes import Bool, Float, Int, Tensor
from ostinato.nn.stack import LoopProgram, Program, Stack
from ostinato.nn.stick_breaking import LEAST_MASS, StickBreaking, StickBreakingPass, StickBreakingUnit
from ostinato.nn.sub_layer import SubLayer
from ostinato.nn.types import HaltingTrace, StackOutput

_TIMES_OF_EXPERTS = 8
"""Times as many rows, where all sub-layers are of experts: plain code sorts and gathers them."""
_BLOCK = 32
_CPU = torch.device("cpu")
"""Whatever torch's default is."""


def compiled_step(stack: Stack, embedded_BTE: Float[Tensor, "B T E"], cache: Cache) -> StackOutput:
    """Run new columns after the cached ones, by compiled kernels where they can. Plain twin: `stack.step`."""
    packing = None if stack.banks.training else compiled_packing(embedded_BTE)
    if packing is None:
        return stack.step(embedded_BTE, cache)
    # A prepared call says what it reads before it is made: every thread needs its own.
    key = stack, get_ident()
    if key not in packing.compiled:
        packing.compiled[key] = CompiledStack(stack)
    compiled: CompiledStack = packing.compiled[key]
    return compiled.step(embedded_BTE, cache)


class CompiledStack:
    """The cached steps of one stack. Its weights stay as they are while this lives."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._programs: dict[tuple[Any, ...], tuple[Program, Program]] = {}

    def step(self, embedded_BTE: Float[Tensor, "B T E"], cache: Cache) -> StackOutput:
        """Run T new columns; keys and values are cached where kernels read them, whatever T is."""
        execution = cache.execution or DEFAULT_EXECUTION
        plain, compiled = self._program(cache.n_steps, execution)
        if not cache.self_kv:  # the first step of a search
            moves = Moves()
            for segment in plain:
                for sub_layer in chain.from_iterable(chain.from_iterable(segment.rounds)):
                    if isinstance(sub_layer, SelfAttention) and _can_read(sub_layer):
                        cache.self_kv[sub_layer.step] = KeyValuesInPlace(sub_layer.module, moves)
        return self._stack.step(embedded_BTE, cache, compiled if embedded_BTE.shape[1] == 1 else plain)

    def _program(self, n_steps: int | None, execution: Execution) -> tuple[Program, Program]:
        """Return what the stack runs, and what stands for it where one column is new."""
        n_rounds = execution.rounds.get(self._stack.plan.stack) if n_steps is None else n_steps
        halting = execution.halting, execution.halting_threshold, execution.exit, execution.exit_scope
        key = n_rounds, *halting, execution.expert_backend
        if key not in self._programs:
            plain = self._stack.program(n_steps, execution)
            any_backend = execution.expert_backend == "auto"
            self._programs[key] = plain, [self._compiled(segment, any_backend) for segment in plain]
        return self._programs[key]

    def _compiled(self, segment: LoopProgram, any_backend: bool) -> LoopProgram:
        """Return what stands for a segment where one column is new."""
        if not all(isinstance(s, SubLayer) for s in chain.from_iterable(chain.from_iterable(segment.rounds))):
            return segment  # kernels know sub-layers that follow each other
        rounds = [[s for step in steps for s in step if isinstance(s, SubLayer)] for steps in segment.rounds]
        has_signal = segment.ticks and self._stack.signal.acts_on_rounds
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
            made = [self.keys_values(self.module, rows.visible_LD) for rows in new]
            for places_L, halted_LJ in self.of_halted(new, made, run):
                newest_2RHK[:, places_L] = halted_LJ.view(-1, 2, *newest_2RHK.shape[2:]).transpose(0, 1)
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
    if isinstance(sub_layer, SelfAttention) and _can_read(sub_layer):
        kind = _SelfAttentionInPlace
    elif isinstance(sub_layer, CrossAttention) and sub_layer.module.is_read_plainly:
        kind = _CrossAttentionByKernel
    else:
        return sub_layer
    found = kind.__new__(kind)
    found.__dict__.update(sub_layer.__dict__)
    return found


def _can_read(sub_layer: SelfAttention) -> bool:
    """Return whether kernels can read the keys of a self-attention: they know no positions, no groups of heads, and
    no keys that serve other steps."""
    relation = sub_layer.relation
    has_positions = relation is not None and (type(relation) is not RelativePositions or relation.reach is not None)
    return not has_positions and not sub_layer.shares_keys and bool(sub_layer.module.is_read_plainly)


def _in_rows(keep_BS: Bool[Tensor, "B S"] | None) -> Bool[Tensor, "B S"] | None:
    """Return a keep mask whose rows lie in one stretch of memory each."""
    if keep_BS is None or (keep_BS.stride(1) == 1 and keep_BS.dtype == torch.bool):
        return keep_BS
    return keep_BS.bool().contiguous()


# Keys and values that kernels read.


class Moves:
    """The last move of hypotheses. All steps of a search share their tables of places, so that each is made once."""

    def __init__(self) -> None:
        self._rows_B: Tensor | None = None
        self._length = 0
        self._made: dict[int, tuple[Tensor | None, Tensor]] = {}

    def after(self, rows_B: Int[Tensor, "B"], kv: KeyValuesInPlace) -> Int[Tensor, "B S"]:
        """Return the table of places once hypotheses are replaced by those of `rows_B`."""
        # The same tensor may be given again later: another length is another move.
        if self._rows_B is not rows_B or self._length != kv.length:
            self._rows_B, self._length, self._made = rows_B, kv.length, {}
        before = kv.places_BS
        if id(before) not in self._made:
            self._made[id(before)] = before, kv.table().index_select(0, rows_B)
        return self._made[id(before)][1]


class KeyValuesInPlace(KeyValues):
    """Keys and values of one step that stay where they were written, however hypotheses move.

    Position s of hypothesis b lies in row places[b, s] of a buffer `[2, R, H, room, K]`, beyond the table in row b. To
    move hypotheses is to move rows of the table: beam search copies neither keys nor values, and the hypotheses of a
    sentence share those of its prompt. Plain twin: `ostinato.nn.cache.KeyValues`.

    Args:
        attention: whose they are. moves: of the search.
    """

    def __init__(self, attention: MultiHead, moves: Moves) -> None:
        super().__init__()
        self._attention, self.moves = attention, moves
        self._kv_2RHSK: Tensor | None = None
        self.places_BS: Int[Tensor, "B S"] | None = None
        self._keys: CachedKeys | None = None
        self._n_hypotheses = 0

    def append(self, kv_2BHTK: Float[Tensor, "2 B H T K"]) -> Float[Tensor, "2 B H S K"]:
        """Add the keys and values of T new positions; return all of them, in order."""
        start, end = self.length, self.length + kv_2BHTK.shape[3]
        buffer = self._kv_2RHSK
        if buffer is None or buffer.shape[3] < end or self.places_BS is not None:
            buffer = self._in_order(kv_2BHTK.shape[1], end)
        buffer[:, :, :, start:end] = kv_2BHTK
        self.length, self._n_hypotheses = end, kv_2BHTK.shape[1]
        return buffer[:, :, :, :end]

    def next(
        self, n_hypotheses: int, keep_BS: Bool[Tensor, "B S"] | None, rows_N: Int[Tensor, "N"] | None
    ) -> CachedKeys:
        """Make room for one position more, which the kernel writes; return what it reads.

        Args:
            n_hypotheses: B. keep_BS: real positions; None: all. rows_N: the hypotheses that have a query; None: all.
        """
        buffer = self._kv_2RHSK
        if buffer is None or buffer.shape[3] <= self.length or buffer.shape[1] < n_hypotheses:
            buffer = self._in_order(n_hypotheses, self.length + 1)
        if self._keys is None:
            self._keys = CachedKeys(buffer, self._attention.scale, self._attention.n_choices)
        self.length, self._n_hypotheses = self.length + 1, n_hypotheses
        return self._keys.see(self.length, self.places_BS, keep_BS, rows_N)

    def newest(self) -> Float[Tensor, "2 R H K"]:
        """Return the last position of the buffer's rows, to be written."""
        assert self._kv_2RHSK is not None
        return self._kv_2RHSK[:, :, :, self.length - 1]

    def select(self, rows_B: Int[Tensor, "B"]) -> None:
        """Keep these hypotheses, in this order."""
        if self._kv_2RHSK is not None:
            self.places_BS = self.moves.after(rows_B, self)
            self._n_hypotheses = rows_B.shape[0]

    def table(self) -> Int[Tensor, "B S"]:
        """Return the row of every position up to now."""
        known = self.places_BS
        n = self.length if known is None else self.length - known.shape[1]
        own = torch.arange(self._n_hypotheses, dtype=torch.int32, device=_CPU)[:, None].expand(-1, n)
        return own if known is None else torch.cat([known, own], dim=1)

    def _in_order(self, n_rows: int, length: int) -> Tensor:
        """Write all positions in order to a new buffer, one row a hypothesis, with room for `length` of them."""
        room, n_heads = -(-length // _BLOCK) * _BLOCK, self._attention.n_heads
        # Zeros: positions of padding are never written, and their weights of 0 need numbers to meet.
        sizes = (2, n_rows, n_heads, room, self._attention.d_head)
        new = torch.zeros(sizes, dtype=torch.float32, device=_CPU)
        if self._kv_2RHSK is not None:
            rows_BHS = self.table().long()[:, None, :]
            heads_H1 = torch.arange(n_heads, device=_CPU)[:, None]
            places_S = torch.arange(self.length, device=_CPU)
            new[:, :, :, : self.length] = self._kv_2RHSK[:, rows_BHS, heads_H1, places_S]
        self._kv_2RHSK, self.places_BS, self._keys = new, None, None
        return new


# Halting rules whose gates are kernels.


def compiled_rule(rule: HaltingRule) -> HaltingRule:
    """Return a rule that decides as this one does, by a kernel; the rule itself where its unit must be called."""
    if type(rule) is Act and rule.freezes and not rule.is_global and (act := _act_gate(rule.unit)) is not None:
        return _CompiledAct(rule, act)
    if type(rule) is StickBreaking and (stick := _stick_breaking_gate(rule.unit)) is not None:
        return _CompiledStickBreaking(rule, stick)
    return rule


def _act_gate(unit: ActUnit) -> ActGate | None:
    if type(unit) is not ActUnit or _is_changed(unit, unit.map):
        return None
    weight_1D = unit.map.weight
    bias_1: Tensor | None = unit.map.bias
    return ActGate(weight_1D, bias_1) if bias_1 is not None and _are_plain(weight_1D, bias_1) else None


def _stick_breaking_gate(unit: StickBreakingUnit) -> StickBreakingGate | None:
    if type(unit) is not StickBreakingUnit or _is_changed(unit, unit.hidden, unit.out):
        return None
    hidden_DD, bias_D, map_2D = unit.hidden.weight, unit.hidden.bias, unit.out.weight
    bias_2: Tensor | None = unit.out.bias
    is_ours = bias_2 is None and hidden_DD.shape[0] == hidden_DD.shape[1]
    if not is_ours or not _are_plain(hidden_DD, bias_D, map_2D, unit.bias):
        return None
    return StickBreakingGate(hidden_DD, bias_D, map_2D, unit.bias)


class _Unrecorded(HaltingPass):
    """A pass whose decisions are not recorded."""

    def _record(self, values: list[Tensor], value_N: Tensor) -> None:
        pass

    def trace(self) -> HaltingTrace | None:
        """Nothing is recorded."""
        return None


class _CompiledAct(Act):
    def __init__(self, rule: Act, gate: ActGate) -> None:
        self.__dict__.update(rule.__dict__)
        self.gate = gate

    def start(self, states_ND: Tensor, rows: Rows, run: Pass, n_rounds: int) -> _CompiledActPass:
        """Begin a pass."""
        return _CompiledActPass(self, states_ND, rows, run, n_rounds)


class _CompiledActPass(_Unrecorded, ActPass):
    _rule: _CompiledAct

    def __init__(self, rule: _CompiledAct, states_ND: Tensor, rows: Rows, run: Pass, n_rounds: int) -> None:
        super().__init__(rule, states_ND, rows, run, n_rounds)
        self._n_next: int | None = None
        self._total_N = torch.zeros_like(self._zeros_N)  # the kernel adds to it in place

    def active(self, index: int, states_ND: Tensor) -> Tensor | None:
        """See `ActPass`."""
        self._set_active(self._next_N, self._n_next)
        return self.active_N

    def enter(self, index: int, states_ND: Tensor, entered_ND: Tensor) -> tuple[Tensor | None, Visible]:
        """See `ActPass`."""
        rule, rest_N = self._rule, 1.0 - self._total_N
        is_last = rule.forces_remainder and index == self._n_rounds - 1
        given = entered_ND, self._total_N, self.active_N, min(rule.threshold, BELOW_ONE)
        self._weight_N, self._next_N, self._n_next = rule.gate.enter(*given, is_last=is_last)
        return self._seen(index, states_ND, rest_N)

    def leave(self, index: int, states_ND: Tensor, left_ND: Tensor) -> Tensor:
        """See `ActPass`."""
        given = states_ND, left_ND, self._weight_N, self._mix_ND, self.active_N
        return self._rule.gate.after(*given, interpolates=self._rule.mix == "interpolate")


class _CompiledStickBreaking(StickBreaking):
    def __init__(self, rule: StickBreaking, gate: StickBreakingGate) -> None:
        self.__dict__.update(rule.__dict__)
        self.gate = gate

    def start(self, states_ND: Tensor, rows: Rows, run: Pass, n_rounds: int) -> _CompiledStickBreakingPass:
        """Begin a pass."""
        return _CompiledStickBreakingPass(self, states_ND, rows, run)


class _CompiledStickBreakingPass(_Unrecorded, StickBreakingPass):
    _rule: _CompiledStickBreaking

    def __init__(self, rule: _CompiledStickBreaking, states_ND: Tensor, rows: Rows, run: Pass) -> None:
        super().__init__(rule, states_ND, rows, run)
        self._log_left_N = torch.zeros_like(self._zeros_N)  # the kernel changes it in place

    def active(self, index: int, states_ND: Tensor) -> Tensor | None:
        """See `StickBreakingPass`."""
        gate, threshold = self._rule.gate, self._rule.threshold
        if not index or not gate.takes(states_ND):
            return super().active(index, states_ND)
        least = max(1.0 - threshold, LEAST_MASS) if threshold else math.inf
        self._set_active(*gate(states_ND, self._log_left_N, self._left_N, self._mean_ND, self.active_N, least))
        return self.active_N

    def enter(self, index: int, states_ND: Tensor, entered_ND: Tensor) -> tuple[Tensor | None, Visible]:
        """See `StickBreakingPass`."""
        # The kernel changes the mass in its place, and a round is what it was.
        left_N = self._left_N.clone()
        return left_N, (lambda later_ND: self._shown(self._mean_ND, left_N, later_ND)) if index else None


# Modules as kernels know them: addresses of their weights.

_Map = tuple[Tensor, Tensor | None]


def link_of(sub_layer: SubLayer) -> AttentionLink | FeedForwardLink | None:
    """Return a sub-layer as a part of a call; None where its own code must run."""
    module, use = sub_layer.module, sub_layer.use
    route, norm = _route_of(module), sub_layer.norm(use.before or use.after)
    # Kernels know one norm, of what is read or of the sum.
    if use.output is not None or len(use.norms) > 1 or not _knows_norm(norm):
        return None
    if isinstance(sub_layer, FeedForwardSubLayer):
        return _feed_forward_link(module, _norm_of(norm), route, is_before=use.before is not None)
    if not isinstance(sub_layer, SelfAttention | CrossAttention):
        return None
    if isinstance(sub_layer, SelfAttention) and not _can_read(sub_layer):
        return None
    makes_keys = isinstance(sub_layer, SelfAttention)
    return _attention_link(module, _norm_of(norm), route, is_before=use.before is not None, makes_keys=makes_keys)


def _attention_link(
    module: nn.Module, norm: NormOf | None, route: RouteOf | None, *, is_before: bool, makes_keys: bool
) -> AttentionLink | None:
    if type(module) is Attention and module.is_read_plainly and module.qk_bias is None and module.output_gate is None:
        dense: tuple[nn.Module, ...] = (module.qkv, module.out)
        weight, bias, n = module.qkv.weight, module.qkv.bias, module.inner
        queries: _Map = weight[:n], None if bias is None else bias[:n]
        keys_values: _Map = weight[n:], None if bias is None else bias[n:]
        output: _Map = module.out.weight, module.out.bias
    elif type(module) is ExpertAttention and module.is_read_plainly and route is not None and module.sum_bias_D is None:
        dense = (module.kv,)
        queries, output = (module.query_EDI, module.query_bias_EI), (module.out_EID, module.out_bias_ED)
        keys_values = module.kv.weight, module.kv.bias
    else:
        return None
    if _is_changed(module, *dense) or not _are_plain(*queries, *keys_values, *output):
        return None
    if module.n_choices != (1 if route is None else route.top_k):
        return None
    made = keys_values if makes_keys else None
    return AttentionLink(norm, is_before=is_before, queries=queries, keys_values=made, output=output, route=route)


def _feed_forward_link(
    module: nn.Module, norm: NormOf | None, route: RouteOf | None, *, is_before: bool
) -> FeedForwardLink | None:
    known: FeedForward | ExpertMaps
    if type(module) is FeedForward:
        known = module
        dense: tuple[nn.Module, ...] = (module.up, module.down)
        up: _Map = module.up.weight, module.up.bias
        down: _Map = module.down.weight, module.down.bias
    elif type(module) is ExpertFeedForward and route is not None and module.sum_bias_D is None:
        if type(module.experts) is not ExpertMaps:
            return None
        known, dense = module.experts, ()
        up, down = (known.up_EDF, known.up_bias_EF), (known.down_EFD, known.down_bias_ED)
    else:
        return None
    if _is_changed(known, *dense) or not _are_plain(*up, *down):
        return None
    return FeedForwardLink(norm, known.activation, is_before=is_before, up=up, down=down, route=route)


def _route_of(module: nn.Module) -> RouteOf | None:
    """Return a router and its gate as kernels know them; None where there is none that they know."""
    if not isinstance(module, Routed) or module.router is None or type(module.gate) is not Gate:
        return None
    router, gate = module.router, module.gate
    scores = _scores_of(router)
    if scores is None or _is_changed(module):
        return None
    return RouteOf(*scores, float(router.temperature()), gate.top_k, gate.kind, gate.is_renormalised)


def _scores_of(router: Router) -> tuple[Tensor, _Map | None, bool, bool] | None:
    """Return what scores are made of: (hidden map, tanh, or the row as it is) W^T.

    Returns:
        W; the hidden map, None where there is none; whether tanh follows it; whether scores are cosines, and rows of W
        have length 1. None: the router must be called.
    """
    maps: tuple[nn.Linear, ...] = ()
    has_tanh = is_normalised = False
    if type(router) is LinearRouter:
        scores_EC: Tensor = router.experts_ED
    elif type(router) is MlpRouter:
        bias_E: Tensor | None = router.scores.bias
        if bias_E is not None:
            return None
        scores_EC, maps, has_tanh = router.scores.weight, (router.hidden, router.scores), True
    elif type(router) is HypersphereRouter:
        is_normalised = router.is_normalised
        scores_EC = F.normalize(router.experts_EC, dim=1) if is_normalised else router.experts_EC
        maps = () if router.projection is None else (router.projection,)
    else:
        return None
    hidden = (maps[0].weight, maps[0].bias) if maps else None
    if _is_changed(router, *maps) or not _are_plain(scores_EC, *(hidden or ())):
        return None
    return scores_EC, hidden, has_tanh, is_normalised


def _is_changed(module: nn.Module, *maps: nn.Module) -> bool:
    """Return whether a module has other maps than its own, is in training, or has hooks that look at it."""
    is_other = any(type(one) not in (Linear, nn.Linear) for one in maps)
    return is_other or module.training or any(_has_hooks(one) for one in (module, *maps))


def _has_hooks(module: nn.Module) -> bool:
    everywhere = torch.nn.modules.module
    if everywhere._global_forward_hooks or everywhere._global_forward_pre_hooks:
        return True
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _are_plain(*tensors: Tensor | None) -> bool:
    """Return whether kernels can read these as they lie."""
    return all(
        x is None or (x.dtype == torch.float32 and x.device.type == "cpu" and x.is_contiguous()) for x in tensors
    )


def _knows_norm(norm: nn.Module | None) -> bool:
    """Return whether there is no norm, or one that kernels know."""
    if not isinstance(norm, nn.LayerNorm | nn.RMSNorm):
        return norm is None
    bias_D = norm.bias if isinstance(norm, nn.LayerNorm) else None
    return not _has_hooks(norm) and _are_plain(norm.weight, bias_D)


def _norm_of(norm: nn.Module | None) -> NormOf | None:
    if not isinstance(norm, nn.LayerNorm | nn.RMSNorm):
        return None
    bias_D = norm.bias if isinstance(norm, nn.LayerNorm) else None
    eps = torch.finfo(torch.float32).eps if norm.eps is None else norm.eps
    weight_D = 1.0 + norm.weight if isinstance(norm, OffsetRMSNorm) else norm.weight
    return NormOf(isinstance(norm, nn.RMSNorm), weight_D, bias_D, norm.normalized_shape[0], eps)
