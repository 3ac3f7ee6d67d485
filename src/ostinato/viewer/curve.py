"""Accuracy against cost over some examples, as one setting is varied."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ostinato.analysis.capture import CapturedBatch, Collector, stream
from ostinato.analysis.collectors import Outcomes
from ostinato.analysis.studies.trade_offs import rounds_to_try, variable_stacks
from ostinato.data.example import Example, take_evenly
from ostinato.errors import ConfigError, Problem
from ostinato.viewer.calls import Call
from ostinato.viewer.opened import OpenRun
from ostinato.viewer.schema import CurveRequest, End, Point

THRESHOLDS = (0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 0.99)


@dataclass
class _Checked(Collector):
    """Asks after every batch whether the work may go on."""

    call: Call

    def add(self, captured: CapturedBatch) -> None:
        """Take in one batch."""
        self.call.check()


def draw_curve(opened: OpenRun, request: CurveRequest, call: Call, emit: Callable[[Point | End], None]) -> None:
    """Tell score and cost at the settings that were sent, and then at others.

    Raises:
        ConfigError: a request that is not possible of this run. DataError: data that cannot be read.
        ClientGone, TimeLimitError: see `Call.check`.
    """
    if request.n > opened.limits.examples:
        raise ConfigError([Problem("n", request.n, f"must be at most {opened.limits.examples}")])
    examples = list(take_evenly(opened.examples(request.split), request.n))
    model = opened.run.model
    own = opened.execution(request)
    with model.execution(**own):
        rounds, thresholds = model.n_rounds(), model.halting_thresholds()
    if request.along == "threshold":
        if not thresholds:
            reason = "no token of this run halts: choose a criterion by which they stop (exit)"
            raise ConfigError([Problem("along", "threshold", reason)])
        here = max(thresholds.values())
        others = [own | {"halting_threshold": value} for value in THRESHOLDS]
        settings = list(THRESHOLDS)
    else:
        varying = variable_stacks(model)
        if not varying:
            reason = "no stack of this run has several rounds that all share their weights"
            raise ConfigError([Problem("along", "rounds", reason)])
        here = max(rounds[name] for name in varying)
        tried = rounds_to_try(max(model.stacks[name].plan.n_rounds for name in varying))
        others = [own | {"rounds": {**request.rounds, **dict.fromkeys(varying, n)}} for n in tried]
        settings = [float(n) for n in tried]
    emit(_point(opened, own, examples, here, call, is_here=True))
    for setting, changes in zip(settings, others, strict=True):
        emit(_point(opened, changes, examples, setting, call, is_here=False))
    emit(End(n=len(examples)))


def _point(
    opened: OpenRun, changes: dict[str, Any], examples: list[Example], setting: float, call: Call, *, is_here: bool
) -> Point:
    outcomes = Outcomes(len(examples))
    with opened.run.model.execution(**changes):
        stream(opened.run, examples, [outcomes, _Checked(call)])
    full, realised = outcomes.macs_N2.mean(0).tolist()
    return Point(
        setting=setting,
        here=is_here,
        token_accuracy=outcomes.token_accuracy,
        sequence_accuracy=outcomes.sequence_accuracy,
        macs=realised,
        macs_full=full,
        rounds={name: found["mean"] for name, found in outcomes.depths.compute().items()},
    )
