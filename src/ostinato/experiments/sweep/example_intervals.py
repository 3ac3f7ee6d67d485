"""Differences between the arms of a sweep with intervals over test examples: BLEU's too.

The runs' outputs are those kept beside them, else they are decoded once and kept. Of each arm the mean score over its
seeds is compared with the first arm's on the same drawn examples (`ostinato.metrics.bootstrap.paired_means`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ostinato.config.measures import ResultMeasure
from ostinato.config.sweep import SweepConfig
from ostinato.data.registry import DataAccess
from ostinato.errors import ConfigError, DataError, Problem
from ostinato.evaluation.loading import load
from ostinato.evaluation.stored import Outputs, run_outputs
from ostinato.experiments.sweep.runs import PlannedRun
from ostinato.metrics import METRICS, make_metric
from ostinato.metrics.bootstrap import paired_means
from ostinato.training.threads import cpu_threads


def example_differences(
    sweep: SweepConfig,
    runs: Sequence[PlannedRun],
    *,
    access: DataAccess | None = None,
    on_line: Callable[[str], None] = lambda line: None,
) -> list[dict[str, Any]]:
    """Return, for every measure of decoded outputs and every arm, score and difference to the first arm.

    Args:
        runs: the sweep's, finished ones. on_line: told what is decoded.

    Returns:
        measure, metric, split, arm, n_seeds, n_examples, score and difference: {value, low, high} each, verdict;
        difference and verdict are None for the first arm, and of measures that it does not have.

    Raises:
        ConfigError: no measure is of decoded outputs. DataError: arms that were to write different texts.
    """
    measures = [m for m in sweep.measures if isinstance(m, ResultMeasure) and m.split and m.path in METRICS]
    if not measures:
        names = [measure.name for measure in sweep.measures]
        reason = f"none is a result of decoded outputs on a split: {', '.join(METRICS)}"
        raise ConfigError([Problem("measures", names, reason)])
    outputs: dict[tuple[str, str], Outputs] = {}
    for measure in measures:
        for run in runs:
            where = (run.key, str(measure.split))
            if where in outputs or measure not in sweep.measures_of(run.arm):
                continue
            with cpu_threads(run.recipe.training.n_threads or 1):
                loaded = load(run.directory, device=run.recipe.training.device, halting_threshold="trained")
                outputs[where] = run_outputs(loaded, str(measure.split), access=access)
            if outputs[where].is_new:
                on_line(f"{run.name}, {measure.split}: {len(outputs[where].predictions):,} outputs decoded")
    lines = []
    for measure in measures:
        arms: dict[str, list[Outputs]] = {}
        own = [run for run in runs if measure in sweep.measures_of(run.arm)]
        for run in own:
            arms.setdefault(run.arm, []).append(outputs[run.key, str(measure.split)])
            if arms[run.arm][-1].references != arms[own[0].arm][0].references:
                raise DataError(f"{measure.name}: {run.name} was to write other texts than {own[0].name}")
        if not own:
            continue
        references, sources = arms[own[0].arm][0].references, arms[own[0].arm][0].sources
        groups = [[written.predictions for written in group] for group in arms.values()]
        compared = paired_means(make_metric(measure.path), groups, references, sources)
        for (arm, group), found in zip(arms.items(), compared, strict=True):
            is_compared = own[0].arm == runs[0].arm != arm
            line = {
                "measure": measure.name,
                "metric": measure.path,
                "split": measure.split,
                "arm": arm,
                "n_seeds": len(group),
                "n_examples": len(references),
                "score": found.score.as_dict(),
                "difference": found.difference.as_dict() if is_compared else None,
                "verdict": found.verdict if is_compared else None,
            }
            lines.append(line)
    return lines
