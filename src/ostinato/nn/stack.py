"""The depth loop: the one place where steps run.

    for every round:  states += signal(round)
        for every step of the round, for every use of the step:
            post-norm:  states = norm(states + dropout(f(states)))        Universal Transformers, section 2.1
            pre-norm:   states = states + dropout(f(norm(states)))
        halting rule: who goes on
    pre-norm: a final norm

What f is, which weights it has, and whether there is one at all, is the plan's to say.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
from torch.utils.checkpoint import checkpoint

from ostinato.kernels import Draws, add_dropped, current_sums, drop, read_cache, summing
from ostinato.nn.attention import Attention, Visibility
from ostinato.nn.bank import Banks
from ostinato.nn.cache import Cache, KeyValues, Window, keys_of
from ostinato.nn.chains import chains_of
from ostinato.nn.clock import now
from ostinato.nn.expert_attention import ExpertAttention
from ostinato.nn.experts import Decision, Routed
from ostinato.nn.feedforward import FeedForward
from ostinato.nn.halting import WHOLE, HaltingPass, HaltingRule, NoHalting, unchanged
from ostinato.nn.passes import Halted, Here, Known, Pass, last_uses, narrow
from ostinato.nn.positions import PositionSignal, positions_from_keep
from ostinato.nn.relative import bias_of_queries, repeat_for_choices
from ostinato.nn.rows import Rows, lay_rows
from ostinato.nn.separable import SeparableConv
from ostinato.nn.shapes import Bool, Float, Int, Tensor
from ostinato.nn.types import StackOutput
from ostinato.plan import Plan, Step, Use

Norm = Callable[[Tensor], Tensor]
Compaction = Literal["auto", "always", "never"]

_LEAST_GAIN = 1 / 16
"""Part of the rows that must have nothing to do before they are gathered away."""


class Stack:
    """One stack of a model: its plan, run on the model's banks. It owns no parameters.

    Args:
        plan: what runs at every step. banks: where the weights are.
        placement: of the norms. dropout: of embeddings and sub-layer outputs.
        signal: absolute positions. halting: who takes part in a round.
        is_causal: a token sees no later one. has_prefix: the first ones of a causal stack see each other in both
            directions, as many of them as a pass says; relative positions then know both directions everywhere.
    """

    def __init__(
        self,
        plan: Plan,
        banks: Banks,
        *,
        placement: Literal["post", "pre"],
        dropout: float,
        signal: PositionSignal,
        is_causal: bool,
        has_prefix: bool = False,
        halting: HaltingRule | None = None,
    ) -> None:
        self.is_pre_norm = placement == "pre"
        self.plan = plan
        self.banks = banks
        self.dropout = dropout
        self.draws: Draws = "auto"
        self.signal = signal
        self.is_causal = is_causal
        # A distance has one meaning, whether its key is in a prefix or not, and in decoding as in training.
        self.looks_back_only = is_causal and not has_prefix
        self.halting: HaltingRule = halting or NoHalting()
        self.halts = True  # False: every token runs every round, whatever the rule
        # Halted tokens and padding are gathered away before a round: where that pays, wherever there are any, or never
        # (they are computed, and the results thrown away: the plain twin).
        self.compaction: Compaction = "auto"
        uses = (use for use in plan.uses() if use.kind == "ffn")
        self._mixes_columns = any(isinstance(banks.feed_forward(use.weights), SeparableConv) for use in uses)
        self.checkpoint_activations = False

    @property
    def plan(self) -> Plan:
        """What runs at every step; outside `packing()` another one may be set that uses the same weights."""
        return self._plan

    @plan.setter
    def plan(self, plan: Plan) -> None:
        # Every token of a decoding asks for it.
        self._plan, self._last_uses = plan, last_uses(plan, is_pre_norm=self.is_pre_norm)

    @property
    def final_norm(self) -> str | None:
        """Name of the final norm in the bank of norms; only pre-norm stacks have one."""
        return f"final_{self.plan.stack}" if self.is_pre_norm else None

    def __call__(
        self,
        embedded_BTD: Float[Tensor, "B T D"],
        *,
        keep_BT: Bool[Tensor, "B T"] | None = None,
        positions_BT: Int[Tensor, "B T"] | None = None,
        prefix_lengths_B: Int[Tensor, "B"] | None = None,
        memory_BSD: Float[Tensor, "B S D"] | None = None,
        memory_keep_BS: Bool[Tensor, "B S"] | None = None,
        n_rounds: int | None = None,
        request: Collection[str] = (),
    ) -> StackOutput:
        """Run all steps over whole sentences.

        Args:
            embedded_BTD: embeddings. keep_BT: real tokens; None where all are.
            positions_BT: positions in the sentence; None: the column.
            prefix_lengths_B: first real tokens that see each other in both directions.
            memory_BSD, memory_keep_BS: what cross-attention looks at.
            n_rounds: another number of rounds than the plan's (fully shared plans only).
            request: captures to return: "input", "output", "residual", "weights", "seconds".
        """
        if positions_BT is None:
            positions_BT = torch.arange(embedded_BTD.shape[1], device=embedded_BTD.device)[None]
        run = Pass(
            Visibility(self.is_causal, keep_BT, prefix_BS=_prefix(positions_BT, prefix_lengths_B)),
            positions_BT,
            positions_BT,
            keep_BT,
            memory_BSD,
            Visibility(keep_BS=memory_keep_BS),
            request=request,
        )
        with summing() if self._sums() else nullcontext():
            return self._loop(embedded_BTD, run, n_rounds)

    def step(self, embedded_BTD: Float[Tensor, "B T D"], cache: Cache) -> StackOutput:
        """Run all steps over T new columns after the cached ones.

        `cache.keep_BS` already covers the new columns; the first ones hold all of `cache.prefix_lengths_B`.
        """
        start, end = cache.length, cache.length + embedded_BTD.shape[1]
        if cache.keep_BS is None:
            key_positions = torch.arange(end, device=embedded_BTD.device)[None]
        else:
            key_positions = positions_from_keep(cache.keep_BS)
        run = Pass(
            Visibility(self.is_causal, cache.keep_BS, start, _prefix(key_positions, cache.prefix_lengths_B)),
            key_positions[:, start:],
            key_positions,
            None if cache.keep_BS is None else cache.keep_BS[:, start:],
            cache.memory_BSD,
            Visibility(keep_BS=cache.memory_keep_BS),
            cache,
            cache.cross_kv,
            chains_of(embedded_BTD, self.banks, self, is_pre_norm=self.is_pre_norm),
        )
        output = self._loop(embedded_BTD, run, cache.n_steps)
        cache.length, cache.prefix_lengths_B = end, None
        return output

    def _loop(self, states_BTD: Tensor, run: Pass, n_rounds: int | None) -> StackOutput:
        plan = self.plan if n_rounds is None else self.plan.with_rounds(n_rounds)
        B, T, _ = states_BTD.shape
        signal = self.signal.prepare(run.positions, n_sentences=B, training=self.banks.training)
        if (start := self.signal.at_start(signal)) is not None:
            states_BTD = states_BTD + start
        states_ND = self._drop(states_BTD).flatten(0, 1)
        rule = self.halting if self.halts else NoHalting()
        # Of one new column a view with gaps, and kernels read rows side by side.
        keep_N = None if run.keep_BT is None else run.keep_BT.flatten().contiguous()
        halting = rule.start(states_ND, Rows.all(B, T), keep_N, plan.n_rounds)
        if run.single is not None:
            halting.use_kernels()
        gathers = self._gathers(rule)
        # Rounds to come reuse keys and values of tokens that have halted. To keep any is what recomputed steps avoid.
        if gathers and not isinstance(rule, NoHalting) and not self._recomputes(run):
            is_own = plan is self.plan
            run.last_uses = self._last_uses if is_own else last_uses(plan, is_pre_norm=self.is_pre_norm)
        halted: tuple[Halted, ...] = ()
        for index, steps in self._rounds(plan, rule, run):
            active_N = halting.active(index, states_ND)
            if gathers and active_N is not None and self._pays(halting):
                states_ND, halted = narrow(index, active_N, states_ND, halting, halted)
            # Later tokens of a cached pass may go deeper, and look at these.
            if not halting.n_active and (gathers or run.cache is None):
                self._complete(plan, index, run, states_ND, halting.rows, halted)
                break
            here = Here.at(index, halting.before(index, states_ND), halting.rows, run, halted)
            entered_ND = states_ND
            if (tick := self.signal.at_round(signal, index)) is not None:
                states_ND = states_ND + here.rows.take(tick)
            halting.enter(index, states_ND)
            states_ND = self._run_steps(states_ND, steps, run, here)
            states_ND = halting.after(index, entered_ND, states_ND)
        states_BTD = halting.output(states_ND)
        if (name := self.final_norm) is not None:
            states_BTD = self.banks.norm[name](states_BTD)
        # A cost is for training; the steps of decoding would pay for it, token by token.
        cost = halting.aux_loss() if run.cache is None else None
        return StackOutput(states_BTD, halting.trace(), cost, tuple(run.routings), run.captures)

    def _rounds(self, plan: Plan, rule: HaltingRule, run: Pass) -> Iterable[tuple[int, tuple[Step, ...]]]:
        """Return rounds and their steps; all as one where kernels may run them and nothing happens in between."""
        is_one = run.single is not None and type(rule) is NoHalting and not self.signal.acts_on_rounds and plan.steps
        return [(0, plan.steps)] if is_one else plan.rounds()

    def _run_steps(self, states_ND: Tensor, steps: tuple[Step, ...], run: Pass, here: Here) -> Tensor:
        places = tuple((step, use) for step in steps for use in step.uses) if run.single is not None else ()
        if (moved_ND := self._chained(states_ND, places, run, here)) is not None:
            return moved_ND
        for step in steps:
            states_ND = self._run_step(states_ND, step, run, here.knowing(run))
        return states_ND

    def _chained(self, states_ND: Tensor, places: tuple[tuple[Step, Use], ...], run: Pass, here: Here) -> Tensor | None:
        """Return the states after sub-layers that compiled kernels run; None: plain code must."""
        if run.single is None or not places:
            return None
        for _, use in places:
            if use.kind == "cross_attention" and use.weights not in run.cross_kv:
                self._memory_keys_values(self.banks.attention(use.kind, use.weights), use, run)
        return run.single.run(states_ND, places, run, here)

    def _gathers(self, rule: HaltingRule) -> bool:
        """Whether halted tokens can be gathered away: not where something still reads or changes their columns."""
        return self.compaction != "never" and rule.freezes and not self._mixes_columns

    def _pays(self, halting: HaltingPass) -> bool:
        """Whether the rows that take part are few enough to gather them."""
        n = len(halting.rows)
        return halting.n_active < n if self.compaction == "always" else halting.n_active <= (1 - _LEAST_GAIN) * n

    def _run_step(self, states_ND: Tensor, step: Step, run: Pass, here: Here) -> Tensor:
        if not self._recomputes(run):
            return self._uses(states_ND, step, run, here)
        # What a pass computes once and keeps for later steps must not be made inside a recomputed region.
        for use in step.uses:
            self._prepare(use, run)
        sums = current_sums()

        def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
            return nullcontext(), nullcontext() if sums is None else summing(sums)

        given = (states_ND, step, run, here)
        return checkpoint(self._uses, *given, use_reentrant=False, context_fn=contexts)  # type: ignore[no-any-return]

    def _recomputes(self, run: Pass) -> bool:
        # A region that is run twice would write a cache twice.
        return self.checkpoint_activations and self.banks.training and torch.is_grad_enabled() and run.cache is None

    def _sums(self) -> bool:
        """Whether the gradients of weights are added up in place."""
        # What is compiled makes its own backward pass.
        return self.banks.training and torch.is_grad_enabled() and not torch.compiler.is_compiling()

    def _uses(self, states_ND: Tensor, step: Step, run: Pass, here: Here) -> Tensor:
        for use in step.uses:
            if (moved_ND := self._chained(states_ND, ((step, use),), run, here)) is not None:
                states_ND = moved_ND
                continue
            began = now(states_ND.device) if "seconds" in run.request else 0.0
            norm = self._norm(use)
            ffn = self.banks.feed_forward(use.weights) if use.kind == "ffn" else None
            # A convolution reads what is visible in all its columns, its own too.
            read = here.around.visible(states_ND) if isinstance(ffn, SeparableConv) else states_ND
            inner_ND = norm(read) if self.is_pre_norm else read
            if isinstance(ffn, SeparableConv):
                output_ND = self._convolve(ffn, inner_ND, step, run, here)
            elif ffn is not None:
                output_ND = ffn(inner_ND, self._route(ffn, inner_ND, use, step, run, here))
            elif use.kind == "cross_attention":
                output_ND = self._cross_attention(inner_ND, use, step, run, here)
            else:
                output_ND = self._self_attention(states_ND, inner_ND, use, step, run, here)
            self._capture(run, here, step, use, "input", inner_ND)
            self._capture(run, here, step, use, "output", output_ND)
            states_ND = self._add(states_ND, output_ND)
            if not self.is_pre_norm:
                states_ND = norm(states_ND)
            self._capture(run, here, step, use, "residual", states_ND)
            if "seconds" in run.request:
                key = self.plan.stack, step.index, use.kind, "seconds"
                run.captures[key] = torch.tensor(now(states_ND.device) - began)
        return states_ND

    def _norm(self, use: Use) -> Norm:
        return unchanged if use.norm is None else self.banks.norm[use.norm]

    def _route(
        self, module: Attention | FeedForward | Routed, inner_ND: Tensor, use: Use, step: Step, run: Pass, here: Here
    ) -> Decision | None:
        """Choose experts, where there are any, and note what was chosen."""
        decision = module.route(inner_ND, here.weight_N)
        routing = None
        if decision is not None:
            routing = decision.routing(router_name(use), self.plan.stack, step.index, here.rows.places(inner_ND.device))
        if routing is not None:
            run.routings.append(routing)
        return decision

    def _convolve(self, ffn: SeparableConv, source_ND: Tensor, step: Step, run: Pass, here: Here) -> Tensor:
        """Run a feed-forward that mixes neighbours. A prefix is as causal as the rest: only attention sees it whole."""
        windows = None if run.cache is None else run.cache.windows.setdefault(step.index, (Window(), Window()))
        source_BTD = here.rows.grid(source_ND)
        return ffn(source_BTD, is_causal=self.is_causal, keep_BT=run.keep_BT, windows=windows).flatten(0, 1)  # type: ignore[no-any-return]

    def _self_attention(
        self, states_ND: Tensor, inner_ND: Tensor, use: Use, step: Step, run: Pass, here: Here
    ) -> Tensor:
        attention, rows = self.banks.attention(use.kind, use.weights), here.rows
        decision = self._route(attention, inner_ND, use, step, run, here)
        visible_ND = here.around.visible(states_ND)
        if visible_ND is states_ND and not self._gone(use, here):
            q_NI, kv_NI = attention.queries_keys_values(inner_ND, decision)
        else:
            q_NI, kv_NI = attention.queries(inner_ND, decision), None
        if run.single is not None and run.single.is_in_place(step, use, run):
            kv_MI = self._keys_values_of_columns(visible_ND, kv_NI, use, step, run, here)
            x_NI = read_cache(run.single.next_keys(step, run, here), q_NI, kv_MI)
            return attention.output(x_NI, decision)
        k, v = self._keys_values(visible_ND, kv_NI, use, step, run, here)
        q = attention.query_heads(rows.queries(q_NI))
        bias = None
        if (relation := self.banks.relation(use.position)) is not None:
            n = attention.n_choices
            q = relation.rotate(q, repeat_for_choices(here.positions_BA, n))
            if relation.depends_on_queries:
                distance_BAS = run.key_positions[:, None, :] - here.positions_BA[:, :, None]
                bias = relation.bias(q, repeat_for_choices(distance_BAS, n), attention.scale, self.looks_back_only)
            else:
                bias = bias_of_queries(self._static_bias(use, run), here.visibility.columns_BA)
        if "weights" in run.request:
            self._capture_weights(run, here, step, use, attention.weights(q, k, here.visibility, bias))
        x = attention.join_heads(attention.mix(q, k, v, here.visibility, bias, rows.stretches(k)))
        return attention.output(rows.from_queries(x), decision)

    def _keys_values(
        self, visible_ND: Tensor, kv_NI: Tensor | None, use: Use, step: Step, run: Pass, here: Here
    ) -> tuple[Tensor, Tensor]:
        """Return keys and values of all visible tokens by head, as attention reads them.

        Args:
            kv_NI: those of the rows, where they have been made already.
        """
        attention = self.banks.attention(use.kind, use.weights)
        kv_MI = self._keys_values_of_columns(visible_ND, kv_NI, use, step, run, here)
        kv_2BHTK = attention.key_value_heads(kv_MI.view(here.rows.n_sentences, here.rows.n_columns, -1))
        k, v = kv_2BHTK.unbind(0)
        relation = self.banks.relation(use.position)
        seen = k if relation is None else relation.rotate(k, run.positions)
        if run.cache is None:
            return seen, v
        new_2BHTK = kv_2BHTK if seen is k else torch.stack([seen, v])
        kv = (
            run.cache.self_kv.setdefault(step.index, KeyValues())
            if run.chains is None
            else run.chains.cached(step, use, run)
        )
        k, v = kv.append(new_2BHTK).unbind(0)
        return k, v

    def _keys_values_of_columns(
        self, visible_ND: Tensor, kv_NI: Tensor | None, use: Use, step: Step, run: Pass, here: Here
    ) -> Tensor:
        """Return keys and values of the new columns, `[B T, 2 H K]`; zeros for padding that was gathered away.

        Those of rows that were gathered away since these weights last made any are made once more, of what the rows
        look like now; from then on they are the same and reused. Weights or a norm not used before make all of them.
        """
        maker, attention = keys_of(use, is_pre_norm=self.is_pre_norm), self.banks.attention(use.kind, use.weights)
        known, gone, index_N = here.known.get(maker), self._gone(use, here), here.rows.index_N
        if kv_NI is None:
            seen = torch.cat([visible_ND, *(rows.seen_LD for rows in gone)]) if gone else visible_ND
            kv_NI = attention.keys_values(self._norm(use)(seen) if self.is_pre_norm else seen)
        away = () if known is None else known.away
        if index_N is None:
            kv_MI = kv_NI
        elif known is not None and not torch.is_grad_enabled():  # nobody reads the former ones any more
            kv_MI = known.kv_MI.index_copy_(0, torch.cat([index_N, *(rows.places_L for rows in gone)]), kv_NI)
        else:
            places = [index_N, *(rows.places_L for rows in gone)]
            made = torch.split(kv_NI, [len(part) for part in places])
            now_here, *now_away = zip(places, made, strict=True)
            away = (*away, *now_away)
            kv_MI = lay_rows([now_here, *away], here.rows.n_tokens)
        if run.last_uses.get(maker, -1) > step.index:
            run.known[maker] = Known(here.index, kv_MI, away)
        return kv_MI

    def _gone(self, use: Use, here: Here) -> list[Halted]:
        """Return the rows that were gathered away since the weights of this use last made keys and values of them."""
        known = here.known.get(keys_of(use, is_pre_norm=self.is_pre_norm))
        return [rows for rows in here.halted if known is None or rows.round > known.round]

    def _complete(
        self, plan: Plan, index: int, run: Pass, states_0D: Tensor, rows: Rows, halted: tuple[Halted, ...]
    ) -> None:
        """Fill the caches of the rounds from `index` on: nobody takes part, but later tokens may, and look back."""
        for number, steps in plan.rounds() if run.cache is not None else ():
            here = Here.at(number, WHOLE, rows, run, halted)
            for step in steps if number >= index else ():
                for use in step.uses:
                    if use.kind == "self_attention":
                        self._fill(states_0D, use, step, run, here.knowing(run))

    def _fill(self, states_0D: Tensor, use: Use, step: Step, run: Pass, here: Here) -> None:
        """Put keys and values of the new columns into the cache of a step that nobody takes part in."""
        if run.single is not None and run.single.is_in_place(step, use, run):
            run.single.fill(step, use, run, here)
        else:
            self._keys_values(states_0D, None, use, step, run, here)

    def _cross_attention(self, inner_ND: Tensor, use: Use, step: Step, run: Pass, here: Here) -> Tensor:
        attention = self.banks.attention(use.kind, use.weights)
        decision = self._route(attention, inner_ND, use, step, run, here)
        kv_2BHSK = self._memory_keys_values(attention, use, run)
        if run.single is not None:
            x_NI = read_cache(run.single.memory_keys(use, run, here), attention.queries(inner_ND, decision))
            return attention.output(x_NI, decision)
        k, v = kv_2BHSK.unbind(0)
        q = attention.query_heads(here.rows.queries(attention.queries(inner_ND, decision)))
        if "weights" in run.request:
            self._capture_weights(run, here, step, use, attention.weights(q, k, run.memory_visibility))
        # The hypotheses of a sentence stand side by side as query positions, so that its keys are never copied.
        (BG, H, Q, K), G = q.shape, run.n_beams
        if G > 1:
            q = q.view(BG // G, G, H, Q, K).transpose(1, 2).reshape(BG // G, H, G * Q, K)
        x = attention.mix(q, k, v, run.memory_visibility, stretches=here.rows.stretches(k, G))
        if G > 1:
            x = x.view(BG // G, H, G, Q, K).transpose(1, 2).reshape(BG, H, Q, K)
        return attention.output(here.rows.from_queries(attention.join_heads(x)), decision)

    def _memory_keys_values(self, attention: Attention | ExpertAttention, use: Use, run: Pass) -> Tensor:
        """Project the memory once per parameter set, whatever the number of steps that use it: `[2, B, H, S, K]`."""
        if use.weights not in run.cross_kv:
            if run.memory_BSD is None:
                raise ValueError(f"the {self.plan.stack} has cross-attention but was given nothing to look at")
            found = attention.key_value_heads(attention.keys_values(run.memory_BSD))
            # Decoding reads them once a token: every head in one stretch is read faster.
            run.cross_kv[use.weights] = found if run.cache is None else found.contiguous()
        return run.cross_kv[use.weights]

    def _static_bias(self, use: Use, run: Pass) -> Tensor | None:
        """Return a bias that depends on positions only, computed once a pass."""
        name, relation = use.position, self.banks.relation(use.position)
        if name is None or relation is None or not relation.needs_bias:
            return None
        if name not in run.biases:
            # In place of queries, of which a token may have several: the bias depends on positions only.
            like = run.positions[:, None, :, None].float()
            distance_BTS = run.key_positions[:, None, :] - run.positions[:, :, None]
            run.biases[name] = relation.bias(like, distance_BTS, 1.0, self.looks_back_only)
        return run.biases[name]

    def _prepare(self, use: Use, run: Pass) -> None:
        if use.kind == "cross_attention":
            self._memory_keys_values(self.banks.attention(use.kind, use.weights), use, run)
        relation = self.banks.relation(use.position)
        if relation is not None and not relation.depends_on_queries:
            self._static_bias(use, run)

    def _drop(self, x: Tensor) -> Tensor:
        return drop(x, self.dropout, self.draws) if self.dropout and self.banks.training else x

    def _add(self, states_ND: Tensor, output_ND: Tensor) -> Tensor:
        drops = self.dropout and self.banks.training
        return add_dropped(states_ND, output_ND, self.dropout, self.draws) if drops else states_ND + output_ND

    def _capture(self, run: Pass, here: Here, step: Step, use: Use, what: str, value_ND: Tensor) -> None:
        if what in run.request:
            run.captures[self.plan.stack, step.index, use.kind, what] = here.rows.grid(value_ND)

    def _capture_weights(self, run: Pass, here: Here, step: Step, use: Use, weights_BHQS: Tensor) -> None:
        rows = here.rows
        weights_BHACS = weights_BHQS.view(*weights_BHQS.shape[:2], rows.n_queries, -1, weights_BHQS.shape[3])
        weights_BTHCS = rows.grid(rows.from_queries(weights_BHACS.transpose(1, 2)))
        run.captures[self.plan.stack, step.index, use.kind, "weights"] = weights_BTHCS.transpose(1, 2).flatten(2, 3)


def _prefix(positions: Int[Tensor, "#B S"], lengths_B: Int[Tensor, "B"] | None) -> Bool[Tensor, "B S"] | None:
    """Return the columns of the prefix; padding among them is hidden by the keep mask."""
    return None if lengths_B is None else positions < lengths_B[:, None]


def router_name(use: Use) -> str:
    """Return the name of the router of a sub-layer with experts: steps that share the sub-layer share it."""
    return f"{use.kind}.{use.weights}"
