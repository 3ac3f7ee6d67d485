"""Latency of passes over the examples of an analysis, as a whole and by sub-layer.

A pass is teacher-forced, in evaluation mode, over all batches of up to `EXAMPLES` examples. Models take turns, so that
whatever slows the machine down slows all of them. Sub-layers are timed in passes of their own, because reading the
clock at each of them takes time, too. Latencies of different machines are not comparable.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median

import torch

from ostinato.analysis.capture import batches
from ostinato.budget.sizes import planned_uses
from ostinato.data.batch import Batch
from ostinato.data.example import Example, take_evenly
from ostinato.decoding.inference import inference
from ostinato.evaluation.loading import LoadedRun
from ostinato.evaluation.timing import Effort, Stopwatch, interleave
from ostinato.models.build import Model

EXAMPLES = 64
_EFFORT = Effort(rounds=5, seconds=5.0)


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds of one pass over some examples.

    Args:
        n: examples. seconds: median of a pass. by_part: medians by ``<stack>.<kind>`` (``<stack>.sparse_layer``) of the
            passes that time sub-layers; empty where none did. rest: seconds of these passes outside sub-layers:
            embeddings, output, halting, gathering.
    """

    n: int
    seconds: float
    by_part: dict[str, float]
    rest: float = 0.0

    @property
    def per_example(self) -> float:
        """Seconds an example."""
        return self.seconds / self.n


def pass_latencies(runs: Sequence[LoadedRun], examples: Sequence[Sequence[Example]]) -> list[Latency]:
    """Return how long each run's model takes for its examples, the models taking turns."""
    taken = [list(take_evenly(mine, EXAMPLES)) for mine in examples]
    ready = [_ready(run, mine) for run, mine in zip(runs, taken, strict=True)]
    calls = {
        str(i): (lambda run=run, mine=mine: _pass(run.model, mine, frozenset()))
        for i, (run, mine) in enumerate(zip(runs, ready, strict=True))
    }
    with ExitStack() as stack:
        for run in runs:
            stack.enter_context(inference(run.model))
        laps = interleave(calls, _EFFORT, Stopwatch(runs[0].model.device))
    return [Latency(len(mine), median(lap.seconds for lap in laps[str(i)]), {}) for i, mine in enumerate(taken)]


def part_latencies(run: LoadedRun, examples: Sequence[Example]) -> Latency:
    """Return how long a run's model takes for its examples, as a whole and by part."""
    taken = list(take_evenly(examples, EXAMPLES))
    ready, model, parts = _ready(run, taken), run.model, parts_of(run.model)
    sums: list[dict[str, float]] = []
    with inference(model):
        laps = interleave(
            {
                "whole": lambda: _pass(model, ready, frozenset()),
                "timed": lambda: sums.append(_pass(model, ready, frozenset({"seconds"}), parts)),
            },
            _EFFORT,
            Stopwatch(model.device),
        )
    sums = sums[1:]  # the first was the warm-up
    timed = median(lap.seconds for lap in laps["timed"])
    by_part = {part: median(found[part] for found in sums) for part in sums[0]}
    rest = max(0.0, timed - sum(by_part.values()))
    return Latency(len(taken), median(lap.seconds for lap in laps["whole"]), by_part, rest)


def parts_of(model: Model) -> dict[tuple[str, int, str], str]:
    """Return the part of every sub-layer by stack, step and kind, in the order they run."""
    return {(use.stack, use.step, use.use.kind): use.part for use in planned_uses(model.config)}


def _ready(run: LoadedRun, examples: Sequence[Example]) -> list[Batch]:
    return [batch.to(run.model.device) for batch in batches(run, examples)]


def _pass(
    model: Model,
    ready: Sequence[Batch],
    request: frozenset[str],
    parts: dict[tuple[str, int, str], str] | None = None,
) -> dict[str, float]:
    """Run a model over batches; return the seconds of its parts, where they were asked for."""
    sums = dict.fromkeys((parts or {}).values(), 0.0)
    for batch in ready:
        output = model(batch, request=request)
        for stack in output.stacks.values():
            for (name, step, kind, what), value in stack.captures.items():
                if parts is not None and what == "seconds":
                    sums[parts[name, step, kind]] += float(value)
        del output
    return sums


def threads_and_device(model: Model) -> str:
    """Return what was measured on, for people."""
    if model.device.type == "cuda":
        return torch.cuda.get_device_name(model.device)
    return f"CPU, {torch.get_num_threads()} thread{'s' if torch.get_num_threads() > 1 else ''}"
