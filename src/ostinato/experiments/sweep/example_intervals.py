"""Differences between the arms of a sweep with intervals over test examples: BLEU's too.

The runs' outputs are those kept beside them, else they are decoded once and kept. Of each arm the mean score over its
seeds is taken on the same drawn examples (`ostinato.metrics.bootstrap.paired_means`), and its difference to the first
arm's over the seeds that both have: of a sweep that is half finished, means over other seeds would differ by these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ostinato.config.measures import ResultMeasure
from ostinato.config.own_code import is_own
from ostinato.config.sweep import SweepConfig
from ostinato.data.registry import DataAccess
from ostinato.errors import ConfigError, DataError, Problem
from ostinato.evaluation.stored import Outputs, run_outputs
from ostinato.experiments.sweep.measures import load_placed
from ostinato.experiments.sweep.runs import PlannedRun
from ostinato.metrics import METRICS, make_metric
from ostinato.metrics.bootstrap import Compared, paired_means
from ostinato.training.threads import cpu_threads


def example_differences(
    sweep: SweepConfig,
    runs: Sequence[PlannedRun],
    *,
    access: DataAccess | None = None,
    on_line: Callable[[str], None] = lambda line: None,
) -> list[dict[str, Any]]:
    """Return, for every measure of decoded outputs and every arm, score and difference to the reference.

    Args:
        runs: the sweep's, finished ones; the first one's arm is the reference. on_line: told what is decoded.

    Returns:
        measure, metric, split, arm, n_seeds, seeds, n_examples, score: {value, low, high}; reference (an arm),
        seeds_compared (those that both arms have), difference: {value, low, high}, verdict: None for the reference, and
        of measures that it does not have; the last two also where no seed is of both.

    Raises:
        ConfigError: no measure is of decoded outputs. DataError: arms that were to write different texts.
    """
    measures = [m for m in sweep.measures if isinstance(m, ResultMeasure) and m.split and _is_metric(m.path)]
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
                loaded = load_placed(run.directory, run.recipe, halting_threshold="trained")
                outputs[where] = run_outputs(loaded, str(measure.split), access=access)
            if outputs[where].is_new:
                on_line(f"{run.name}, {measure.split}: {len(outputs[where].predictions):,} outputs decoded")
    lines = []
    for measure in measures:
        arms: dict[str, dict[int, list[str]]] = {}
        """Of every arm the outputs by seed."""
        own = [run for run in runs if measure in sweep.measures_of(run.arm)]
        if not own:
            continue
        first = outputs[own[0].key, str(measure.split)]
        for run in own:
            written = outputs[run.key, str(measure.split)]
            if written.references != first.references:
                raise DataError(f"{measure.name}: {run.name} was to write other texts than {own[0].name}")
            arms.setdefault(run.arm, {})[run.seed] = written.predictions
        metric, texts = make_metric(measure.path), (first.references, first.sources)
        scores = paired_means(metric, [list(by_seed.values()) for by_seed in arms.values()], *texts)
        reference = arms.get(runs[0].arm, {})
        for (arm, by_seed), score in zip(arms.items(), scores, strict=True):
            is_compared = bool(reference) and arm != runs[0].arm
            common = [seed for seed in by_seed if seed in reference]
            found: Compared | None = None
            if is_compared and len(common) == len(by_seed) == len(reference):
                found = score
            elif is_compared and common:
                pair = [[group[seed] for seed in common] for group in (reference, by_seed)]
                found = paired_means(metric, pair, *texts)[1]
            line = {
                "measure": measure.name,
                "metric": measure.path,
                "split": measure.split,
                "arm": arm,
                "n_seeds": len(by_seed),
                "seeds": list(by_seed),
                "n_examples": len(first.references),
                "score": score.score.as_dict(),
                "reference": runs[0].arm if is_compared else None,
                "seeds_compared": common if is_compared else None,
                "difference": None if found is None else found.difference.as_dict(),
                "verdict": None if found is None else found.verdict,
            }
            lines.append(line)
    return lines


def _is_metric(path: str) -> bool:
    """Return whether a number of a result is a score of all outputs; those by column may have a colon, too."""
    return path in [*METRICS] or (is_own(path) and not path.startswith(("by.", "macro.")))
