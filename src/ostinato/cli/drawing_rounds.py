"""What a recipe's training does with the rounds of its loops, in words for the drawing of its plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ostinato.config.training import RoundLossConfig, RoundsConfig, TrainingConfig


def training_of_rounds(training: TrainingConfig) -> Iterator[str]:
    """Yield how many rounds updates run, what the gradient goes through and which rounds' predictions count.

    Nothing where all updates run the plan's, with a gradient through all and the loss of the last one.
    """
    rounds = training.rounds
    if drawn := _drawn(rounds):
        yield drawn
    if rounds.gradient_rounds is not None:
        n = rounds.gradient_rounds
        yield f"gradient through the last {'round' if n == 1 else f'{n} rounds'}"
    if (repeats := rounds.gradient_repeats) is not None:
        counts = ", ".join(map(str, repeats))
        yield f"gradient through so many changes of a state in the last rounds: {counts}"
    if loss := _loss(training.round_loss):
        yield loss
    if training.consistency.is_there:
        yield "a second pass with fewer rounds"


def _drawn(rounds: RoundsConfig) -> str:
    """Return the distribution of the rounds; empty: they are the plan's."""
    from ostinato.config.training import LogNormalPoissonRoundsConfig, PoissonRoundsConfig, UniformRoundsConfig

    match rounds:
        case UniformRoundsConfig() as r:
            number = f"{r.least} to {r.most} rounds"
        case PoissonRoundsConfig() as r:
            number = f"max(1, Poisson({r.rate:g})) rounds"
        case LogNormalPoissonRoundsConfig() as r:
            number = f"1 + Poisson(r) rounds, r log-normal of mean {r.rate:g}"
            number += "" if r.most is None else f", at most {r.most}"
        case _:
            return ""
    grown = f", grown over {rounds.ramp:,} updates" if rounds.ramp else ""
    return f"{number}, drawn for every {rounds.per}{grown}"


def _loss(loss: RoundLossConfig) -> str:
    """Return of which rounds the loss is; empty: of the last one."""
    match loss.kind:
        case "window":
            return "mean loss of " + ("all rounds" if loss.n_rounds is None else f"the last {loss.n_rounds} rounds")
        case "weights":
            return f"loss of the last rounds with the weights {', '.join(f'{w:g}' for w in loss.weights or ())}"
        case "drawn":
            return f"loss of the last round and, with weight {loss.weight:g}, of another that is drawn"
        case "exit":
            return "losses of all rounds, weighted by the learned exit"
        case "improvement":
            return "the gate learns by how much rounds lower the loss"
    return ""
