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
from ostinato.data.example import Example, take_evenly
from ostinato.decoding import inference
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
    ready = [_Ready(run, mine) for run, mine in zip(runs, examples, strict=True)]
    calls = {str(i): one.run for i, one in enumerate(ready)}
    with ExitStack() as stack:
        for run in runs:
            stack.enter_context(inference(run.model))
        laps = interleave(calls, _EFFORT, Stopwatch(runs[0].model.device))
    return [Latency(one.n, median(lap.seconds for lap in laps[str(i)]), {}) for i, one in enumerate(ready)]


def part_latencies(run: LoadedRun, examples: Sequence[Example]) -> Latency:
    """Return how long a run's model takes for its examples, as a whole and by part."""
    ready, parts = _Ready(run, examples), parts_of(run.model)
    sums: list[dict[str, float]] = []

    def timed() -> None:
        sums.append(dict.fromkeys(parts.values(), 0.0))
        for batch in ready.batches:
            for stack in run.model(batch, request=frozenset({"seconds"})).stacks.values():
                for (name, step, kind, _), value in stack.captures.items():
                    sums[-1][parts[name, step, kind]] += float(value)

    with inference(run.model):
        laps = interleave({"whole": ready.run, "timed": timed}, _EFFORT, Stopwatch(run.model.device))
    whole, in_parts = (median(lap.seconds for lap in laps[name]) for name in ("whole", "timed"))
    by_part = {part: median(found[part] for found in sums[1:]) for part in sums[0]}  # the first was the warm-up
    return Latency(ready.n, whole, by_part, max(0.0, in_parts - sum(by_part.values())))


def parts_of(model: Model) -> dict[tuple[str, int, str], str]:
    """Return the part of every sub-layer by stack, step and kind, in the order they run."""
    return {(use.stack, use.step, use.use.kind): use.part for use in planned_uses(model.config)}


class _Ready:
    """Up to `EXAMPLES` of a run's examples, as batches on its device."""

    def __init__(self, run: LoadedRun, examples: Sequence[Example]) -> None:
        taken = list(take_evenly(examples, EXAMPLES))
        self.n, self.model = len(taken), run.model
        self.batches = [batch.to(run.model.device) for batch in batches(run, taken)]

    def run(self) -> None:
        for batch in self.batches:
            self.model(batch)


def threads_and_device(model: Model) -> str:
    """Return what was measured on, for people."""
    kind = model.device.type
    if kind == "cuda":
        return torch.cuda.get_device_name(model.device)
    if kind != "cpu":
        return kind
    return f"CPU, {torch.get_num_threads()} thread{'s' if torch.get_num_threads() > 1 else ''}"
