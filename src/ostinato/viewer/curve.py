"""Accuracy against cost over some examples, as one setting is varied."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ostinato.analysis.studies.trade_offs import rounds_to_try, variable_stacks
from ostinato.data.cuts import Cuts
from ostinato.data.example import Example, take_evenly
from ostinato.decoding.work import InThisProcess, Item, Result, Work
from ostinato.errors import ConfigError, Problem
from ostinato.evaluation.evaluate import evaluate
from ostinato.evaluation.passes import Passes
from ostinato.metrics import make_metric
from ostinato.metrics.base import unit_of
from ostinato.models import Model
from ostinato.viewer.calls import Call
from ostinato.viewer.opened import OpenRun
from ostinato.viewer.schema import CurveRequest, End, Point

THRESHOLDS = (0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 0.99)


class _Checked(InThisProcess):
    """Does the passes of an evaluation, and asks before every batch and every token whether it may go on."""

    def __init__(self, model: Model, call: Call) -> None:
        super().__init__(model)
        self._call = call

    def submit(self, work: Work[Item, Result], item: Item) -> Callable[[], Result]:
        """Return the function that does one batch."""
        passes: Any = work
        if isinstance(passes, Passes):
            passes = replace(passes, on_step=lambda leading: self._call.check())

        def checked() -> Result:
            self._call.check()
            found: Result = passes(self.model, item)
            return found

        return checked


def draw_curve(opened: OpenRun, request: CurveRequest, call: Call, emit: Callable[[Point | End], None]) -> None:
    """Tell scores and cost at the settings that were sent, and then at others.

    Raises:
        ConfigError: a request that is not possible of this run. DataError: data that cannot be read.
        ClientGone, TimeLimitError: see `Call.check`.
    """
    if request.n > opened.limits.examples:
        raise ConfigError([Problem("n", request.n, f"must be at most {opened.limits.examples}")])
    if request.metric is not None and request.metric not in opened.metrics:
        known = ", ".join(opened.metrics) or "none: what it predicts is scored teacher-forced"
        raise ConfigError([Problem("metric", request.metric, f"this run's metrics are {known}")])
    examples = list(take_evenly(opened.examples(request.split), request.n))
    model = opened.run.model
    own = opened.execution(request)
    with model.execution(**own):
        rounds, thresholds = model.n_rounds(), model.halting_thresholds()
    if request.along == "threshold":
        if not thresholds:
            reason = "no token of this run halts by a threshold: choose a criterion by which they stop (exit)"
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
    points = [(own, here, True), *((changes, at, False) for changes, at in zip(others, settings, strict=True))]
    for changes, setting, is_here in points:
        cuts = Cuts()  # the same at every setting
        with model.execution(**changes):
            point = _point(opened, request, examples, setting, call, cuts, is_here=is_here)
        emit(point)
    notes = cuts.notes(request.split)
    if (recipe := opened.run.recipe).data.block_length is not None:
        longest = recipe.data_by_text().max_target_length
        note = "every text is read by itself, while `ostinato evaluate` reads blocks (data.block_length)"
        notes = [note + f"; longer texts are cut to {longest:,} tokens" * bool(notes)]
    emit(End(n=len(examples), notes=notes))


def _point(
    opened: OpenRun,
    request: CurveRequest,
    examples: list[Example],
    setting: float,
    call: Call,
    cuts: Cuts,
    *,
    is_here: bool,
) -> Point:
    """Return what the examples come to, as the model runs now; cuts: counts what is cut of them."""
    run, metrics = opened.run, [] if request.metric is None else [request.metric]
    data = run.recipe.data_by_text()
    found = evaluate(
        run.model,
        examples,
        run.tokenizers,
        data=data,
        decoding=opened.decoding(request),
        metrics=metrics,
        name=request.split,
        runner=_Checked(run.model, call),
        cuts=cuts,
    )
    perfect = 1.0 if request.metric is None else make_metric(request.metric).perfect
    return Point(
        setting=setting,
        here=is_here,
        token_accuracy=found["token_accuracy"],
        sequence_accuracy=found["sequence_accuracy_forced"],
        score=None if request.metric is None else found[request.metric] / unit_of(perfect),
        is_share=perfect > 0,
        macs=found["macs"]["realised"],
        macs_full=found["macs"]["full"],
        rounds=found["depth"],
    )
