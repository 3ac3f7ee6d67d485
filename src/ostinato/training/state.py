"""The progress of a run: how many updates it has done, its best checkpoints, and what its next record holds."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from pydantic import TypeAdapter

from ostinato.config.training import SelectionConfig


@dataclass(slots=True)
class Best:
    """One of the best checkpoints so far."""

    update: int
    value: float


@dataclass(slots=True)
class LossWindow:
    """What the next record holds of the updates since the last one.

    Args:
        loss, nll, n_labels: sums: the smoothed and the plain loss in nats, and the labels they are over.
        lr, grad_norm: of the newest update; None: there is none, or an earlier version did it.
    """

    loss: float = 0.0
    nll: float = 0.0
    n_labels: int = 0
    lr: float | None = None
    grad_norm: float | None = None


@dataclass(slots=True)
class Progress:
    """Everything of a training state that is a number; tensors and random states are kept beside it.

    Args:
        update: optimiser steps done.
        batches: place in the data, see `TrainingBatches.state`.
        ranking: the best checkpoints, best first; of equal ones the earlier first. Empty before the first evaluation.
        n_waiting: evaluations since the best one.
        stopped: why the run ended before its last update; None where it did not.
        window: of the next record.
        metrics_bytes, metrics_sha256: length and SHA-256 of metrics.jsonl; 0 and None in runs of earlier versions.
        seconds: time spent so far, over all sessions.
    """

    update: int = 0
    batches: dict[str, int] = field(default_factory=dict)
    ranking: list[Best] = field(default_factory=list)
    n_waiting: int = 0
    stopped: str | None = None
    window: LossWindow = field(default_factory=LossWindow)
    metrics_bytes: int = 0
    metrics_sha256: str | None = None
    seconds: float = 0.0

    @property
    def best(self) -> Best | None:
        """The best checkpoint so far; None before the first evaluation."""
        return self.ranking[0] if self.ranking else None

    def judge(self, value: float, selection: SelectionConfig, *, keep: int = 1, begins: int = 0) -> bool:
        """Rank an evaluation of the present update; return True where it is the best so far.

        NaN ranks behind all other values.

        Args:
            keep: how many are ranked.
            begins: the last update before tokens may halt. Until then gates are untrained: such evaluations use up no
                patience, and are no longer ranked once there is a later one.
        """
        waits = self.update > begins
        sign = -1.0 if selection.mode == "max" else 1.0
        new = Best(self.update, value)
        earlier = [one for one in self.ranking if one.update > begins or not waits]
        ranking = sorted([*earlier, new], key=lambda one: (math.isnan(one.value), sign * one.value))
        self.ranking = ranking[:keep]
        is_best = ranking[0] is new
        if is_best:
            self.n_waiting = 0
        elif waits:
            self.n_waiting += 1
        self.judge_patience(selection)
        return is_best

    def judge_patience(self, selection: SelectionConfig) -> None:
        """Stop where the best checkpoint was waited for as long as patience lasts; else go on."""
        is_over = selection.patience is not None and self.n_waiting >= selection.patience
        self.stopped = f"no better {selection.metric} in {self.n_waiting} evaluations" if is_over else None

    @property
    def is_ranked(self) -> bool:
        """Whether the present update is among the best."""
        return any(one.update == self.update for one in self.ranking)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able content; floats survive the round trip exactly."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Self:
        """Read what `to_dict` returned.

        Raises:
            TypeError, KeyError, ValueError: it is something else.
        """
        content = dict(content)
        if "best" in content:  # What was written before several were ranked.
            best = content.pop("best")
            content["ranking"] = [] if best is None else [best]
        ranking = [Best(**one) for one in content["ranking"]]
        parts = {"ranking": ranking, "window": LossWindow(**content["window"])}
        found = cls(**{**content, **parts, "update": content["update"]})  # without it, trained weights would begin at 0
        TypeAdapter(cls).validate_python(asdict(found))
        return found
