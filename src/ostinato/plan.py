"""Depth as data: which parameter set serves which step.

A stack of depth L is not a list of L layers. It is a `Plan`: for every step the sub-layers that run there, each a
`Use` naming its weights and its norm in banks owned by the model. Sharing weights over depth, dropping a sub-layer,
serving two stacks with one set: all of it is which names a plan holds. This module is pure Python.

Schemes (M parameter sets over N steps, i = 0 .. N-1):

    individual   i                                   012345
    all          0                                   000000
    sequence     floor(i * M / N)                    001122   (M = 3)   One Wide FFN, appendix A
    cycle        i mod M                             012012             Takase and Kiyono 2023
    cycle_rev    i mod M, the last M run backwards   012210             Takase and Kiyono 2023, their code
    none         absent                              ------             sub-layer, residual and norm are gone
    a list       as given, null = absent             [0, 1, null, 1]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, groupby, islice, product
from typing import Literal, get_args

from ostinato.errors import ConfigError, Problem, see

Kind = Literal["self_attention", "cross_attention", "ffn"]
Scheme = Literal["individual", "all", "sequence", "cycle", "cycle_rev", "none"]

Keys = Literal["own", "first", "all"]
Placement = Literal["post", "pre", "peri", "output", "sandwich", "parallel", "scores"]

SCHEMES: tuple[Scheme, ...] = get_args(Scheme)
PLACES: dict[Placement, tuple[str, ...]] = {
    "post": ("after",),
    "pre": ("before",),
    "peri": ("before", "output"),
    "output": ("output",),
    "sandwich": ("before", "after"),
    "parallel": ("before",),
    "scores": ("scores",),
}
"""Where every placement has norms: before f, of the output of f, after the sum, before scores alone. In
their bank the first is named by kind and set or step ("ffn_decoder_0"), the others by place, too
("ffn_decoder_0_output")."""

_Group = list[tuple["Use", ...]]
"""The uses of one step that is laid out, and those of a step that was put behind it."""


@dataclass(frozen=True, slots=True)
class Use:
    """One sub-layer at one step.

    Args:
        kind: the kind of sub-layer, and so the bank its weights are in.
        weights: name of the parameter set in that bank.
        before, output, after: names of norms in their bank: of what f reads, of what f gives, of the sum of states and
            output; None where there is none.
        scores: name of the norm of what scores are made of (queries, keys, and what routers read), while values and
            experts read what f reads; None: the scores are made of that, too.
        position: name of the table in the bank of relative positions; None where the sub-layer uses none.
        delta: name of what is added to its maps in their bank; None: they are the weights alone.
        modulation: name of what gives a scale of what f reads and a gate of its output, in their bank; None: neither.
        values: name of the table of what tokens add to their values, in its bank; None: nothing.
    """

    kind: Kind
    weights: str
    before: str | None = None
    output: str | None = None
    after: str | None = None
    position: str | None = None
    scores: str | None = None
    delta: str | None = None
    modulation: str | None = None
    values: str | None = None

    @property
    def norms(self) -> tuple[str, ...]:
        """The norms there are."""
        return tuple(name for name in (self.before, self.scores, self.output, self.after) if name is not None)

    @property
    def before_keys(self) -> str | None:
        """The norm of what keys are made of."""
        return self.before if self.scores is None else self.scores


@dataclass(frozen=True, slots=True)
class Step:
    """One position of depth: the sub-layers that run there in order, and the round of its segment (both 0-based).

    Args:
        segment: number of the segment it is in, 0-based.
        keys: the steps whose keys and values its self-attention reads, side by side; empty: its own, which it then
            makes for nobody else.
        is_parallel: all sub-layers read the states that enter the step, and their outputs are added up.
    """

    index: int
    round: int
    uses: tuple[Use, ...]
    segment: int = 0
    is_parallel: bool = False
    keys: tuple[int, ...] = ()

    @property
    def makes_keys(self) -> bool:
        """Whether its self-attention makes keys and values."""
        return not self.keys or self.index in self.keys


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of every round of a loop with several states: some of its steps, which change one of the states.

        z_s = norm(steps(z_s + the sum of what it adds))

    Args:
        n_steps: of the round's steps, those that come next. state: s, 0-based.
        adds: other states; the number of states stands for what entered the segment. norm: its name; None: none.
        left: how often the round still changes the state, this time included.
    """

    n_steps: int
    state: int
    adds: tuple[int, ...]
    norm: str | None = None
    left: int = 1


