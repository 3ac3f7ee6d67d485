"""Trials and what came of them: one candidate, trained at one learning rate for so many updates with one seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ostinato.config.training import Mode

Point = tuple[int, float]


def sign_of(mode: Mode) -> float:
    """Return 1 where a smaller score is better, else -1: times it, smaller is better."""
    return 1.0 if mode == "min" else -1.0


@dataclass(frozen=True, slots=True)
class Trial:
    """One training.

    Args:
        rate: learning rate, times the recipe's. updates: of the whole training, whose schedule is as long.
    """

    candidate: str
    rate: float
    seed: int
    updates: int


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """What a trial found.

    Args:
        score: the best of its evaluations, as the metric counts; None: it failed. loss: at the end, which orders
            trials of one score. curve: score by update. seconds: it took, evaluations and all. reason: why it failed.
        origin: key, version and commit of its run, as rows of sweeps have them; empty where there is none.
    """

    trial: Trial
    score: float | None
    loss: float = math.inf
    curve: tuple[Point, ...] = ()
    seconds: float = 0.0
    reason: str = ""
    origin: Mapping[str, Any] = field(default_factory=dict, hash=False)


class TimeUp(Exception):
    """The time is used up; what was done is kept."""


class Trainer(Protocol):
    """Does trials."""

    def train(self, stage: str, trials: Sequence[Trial]) -> list[TrialOutcome]:
        """Do the trials that are not done yet; return the outcomes of all, in their order.

        Args:
            stage: what the trials are called together.

        Raises:
            TimeUp: before all were done.
        """

    def done(self, stage: str, trials: Sequence[Trial]) -> list[TrialOutcome]:
        """Return the outcomes of those trials that are done."""


def order(outcome: TrialOutcome, mode: Mode) -> tuple[float, float]:
    """Return a key that sorts outcomes, the best first."""
    if outcome.score is None:
        return math.inf, math.inf
    return sign_of(mode) * outcome.score, outcome.loss


def best_by_candidate(outcomes: Sequence[TrialOutcome], mode: Mode) -> list[TrialOutcome]:
    """Return the best outcome of every candidate, the best candidate first; those that failed are left out."""
    ranked = sorted((one for one in outcomes if one.score is not None), key=lambda one: order(one, mode))
    first: dict[str, TrialOutcome] = {}
    for one in ranked:
        first.setdefault(one.trial.candidate, one)
    return list(first.values())
