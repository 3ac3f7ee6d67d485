"""Plain twins of the models: one sentence, one token, one head at a time.

They read the same weights as the model they are twins of and are differentiable with respect to them. No masks, no
padding, no packing, no fused attention, no cache. Depth is followed step by step from the plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from architectures import Sentence
from ostinato.config.experts import (
    ExpertAttentionConfig,
    ExpertFeedForwardConfig,
    HeadExpertAttentionConfig,
    RoutedConfig,
    SparseLayerConfig,
)
from ostinato.config.loops import INPUT
from ostinato.config.norm import NormalisationConfig
from ostinato.config.positions import (
    AlibiConfig,
    BucketsConfig,
    CoordinatesConfig,
    LearnedConfig,
    LinearScalingConfig,
    Llama3ScalingConfig,
    RotaryConfig,
    SinusoidalConfig,
    WindowConfig,
)
from ostinato.config.stack import StackConfig
from ostinato.config.sub_layers import AttentionConfig, DenseFeedForwardConfig, SeparableConvConfig
from ostinato.models import LanguageModel, Seq2Seq
from ostinato.nn.loops import DecayInjection, InputState, LearnedState, LinearInjection, ZeroState
from ostinato.plan import Plan, Segment, Step, Use
from reference.by_round import gate_and_scale, time_of, with_added
from reference.equations import (
    ACTIVATIONS,
    alibi_slope,
    bucket,
    depth_wise,
    layer_norm,
    llama3_frequency,
    relu,
    rms_norm,
    rotate,
    sinusoid,
    softmax,
    window_entry,
)
from reference.experts import (
    choose,
    output_of_heads,
    read_expert_heads,
    run_maps,
    run_stack,
    value_of_head,
    weighted,
)
from reference.halting import Whole, start
from reference.weights import Heads, of_token, read_affine, read_heads

States = list[Tensor]
Column = tuple[Tensor, Tensor] | None
"""What a column's key and its value are made of; None where it is hidden."""
Model = Seq2Seq | LanguageModel
Depths = dict[str, Whole]
"""What tokens did, by stack."""


def twin(model: Model, sentence: Sentence, n_steps: int | None = None) -> Tensor:
    """Return the logits after every token of the target, `[T, V]`."""
    return twin_with_depths(model, sentence, n_steps)[0]


def twin_with_depths(model: Model, sentence: Sentence, n_steps: int | None = None) -> tuple[Tensor, Depths]:
    """Return the logits, and how deep every token of every stack went."""
    if isinstance(model, Seq2Seq):
        assert sentence.source is not None
        encoder = _Twin(model, "encoder", sentence.source, is_causal=False)
        decoder = _Twin(model, "decoder", sentence.target, is_causal=True)
        memory, deep = encoder.run(_embed(model, model.source_embedding, sentence.source), n_steps)
        states, depths = decoder.run(_embed(model, model.target_embedding, sentence.target), n_steps, memory)
        return _logits(model, states), {"encoder": deep, "decoder": depths}
    n_prefix = sentence.n_prefix if model.config.mask == "prefix" else None
    stack = _Twin(model, "decoder", sentence.target, is_causal=True, n_prefix=n_prefix)
    states, depths = stack.run(_embed(model, model.target_embedding, sentence.target), n_steps)
    return _logits(model, states), {"decoder": depths}


def _embed(model: Model, table_VD: Tensor, ids: Sequence[int]) -> States:
    config = model.config
    scale = {True: math.sqrt(config.d_model), False: 1.0}.get(config.embedding_scale, config.embedding_scale)
    return [table_VD[i] * scale for i in ids]


def _logits(model: Model, states: States) -> Tensor:
    """c tanh(z / c) of z = scale * (O transform(x)) + b, or z itself."""
    output, d_model = model.config.output, model.config.d_model
    scale = {True: 1 / math.sqrt(d_model), False: 1.0}.get(output.scale, output.scale)
    found = []
    for state_D in states:
        x_D = state_D
        if output.transform is not None:
            module = model.output_transform
            assert module is not None
            x_D = read_affine(module.dense)(x_D)
            if output.transform.activation != "none":
                x_D = ACTIVATIONS[output.transform.activation][0](x_D)
            if output.transform.norm is not None:
                x_D = normalise(output.transform.norm, module.norm, x_D)  # type: ignore[arg-type]
        z_V = (model.output_projection * x_D).sum(-1) * scale
        if model.output_bias is not None:
            z_V = z_V + model.output_bias
        found.append(z_V if output.soft_cap is None else output.soft_cap * torch.tanh(z_V / output.soft_cap))
    return torch.stack(found)


