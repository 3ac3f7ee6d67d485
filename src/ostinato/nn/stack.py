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

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from ostinato.nn.attention import Attention, Visibility
from ostinato.nn.bank import Banks
from ostinato.nn.cache import Cache, KeyValues, Window
from ostinato.nn.expert_attention import ExpertAttention
from ostinato.nn.experts import Decision, Routed
from ostinato.nn.feedforward import FeedForward
from ostinato.nn.halting import HaltingRule, NoHalting, Round, unchanged
from ostinato.nn.positions import PositionSignal, positions_from_keep
from ostinato.nn.separable import SeparableConv
from ostinato.nn.shapes import Bool, Float, Int, Tensor
from ostinato.nn.types import CaptureKey, Routing, StackOutput
from ostinato.plan import Plan, Step, Use

Norm = Callable[[Tensor], Tensor]


@dataclass(slots=True)
class _Pass:
    """What one run of the loop knows beside the states; made anew for every pass.

    `positions` are those of the queries, `key_positions` those of all visible columns (cached ones first). `keep_BT`
    tells the real ones among the queries; None where all are.
    """

    visibility: Visibility
    positions: Int[Tensor, "#B T"]
    key_positions: Int[Tensor, "#B S"]
    keep_BT: Tensor | None = None
    memory_BSD: Tensor | None = None
    memory_visibility: Visibility = field(default_factory=Visibility)
    cache: Cache | None = None
    cross_kv: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    biases: dict[str, Tensor | None] = field(default_factory=dict)
    request: Collection[str] = ()
    captures: dict[CaptureKey, Tensor] = field(default_factory=dict)
    routings: list[Routing] = field(default_factory=list)

    @property
    def n_beams(self) -> int:
        return 1 if self.cache is None else self.cache.n_beams


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
        self.plan = plan
        self.banks = banks
        self.is_pre_norm = placement == "pre"
        self.dropout = dropout
        self.signal = signal
        self.is_causal = is_causal
        # A distance has one meaning, whether its key is in a prefix or not, and in decoding as in training.
        self.looks_back_only = is_causal and not has_prefix
        self.halting: HaltingRule = halting or NoHalting()
        self.halts = True  # False: every token runs every round, whatever the rule
        self.checkpoint_activations = False

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
            request: captures to return: "input", "output", "residual", "weights".
        """
        if positions_BT is None:
            positions_BT = torch.arange(embedded_BTD.shape[1], device=embedded_BTD.device)[None]
        run = _Pass(
            Visibility(self.is_causal, keep_BT, prefix_BS=_prefix(positions_BT, prefix_lengths_B)),
            positions_BT,
            positions_BT,
            keep_BT,
            memory_BSD,
            Visibility(keep_BS=memory_keep_BS),
            request=request,
        )
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
        run = _Pass(
            Visibility(self.is_causal, cache.keep_BS, start, _prefix(key_positions, cache.prefix_lengths_B)),
            key_positions[:, start:],
            key_positions,
            None if cache.keep_BS is None else cache.keep_BS[:, start:],
            cache.memory_BSD,
            Visibility(keep_BS=cache.memory_keep_BS),
            cache,
            cache.cross_kv,
        )
        output = self._loop(embedded_BTD, run, cache.n_steps)
        cache.length, cache.prefix_lengths_B = end, None
        return output

    def _loop(self, states_BTD: Tensor, run: _Pass, n_rounds: int | None) -> StackOutput:
        plan = self.plan if n_rounds is None else self.plan.with_rounds(n_rounds)
        training = self.banks.training
        signal = self.signal.prepare(run.positions, n_sentences=states_BTD.shape[0], training=training)
        if (start := self.signal.at_start(signal)) is not None:
            states_BTD = states_BTD + start
        states_BTD = self._drop(states_BTD)
        rule = self.halting if self.halts else NoHalting()
        halting = rule.start(states_BTD, run.keep_BT, plan.n_rounds, runs_all=run.cache is not None)
        for index, steps in plan.rounds():
            if (around := halting.before(index, states_BTD)) is None:
                break
            entered = states_BTD
            if (tick := self.signal.at_round(signal, index)) is not None:
                states_BTD = states_BTD + tick
            halting.enter(index, states_BTD)
            for step in steps:
                states_BTD = self._run_step(states_BTD, step, run, around)
            states_BTD = halting.after(index, entered, states_BTD)
        states_BTD = halting.output(states_BTD)
        if (name := self.final_norm) is not None:
            states_BTD = self.banks.norm[name](states_BTD)
        # A cost is for training; the steps of decoding would pay for it, token by token.
        cost = halting.aux_loss() if run.cache is None else None
        return StackOutput(states_BTD, halting.trace(), cost, tuple(run.routings), run.captures)

    def _run_step(self, states_BTD: Tensor, step: Step, run: _Pass, around: Round) -> Tensor:
        recomputes = self.checkpoint_activations and self.banks.training and torch.is_grad_enabled()
        if not recomputes or run.cache is not None:  # a region that is run twice would write a cache twice
            return self._uses(states_BTD, step, run, around)
        # What a pass computes once and keeps for later steps must not be made inside a recomputed region.
        for use in step.uses:
            self._prepare(use, run)
        return checkpoint(self._uses, states_BTD, step, run, around, use_reentrant=False)  # type: ignore[no-any-return]

    def _uses(self, states_BTD: Tensor, step: Step, run: _Pass, around: Round) -> Tensor:
        for use in step.uses:
            norm = unchanged if use.norm is None else self.banks.norm[use.norm]
            ffn = self.banks.feed_forward(use.weights) if use.kind == "ffn" else None
            # A convolution reads what is visible in all its columns, its own too.
            read = around.visible(states_BTD) if isinstance(ffn, SeparableConv) else states_BTD
            inner = norm(read) if self.is_pre_norm else read
            if isinstance(ffn, SeparableConv):
                output = self._convolve(ffn, inner, step, run)
            elif ffn is not None:
                output = ffn(inner, self._route(ffn, inner, use, step, run, around))
            elif use.kind == "cross_attention":
                output = self._cross_attention(inner, use, step, run, around)
            else:
                seen = self._seen(states_BTD, inner, norm, around)
                output = self._self_attention(inner, seen, use, step, run, around)
            self._capture(run, step, use, "input", inner)
            self._capture(run, step, use, "output", output)
            states_BTD = states_BTD + self._drop(output)
            if not self.is_pre_norm:
                states_BTD = norm(states_BTD)
            self._capture(run, step, use, "residual", states_BTD)
        return states_BTD

    def _route(
        self,
        module: Attention | FeedForward | Routed,
        inner_BTD: Tensor,
        use: Use,
        step: Step,
        run: _Pass,
        around: Round,
    ) -> Decision | None:
        """Choose experts, where there are any, and note what was chosen."""
        decision = module.route(inner_BTD, run.keep_BT, around.weight_BT)
        routing = None
        if decision is not None:
            routing = decision.routing(router_name(use), self.plan.stack, step.index)
        if routing is not None:
            run.routings.append(routing)
        return decision

    def _seen(self, states_BTD: Tensor, inner_BTD: Tensor, norm: Norm, around: Round) -> Tensor:
        """Return what tokens look like to each other: halted ones as they last stood, normed like the others."""
        visible_BTD = around.visible(states_BTD)
        if visible_BTD is states_BTD:
            return inner_BTD
        return norm(visible_BTD) if self.is_pre_norm else visible_BTD

    def _convolve(self, ffn: SeparableConv, source_BTD: Tensor, step: Step, run: _Pass) -> Tensor:
        """Run a feed-forward that mixes neighbours. A prefix is as causal as the rest: only attention sees it whole."""
        windows = None if run.cache is None else run.cache.windows.setdefault(step.index, (Window(), Window()))
        return ffn(source_BTD, is_causal=self.is_causal, keep_BT=run.keep_BT, windows=windows)  # type: ignore[no-any-return]

    def _self_attention(
        self, inner_BTD: Tensor, source_BTD: Tensor, use: Use, step: Step, run: _Pass, around: Round
    ) -> Tensor:
        attention = self.banks.attention(use.kind, use.weights)
        decision = self._route(attention, inner_BTD, use, step, run, around)
        if source_BTD is inner_BTD:
            q, k, v = attention.project(inner_BTD, decision)
        else:
            q, (k, v) = attention.project_queries(inner_BTD, decision), attention.project_keys_values(source_BTD)
        bias = None
        if (relation := self.banks.relation(use.position)) is not None:
            n = attention.n_choices
            q, k = relation.rotate(q, _repeat(run.positions, n)), relation.rotate(k, run.positions)
            if relation.depends_on_queries:
                bias = relation.bias(q, _repeat(_distance(run), n), attention.scale, self.looks_back_only)
            else:
                bias = self._static_bias(use, run)
        if run.cache is not None:
            k, v = run.cache.self_kv.setdefault(step.index, KeyValues()).append(k, v)
        if "weights" in run.request:
            self._capture(run, step, use, "weights", attention.weights(q, k, run.visibility, bias))
        return attention.project_out(attention.mix(q, k, v, run.visibility, bias), decision)

    def _cross_attention(self, inner_BTD: Tensor, use: Use, step: Step, run: _Pass, around: Round) -> Tensor:
        attention = self.banks.attention(use.kind, use.weights)
        decision = self._route(attention, inner_BTD, use, step, run, around)
        k, v = self._memory_keys_values(attention, use, run)
        q = attention.project_queries(inner_BTD, decision)
        if "weights" in run.request:
            self._capture(run, step, use, "weights", attention.weights(q, k, run.memory_visibility))
        if run.n_beams == 1:
            return attention.project_out(attention.mix(q, k, v, run.memory_visibility), decision)
        # The hypotheses of a sentence stand side by side as query positions, so that its keys are never copied.
        (BG, H, Q, K), G = q.shape, run.n_beams
        q = q.view(BG // G, G, H, Q, K).transpose(1, 2).reshape(BG // G, H, G * Q, K)
        x = attention.mix(q, k, v, run.memory_visibility)
        x = x.view(BG // G, H, G, Q, K).transpose(1, 2).reshape(BG, H, Q, K)
        return attention.project_out(x, decision)

    def _memory_keys_values(
        self, attention: Attention | ExpertAttention, use: Use, run: _Pass
    ) -> tuple[Tensor, Tensor]:
        """Project the memory once per parameter set, whatever the number of steps that use it."""
        if (found := run.cross_kv.get(use.weights)) is None:
            if run.memory_BSD is None:
                raise ValueError(f"the {self.plan.stack} has cross-attention but was given nothing to look at")
            found = run.cross_kv[use.weights] = attention.project_keys_values(run.memory_BSD)
        return found

    def _static_bias(self, use: Use, run: _Pass) -> Tensor | None:
        """Return a bias that depends on positions only, computed once a pass."""
        name, relation = use.position, self.banks.relation(use.position)
        if name is None or relation is None or not relation.needs_bias:
            return None
        if name not in run.biases:
            # In place of queries, of which a token may have several: the bias depends on positions only.
            like = run.positions[:, None, :, None].float()
            run.biases[name] = relation.bias(like, _distance(run), 1.0, self.looks_back_only)
        return run.biases[name]

    def _prepare(self, use: Use, run: _Pass) -> None:
        if use.kind == "cross_attention":
            self._memory_keys_values(self.banks.attention(use.kind, use.weights), use, run)
        relation = self.banks.relation(use.position)
        if relation is not None and not relation.depends_on_queries:
            self._static_bias(use, run)

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout) if self.dropout and self.banks.training else x

    def _capture(self, run: _Pass, step: Step, use: Use, what: str, value: Tensor) -> None:
        if what in run.request:
            run.captures[self.plan.stack, step.index, use.kind, what] = value


def _prefix(positions: Int[Tensor, "#B S"], lengths_B: Int[Tensor, "B"] | None) -> Bool[Tensor, "B S"] | None:
    """Return the columns of the prefix; padding among them is hidden by the keep mask."""
    return None if lengths_B is None else positions < lengths_B[:, None]


def router_name(use: Use) -> str:
    """Return the name of the router of a sub-layer with experts: steps that share the sub-layer share it."""
    return f"{use.kind}.{use.weights}"


def _repeat(values: Tensor, n: int) -> Tensor:
    """Return positions `[B, T]` or distances `[B, T, S]` of the queries, n of which belong to one token."""
    return values if n == 1 else values.repeat_interleave(n, dim=1)


def _distance(run: _Pass) -> Int[Tensor, "#B T S"]:
    """Return key position minus query position."""
    return run.key_positions[:, None, :] - run.positions[:, :, None]
