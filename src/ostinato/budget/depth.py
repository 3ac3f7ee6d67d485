"""How many rounds a token is expected to take part in: assumed where tokens may halt, else all rounds.

An assumed depth changes multiply-accumulates (`ostinato.budget.macs`) and nothing else. Bytes are those of all rounds,
because a run's first updates, or one deep batch, must fit as well, and because the cache holds every step's keys.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ostinato.budget.sizes import Rounds, plans
from ostinato.config.halting import ByLengthConfig, TokenChoiceConfig
from ostinato.config.model import ModelConfig
from ostinato.config.sub_layers import SeparableConvConfig
from ostinato.errors import ConfigError, Problem


@dataclass(frozen=True, slots=True)
class ExpectedDepth:
    """How many rounds of one stack a token takes part in, on average.

    Args:
        expected: rounds a token takes part in; where a router chooses among all tokens in every round, counted as if
            they were the first ones. rounds: those the stack has, or, fewer, those that its router can give a token.
        halting: kind of its halting rule; with "none" both numbers are the same.
        skips_halted: a halted token is gathered away and costs only what others see of it. False: it is computed until
            its whole batch is through, so that all rounds are counted; because its state goes on changing (ACT that
            does not freeze), or because a separable convolution reads its column.
    """

    expected: float
    rounds: int
    halting: str
    skips_halted: bool = True

    @property
    def counted(self) -> float:
        """The rounds that are counted for a token."""
        return self.expected if self.skips_halted else float(self.rounds)

    @property
    def deepest(self) -> int:
        """Rounds of the deepest token of a sentence: by length, all of its tokens have the same."""
        return int(self.expected) if self.halting == "length" and self.skips_halted else self.rounds

    def __str__(self) -> str:
        rules = {"none": "no halting", "length": "by length"}
        rule = rules.get(self.halting, f"{self.halting} halting, assumed")
        saved = "" if self.skips_halted else "; halted tokens are computed: all rounds are counted"
        return f"{self.expected:g} of {self.rounds} rounds ({rule}{saved})"


ONE_ROUND = ExpectedDepth(1.0, 1, "none")
"""The depth of a recurrence over positions, which has no rounds and runs once."""


def stacks_with_depth(config: ModelConfig, exits: Collection[str] = ()) -> set[str]:
    """Return the stacks of which an expected depth may be given: tokens learn to halt there, or stop by a criterion."""
    return {name for name, stack in config.stacks().items() if stack.halting.has_gate or name in exits}


def expected_depths(
    config: ModelConfig,
    expected_depth: Mapping[str, float] | None = None,
    *,
    n_steps: Rounds = None,
    source_length: int | None = None,
    exits: Collection[str] = (),
) -> dict[str, ExpectedDepth]:
    """Return the depth of every stack: as assumed, as the source's length gives it, otherwise all its rounds.

    Args:
        expected_depth: rounds per token, by stack; where tokens learn to halt, or are chosen (`halting.kind` other
            than none and length), anything from 1 to all rounds. n_steps: rounds at call time, of all stacks or by
            name.
        source_length: tokens of the source; None: unknown, so that all rounds are taken.
        exits: stacks whose tokens stop by a criterion in place of their rule (`ostinato.nn.Execution.exit`).

    Raises:
        ConfigError: a stack the model does not have, a depth outside [1, rounds], a depth other than that which follows
            from the configuration where no token learns to halt, or `n_steps` for stacks that cannot change it.
    """
    given, stacks, own_plans = dict(expected_depth or {}), config.stacks(), config.plans()
    known = f"the model's stacks are {', '.join(stacks)}" if stacks else "the model has no stacks, and no depth"
    problems = [Problem(f"expected_depth.{name}", given[name], known) for name in given if name not in stacks]
    found: dict[str, ExpectedDepth] = {}
    learned = stacks_with_depth(config, exits)
    for name, plan in plans(config, n_steps).items():
        rounds, halting = plan.n_rounds, stacks[name].halting
        if isinstance(halting, TokenChoiceConfig) and name not in exits:
            rounds = min(rounds, halting.n_routers(own_plans[name].n_rounds))  # no token is given more
        own = rounds
        if isinstance(halting, ByLengthConfig) and source_length is not None and name not in exits:
            own = halting.rounds(source_length, rounds)
        expected = given.get(name, own)
        if not 1 <= expected <= rounds:
            problems.append(Problem(f"expected_depth.{name}", expected, f"must lie in [1, {rounds}], its rounds"))
        elif name not in learned and expected != own:
            setting = f"model.{name}.halting.kind is {halting.kind}"
            reason = f"no token halts ({setting}), so every token runs all {rounds} rounds"
            if halting.kind == "length":
                reason = f"the source's length decides ({setting}): every token runs {own} of {rounds} rounds"
            problems.append(Problem(f"expected_depth.{name}", expected, reason))
        freezes = name in exits or getattr(halting, "freeze_halted_state", True)
        reads_columns = any(isinstance(stacks[name].settings_of(use), SeparableConvConfig) for use in plan.uses())
        kind = "exit" if name in exits else halting.kind
        found[name] = ExpectedDepth(float(expected), rounds, kind, freezes and not reads_columns)
    if problems:
        raise ConfigError(problems)
    return found
