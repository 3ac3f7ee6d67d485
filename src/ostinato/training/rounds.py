"""How many rounds an update runs, or its sentences do, and of which one its loss is: drawn from the run's seed, the
update and the place of a sentence in it alone.

Every process of a run draws the same number, a resumed run draws what it would have drawn, and nothing is saved for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ostinato.config.training import (
    ConsistencyConfig,
    LogNormalPoissonRoundsConfig,
    PlannedRoundsConfig,
    PoissonRoundsConfig,
    RoundLossConfig,
    RoundsConfig,
    UniformRoundsConfig,
)
from ostinato.errors import Problem
from ostinato.models import Model
from ostinato.models.losses import round_loss_problems
from ostinato.nn.execution import RoundsBySentence
from ostinato.nn.exits import Exit
from ostinato.nn.halting import NoHalting
from ostinato.nn.select import Select
from ostinato.nn.stack import Stack
from ostinato.nn.why_not import why_not_by_sentence

_ROUNDS, _ROUND_OF_LOSS, _SHORTER = range(3)
"""What is drawn: each has draws of its own."""


Drawn = int | tuple[int, ...] | None
"""Rounds of an update, of every sentence of it, or None: the plan's."""


def draw_rounds(config: RoundsConfig, seed: int, update: int, n_sentences: int = 0) -> Drawn:
    """Return the rounds of update 1, 2, ..., or of each of its sentences, all batches one after the other."""
    if isinstance(config, PlannedRoundsConfig):
        return None
    draws = _generator(_ROUNDS, seed, update)
    if config.per == "sentence":
        return tuple(_draw(config, update, draws) for _ in range(n_sentences))
    return _draw(config, update, draws)


def _draw(
    config: UniformRoundsConfig | PoissonRoundsConfig | LogNormalPoissonRoundsConfig,
    update: int,
    draws: torch.Generator,
) -> int:
    match config:
        case UniformRoundsConfig() as c:
            most = int(c.grown(update, c.most))
            return int(torch.randint(min(c.least, most), most + 1, (), generator=draws, device="cpu"))
        case PoissonRoundsConfig() as c:
            rate = torch.tensor(float(c.grown(update, c.rate)), device="cpu")
            return max(1, int(torch.poisson(rate, generator=draws)))
        case LogNormalPoissonRoundsConfig() as c:
            normal = torch.randn((), generator=draws, dtype=torch.float64, device="cpu")
            rate = math.log(c.grown(update, c.rate)) - c.sigma**2 / 2 + c.sigma * normal
            drawn = 1 + int(torch.poisson(rate.exp(), generator=draws))
            return drawn if c.most is None else min(drawn, c.most)


def draw_round_of_loss(config: RoundLossConfig, seed: int, update: int) -> float:
    """Return a number in [0, 1) that says which round the loss of update 1, 2, ... draws, whatever their number is."""
    if config.kind != "drawn":
        return 0.0
    draws = _generator(_ROUND_OF_LOSS, seed, update)
    return float(torch.rand((), generator=draws, dtype=torch.float64, device="cpu"))


def draw_shorter(model: Model, rounds: Mapping[str, int], seed: int, update: int) -> dict[str, tuple[float, ...]]:
    """Return the paths of a shorter pass in update 1, 2, ..., for stacks that can run fewer rounds than they do.

    Of R rounds M in 1 .. R - 1 are left, whose steps are multiples of 1 / R: drawn from the first to the last but one,
    any that leave room for the others, and the last one is the rest (LoopFormer).

    Args:
        rounds: of every stack.
    """
    draws, paths = _generator(_SHORTER, seed, update), dict[str, tuple[float, ...]]()
    share = float(torch.rand((), generator=draws, dtype=torch.float64, device="cpu"))
    for name in rounds_of_stacks(model, 1):
        if (whole := rounds[name]) == 1:
            continue
        left, steps = whole, list[int]()
        for others in reversed(range(1 + int(share * (whole - 1)))):
            steps.append(
                int(torch.randint(1, left - others + 1, (), generator=draws, device="cpu")) if others else left
            )
            left -= steps[-1]
        paths[name] = tuple(step / whole for step in steps)
    return paths


def shorter_execution(model: Model, paths: Mapping[str, tuple[float, ...]]) -> dict[str, Any]:
    """Return what changes in how a model runs when it takes such paths, or as many rounds where nothing reads them."""
    timed = {name: path for name, path in paths.items() if model.stacks[name].plan.loop.time is not None}
    given = {name: n for name, n in model.current_execution.rounds.items() if name not in timed}
    return {"rounds": given | {name: len(paths[name]) for name in paths if name not in timed}, "paths": timed}


def _generator(what: int, seed: int, update: int) -> torch.Generator:
    # torch's generator on a CPU reads 32 bits of what it is given: all three are mixed into them.
    (mixed,) = np.random.SeedSequence([what, seed, update]).generate_state(1, np.uint32)
    return torch.Generator().manual_seed(int(mixed))


def rounds_of_stacks(model: Model, rounds: int | RoundsBySentence | None) -> Mapping[str, int | RoundsBySentence]:
    """Return the rounds of every stack whose rounds share all weights; None: the plans' own.

    A stack of one step that is not repeated is one only where no stack of the model has several rounds: beside a loop
    it is a layer.
    """
    if rounds is None:
        return {}
    shared = {name: stack.plan for name, stack in model.stacks.items() if stack.plan.is_fully_shared}
    loops = [name for name, plan in shared.items() if plan.loop.is_repeated or plan.n_rounds > 1]
    return dict.fromkeys(loops or shared, rounds)


