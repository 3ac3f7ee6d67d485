"""Segments of a stack: a prelude, a core that runs round after round, a coda; and what a loop has beside its steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from ostinato.config.base import Config, Count, Number, Positive, SizeOrZero, inert
from ostinato.errors import Problem
from ostinato.plan import Keys, Kind, PhasePlan, SegmentPlan


class NoInjectionConfig(Config):
    """A round starts from the states that left the round before."""

    kind: Literal["none"] = "none"


class AddInjectionConfig(Config):
    """u = h + e (Fan et al. 2024; Yang et al. 2023)."""

    kind: Literal["add"] = "add"


class LinearInjectionConfig(Config):
    """u = W_h h + W_e e, one map of [h; e] without bias (Huginn; iso-depth scaling laws)."""

    kind: Literal["linear"] = "linear"
    init: Literal["model", "input", "state"] = "model"
    """model: as other maps. input: W_e = I, W_h = 0: the first round is that of a stack without a loop. state: W_h = I,
    W_e = 0."""


class DecayInjectionConfig(Config):
    """u = a * h + b * (B e), a = exp(-softplus(d) exp(A)) in (0, 1), b = softplus(d), by channel (Parcae)."""

    kind: Literal["decay"] = "decay"


class InputStateConfig(Config):
    """The loop starts from the states that enter it: h = e."""

    kind: Literal["input"] = "input"


class ZeroStateConfig(Config):
    """h = 0."""

    kind: Literal["zeros"] = "zeros"


class LearnedStateConfig(Config):
    """h is a vector that is learned, the same for every token.

    `training.freeze=["banks.start.*"]` keeps it as it was drawn (HRM, TRM).
    """

    kind: Literal["learned"] = "learned"
    std: Annotated[float, Field(ge=0)] | None = None
    """Standard deviation that it is drawn with; null: 1 / sqrt(d_model)."""


class NoiseStateConfig(Config):
    """h is drawn from a normal distribution that is cut off at three standard deviations (Huginn, Parcae).

    In training it is drawn anew for every token of every pass. Else a position has the same noise in every sentence and
    every call, so that results repeat, and do not depend on padding, batch or cache (the public code draws anew).
    """

    kind: Literal["noise"] = "noise"
    std: Positive = 0.02
    """Standard deviation before it is cut off. Huginn: sqrt(2/5), of states that are scaled by sqrt(d_model)."""
    seed: Count = 0
    """Of the noise outside training."""


InjectionConfig = Annotated[
    NoInjectionConfig | AddInjectionConfig | LinearInjectionConfig | DecayInjectionConfig, Field(discriminator="kind")
]
StateConfig = Annotated[
    InputStateConfig | ZeroStateConfig | LearnedStateConfig | NoiseStateConfig, Field(discriminator="kind")
]


class NoModulationConfig(Config):
    """x + f(norm(x))."""

    kind: Literal["none"] = "none"


class ByRoundModulationConfig(Config):
    """g and s are learned vectors of every round, which start at 1 and 0 (as FiLM's, Perez et al. 2017)."""

    kind: Literal["by_round"] = "by_round"


class ByTimeModulationConfig(Config):
    """(g, s) = W SiLU(c) + b, c = F_1(tau) + F_2(d) with the length d of the round's step and the sum tau of those
    before it; F: sinusoids, two maps (LoopFormer).

    A call says the lengths (`Execution.paths`); else R rounds have 1 / R each.
    """

    kind: Literal["by_time"] = "by_time"


ModulationConfig = Annotated[
    NoModulationConfig | ByRoundModulationConfig | ByTimeModulationConfig, Field(discriminator="kind")
]


INPUT = "input"
"""Stands among the names of states for what entered the segment."""


class LoopStateConfig(Config):
    """One of several states of a loop, and the steps that change it (HRM, TRM).

    z = state(e) before the first round; in every round, `repeats` times: z = norm(steps(z + the sum of what it adds))

    with e the states that enter the segment.
    """

    name: str = Field(min_length=1)
    """What other states call it."""
    n_steps: Number = 1
    """How many of the segment's steps change it."""
    repeats: Number = 1
    """How often they do in every round."""
    state: StateConfig = InputStateConfig()
    """What it is before the first round."""
    adds: list[str] = Field(min_length=1)
    """Names of other states that are added to it before its steps; input: what entered the segment."""
    norm: bool = False
    """A norm behind its steps, every time they have run."""


class SegmentConfig(Config):
    """Some of a stack's steps, one after the other: a prelude, a core that is repeated, a coda.

    h = state(e);   every round: h = round_norm(steps(inject(h, e)));   after the last: end_norm(end_map(h))

    with e the states that enter the segment (see `ostinato.nn.loops`).
    """

    n_steps: Number = 1
    """How many of the stack's steps it has."""
    repeats: Number | None = None
    """How often they run: a round each time, in which tokens may halt. None: once, for all tokens. One segment of a
    stack is the loop, which at call time may run for another number of rounds."""
    fixed: bool = False
    """Its number of rounds is the same in every call, no token halts in them, and no step signal is added. Any segment
    that is repeated may be fixed, but for one."""
    state: StateConfig = InputStateConfig()
    """What its first round starts from."""
    inject: InjectionConfig = NoInjectionConfig()
    """How what entered the segment enters every round of it."""
    keys: Keys = "own"
    """Whose keys and values self-attention reads. own: those of the round. first: those of the first round in all of
    them, which makes them once and caches them once (Mixture-of-Recursions, "recursive sharing"). all: those of the
    same step in this round and all before it, side by side (CoTFormer)."""
    norms: Literal["shared", "by_round"] = "shared"
    """Whether the rounds share the norms of sub-layers. A call for more rounds has the last one's in those."""
    vectors: bool = False
    """Whether every round has a learned vector that is added to all states before it (CoTFormer's depth embedding);
    they start at 0. Rounds beyond `repeats` have the last one."""
    delta_rank: SizeOrZero = 0
    """Rank of what every round adds to the maps of attention and feed-forward, dense or of experts (the same to all of
    a sub-layer): W + B A, B from 0 (Relaxed Recursive Transformers). Of cross-attention queries and output. 0: nothing.
    Rounds beyond `repeats` have the last one's."""
    modulation: ModulationConfig = NoModulationConfig()
    """A scale s of what every sub-layer reads, and a gate g of its output: x + g f(norm(x) (1 + s))."""
    round_norm: bool = False
    """A norm after every round, of what the next one reads."""
    end_map: bool = False
    """A map without bias of what leaves the segment (Parcae)."""
    end_norm: Literal["none", "own", "final"] = "none"
    """A norm of what leaves the segment; final: the stack's final norm, which it then has here, too (Huginn)."""
    states: list[LoopStateConfig] = Field(default_factory=list)
    """Several states in place of one: every round changes one after the other. The last one leaves the segment."""

    @property
    def steps_of_round(self) -> int:
        """Steps that run in every round."""
        return sum(state.n_steps * state.repeats for state in self.states) or self.n_steps

    def plan(self, changing: tuple[Kind, ...]) -> SegmentPlan:
        """Return how the segment is laid out; `changing`: the kinds of sub-layer that `delta_rank` means."""
        places = {name: place for place, name in enumerate([*(one.name for one in self.states), INPUT])}
        return SegmentPlan(
            self.n_steps,
            self.repeats,
            is_fixed=self.fixed,
            has_start=self.state.kind != "input" or bool(self.states),
            injects=self.inject.kind != "none" or self._reads_input,
            keys=self.keys,
            has_round_norm=self.round_norm,
            has_end_map=self.end_map,
            end_norm=self.end_norm,
            norms_by_round=self.norms == "by_round",
            has_vectors=self.vectors,
            deltas=changing if self.delta_rank else (),
            modulation=None if self.modulation.kind == "none" else self.modulation.kind,
            states=tuple(
                PhasePlan(
                    one.n_steps, one.repeats, tuple(places.get(name, len(self.states)) for name in one.adds), one.norm
                )
                for one in self.states
            ),
        )

    @property
    def _reads_input(self) -> bool:
        return any(INPUT in one.adds for one in self.states)

    def problems(self, path: str = "") -> Iterator[Problem]:
        """Settings of a loop, of steps that run once; a loop that never reads its input; and states that do not fit."""
        if self.states:
            yield from self._state_problems(path)
        elif self.repeats is None:
            always = {"n_steps", "repeats", "states", "round_norm", "end_map", "end_norm"}
            yield from inert(self, path, f"has no effect without {path}repeats: remove it", but=always)
            if self.round_norm:
                reason = f"the segment runs once ({path}repeats is not set): {path}end_norm=own says the same"
                yield Problem(f"{path}round_norm", True, reason)
        elif self.state.kind != "input" and self.inject.kind == "none":
            reason = f"nothing of what enters the segment would be read: set {path}inject, or {path}state=input"
            yield Problem(f"{path}state.kind", self.state.kind, reason)

    def _state_problems(self, path: str) -> Iterator[Problem]:
        states, names = self.states, [one.name for one in self.states]
        if self.fixed:
            yield Problem(f"{path}fixed", True, "only the loop of a stack has several states: must be false")
        if self.repeats is None:
            reason = f"the segment runs once: set {path}repeats to the number of its rounds"
            yield Problem(f"{path}states", f"{len(states)} states", reason)
        if len(states) == 1:
            reason = f"one state is what a segment has without {path}states: remove it"
            yield Problem(f"{path}states", "1 state", reason)
        if (n := sum(one.n_steps for one in states)) != self.n_steps:
            yield Problem(f"{path}states", f"{n} steps", f"must have {path}n_steps = {self.n_steps} steps in all")
        if len({*names, INPUT}) <= len(names):
            reason = f"every state needs a name of its own, which is not {INPUT}"
            yield Problem(f"{path}states", ", ".join(names), reason)
        for place, one in enumerate(states):
            others = [name for name in (*names, INPUT) if name != one.name]
            if unknown := [name for name in one.adds if name not in others]:
                reason = f"must be among {', '.join(others)}"
                yield Problem(f"{path}states.{place}.adds", ", ".join(unknown), reason)
            elif len(set(one.adds)) < len(one.adds):
                yield Problem(f"{path}states.{place}.adds", ", ".join(one.adds), "must name every state once")
        if not self._reads_input and not any(one.state.kind == "input" for one in states):
            reason = f"nothing of what enters the segment would be read: let a state add {INPUT}, or start from it"
            yield Problem(f"{path}states", ", ".join(names), reason)
        own = f"rounds of several states ({path}states) have nothing of their own"
        beside = f"has no place beside {path}states, each of which says it for itself: remove it"
        for key, value, unset, reason in (
            ("norms", self.norms, "shared", own),
            ("vectors", self.vectors, False, own),
            ("delta_rank", self.delta_rank, 0, own),
            ("modulation.kind", self.modulation.kind, "none", own),
            ("state.kind", self.state.kind, "input", beside),
            ("inject.kind", self.inject.kind, "none", beside),
            ("round_norm", self.round_norm, False, beside),
        ):
            if value != unset:
                yield Problem(f"{path}{key}", value, reason)