@dataclass(frozen=True, slots=True)
class Segment:
    """Steps of a stack that run together: once, or round after round.

        h = start(e);   every round: h = round_norm(steps(inject(h, e)));   after the last: end_norm(end_map(h))

    with e the states that enter the segment. Each of them is a name in its bank; None: it leaves states as they are.
    With phases h is several states side by side; the one that the last phase changes leaves the segment.

    Args:
        steps: of all rounds. is_loop: its rounds are those that the step signal and halting count, and whose number a
            call may change. A stack has one such segment.
        n_fixed: of a segment that is not the loop, how often its steps run; every token runs all of them.
        is_repeated: all rounds have the same weights, and may have norms, deltas and modulations of their own.
        keys: whose keys and values a round reads: its own, those of the first round, or those of all rounds up to it.
        start, inject, vectors, time, end_map: see `ostinato.nn.loops`. round_norm, end_norm: norms.
        phases: of every round; empty: one state, which all steps of a round change.
    """

    steps: tuple[Step, ...]
    is_loop: bool = True
    n_fixed: int = 1
    is_repeated: bool = False
    keys: Keys = "own"
    start: str | None = None
    inject: str | None = None
    vectors: str | None = None
    time: str | None = None
    round_norm: str | None = None
    end_map: str | None = None
    end_norm: str | None = None
    phases: tuple[Phase, ...] = ()

    @property
    def norms(self) -> tuple[str, ...]:
        """The norms it has beside those of its sub-layers."""
        names = (*(phase.norm for phase in self.phases), self.round_norm, self.end_norm)
        return tuple(dict.fromkeys(name for name in names if name is not None))

    @property
    def n_states(self) -> int:
        """States that its rounds change."""
        return len({phase.state for phase in self.phases}) or 1

    @property
    def tells_rounds_apart(self) -> bool:
        """Whether rounds have norms, deltas, modulations or vectors of their own."""
        rounds = [[step.uses for step in steps] for steps in self.rounds()]
        return any(name is not None for name in (self.vectors, self.time)) or any(own != rounds[0] for own in rounds)

    @property
    def n_rounds(self) -> int:
        """How often its steps run, or, of a stack without repeats, how many groups of steps there are."""
        if not self.is_loop:
            return self.n_fixed
        return self.steps[-1].round + 1 if self.steps else 0

    def rounds(self) -> Iterator[tuple[Step, ...]]:
        """Yield the steps of every round."""
        if not self.is_loop:
            n = len(self.steps) // self.n_fixed
            yield from (self.steps[first : first + n] for first in range(0, len(self.steps), n))
            return
        for _, steps in groupby(self.steps, key=lambda step: step.round):
            yield tuple(steps)


@dataclass(frozen=True, slots=True)
class SubLayerPlan:
    """How one kind of sub-layer is spread over the steps of a stack.

    Args:
        kind: the kind of sub-layer.
        sets: for every step the index of its parameter set, or None where the sub-layer is absent.
        bank: prefix of the parameter sets' names: the stack's name, or a common one for sets that serve two stacks.
        share_norm: True: norms are shared with the weights. False: every step has norms of its own.
        placement: where norms are, see `PLACES`. has_scores: it is attention, or chooses between experts; what has none
            has no norm of them.
        position: "stack": one table for the whole stack. "weights": one per parameter set. A number for every step: a
            table for each number. None, there or as a step's number: no table.
        values: for every step the number of its table of values, or None.
    """

    kind: Kind
    sets: tuple[int | None, ...]
    bank: str
    share_norm: bool = True
    position: Literal["stack", "weights"] | tuple[int | None, ...] | None = None
    placement: Placement = "post"
    has_scores: bool = True
    values: tuple[int | None, ...] | None = None


