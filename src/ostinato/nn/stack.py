"""The depth loop: the one place where steps run.

    states += position signal given once; a norm and a map of the embeddings, where there are any
    for every segment:
        states = what its first round starts from, if not from these
        for every round of it:
            stop where every token has halted; gather away the rows of those that have
            states = inject(states, what entered the segment) + signal(round) + the round's vector
            for every step of the round, for every sub-layer of the step:
                states = sub_layer(states)
            (a loop of several states: its steps change one state after the other, see `nn.loops.run_round`)
            states = what the halting rule makes of those that entered and those that left
    a final norm, unless the norms are after the sums

What a sub-layer is, which weights it has, and whether there is one at all, is the plan's to say.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Any, cast

import torch
from torch import nn

from ostinato.errors import ConfigError, Problem
from ostinato.kernels import drop, is_exporting, summing
from ostinato.nn.attention import Visibility
from ostinato.nn.bank import Banks
from ostinato.nn.by_length import ByLength, BySentence
from ostinato.nn.cache import Cache
from ostinato.nn.context import HaltedRows, Pass, Round
from ostinato.nn.execution import DEFAULT_EXECUTION, Execution, RoundsByLength, RoundsBySentence
from ostinato.nn.exits import OF_STATES, Criterion, Exit
from ostinato.nn.gathering import fill_caches, gather_active, pays_to_gather, rows_of_round
from ostinato.nn.graph import repeat_rounds
from ostinato.nn.halting import HaltingPass, HaltingRule, NoHalting
from ostinato.nn.layers import at_least_float32
from ostinato.nn.loops import run_round, state_that_leaves
from ostinato.nn.positions import PositionSignal, columns_up_to, positions_from_keep, prefix_columns
from ostinato.nn.program import LoopProgram, Program, SubLayers
from ostinato.nn.rows import Rows
from ostinato.nn.separable import SeparableConv
from ostinato.nn.shapes import Bool, Float, Int, Tensor
from ostinato.nn.sub_layer import Runnable, SubLayer
from ostinato.nn.types import StackOutput
from ostinato.plan import Plan, Segment


class Stack:
    """One stack of a model: its plan, run on the model's banks. It owns no parameters.

    Args:
        plan: what runs at every step. banks: where the weights are.
        has_final_norm: after the last step. dropout: of embeddings and sub-layer outputs.
        has_embedding_norm: of the embeddings. has_embedding_map: from their width to the states'.
        signal: absolute positions. halting: who takes part in a round.
        is_causal: a token sees no later one. has_prefix: the first ones of a causal stack see each other in both
            directions, as many of them as a pass says; relative positions then know both directions everywhere.
    """

    def __init__(
        self,
        plan: Plan,
        banks: Banks,
        *,
        has_final_norm: bool,
        has_embedding_norm: bool = False,
        has_embedding_map: bool = False,
        dropout: float,
        signal: PositionSignal,
        is_causal: bool,
        has_prefix: bool = False,
        halting: HaltingRule,
    ) -> None:
        self.plan, self.banks, self.has_final_norm, self.dropout = plan, banks, has_final_norm, dropout
        self.has_embedding_norm, self.has_embedding_map = has_embedding_norm, has_embedding_map
        self.signal, self.is_causal, self.has_prefix = signal, is_causal, has_prefix
        self.halting = halting
        self.readout: Callable[[Tensor], Tensor] | None = None
        """From the stack's output to logits, for tokens that stop by what is predicted; None: nothing is."""
        self._sub_layers = SubLayers(
            banks,
            is_causal,
            # A distance has one meaning, whether its key is in a prefix or not, and in decoding as in training.
            looks_back_only=is_causal and not has_prefix,
            sees_some=self.halting.chooses_tokens,
            dropout=dropout,
        )
        self._own_rounds = self._sub_layers.of_plan(plan)
        self._shares_rounds = plan.is_fully_shared
        # A convolution reads its neighbours, halted or not: their rows must stay.
        modules = (banks.ffn[use.weights] for use in plan.uses() if use.kind == "ffn")
        self._mixes_columns = any(isinstance(module, SeparableConv) for module in modules)

    def surround(self, around: Callable[[SubLayer], Runnable]) -> None:
        """Run what `around` makes of every sub-layer: processes that hold parts of a parameter set gather it there."""
        self._sub_layers = replace(self._sub_layers, around=around)
        self._own_rounds = self._sub_layers.of_plan(self.plan)

    @property
    def final_norm(self) -> nn.Module | None:
        """The norm after the last step, where there is one."""
        return self.banks.norm[f"final_{self.plan.stack}"] if self.has_final_norm else None

    def __call__(
        self,
        embedded_BTE: Float[Tensor, "B T E"],
        *,
        keep_BT: Bool[Tensor, "B T"] | None = None,
        ids_BT: Int[Tensor, "B T *W"] | None = None,
        positions_BT: Int[Tensor, "B T"] | None = None,
        texts_BT: Int[Tensor, "B T"] | None = None,
        prefix_lengths_B: Int[Tensor, "B"] | None = None,
        offset_B: Int[Tensor, "B"] | None = None,
        memory_BSD: Float[Tensor, "B S D"] | None = None,
        memory_keep_BS: Bool[Tensor, "B S"] | None = None,
        n_rounds: int | Tensor | None = None,
        request: Collection[str] = (),
        execution: Execution = DEFAULT_EXECUTION,
    ) -> StackOutput:
        """Run all steps over whole sentences.

        Args:
            embedded_BTE: embeddings. keep_BT: real tokens; None where all are.
            ids_BT: the tokens, where the plan names tables of values.
            positions_BT: positions in the sentence; None: the column.
            texts_BT: number of every column's text, where rows hold several that see nothing of each other.
            prefix_lengths_B: first real tokens that see each other in both directions.
            offset_B: where signals of positions that start at random do so in training; None: drawn here.
            memory_BSD, memory_keep_BS: what cross-attention looks at.
            n_rounds: another number of rounds than the plan's (fully shared plans only); a tensor of one number in a
                graph, where rounds are alike (`why_not.repeats_one_round`).
            request: captures to return: "input", "output", "residual", "weights", "seconds"; "rounds": what the output
                would be after every round of the loop (stacks without halting, or with exits), the states that left it,
                and the map of a round.
            execution: how to run.

        Raises:
            ConfigError: rounds that this stack cannot run, see `program`.
            DataError: a position that has no learned vector. ValueError: cross-attention without a memory.
        """
        if positions_BT is None:
            positions_BT = torch.arange(embedded_BTE.shape[1], device=embedded_BTE.device)[None]
        if offset_B is None and self.banks.training:
            offset_B = self.signal.draw_offset(embedded_BTE.shape[0], embedded_BTE.device)
        learns = self.banks.training and torch.is_grad_enabled()
        run = Pass(
            Visibility(
                self.is_causal, keep_BT, prefix_BS=prefix_columns(positions_BT, prefix_lengths_B), texts_BS=texts_BT
            ),
            positions_BT,
            positions_BT,
            execution,
            keep_BT,
            ids_BT,
            memory_BSD,
            Visibility(keep_BS=memory_keep_BS),
            recomputes=execution.recompute and learns,
            request=request,
            signal=self.signal.prepare(positions_BT, n_columns=positions_BT.shape[1], offset_B=offset_B),
        )
        # Gradients of weights are added up in place, but for what is compiled: it makes its own backward pass.
        with summing() if learns and not torch.compiler.is_compiling() else nullcontext():
            return self._loop(embedded_BTE, run, self.program(n_rounds, execution))

    def step(
        self,
        embedded_BTE: Float[Tensor, "B T E"],
        cache: Cache,
        program: Program | None = None,
        *,
        ids_BT: Int[Tensor, "B T *W"] | None = None,
        request: Collection[str] = (),
    ) -> StackOutput:
        """Run all steps over T new columns after the cached ones.

        `cache.keep_BS` already covers the new columns; the first ones hold all of `cache.prefix_lengths_B`.

        Args:
            ids_BT: tokens of the new columns, where the plan names tables of values.
            program: what runs in place of the stack's own sub-layers and halting rule.
            request: captures to return, as of a pass without a cache.
        """
        execution = cache.execution or DEFAULT_EXECUTION
        start, end = cache.length, cache.length + embedded_BTE.shape[1]
        if cache.keep_BS is None:
            first, key_positions = start, columns_up_to(end, embedded_BTE.device)
        else:
            first, key_positions = None, positions_from_keep(cache.keep_BS)
        positions = key_positions[:, start:]
        run = Pass(
            Visibility(self.is_causal, cache.keep_BS, start, prefix_columns(key_positions, cache.prefix_lengths_B)),
            positions,
            key_positions,
            execution,
            None if cache.keep_BS is None else cache.keep_BS[:, start:],
            ids_BT,
            cache.memory_BSD,
            Visibility(keep_BS=cache.memory_keep_BS),
            cache,
            request=request,
            cross_kv=cache.cross_kv,
            signal=self.signal.prepare(positions, n_columns=end, first=first),
        )
        output = self._loop(embedded_BTE, run, program or self.program(cache.n_steps, execution))
        cache.length, cache.prefix_lengths_B = end, None
        return output

    def _loop(self, states_BTD: Tensor, run: Pass, program: Program) -> StackOutput:
        if (start := self.signal.at_start(run.signal)) is not None:
            states_BTD = states_BTD + start
        if self.has_embedding_norm:
            states_BTD = self.banks.norm[f"embedding_{self.plan.stack}"](states_BTD)
        if self.dropout and self.banks.training:
            states_BTD = drop(states_BTD, self.dropout, run.execution.dropout_draws)
        if self.has_embedding_map:
            mapped_BTD: Tensor = self.banks.embedding[self.plan.stack](states_BTD)
            states_BTD = at_least_float32(mapped_BTD)
        loop = next(number for number, one in enumerate(program) if one.segment.is_loop)
        for segment in program[:loop]:
            states_BTD, _ = self._run(segment, states_BTD, run)
        if isinstance(program[loop].rule, Exit) and self.readout is not None:
            readout = self.readout
            run = replace(
                run,
                predict=lambda left_BTD: readout(self._after(left_BTD, program[loop:], run)),
                predicts_alone=len(program) == loop + 1,
            )
        advance = partial(self._advance, program[loop], states_BTD, run) if "rounds" in run.request else None
        states_BTD, halting = self._run(program[loop], states_BTD, run)
        # A cost is for training; the steps of decoding would pay for it, token by token.
        has_cost = run.cache is None and not run.execution.as_graph
        cost = None if halting is None or not has_cost else halting.aux_loss()
        # Each runs what is behind the loop again, with a copy of the keys so far: those that this pass makes behind the
        # loop, below, belong to its last round, and the first keys that a step leaves are the ones that stay.
        rounds: list[Callable[[], Tensor]] = [
            partial(self._after, left_BTD, program[loop:], replace(run, keys=dict(run.keys))) for left_BTD in run.rounds
        ]
        for segment in program[loop + 1 :]:
            states_BTD, _ = self._run(segment, states_BTD, run)
        states_BTD = self._normed(program, states_BTD)
        if rounds:
            rounds[-1:] = [lambda: states_BTD]
        of_rounds = tuple(rounds), tuple(run.rounds), advance
        trace = None if halting is None else halting.trace()
        return StackOutput(states_BTD, trace, cost, tuple(run.routings), run.captures, *of_rounds)

    def _after(self, left_BTE: Float[Tensor, "*B E"], program: Program, run: Pass) -> Float[Tensor, "*B D"]:
        """Return what the stack would give if these states were the last to leave its loop; nothing is kept of it.

        Args:
            program: from the loop on.
        """
        states_BTD = self._end(program[0].segment, left_BTE)
        # Steps behind the loop may read each other's keys, of which those that are there first stay.
        own = run.apart()
        with nullcontext() if run.cache is None else run.cache.trial():
            for segment in program[1:]:
                states_BTD, _ = self._run(segment, states_BTD, own)
        return self._normed(program, states_BTD)

    def _normed(self, program: Program, states_BTD: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        """Apply the norm at the end of the stack, where it has one that the program has not applied."""
        if program[-1].is_normed or (norm := self.final_norm) is None:
            return states_BTD
        return norm(states_BTD)  # type: ignore[no-any-return]

    def _advance(
        self,
        segment: LoopProgram,
        entry_BTD: Float[Tensor, "B T D"],
        run: Pass,
        index: int,
        left_BTE: Float[Tensor, "B T E"],
    ) -> Float[Tensor, "B T E"]:
        """Return what leaves a round of the loop, given what left the one before and what entered the segment."""
        first = next(islice(segment.segment.rounds(), index, None))[0].index
        # What this round and later ones have left for others is made anew of the states that are given.
        alone = replace(run.apart(), keys={step: keys for step, keys in run.keys.items() if step < first})
        until = segment._replace(rounds=segment.rounds[: index + 1], rule=segment.rule.whole())
        left_BTE, _ = self._run_rounds(until, entry_BTD, alone, index, left_BTE)
        return left_BTE

    def _end(self, segment: Segment, states_BTD: Tensor) -> Tensor:
        """Apply the map and the norm at the end of a segment, to the state that leaves it."""
        states_BTD = state_that_leaves(segment, states_BTD)
        if segment.end_map is not None:
            states_BTD = at_least_float32(self.banks.end_map[segment.end_map](states_BTD))
        return states_BTD if segment.end_norm is None else self.banks.norm[segment.end_norm](states_BTD)

    def _run(
        self, segment: LoopProgram, states_BTD: Tensor, run: Pass
    ) -> tuple[Float[Tensor, "B T D"], HaltingPass | None]:
        """Run one segment; return the states after it, and who took part; None where its rounds are one call."""
        left_BTE, halting = self._run_rounds(segment, states_BTD, run)
        return self._end(segment.segment, left_BTE), halting

    def _run_rounds(
        self,
        segment: LoopProgram,
        states_BTD: Tensor,
        run: Pass,
        first: int = 0,
        left_BTE: Tensor | None = None,
    ) -> tuple[Float[Tensor, "B T E"], HaltingPass | None]:
        """Run the rounds of one segment; return the states that left the last one, and who took part; None: see `_run`.

        Args:
            first: the round to begin with, from the states `left_BTE` that left the one before it.
        """
        rounds, rule, own, path, n_rounds, in_one, _ = segment
        banks = self.banks
        times: list[Tensor | None] = [None] * len(rounds)
        if own.time is not None:
            clock: Any = banks.time[own.time]
            times = [clock(sum(path[:r], 0.0), path[r]) for r in range(len(rounds))]
        inject: Any = None if own.inject is None else banks.injection[own.inject]
        injected_BTD = states_BTD if inject is None else inject.prepare(states_BTD)
        if left_BTE is not None:
            states_BTD = left_BTE
        elif own.start is not None:
            states_BTD = banks.start[own.start](states_BTD, run.positions)
        B, T, _ = states_BTD.shape
        states_ND = states_BTD.flatten(0, 1)
        if in_one is not None:
            return in_one(states_ND, run).view(B, T, -1), None
        # Early rounds of a stack whose rounds differ are layers, which learn by their own gradient alone.
        last = run.execution.gradient_rounds if own.is_loop and self._shares_rounds else None
        n_free = len(rounds) - (last or len(rounds))
        # Rows that never run (padding) give their first states out again. Where early rounds have no gradient these
        # have none, either: else it would depend on padding which weights get one.
        shown_ND = states_ND.detach() if n_free > 0 else states_ND
        halting = rule.start(shown_ND, Rows.all(B, T), run, n_rounds if n_rounds is not None else len(rounds))
        gathers = run.execution.compaction != "never" and rule.freezes and not self._mixes_columns
        halted: tuple[HaltedRows, ...] = ()
        any_process, with_gradient = run.execution.any_process, nullcontext()
        if n_free > 0 or (own.is_loop and run.execution.gradient_repeats is not None):
            for sub_layer in chain.from_iterable(rounds[-1]):
                sub_layer.prepare(run)  # what all rounds share keeps its gradient
        if n_rounds is not None:
            return self._repeat(segment, n_rounds, states_ND, injected_BTD, halting, run)
        for index, steps in enumerate(rounds[first:], first):
            if index == n_free > 0:
                run.halted_keys.clear()  # they were made without a gradient
            active_N = halting.active(index, states_ND)
            # A process without a token keeps up with the others by masked rows: no layer is given an empty tensor.
            lags = any_process and halting.is_over
            if gathers and not lags and active_N is not None and pays_to_gather(halting, run.execution):
                cut_ND = states_ND.detach() if index < n_free else states_ND
                states_ND, halted = gather_active(index, active_N, cut_ND, halting, halted, run)
            is_over = halting.is_over
            if any_process is not None:
                is_over = halting.ends_early and not any_process(not is_over)
            # A cached pass needs the keys of the rounds that it leaves out: `fill_caches` makes them of frozen states.
            # Where halted tokens go on, neighbours are read, or compaction is `never`, the rounds are run instead.
            if is_over and (gathers or run.cache is None):
                if run.cache is not None:
                    one_0D, away = states_ND, halted
                    if own.phases:  # of several states whole sentences end, at whose keys nobody looks any more
                        one_0D, away = states_ND.chunk(own.n_states, dim=-1)[0], ()
                    fill_caches(rounds[index:], times[index:], index, run, one_0D, halting.rows, away)
                break
            with torch.no_grad() if index < n_free else with_gradient:
                round_of = index, steps, times[index]
                states_ND = self._round(segment, round_of, states_ND, injected_BTD, halting, run, halted)
            if own.is_loop and "rounds" in run.request:
                run.rounds.append(halting.output(states_ND))
        return halting.output(states_ND), halting

    def _repeat(
        self,
        segment: LoopProgram,
        n_rounds: Int[Tensor, ""],
        states_ND: Tensor,
        injected_BTD: Tensor,
        halting: HaltingPass,
        run: Pass,
    ) -> tuple[Float[Tensor, "B T E"], HaltingPass]:
        """Run the rounds of a segment where their number is a tensor: the first one, then one loop of a graph."""
        rounds, own = segment.rounds, segment.segment
        # Only a token that is frozen, and of which no neighbour is read, looks the same in all rounds to come.
        is_frozen = segment.rule.freezes and not self._mixes_columns and not own.phases
        can_end = not isinstance(segment.rule, NoHalting) and (run.cache is None or is_frozen)
        first_steps = [steps[0].index for steps in own.rounds()]

        def one_round(index: int | Tensor, states_ND: Tensor, halting: HaltingPass, run: Pass) -> Tensor:
            round_of = index, rounds[0 if isinstance(index, int) else 1], None
            return self._round(segment, round_of, states_ND, injected_BTD, halting, run)

        fills = list(chain.from_iterable(rounds[1]))
        return repeat_rounds(one_round, fills, first_steps, n_rounds, states_ND, halting, run, can_end=can_end)

    def _round(
        self,
        segment: LoopProgram,
        round_of: tuple[int | Tensor, Sequence[Sequence[Runnable]], Tensor | None],
        states_ND: Tensor,
        injected_BTD: Tensor,
        halting: HaltingPass,
        run: Pass,
        halted: tuple[HaltedRows, ...] = (),
    ) -> Float[Tensor, "N E"]:
        """Run one round; return the states after it.

        Args:
            round_of: its number, its steps, and its time, where it has one.
            injected_BTD: what is injected, if something is.
        """
        index, steps, time_D = round_of
        own, banks = segment.segment, self.banks
        # A round without a gradient passes none on, not even where its steps return what they are given.
        entered_ND = states_ND if torch.is_grad_enabled() else states_ND.detach()
        if own.inject is not None:
            entered_ND = banks.injection[own.inject](entered_ND, halting.rows.take(injected_BTD))
        if (signal := self.signal.at_round(run.signal, index) if own.is_loop else None) is not None:
            entered_ND = entered_ND + halting.rows.take(signal)
        if own.vectors is not None:
            entered_ND = entered_ND + banks.vectors[own.vectors].of_round(index)  # type: ignore[operator]
        weight_N, visible = halting.enter(index, states_ND, entered_ND)
        kept_M, rows = rows_of_round(halting, run) if halting.comes_back else (None, halting.rows)
        if kept_M is not None:
            entered_ND, weight_N = entered_ND.index_select(0, kept_M), None
        here = Round.of(run, index, rows, weight_N, visible, halted, time_D=time_D, seen_BS=halting.seen_BS)
        if kept_M is not None and not len(rows):  # nobody takes part
            for sub_layer in chain.from_iterable(steps):
                sub_layer.fill_cache(entered_ND, run, here)
            return halting.leave(index, states_ND, states_ND)
        left_ND = run_round(own, steps, entered_ND, run, here, banks.norm)
        if own.round_norm is not None:
            left_ND = banks.norm[own.round_norm](left_ND)
        if kept_M is not None:
            left_ND = states_ND.index_copy(0, kept_M, left_ND)
        return halting.leave(index, states_ND, left_ND)

    def exits(self, execution: Execution) -> bool:
        """Return whether tokens of this stack stop by the execution's criterion.

        None do in a loop of several states, where routers choose tokens, or, with scope "sequence", in a causal stack,
        whose tokens would stop by what comes after them. Criteria that compare predictions need a `readout`.
        """
        if execution.exit is None or (execution.exit_scope == "sequence" and self.is_causal) or self.plan.loop.phases:
            return False
        if self.halting.chooses_tokens:
            return False
        return execution.exit in OF_STATES or self.readout is not None

    def program(self, n_rounds: int | Tensor | None, execution: Execution) -> Program:
        """Return what runs: sub-layers by segment, round and step, and the halting rule of the loop.

        Args:
            n_rounds: None: what the execution says, else the plan's. A tensor is read as a number; in a
                graph it stays one, and the loop runs that often.

        Raises:
            ConfigError: another number than the plan's, of rounds that differ; no whole number; `paths` of
                another length.
        """
        repeats: Tensor | None = None
        if isinstance(n_rounds, Tensor) and (execution.as_graph or is_exporting()):
            repeats, n_rounds = n_rounds, 2
        elif n_rounds is not None:
            try:  # numbers of NumPy and of torch are whole ones, too
                whole_number = operator.index(n_rounds)
            except TypeError:
                whole_number = None
            if whole_number is None or isinstance(n_rounds, bool):
                raise ConfigError([Problem("n_steps", n_rounds, "must be a whole number")])
            n_rounds = whole_number
        asked = execution.rounds_of(self.plan.stack) if n_rounds is None else n_rounds
        rule, units = self.halting, self.banks.halting
        if self.plan.stack in units:  # it may have been replaced
            rule = rule.asking(units[self.plan.stack])
        if isinstance(asked, RoundsByLength):
            rule, asked = ByLength(asked.per_token, asked.extra), asked.most
        sentences = asked if isinstance(asked, RoundsBySentence) else None
        if isinstance(asked, RoundsBySentence):
            asked = asked.most
        plan = self.plan if asked is None else self.plan.with_rounds(asked)
        rounds = self._own_rounds if plan is self.plan else self._sub_layers.of_plan(plan)
        if sentences is not None:
            rule = BySentence(sentences.rounds)
        elif not execution.halting:
            rule = rule.whole()
        elif self.exits(execution):
            is_sequence = execution.exit_scope == "sequence"
            rule = Exit(cast(Criterion, execution.exit), execution.halting_threshold or 0.0, is_sequence=is_sequence)
        elif execution.halting_threshold is not None and execution.exit is None:
            rule = rule.at(execution.halting_threshold)
        path = execution.paths.get(self.plan.stack) or (1 / plan.n_rounds,) * plan.n_rounds
        if len(path) != plan.n_rounds:
            reason = f"a path of {len(path)} steps was given for the {self.plan.stack}"
            raise ConfigError([Problem("n_steps", n_rounds, reason)])
        return tuple(
            LoopProgram(own, rule, segment, path, repeats)
            if segment.is_loop
            else LoopProgram(own, NoHalting(), segment, (1 / segment.n_fixed,) * segment.n_fixed)
            for segment, own in zip(plan.segments, rounds, strict=True)
        )
