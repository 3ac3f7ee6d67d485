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
    RoutedConfig,
    SparseLayerConfig,
)
from ostinato.config.loops import INPUT
from ostinato.config.norm import NormalisationConfig
from ostinato.config.positions import (
    CoordinatesConfig,
    LearnedConfig,
    SinusoidalConfig,
)
from ostinato.config.sub_layers import SeparableConvConfig
from ostinato.models import Seq2Seq
from ostinato.nn.loops import DecayInjection, InputState, LearnedState, LinearInjection, ZeroState
from ostinato.plan import Plan, Segment, Step, Use
from reference.by_round import gate_and_scale, time_of
from reference.equations import (
    ACTIVATIONS,
    layer_norm,
    rms_norm,
    sinusoid,
)
from reference.exits import Stopping
from reference.halting import Whole, start
from reference.sub_layers import Column, Model, States, SubLayers
from reference.weights import read_affine

Depths = dict[str, Whole]
"""What tokens did, by stack."""


def twin(model: Model, sentence: Sentence, n_steps: int | None = None) -> Tensor:
    """Return the logits after every token of the target, `[T, V]`."""
    return twin_with_depths(model, sentence, n_steps)[0]


def twin_with_depths(model: Model, sentence: Sentence, n_steps: int | None = None) -> tuple[Tensor, Depths]:
    """Return the logits, and how deep every token of every stack went."""
    if isinstance(model, Seq2Seq):
        assert sentence.source is not None
        encoder = StackTwin(model, "encoder", sentence.source, is_causal=False)
        decoder = StackTwin(model, "decoder", sentence.target, is_causal=True)
        memory, deep = encoder.run(embedded(model, model.source_embedding, sentence.source), n_steps)
        states, depths = decoder.run(embedded(model, model.target_embedding, sentence.target), n_steps, memory)
        return logits_of(model, states), {"encoder": deep, "decoder": depths}
    n_prefix = sentence.n_prefix if model.config.mask == "prefix" else None
    stack = StackTwin(model, "decoder", sentence.target, is_causal=True, n_prefix=n_prefix)
    states, depths = stack.run(embedded(model, model.target_embedding, sentence.target), n_steps)
    return logits_of(model, states), {"decoder": depths}


def embedded(model: Model, table_VD: Tensor, ids: Sequence[int]) -> States:
    config = model.config
    scale = {True: math.sqrt(config.d_model), False: 1.0}.get(config.embedding_scale, config.embedding_scale)
    return [table_VD[i] * scale for i in ids]


def logits_of(model: Model, states: States) -> Tensor:
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


