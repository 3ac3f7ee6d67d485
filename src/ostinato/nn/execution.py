"""How a model runs, as opposed to what it computes: one value, given to a call or to `with model.execution(...)`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import Literal, get_args

from ostinato.errors import ConfigError, Problem
from ostinato.kernels import Backend, BackendChoice, Draws
from ostinato.nn.shapes import Tensor

Compaction = Literal["auto", "always", "never"]
ExitScope = Literal["token", "sequence"]
CriterionAtTest = Literal["change", "cosine", "agreement", "certainty", "settled", "margin", "stable"]
CRITERIA_AT_TEST: tuple[CriterionAtTest, ...] = get_args(CriterionAtTest)
"""Criteria of `ostinato.nn.exits` that need no training."""


@dataclass(frozen=True, slots=True)
class RoundsByLength:
    """Rounds by the number n of a source's real tokens: min(most, max(1, ceil(per_token n + extra))).

    Args:
        most: None: the plan's number of rounds.
    """

    per_token: float
    extra: float = 0.0
    most: int | None = None


@dataclass(frozen=True, slots=True)
class RoundsBySentence:
    """Rounds of every sentence of a batch, in its order: all end together, those with fewer begin later.

    Args:
        least: run at least so many: those of the deepest sentence of the whole batch, which another process may have.
    """

    rounds: tuple[int, ...]
    least: int = 1

    @property
    def most(self) -> int:
        """Those that are run."""
        return max((*self.rounds, self.least))


@dataclass(frozen=True, slots=True)
class Execution:
    """How a model runs: nothing here is learned or stored with it.

    Args:
        compaction: when rows of halted tokens and padding are gathered away before a round. "auto": where few enough
            take part for it to pay. "always": wherever one takes no part. "never": all are computed, and the results of
            the others thrown away (the plain twin).
        halting: False: every token runs every round, and gates are not asked, but for routers that choose tokens, which
            weigh what rounds add.
        halting_threshold: in [0, 1], in place of every rule's own: a token halts once so much of its mass is given out
            (ACT: 1 - epsilon). 0: after round 1. None: each rule's own.
        exit: the criterion by which tokens stop (`ostinato.nn.exits`), in place of the rules of all stacks that can
            stop by it, whose threshold `halting_threshold` then is; the other stacks keep theirs.
        exit_scope: "token": every token by its own confidence. "sequence": all tokens of a sentence by their mean one,
            in stacks whose tokens see each other in both directions.
        rounds: rounds of a stack, by its name, in place of the plan's (another number than it has: stacks whose rounds
            share all weights only). By length or by sentence: in place of the stack's halting rule, too; with `exit`,
            or without `halting`, those by length only say how many may be run.
        paths: of a stack, by its name, the lengths of the steps that its rounds take together from 0 to 1, and so their
            number in place of the plan's; read by modulations by time (`ostinato.nn.by_round`). Else R rounds have
            1 / R each.
        gradient_rounds: of every loop whose rounds share all weights the last rounds that the gradient goes through
            (truncated back-propagation); the first layers of other stacks would not learn. None: all.
        gradient_repeats: of loops of several states, how many of the times that a round changes a state the gradient
            goes through, the last ones: a number for each of the last rounds, of which the first one holds for all
            rounds before them, too. None: all. HRM-Text: (1, 2); HRM: (1,) of the last round alone.
        left_out: in training, the part that routers leave out of what they would of a round's tokens
            (`ostinato.nn.select`): below 1 while their capacity shrinks.
        cached_rounds: in cached decoding, of how many rounds of a loop keys and values are kept: round r writes where
            round r mod that many does, so that a token sees of the tokens of earlier steps what the last of those
            rounds left. 1: all rounds read the last one's (Ouro, at decoding). An approximation, unless it is as many
            as the loop has; the tokens of one step, such as a prompt, see each other as in a whole pass. None: all.
        static_cache: in cached decoding, tensors of every step but the first have the same sizes, and the step can be
            recorded and replayed (`ostinato.decoding.static_cache`); of stacks in which no token halts. Such steps
            have compaction "never" and expert_backend "dense", whatever is named.
        expert_backend: how rows are multiplied by their experts' weights (`ostinato.kernels`); "auto": chosen by trial.
        dropout_draws: where the random numbers of dropout come from; "torch": torch's own dropout.
        as_graph: the pass is traced once for all data (torch.export): nothing is decided by what tensors hold, and
            every row is computed. The results are the same; nothing but them is returned: no trace, no costs. With
            compaction "never" and expert_backend "dense".
        recompute: in training keep only the states between steps, and run each step again in the backward pass.
        any_process: from whether some token here takes part in a round to whether one does in any process: where a
            round may be the first that no token takes part in, it is asked, and all processes run the same rounds, by
            masked rows where they have no token left. None: this process ends by itself.

    Raises:
        ConfigError: values that are not valid, all of them.
    """

    compaction: Compaction = "auto"
    halting: bool = True
    halting_threshold: float | None = None
    exit: str | None = None
    exit_scope: ExitScope = "token"
    rounds: Mapping[str, int | RoundsByLength | RoundsBySentence] = field(default_factory=dict)
    paths: Mapping[str, Sequence[float]] = field(default_factory=dict)
    gradient_rounds: int | None = None
    gradient_repeats: tuple[int, ...] | None = None
    left_out: float = 1.0
    cached_rounds: int | None = None
    static_cache: bool = False
    expert_backend: BackendChoice = "auto"
    dropout_draws: Draws = "auto"
    as_graph: bool = False
    recompute: bool = False
    any_process: Callable[[bool], bool] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "paths", {name: tuple(path) for name, path in self.paths.items()})
        named = {
            "compaction": get_args(Compaction),
            "expert_backend": ("auto", "dense", *get_args(Backend)),
            "dropout_draws": get_args(Draws),
            "exit_scope": get_args(ExitScope),
        }
        problems = [
            Problem(name, getattr(self, name), f"must be one of {', '.join(valid)}")
            for name, valid in named.items()
            if getattr(self, name) not in valid
        ]
        rounds: dict[str, int | RoundsByLength | RoundsBySentence] = {}
        for name, n in self.rounds.items():
            try:  # numbers of NumPy and of torch are whole ones, too
                rounds[name] = n if isinstance(n, RoundsByLength | RoundsBySentence) else index(n)
            except TypeError:
                problems.append(Problem(f"rounds.{name}", n, "must be a whole number, or by length or by sentence"))
            if isinstance(n, RoundsByLength) and not (n.per_token >= 0 and math.isfinite(n.per_token + n.extra)):
                problems.append(Problem(f"rounds.{name}", n, "must have finite numbers, per_token not below 0"))
            if isinstance(n, RoundsBySentence) and min(n.rounds, default=1) < 1:
                problems.append(Problem(f"rounds.{name}", n, "must be at least 1 for every sentence"))
        object.__setattr__(self, "rounds", rounds)
        if self.exit is not None and self.exit not in CRITERIA_AT_TEST:
            problems.append(Problem("exit", self.exit, f"must be one of {', '.join(CRITERIA_AT_TEST)}"))
        if self.exit is not None and self.halting_threshold is None:
            problems.append(Problem("exit", self.exit, "needs a halting_threshold, in [0, 1]"))
        if self.exit is None and self.exit_scope == "sequence":
            reason = f"needs an exit: the criterion that decides, one of {', '.join(CRITERIA_AT_TEST)}"
            problems.append(Problem("exit_scope", self.exit_scope, reason))
        for name, path in self.paths.items():
            if not (path and min(path) > 0 and abs(sum(path) - 1) <= 1e-6):
                problems.append(Problem(f"paths.{name}", path, "must be positive numbers whose sum is 1"))
            if name in self.rounds and self.rounds[name] != len(path):
                problems.append(Problem(f"rounds.{name}", self.rounds[name], f"paths.{name} has {len(path)} rounds"))
        for name in ("gradient_rounds", "cached_rounds"):
            if (n := getattr(self, name)) is not None and n < 1:
                problems.append(Problem(name, n, "must be at least 1"))
        if self.gradient_repeats is not None and (not self.gradient_repeats or min(self.gradient_repeats) < 1):
            problems.append(Problem("gradient_repeats", self.gradient_repeats, "must be numbers of at least 1"))
        for name in ("halting_threshold", "left_out"):
            if (share := getattr(self, name)) is not None and not 0.0 <= share <= 1.0:
                problems.append(Problem(name, share, "must lie in [0, 1]"))
        if problems:
            raise ConfigError(problems)

    def repeats_with_gradient(self, index: int | Tensor, n_rounds: int) -> float:
        """Return how often round `index` (0-based) of so many changes a state with a gradient, at its end."""
        given = self.gradient_repeats
        return math.inf if given is None else float(given[max(int(index) - n_rounds, -len(given))])

    def rounds_of(self, stack: str) -> int | RoundsByLength | RoundsBySentence | None:
        """Return the rounds of a stack; None: the plan's."""
        return len(self.paths[stack]) if stack in self.paths else self.rounds.get(stack)

    def most_rounds_of(self, stack: str) -> int | None:
        """Return how many rounds a stack runs at most; None: as many as the plan has."""
        asked = self.rounds_of(stack)
        return asked if asked is None or isinstance(asked, int) else asked.most


DEFAULT_EXECUTION = Execution()