@dataclass(frozen=True, slots=True)
class PhasePlan:
    """How many steps change a state, how often in a round, which states are added before (see `Phase`), and whether
    there is a norm behind them."""

    n_steps: int
    repeats: int
    adds: tuple[int, ...]
    has_norm: bool


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """How many of a stack's steps a segment has, and what it has beside them, see `Segment`.

    Args:
        repeats: how often its steps run; None: once, and no token halts there. is_fixed: they run as often in every
            call, whatever number of rounds it asks for, and no token halts there either.
        end_norm: "own": a norm of the segment's. "final": the stack's final norm, at this place, too.
        norms_by_round: every round has norms of its own, of all sub-layers.
        deltas: kinds of sub-layer to whose maps every round adds something of its own.
        modulation: "by_round": every round has a scale and a gate of its own for every sub-layer. "by_time": they are
            made of the times of the round, by the same weights in all rounds.
        states: what changes each of them, where it has several.
    """

    n_steps: int
    repeats: int | None = None
    is_fixed: bool = False
    has_start: bool = False
    injects: bool = False
    keys: Keys = "own"
    has_round_norm: bool = False
    has_end_map: bool = False
    end_norm: Literal["none", "own", "final"] = "none"
    norms_by_round: bool = False
    has_vectors: bool = False
    deltas: tuple[Kind, ...] = ()
    modulation: Literal["by_round", "by_time"] | None = None
    states: tuple[PhasePlan, ...] = ()

    def use(self, use: Use, place: str, r: int) -> Use:
        """Return a use as round r has it, at a place in the stack: the weights are those of all rounds."""
        own, later = f"{use.kind}_{place}_round_{r}", f"_round_{r}" if self.norms_by_round else ""
        norms = (use.before, use.output, use.after, use.scores)
        before, output, after, scores = (None if n is None else n + later for n in norms)
        return replace(
            use,
            before=before,
            output=output,
            after=after,
            delta=own if use.kind in self.deltas else None,
            scores=scores,
            modulation={None: None, "by_round": own, "by_time": f"{use.kind}_{place}"}[self.modulation],
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """What runs at every step of one stack: segments, one after the other (prelude, core and coda, or a single one)."""

    stack: str
    segments: tuple[Segment, ...]

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps of all segments."""
        return tuple(step for segment in self.segments for step in segment.steps)

    @property
    def loop(self) -> Segment:
        """The one segment whose rounds the step signal and halting count."""
        return next(segment for segment in self.segments if segment.is_loop)

    @property
    def n_rounds(self) -> int:
        """Rounds of the loop, which the step signal and halting count."""
        return self.loop.n_rounds

    def uses(self) -> Iterator[Use]:
        """Yield every use of every step, in the order they run."""
        for step in self.steps:
            yield from step.uses

    def names(self, kind: Kind) -> tuple[str, ...]:
        """Return the distinct parameter sets of one kind, in order of first use."""
        return tuple(dict.fromkeys(use.weights for use in self.uses() if use.kind == kind))

    @property
    def is_fully_shared(self) -> bool:
        """True where all rounds run the same parameter sets, so that their number may change at call time.

        They may have norms, deltas and modulations of their own: see `with_rounds`.
        """
        rounds = [tuple(step.uses for step in steps) for steps in self.loop.rounds()]
        return self.loop.is_repeated or all(uses == rounds[0] for uses in rounds)

    def with_rounds(self, n_rounds: int) -> Plan:
        """Return the plan with another number of rounds: the first ones, or these and the last one again and again.

        Raises:
            ConfigError: fewer than one round, or a plan whose rounds differ.
        """
        if n_rounds == self.n_rounds:
            return self
        if n_rounds < 1:
            raise ConfigError([Problem("n_steps", n_rounds, "must be at least 1")])
        if not self.is_fully_shared:
            reason = (
                f"the {self.stack} has {self.n_rounds} rounds with different parameter sets or norms; only a stack "
                f"whose rounds all share their weights and norms can run for another number{see('looping')}"
            )
            raise ConfigError([Problem("n_steps", n_rounds, reason)])
        rounds = list(self.loop.rounds())
        looped = tuple(replace(step, round=r) for r in range(n_rounds) for step in rounds[min(r, len(rounds) - 1)])
        parts = [replace(part, steps=looped) if part.is_loop else part for part in self.segments]
        return _numbered(self.stack, parts)

    def row(self, kind: Kind) -> tuple[str | None, ...]:
        """Return for every step the parameter set of one kind, None where it is absent."""
        found = ({use.kind: use.weights for use in step.uses} for step in self.steps)
        return tuple(uses.get(kind) for uses in found)


def assign(share: Scheme | Sequence[int | None], n_steps: int, n_unique: int | None = None) -> tuple[int | None, ...]:
    """Return for every step the 0-based index of its parameter set under a sharing scheme.

    `n_unique` (M) is needed by sequence, cycle and cycle_rev, and must lie in [1, n_steps].

    Raises:
        ValueError: a list of another length than n_steps, a set that no step uses, or an M out of range.
    """
    if not isinstance(share, str):
        sets = tuple(share)
        if len(sets) != n_steps:
            raise ValueError(f"the list has {len(sets)} entries but there are {n_steps} steps")
        used = {s for s in sets if s is not None}
        if used != set(range(len(used))):
            raise ValueError(f"parameter sets must be numbered 0, 1, 2, ... without a gap, got {sorted(used)}")
        return sets
    if share == "none":
        return (None,) * n_steps
    if share == "individual":
        return tuple(range(n_steps))
    if share == "all":
        return (0,) * n_steps
    if n_unique is None or not 1 <= n_unique <= n_steps:
        raise ValueError(f"share '{share}' needs n_unique in [1, {n_steps}], the number of steps")
    if share == "sequence":
        return tuple(i * n_unique // n_steps for i in range(n_steps))
    if share == "cycle":
        return tuple(i % n_unique for i in range(n_steps))
    upward = tuple(i % n_unique for i in range(n_steps - n_unique))
    return upward + tuple(reversed(range(n_unique)))


def build_plan(
    stack: str,
    sub_layers: Sequence[SubLayerPlan],
    n_steps: int,
    steps_per_round: int = 1,
    *,
    segments: Sequence[SegmentPlan] = (),
    extra: tuple[int, Use] | None = None,
    has_first_norm: bool = True,
) -> Plan:
    """Lay the sub-layers of a stack out over its steps, in the order given within each step.

    Args:
        segments: empty: one segment, a round for every `steps_per_round` steps.
        extra: (n, use): a use that runs alone behind the n-th step, counted from 1, and in its round.
        has_first_norm: False: the first sub-layer has no norm of what it reads.
    """
    laid: list[_Group] = []
    for index in range(n_steps):
        uses = []
        for sub in sub_layers:
            if sub.sets[index] is not None:
                weights = f"{sub.bank}_{sub.sets[index]}"
                norm = weights if sub.share_norm else f"{stack}_step_{index}"
                position = _table(sub, stack, weights, index)
                plain, *named = PLACES[sub.placement]
                norms = {plain: f"{sub.kind}_{norm}"} | {place: f"{sub.kind}_{norm}_{place}" for place in named}
                if sub.placement == "scores" and not sub.has_scores:
                    norms = {}
                table = None if sub.values is None else sub.values[index]
                values = None if table is None else f"{stack}_{table}"
                uses.append(Use(sub.kind, weights, position=position, values=values, **norms))
        laid.append([tuple(uses)])
    if not has_first_norm and (group := next((group for group in laid if group[0]), None)) is not None:
        first, *others = group[0]
        group[0] = (replace(first, before=None), *others)
    if extra is not None:
        laid[extra[0] - 1].append((extra[1],))
    parallel = any(sub.placement == "parallel" for sub in sub_layers)
    if not segments:
        steps = [Step(0, i // steps_per_round, uses, 0, parallel) for i, group in enumerate(laid) for uses in group]
        return _numbered(stack, [Segment(tuple(steps))])
    parts, start = [], 0
    for number, own in enumerate(segments):
        name, groups = f"{stack}_{number}", laid[start : start + own.n_steps]
        phases, groups = _phases(name, own.states, groups) if own.states else ((), groups)
        steps = list[Step]()
        for r, (index, runs) in product(range(own.repeats or 1), list(enumerate(groups, start))):
            for j, run in enumerate(runs):
                place = f"{stack}_step_{index}" + ("_extra" if j else "")
                of_loop = 0 if own.is_fixed else r
                steps.append(Step(0, of_loop, tuple(own.use(use, place, r) for use in run), number, parallel))
        parts.append(
            Segment(
                tuple(steps),
                is_loop=own.repeats is not None and not own.is_fixed,
                n_fixed=own.repeats if own.repeats is not None and own.is_fixed else 1,
                is_repeated=own.repeats is not None,
                keys=own.keys,
                start=name if own.has_start else None,
                inject=name if own.injects else None,
                vectors=name if own.has_vectors else None,
                time=name if own.modulation == "by_time" else None,
                round_norm=f"round_{name}" if own.has_round_norm else None,
                end_map=name if own.has_end_map else None,
                end_norm={"none": None, "own": f"end_{name}", "final": f"final_{stack}"}[own.end_norm],
                phases=phases,
            )
        )
        start += own.n_steps
    return _numbered(stack, parts)


def _phases(name: str, states: Sequence[PhasePlan], groups: Sequence[_Group]) -> tuple[tuple[Phase, ...], list[_Group]]:
    """Return the phases of a round, and the groups of uses of all of them in the order they run."""
    phases, repeated, rest = list[Phase](), list[_Group](), iter(groups)
    for state, own in enumerate(states):
        groups_of_state = list(islice(rest, own.n_steps))
        norm = f"state_{name}_{state}" if own.has_norm else None
        n_steps = sum(len(group) for group in groups_of_state)
        phases += [Phase(n_steps, state, own.adds, norm, left) for left in range(own.repeats, 0, -1)]
        repeated += groups_of_state * own.repeats
    return tuple(phases), repeated


def _table(sub: SubLayerPlan, stack: str, weights: str, step: int) -> str | None:
    """Return the name of the table of relative positions of one use."""
    if isinstance(sub.position, tuple):
        number = sub.position[step]
        return None if number is None else f"{stack}_{number}"
    return {None: None, "stack": stack, "weights": f"{sub.kind}_{weights}"}[sub.position]


def _numbered(stack: str, segments: Sequence[Segment]) -> Plan:
    """Return a plan of segments, its steps numbered in the order they run."""
    numbers, parts = count(), []
    for part in segments:
        steps = [replace(step, index=next(numbers), keys=()) for step in part.steps]
        if part.keys != "own":
            n_steps = len(next(part.rounds()))
            # Of every step those at its place in all rounds up to its own: only their keys are of the same weights.
            same = [tuple(s.index for s in steps[i % n_steps : i + 1 : n_steps]) for i in range(len(steps))]
            steps = [
                replace(step, keys=rounds if part.keys == "all" else rounds[:1])
                for step, rounds in zip(steps, same, strict=True)
            ]
        parts.append(replace(part, steps=tuple(steps)))
    return Plan(stack, tuple(parts))