def normalise(norm: NormalisationConfig, module: Module, x_D: Tensor) -> Tensor:
    """Return the norm of a state, with the weight and bias that a module holds."""
    one, zero = torch.ones_like(x_D), torch.zeros_like(x_D)
    weight = module.weight if norm.weight else one
    assert isinstance(weight, Tensor)
    if norm.kind == "rms":
        return rms_norm(x_D, one + weight if norm.unit_offset else weight, norm.eps)
    bias = module.bias if norm.weight and norm.bias else zero
    return layer_norm(x_D, weight, bias, norm.eps)  # type: ignore[arg-type]


def _table(value: int, width: int, layout: str = "interleaved") -> Tensor:
    """Return a sinusoid as models hold it, rounded to float32: a deep stack makes much of the last digits."""
    found_W = sinusoid(value, width).float()
    return found_W if layout == "interleaved" else torch.cat([found_W[0::2], found_W[1::2]])


class _Twin:
    """One stack."""

    def __init__(
        self, model: Model, name: str, ids: Sequence[int], *, is_causal: bool, n_prefix: int | None = None
    ) -> None:
        self._model, self._name, self._is_causal, self._n_prefix = model, name, is_causal, n_prefix
        self._ids = ids
        self._read_by_others: dict[int, tuple[list[Column], Use]] = {}
        self._made_by: list[Use] = []
        self._time: Tensor | None = None
        self._config: StackConfig = model.config.stacks()[name]

    def run(self, states: States, n_steps: int | None, memory: States | None = None) -> tuple[States, Whole]:
        """Apply all rounds of the plan, to the tokens that take part in them."""
        d_model, positions = self._model.config.d_model, self._config.positions
        banks = self._model.banks
        plan = self._config.plan(self._name)
        plan = plan if n_steps is None else plan.with_rounds(n_steps)
        if isinstance(positions, SinusoidalConfig):
            states = [x + _table(t, x.numel(), positions.layout) for t, x in enumerate(states)]
        if isinstance(positions, LearnedConfig):
            rows: Tensor = banks.positions[self._name].weight  # type: ignore[assignment]
            states = [x + rows[positions.offset + t] for t, x in enumerate(states)]
        if self._config.norm.embedding:
            states = [self._norm(f"embedding_{self._name}", x) for x in states]
        if self._model.config.d_embedding is not None:
            states = [read_affine(banks.embedding[self._name])(x) for x in states]  # type: ignore[arg-type]
        loop = next(i for i, segment in enumerate(plan.segments) if segment.is_loop)
        states = self._once(plan.segments[:loop], states, memory)
        if plan.loop.phases:
            everyone = Whole(len(states))
            states = self._several_states(plan, states, memory, everyone)
            return self._finish(plan.segments[loop + 1 :], states, memory), everyone
        entry, states = states, self._start(plan.segments[loop], states)
        halting = start(self._config.halting, lambda: self._model.banks.halting[self._name], states, plan.n_rounds)
        for r in range(1, plan.n_rounds + 1):
            if not halting.begin(r, states):
                break
            inject = self._injection(plan.segments[loop])
            states = [
                inject(x, e) if halting.runs[t] else x for t, (x, e) in enumerate(zip(states, entry, strict=True))
            ]
            if isinstance(positions, CoordinatesConfig):
                tick = _table(r, d_model)
                states = [x + (_table(t + 1, d_model) + tick) if halting.runs[t] else x for t, x in enumerate(states)]
            if plan.loop.vectors is not None:
                table: Tensor = banks.vectors[plan.loop.vectors].table_RD  # type: ignore[assignment]
                own_D = table[min(r, len(table)) - 1]
                states = [x + own_D if halting.runs[t] else x for t, x in enumerate(states)]
            if plan.loop.time is not None:
                self._time = time_of(banks.time[plan.loop.time], (r - 1) / plan.n_rounds, 1 / plan.n_rounds)
            halting.enter(r, states)
            for step in plan.loop.steps:
                if step.round == r - 1:
                    states = self._step(step, states, memory, halting)
            name = plan.segments[loop].round_norm
            states = [self._norm(name, x) if halting.runs[t] else x for t, x in enumerate(states)]
            halting.finish(r, states)
        states = self._end(plan.segments[loop], halting.output(states))
        return self._finish(plan.segments[loop + 1 :], states, memory), halting

    def _finish(self, segments: Sequence[Segment], states: States, memory: States | None) -> States:
        """What follows the loop, and the final norm."""
        states = self._once(segments, states, memory)
        if self._config.norm.has_final:
            states = [self._norm(f"final_{self._name}", x) for x in states]
        return states

    def _several_states(self, plan: Plan, entry: States, memory: States | None, everyone: Whole) -> States:
        """Follow the settings of a loop of several states, by name; no token stops."""
        number = plan.segments.index(plan.loop)
        settings, starts = self._config.segments[number].states, self._model.banks.start[f"{self._name}_{number}"]
        named = {one.name: self._begin(starts[i], entry) for i, one in enumerate(settings)}  # type: ignore[index]
        for r in range(1, plan.n_rounds + 1):
            everyone.begin(r, entry)
            steps = iter(step for step in plan.loop.steps if step.round == r - 1)
            for i, one in enumerate(settings):
                for _ in range(one.repeats):
                    read = [entry if other == INPUT else named[other] for other in one.adds]
                    states = [sum(others, own) for own, *others in zip(named[one.name], *read, strict=True)]
                    for step in islice(steps, self._n_steps_of(number, i)):
                        states = self._step(step, states, memory, everyone)
                    norm = f"state_{self._name}_{number}_{i}" if one.norm else None
                    named[one.name] = [self._norm(norm, x) for x in states]
            assert next(steps, None) is None
        return self._end(plan.loop, named[settings[-1].name])

    def _n_steps_of(self, number: int, state: int) -> int:
        """Steps that change a state once, with a sparse layer that stands behind one of them."""
        segments, sparse = self._config.segments, self._config.sparse_layer
        before = sum(one.n_steps for one in segments[:number])
        states = segments[number].states
        first = before + sum(one.n_steps for one in states[:state])
        n = states[state].n_steps
        return n + (sparse is not None and first < sparse.after <= first + n)

    def _weights(self, use: Use) -> Any:
        """Return the parameter set of a use; where its round adds to it, its maps W + B A."""
        module: Any = getattr(self._model.banks, use.kind)[use.weights]
        if use.delta is None:
            return module
        sub = self._config.settings_of(use)
        if isinstance(sub, AttentionConfig):
            width, n_keys = sub.d_head or self._model.config.d_model // sub.n_heads, sub.n_kv_heads or sub.n_heads
            heights = {"qkv": [sub.n_heads * width, n_keys * width, n_keys * width]}
            heights |= {"out": [self._model.config.d_model]}
            heights |= {"output_gate": [sub.n_heads * width]} if sub.output_gate else {}
        else:
            assert isinstance(sub, DenseFeedForwardConfig)
            n = 2 if ACTIVATIONS[sub.activation][1] else 1
            heights = {"up": [sub.d_ff] * n, "down": [self._model.config.d_model]}
        return with_added(module, self._model.banks.delta[use.delta], heights)

    def _once(self, segments: Sequence[Segment], states: States, memory: States | None) -> States:
        """Apply the steps of segments in which no token halts."""
        everyone = Whole(len(states))
        for segment in segments:
            for step in segment.steps:
                states = self._step(step, states, memory, everyone)
            states = self._end(segment, states)
        return states

    def _step(self, step: Step, states: States, memory: States | None, halting: Whole) -> States:
        """Apply the sub-layers of a step, one after the other, or side by side to what enters it."""
        self._at = step
        if self._config.norm.placement != "parallel":
            for use in step.uses:
                states = self._sub_layer(use, states, memory, halting)
            return states
        total = list(states)
        for use in step.uses:
            after = self._sub_layer(use, states, memory, halting)
            total = [one + (new - old) for one, new, old in zip(total, after, states, strict=True)]
        return total

    def _start(self, segment: Segment, states: States) -> States:
        """What the first round starts from; noise is a function of the position."""
        if segment.start is None:
            return states
        return self._begin(self._model.banks.start[segment.start], states)

    def _begin(self, module: Module, states: States) -> States:
        if isinstance(module, InputState):
            return states
        if isinstance(module, ZeroState):
            return [torch.zeros_like(x) for x in states]
        if isinstance(module, LearnedState):
            return [module.vector_D for _ in states]
        positions = torch.arange(len(states))[None]
        return list(module(torch.stack(states)[None], positions)[0])

    def _injection(self, segment: Segment) -> Callable[[Tensor, Tensor], Tensor]:
        """u of h and e."""
        if segment.inject is None:
            return lambda h_D, e_D: h_D
        module: Any = self._model.banks.injection[segment.inject]
        if isinstance(module, LinearInjection):
            joined = torch.cat([module.state.weight, module.input.weight], dim=1)
            return lambda h_D, e_D: (joined * torch.cat([h_D, e_D])).sum(-1)
        if isinstance(module, DecayInjection):
            step_D = torch.log1p(module.step_D.exp())
            kept_D = torch.exp(-step_D * module.rate_D.exp())
            return lambda h_D, e_D: kept_D * h_D + step_D * read_affine(module.input)(e_D)
        return lambda h_D, e_D: h_D + e_D

    def _end(self, segment: Segment, states: States) -> States:
        """The map and the norm of what leaves a segment."""
        if segment.end_map is not None:
            states = [read_affine(self._model.banks.end_map[segment.end_map])(x) for x in states]
        return [self._norm(segment.end_norm, x) for x in states]

    def _sub_layer(self, use: Use, states: States, memory: States | None, halting: Whole) -> States:
        """after(x + output(f(before(x)))) for every token that runs, with the norms that its placement has.

        What f reads of tokens is what is seen. Attention asks with x; a convolution reads all its columns, also that of
        x, as they are seen.
        """
        before, after_f, after_sum, before_scores = self._names_of_norms(use)
        seen = [halting.seen(t, x) for t, x in enumerate(states)]
        inputs, others = states, seen
        if before is not None:
            inputs = [self._norm(before, x) for x in states]
            others = [n if s is x else self._norm(before, s) for s, x, n in zip(seen, states, inputs, strict=True)]
        gate: Tensor | float = 1.0
        if use.modulation is not None:
            gate, scale_D = gate_and_scale(self._model.banks.modulation[use.modulation], self._time)
            inputs, others = [x * (1 + scale_D) for x in inputs], [x * (1 + scale_D) for x in others]
        scored, keyed = inputs, others  # what queries and routers read, and what keys are made of
        if before_scores is not None:
            scored = [self._norm(before_scores, x) for x in inputs]
            keyed = [
                n if s is x else self._norm(before_scores, s) for s, x, n in zip(others, inputs, scored, strict=True)
            ]
        running = [t for t, runs in enumerate(halting.runs) if runs]
        if use.kind == "self_attention":
            hidden = [halting.hides and not runs for runs in halting.runs]
            pairs = zip(hidden, keyed, others, strict=True)
            columns: list[Column] = [None if is_hidden else (k, v) for is_hidden, k, v in pairs]
            self._read_by_others[self._at.index] = columns, use
            sets = [self._read_by_others[step] for step in self._at.keys or (self._at.index,)]
            columns, self._made_by = [x for one, _ in sets for x in one], [made_by for _, made_by in sets]
            outputs = [self._attend(use, t, scored, columns) for t in running]
        elif use.kind == "cross_attention":
            assert memory is not None
            outputs = [self._attend(use, t, scored, [(x, x) for x in memory]) for t in running]
        elif isinstance(self._config.settings_of(use), SeparableConvConfig):
            outputs = self._separable(use, others, running)
        else:
            outputs = [self._feed_forward(use, inputs[t], scored[t]) for t in running]
        new = list(states)
        for t, output in zip(running, outputs, strict=True):
            x = states[t] + gate * (output if after_f is None else self._norm(after_f, output))
            new[t] = x if after_sum is None else self._norm(after_sum, x)
        return new

    def _names_of_norms(self, use: Use) -> tuple[str | None, str | None, str | None, str | None]:
        """Return the norms of what f reads, of what it gives, of the sum, and of what scores alone are made of.

        A sparse layer has its own inside.
        """
        if isinstance(sub := self._config.settings_of(use), SparseLayerConfig):
            return None, None, None, None
        if self._config.norm.placement == "scores":
            assert (use.before, use.output, use.after) == (None, None, None)
            chooses = isinstance(sub, RoutedConfig) and sub.n_experts > 1
            assert (use.scores is not None) == (chooses or use.kind != "ffn")
            return None, None, None, use.scores
        there = {
            "post": (False, False, True),
            "pre": (True, False, False),
            "peri": (True, True, False),
            "output": (False, True, False),
            "sandwich": (True, False, True),
            "parallel": (True, False, False),
        }[self._config.norm.placement]
        if not self._config.norm.first and self._is_first(use):
            there = (False, *there[1:])
        names = (use.before, use.output, use.after)
        assert tuple(name is not None for name in names) == there
        assert use.scores is None
        return *names, None

    def _is_first(self, use: Use) -> bool:
        """Whether it is the first sub-layer of the stack with norms, or a repeat of it in a later round."""
        plan, at = self._config.plan(self._name), self._at
        first = next(
            (step, one)
            for step in plan.steps
            for one in step.uses
            if not isinstance(self._config.settings_of(one), SparseLayerConfig)
        )
        segment = plan.segments[at.segment]
        n = len(next(segment.rounds())) if segment.is_repeated else len(plan.steps)
        places = [(step.index - segment.steps[0].index) % n for step in (at, first[0])]
        if segment.phases and segment.phases[0].state == 0:  # a round runs the steps of its first state several times
            n_own, n_times = segment.phases[0].n_steps, segment.phases[0].left
            places = [place % n_own if place < n_own * n_times else place for place in places]
        is_same_step = at.segment == first[0].segment and places[0] == places[1]
        return is_same_step and (use.kind, use.weights) == (first[1].kind, first[1].weights)

    def _norm(self, name: str | None, x_D: Tensor) -> Tensor:
        if name is None:
            return x_D
        norm = self._config.norm.of_final if name == f"final_{self._name}" else self._config.norm
        return normalise(norm, self._model.banks.norm[name], x_D)

    def _feed_forward(self, use: Use, x_D: Tensor, scored_D: Tensor) -> Tensor:
        sub, module = self._config.settings_of(use), self._weights(use)
        if isinstance(sub, ExpertFeedForwardConfig):
            maps, act_name = module.experts, sub.activation
            y_D = weighted(choose(sub, module, scored_D), lambda e: run_maps(maps, e, act_name, x_D))  # type: ignore[arg-type]
            return y_D + module.sum_bias_D if sub.sum_bias else y_D  # type: ignore[operator]
        if isinstance(sub, SparseLayerConfig):
            act_name, eps = sub.activation, self._config.norm.eps
            return weighted(choose(sub, module, x_D), lambda e: run_stack(module, e, act_name, eps, x_D))
        assert isinstance(sub, DenseFeedForwardConfig)
        F = sub.d_ff
        down = read_affine(module.down)  # type: ignore[arg-type]
        act, is_gated = ACTIVATIONS[sub.activation]
        if is_gated:
            gate, linear = read_affine(module.up, 0, F), read_affine(module.up, F, 2 * F)  # type: ignore[arg-type]
            return down(act(gate(x_D)) * linear(x_D))
        return down(act(read_affine(module.up)(x_D)))  # type: ignore[arg-type]

    def _separable(self, use: Use, inputs: States, running: list[int]) -> States:
        """relu(W1 (depth-wise x) + b1), then W2 (depth-wise hidden) + b2: two convolutions over the sentence."""
        sub, module = self._config.settings_of(use), self._model.banks.ffn[use.weights]
        assert isinstance(sub, SeparableConvConfig)
        up, down = read_affine(module.up), read_affine(module.down)  # type: ignore[arg-type]
        taps_in, taps_out = module.taps_in_KD, module.taps_out_KF
        assert isinstance(taps_in, Tensor)
        assert isinstance(taps_out, Tensor)
        assert taps_in.shape[0] == sub.kernel_in
        assert taps_out.shape[0] == sub.kernel_out
        hidden = [relu(up(depth_wise(inputs, taps_in, t, self._is_causal))) for t in range(len(inputs))]
        return [down(depth_wise(hidden, taps_out, t, self._is_causal)) for t in running]

    def _attend(self, use: Use, t: int, inputs: States, others: Sequence[Column]) -> Tensor:
        """What token t reads: with experts the sum over the chosen ones of gate times what their heads read."""
        sub = self._config.settings_of(use)
        assert isinstance(sub, AttentionConfig)
        sizes = (sub.n_heads, sub.n_kv_heads or sub.n_heads, sub.d_head or self._model.config.d_model // sub.n_heads)
        module = self._weights(use)
        if isinstance(sub, HeadExpertAttentionConfig):
            return self._attend_by_heads(sub, use, t, inputs, others)
        if not isinstance(sub, RoutedConfig):
            heads = read_heads(module, *sizes)
            made_by = self._made_by if use.kind == "self_attention" else [use]
            return self._read(
                heads, use, t, inputs, others, [read_heads(self._weights(one), *sizes) for one in made_by]
            )
        y_D = weighted(
            choose(sub, module, inputs[t]),
            lambda e: self._read(read_expert_heads(module, e, *sizes), use, t, inputs, others),
        )
        return y_D + module.sum_bias_D if isinstance(sub, ExpertAttentionConfig) and sub.sum_bias else y_D

    def _attend_by_heads(
        self, sub: HeadExpertAttentionConfig, use: Use, t: int, inputs: States, others: Sequence[Column]
    ) -> Tensor:
        """What token t reads where every head has experts of values and of outputs."""
        module = self._weights(use)
        K, n_groups = sub.head_width(self._model.config.d_model), sub.n_heads // sub.n_key_heads
        shown, T = self._shown(use, t, others)
        makers = [self._weights(one) for one in self._made_by]
        read = []
        for head in range(sub.n_heads):
            of_keys, first = head // n_groups, sub.n_heads * K
            query = read_affine(module.qk, head * K, (head + 1) * K)
            scores, values = [], []
            for s, (keyed, valued) in shown.items():
                maker = makers[s // T]
                key = read_affine(maker.qk, first + of_keys * K, first + (of_keys + 1) * K)
                scores.append(self._score(use, head, query(inputs[t]), key(keyed), t, s % T))
                own = value_of_head(sub, maker, of_keys, keyed, valued)
                values.append(own + self._of_token(use, of_keys, keyed, s, T))
            parts = [w * v for w, v in zip(softmax(scores), values, strict=True)]
            read.append(sum(parts[1:], parts[0]))
        return output_of_heads(sub, module, inputs[t], read)

    def _shown(self, use: Use, t: int, others: Sequence[Column]) -> tuple[dict[int, tuple[Tensor, Tensor]], int]:
        """Return the columns that token t sees by their place in all sets of keys that are read, and a set's number."""
        is_self = use.kind == "self_attention"
        # Of self-attention each set of keys that is read has all columns.
        T = len(others) // (len(self._at.keys) or 1) if is_self else len(others)
        shown = {s: x for s, x in enumerate(others) if x is not None}
        visible = [s for s in shown if not (is_self and self._is_causal) or s % T < self._n_seen(t)]
        if is_self and (reach := self._config.relative_of(use).reach) is not None:
            visible = [s for s in visible if abs(s % T - t) <= reach]
        return {s: shown[s] for s in visible}, T

    def _read(
        self,
        heads: Heads,
        use: Use,
        t: int,
        inputs: States,
        others: Sequence[Column],
        makers: Sequence[Heads] | None = None,
    ) -> Tensor:
        """concat over heads of sum_s softmax_s(q_t . k_s * scale + relation) v_s, gated, then the output projection.

        Args:
            makers: of every set of keys that is read what makes them; None: `heads` of all.
        """
        shown, T = self._shown(use, t, others)
        of = {s: heads if makers is None else makers[s // T] for s in shown}
        mixed = []
        for head in range(len(heads.query)):
            q = heads.query[head](inputs[t])
            scores = []
            for s, (keyed, _) in shown.items():
                k = of[s].key[head](keyed)
                scores.append(self._score(use, head, q, k, t, s % T))
            n_groups = self._n_groups(use)
            values = [
                of[s].value[head](valued) + self._of_token(use, head // n_groups, keyed, s, T)
                for s, (keyed, valued) in shown.items()
            ]
            weighted_values = [w * v for w, v in zip(softmax(scores), values, strict=True)]
            mixed.append(sum(weighted_values[1:], weighted_values[0]))
        read = torch.cat(mixed)
        gate = self._weights(use).output_gate
        return heads.out(read if gate is None else read * torch.sigmoid(read_affine(gate)(inputs[t])))

    def _n_groups(self, use: Use) -> int:
        sub = self._config.settings_of(use)
        assert isinstance(sub, AttentionConfig)
        return sub.n_heads // (sub.n_kv_heads or sub.n_heads)

    def _of_token(self, use: Use, head: int, keyed: Tensor, s: int, T: int) -> Tensor | float:
        """What the token of a column adds to its value of one head of keys."""
        table = self._made_by[s // T].values if use.kind == "self_attention" else None
        return 0.0 if table is None else of_token(self._model.banks.values[table], head, keyed, self._ids[s % T])

    def _n_seen(self, t: int) -> int:
        """Number of first tokens that token t of a causal stack sees: up to itself; from the prefix, all of that."""
        return self._n_prefix if self._n_prefix is not None and t < self._n_prefix else t + 1

    def _score(self, use: Use, head: int, q_K: Tensor, k_K: Tensor, t: int, s: int) -> Tensor:
        """Score of key s for query t, with the norms of queries and keys, and the relative positions of the use."""
        sub, relative = self._config.settings_of(use), self._config.relative_of(use)
        assert isinstance(sub, AttentionConfig)
        scale = 1 / math.sqrt(q_K.numel()) if sub.scale is None else sub.scale
        if sub.qk_norm != "none" and sub.qk_norm_at == "before":
            q_K, k_K = self._normed_heads(use, q_K, k_K)
        if isinstance(relative, RotaryConfig):
            q_K, k_K = self._turned(relative, q_K, t), self._turned(relative, k_K, s)
        if sub.qk_norm != "none" and sub.qk_norm_at == "after":
            q_K, k_K = self._normed_heads(use, q_K, k_K)
        score = (q_K * k_K).sum() * scale
        if isinstance(relative, WindowConfig):
            table_HKR = self._model.banks.relative[use.position or ""].table_HKR
            entry = window_entry(t, s, relative.window)
            return score + (q_K * table_HKR[head, :, entry]).sum() * scale  # type: ignore[index]
        if isinstance(relative, BucketsConfig):
            table_RH = self._model.banks.relative[use.position or ""].table_RH
            looks_back_only = self._is_causal and self._n_prefix is None
            row = bucket(t, s, relative.n_buckets, relative.max_distance, looks_back_only)
            return score + table_RH[row, head]  # type: ignore[index]
        if isinstance(relative, AlibiConfig):
            return score - alibi_slope(head, sub.n_heads) * abs(s - t)
        return score

    def _normed_heads(self, use: Use, q_K: Tensor, k_K: Tensor) -> tuple[Tensor, Tensor]:
        module, sub = getattr(self._model.banks, use.kind)[use.weights], self._config.settings_of(use)
        eps = self._config.norm.eps if sub.qk_norm_eps is None else sub.qk_norm_eps  # type: ignore[union-attr]
        ones = torch.ones_like(q_K)
        weights = (ones if norm.weight is None else norm.weight for norm in (module.q_norm, module.k_norm))
        q_weight, k_weight = weights
        return rms_norm(q_K, q_weight, eps), rms_norm(k_K, k_weight, eps)

    def _turned(self, c: RotaryConfig, x_K: Tensor, position: int) -> Tensor:
        n = round(c.fraction * x_K.numel())
        frequencies = [c.base ** (-2 * j / n) for j in range(n // 2)]
        if isinstance(c.scaling, LinearScalingConfig):
            frequencies = [f / c.scaling.factor for f in frequencies]
        if isinstance(c.scaling, Llama3ScalingConfig):
            bands = (c.scaling.factor, c.scaling.low, c.scaling.high, c.scaling.original_length)
            frequencies = [llama3_frequency(f, *bands) for f in frequencies]
        return rotate(x_K, position, frequencies, is_interleaved=c.layout == "interleaved")