def _least_rounds(stack: Stack, rounds: RoundsConfig) -> int:
    """Return the fewest rounds of an update."""
    if rounds.kind == "plan":
        return stack.plan.n_rounds
    return min(rounds.least, int(rounds.grown(1, rounds.most))) if rounds.kind == "uniform" else 1


def _most_rounds(model: Model, name: str, rounds: RoundsConfig) -> int | None:
    """Return the most rounds of a stack in an update; None: any number."""
    if rounds.kind == "plan" or name not in rounds_of_stacks(model, 1):
        return model.stacks[name].plan.n_rounds
    return getattr(rounds, "most", None)


def steps_before_the_loop(stack: Stack, rounds: RoundsConfig) -> bool:
    """Return whether some steps before a stack's loop have no gradient in any update: only its first round reads them,
    and none of their weights serves later ones."""
    loop, least = stack.plan.loop, _least_rounds(stack, rounds)
    if least <= (rounds.gradient_rounds or least):
        return False
    if loop.inject is not None or any(loop.n_states in phase.adds for phase in loop.phases):
        return False
    place = stack.plan.segments.index(loop)
    before, others = (
        {(use.kind, use.weights) for segment in part for step in segment.steps for use in step.uses}
        for part in (stack.plan.segments[:place], stack.plan.segments[place:])
    )
    return bool(before - others)


def _never_learned(stack: Stack, name: str, rounds: RoundsConfig, loss: str) -> str | None:
    """Return what would have no gradient in any update where only the last rounds have one; None: nothing."""
    loop, least = stack.plan.loop, _least_rounds(stack, rounds)
    if loop.keys == "first" and least > (rounds.gradient_rounds or least):
        return (
            f"keys and values of the {name} are those of its first round (keys: first), and would not learn: remove it"
        )
    is_cut = rounds.kind == "plan" and (rounds.gradient_rounds or least) < least
    if is_cut and loop.time is None and loop.tells_rounds_apart:
        return f"what the first rounds of the {name} have of their own (norms, deltas, ...) would not learn: remove it"
    if rounds.gradient_rounds == 1 and isinstance(stack.halting, Exit) and loss != "last":
        return f"the gate of the {name} says nothing of its last round, and would not learn: must be at least 2"
    return None


def round_problems(
    model: Model, rounds: RoundsConfig, round_loss: RoundLossConfig, consistency: ConsistencyConfig
) -> list[Problem]:
    """Return what of `training.rounds`, `training.round_loss` and `training.consistency` the model cannot do."""
    found, loss = list[Problem](), round_loss.kind
    for name in ("loss", "states"):
        if (weight := getattr(consistency, name)) and not rounds_of_stacks(model, 1):
            reason = "no stack of this model has rounds that share all weights"
            found.append(Problem(f"training.consistency.{name}", weight, reason))
    if (rounds.kind != "plan" or rounds.gradient_rounds is not None) and not rounds_of_stacks(model, 1):
        reason = "no stack of this model has rounds that share all weights"
        key = "gradient_rounds" if rounds.kind == "plan" else "kind"
        found.append(Problem(f"training.rounds.{key}", getattr(rounds, key), reason))
    if rounds.gradient_rounds is not None:
        # They are the last of those that are run at most: where all tokens stop before them, no weight has a gradient.
        for name in rounds_of_stacks(model, 1):
            if not isinstance((stack := model.stacks[name]).halting, NoHalting | Exit | Select):
                reason = (
                    f"tokens of the {name} may stop before the last rounds and teach nothing then: leave it out, or"
                )
                reason += f" set model.{name}.halting.kind to none, exit or select, which run all rounds in training"
                found.append(Problem("training.rounds.gradient_rounds", rounds.gradient_rounds, reason))
            elif why := _never_learned(stack, name, rounds, loss):
                found.append(Problem("training.rounds.gradient_rounds", rounds.gradient_rounds, why))
    if rounds.gradient_repeats is not None and not any(stack.plan.loop.phases for stack in model.stacks.values()):
        reason = "no loop of this model has several states (segments.N.states): remove it"
        found.append(Problem("training.rounds.gradient_repeats", rounds.gradient_repeats, reason))
    if rounds.per == "sentence":
        found += _problems_of_sentences(model, loss)
    most = _most_rounds(model, [*model.stacks][-1], rounds) if model.stacks else None
    return [*found, *round_loss_problems(model, round_loss, most, "training.round_loss")]


def useless_rounds(model: Model, rounds: RoundsConfig, consistency: ConsistencyConfig) -> list[Problem]:
    """Return the settings of rounds that have no effect because no stack runs more than one, in any update."""
    shared = rounds_of_stacks(model, 1)
    if not shared or any(_most_rounds(model, name, rounds) != 1 for name in shared):
        return []
    settings = {
        "rounds.gradient_rounds": rounds.gradient_rounds,
        "consistency.loss": consistency.loss,
        "consistency.states": consistency.states,
    }
    why = "has no effect, because no stack whose rounds share all weights runs more than one: remove it, or run more"
    return [Problem(f"training.{key}", value, why) for key, value in settings.items() if value]


def _problems_of_sentences(model: Model, loss: str) -> list[Problem]:
    """Return why sentences cannot have rounds of their own."""
    whys = [why_not_by_sentence(model.stacks[name]) for name in rounds_of_stacks(model, 1)]
    if any(True for _ in model.routed()):
        whys.append("processes would have other numbers of rounds, of each of which routers keep records")
    if loss != "last":
        whys.append(f"sentences wait in some rounds, and training.round_loss.kind={loss} reads them")
    return [Problem("training.rounds.per", "sentence", f"{why}: must be update") for why in whys if why is not None]