class StackTwin(SubLayers):
    """One stack.

    Attributes:
        _fills: rounds in which no token takes part are gone through, because later tokens look at what they leave.
    """

    _fills = False

    def run(self, states: States, n_steps: int | None, memory: States | None = None) -> tuple[States, Whole]:
        """Apply all rounds of the plan, to the tokens that take part in them."""
        d_model, positions = self._model.config.d_model, self._config.positions
        banks, self._n_source = self._model.banks, len(states if memory is None else memory)
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
        after = plan.segments[loop:]

        def predict(left: States) -> Tensor:
            return self._predict(after, left, memory)

        if plan.loop.phases:
            halting = self._rule(plan, states, predict)
            states = self._several_states(plan, states, memory, halting)
            return self._finish(plan.segments[loop + 1 :], states, memory), halting
        entry, states = states, self._start(plan.segments[loop], states)
        halting = self._rule(plan, states, predict)
        for r in range(1, plan.n_rounds + 1):
            if not halting.begin(r, states) and not self._fills:
                break
            inject = self._injection(plan.segments[loop])
            states = [
                inject(x, e) if halting.runs[t] else x for t, (x, e) in enumerate(zip(states, entry, strict=True))
            ]
            if isinstance(positions, CoordinatesConfig):
                tick = _table(r, d_model)
                states = [x + (_table(t + 1, d_model) + tick) if halting.runs[t] else x for t, x in enumerate(states)]
            if (own_D := self._vector(plan.loop, r)) is not None:
                states = [x + own_D if halting.runs[t] else x for t, x in enumerate(states)]
            self._begin_round(plan.loop, r, plan.n_rounds)
            halting.enter(r, states)
            for step in plan.loop.steps:
                if step.round == r - 1:
                    states = self._step(step, states, memory, halting)
            name = plan.segments[loop].round_norm
            states = [self._norm(name, x) if halting.runs[t] else x for t, x in enumerate(states)]
            halting.finish(r, states)
        states = self._end(plan.segments[loop], halting.output(states))
        return self._finish(plan.segments[loop + 1 :], states, memory), halting

    def _rule(self, plan: Plan, states: States, predict: Callable[[States], Tensor]) -> Whole:
        """Who takes part in rounds: by a criterion that takes the place of the stack's own rule, or by that."""
        execution = self._model.current_execution
        if execution.exit is not None and self._model.stacks[self._name].exits(execution):
            is_sequence, threshold = execution.exit_scope == "sequence", execution.halting_threshold
            assert threshold is not None
            return Stopping(execution.exit, threshold, states, plan.n_rounds, predict, is_sequence=is_sequence)
        unit = lambda: self._model.banks.halting[self._name]  # noqa: E731 (rules that learn nothing have none)
        return start(self._config.halting, unit, states, plan.n_rounds, self._n_source)

    def _predict(self, segments: Sequence[Segment], states: States, memory: States | None) -> Tensor:
        """Logits of all tokens, if these states were the last to leave the loop, the first of the segments."""
        return self._logits(self._finish(segments[1:], self._end(segments[0], states), memory))

    def _logits(self, states: States) -> Tensor:
        return logits_of(self._model, states)

    def _finish(self, segments: Sequence[Segment], states: States, memory: States | None) -> States:
        """What follows the loop, and the final norm."""
        states = self._once(segments, states, memory)
        if self._config.norm.has_final:
            states = [self._norm(f"final_{self._name}", x) for x in states]
        return states

    def _several_states(self, plan: Plan, entry: States, memory: States | None, halting: Whole) -> States:
        """Follow the settings of a loop of several states, by name; all tokens of a sentence stop together."""
        number = plan.segments.index(plan.loop)
        settings, starts = self._config.segments[number].states, self._model.banks.start[f"{self._name}_{number}"]
        named = {one.name: self._begin(starts[i], entry) for i, one in enumerate(settings)}  # type: ignore[index]
        for r in range(1, plan.n_rounds + 1):
            if not halting.begin(r, entry):
                break
            steps = iter(step for step in plan.loop.steps if step.round == r - 1)
            for i, one in enumerate(settings):
                for _ in range(one.repeats):
                    read = [entry if other == INPUT else named[other] for other in one.adds]
                    states = [sum(others, own) for own, *others in zip(named[one.name], *read, strict=True)]
                    for step in islice(steps, self._n_steps_of(number, i)):
                        states = self._step(step, states, memory, halting)
                    norm = f"state_{self._name}_{number}_{i}" if one.norm else None
                    named[one.name] = [self._norm(norm, x) for x in states]
            assert next(steps, None) is None
            halting.finish(r, list(entry))
        return self._end(plan.loop, named[settings[-1].name])

    def _n_steps_of(self, number: int, state: int) -> int:
        """Steps that change a state once, with a sparse layer that stands behind one of them."""
        segments, sparse = self._config.segments, self._config.sparse_layer
        before = sum(one.n_steps for one in segments[:number])
        states = segments[number].states
        first = before + sum(one.n_steps for one in states[:state])
        n = states[state].n_steps
        return n + (sparse is not None and first < sparse.after <= first + n)

    def _once(self, segments: Sequence[Segment], states: States, memory: States | None) -> States:
        """Apply the steps of segments in which no token halts."""
        everyone = Whole(len(states))
        for segment in segments:
            entry, states = states, self._start(segment, states)
            for r, steps in enumerate(segment.rounds(), 1):
                inject = self._injection(segment)
                states = [inject(x, e) for x, e in zip(states, entry, strict=True)]
                self._begin_round(segment, r, segment.n_fixed)
                own_D = self._vector(segment, r)
                states = [x if own_D is None else x + own_D for x in states]
                for step in steps:
                    states = self._step(step, states, memory, everyone)
                states = [self._norm(segment.round_norm, x) for x in states]
            states = self._end(segment, states)
        return states

    def _begin_round(self, segment: Segment, r: int, n_rounds: int) -> None:
        """Set the time of round r, counted from 1, where the segment has any."""
        self._time = None
        if segment.time is not None:
            self._time = time_of(self._model.banks.time[segment.time], (r - 1) / n_rounds, 1 / n_rounds)

    def _vector(self, segment: Segment, r: int) -> Tensor | None:
        """What round r, counted from 1, adds to all states."""
        if segment.vectors is None:
            return None
        table: Tensor = self._model.banks.vectors[segment.vectors].table_RD  # type: ignore[assignment]
        return table[min(r, len(table)) - 1]

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
        self._made.clear()
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
            columns = self._with_earlier(columns, is_attention=True)
            self._read_by_others[self._at.index] = columns, use
            sets = [self._read_by_others[step] for step in self._at.keys or (self._at.index,)]
            columns, self._made_by = [x for one, _ in sets for x in one], [made_by for _, made_by in sets]
            outputs = [self._attend(use, t, scored, columns) for t in running]
        elif use.kind == "cross_attention":
            assert memory is not None
            outputs = [self._attend(use, t, scored, [(x, x) for x in memory]) for t in running]
        elif isinstance(self._config.settings_of(use), SeparableConvConfig):
            outputs = self._separable(use, self._with_earlier(others, is_attention=False), running)
        else:
            outputs = [self._feed_forward(use, inputs[t], scored[t]) for t in running]
        new = list(states)
        for t, output in zip(running, outputs, strict=True):
            x = states[t] + gate * (output if after_f is None else self._norm(after_f, output))
            new[t] = x if after_sum is None else self._norm(after_sum, x)
        return new

    def _with_earlier(self, columns: list[Any], *, is_attention: bool) -> list[Any]:
        """Return what attention or a convolution reads of all tokens, in a pass over some of them."""
        return columns

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
