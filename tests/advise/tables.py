"""Searches without training: a trainer that computes scores, and candidates that were never built."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ostinato.advise.candidates import Candidate
from ostinato.advise.trials import TimeUp, Trial, TrialOutcome
from ostinato.config.space import AxisConfig, LevelConfig, SpaceConfig
from ostinato.tasks.recipes import load_recipe

Score = Callable[[Trial], float | None]


class Formula:
    """A trainer whose scores are a formula; after `most` trials time is up."""

    def __init__(self, score: Score, most: int = 10_000) -> None:
        self.score, self.most = score, most
        self.trained: list[Trial] = []

    def train(self, stage: str, trials: Sequence[Trial]) -> list[TrialOutcome]:
        for trial in trials:
            if len(self.trained) >= self.most:
                raise TimeUp
            self.trained.append(trial)
        return [self.outcome(trial) for trial in trials]

    def done(self, stage: str, trials: Sequence[Trial]) -> list[TrialOutcome]:
        return [self.outcome(trial) for trial in trials if trial in self.trained]

    def outcome(self, trial: Trial) -> TrialOutcome:
        score = self.score(trial)
        reason = "" if score is not None else "update 3: the loss is nan"
        seconds = 2.0 + 0.1 * trial.updates
        return TrialOutcome(
            trial, score, math.inf if score is None else score, ((trial.updates, score or 0.0),), seconds, reason
        )


def candidate(name: str, levels: dict[str, str] | None = None, macs: float = 1.0) -> Candidate:
    figures = {"parameters": 10.0, "macs": macs, "bytes": 40.0}
    return Candidate(name, levels or {}, {}, load_recipe("digits/transformer").model, figures)


def axis(name: str, *levels: str) -> AxisConfig:
    return AxisConfig(name=name, levels=[LevelConfig(name=level, set={"model.dropout": 0.1}) for level in levels])


def space(*axes: AxisConfig) -> SpaceConfig:
    return SpaceConfig(name="mine", axes=list(axes))
