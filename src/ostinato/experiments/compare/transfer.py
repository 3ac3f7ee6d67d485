"""Cross-lingual transfer over several runs: the mean over languages of each run, then over seeds.

    s_r = mean over languages l of score(run r, l)        each language counting once
    score = mean over runs r of s_r,  sd = standard deviation of the s_r over runs (n - 1)

the order of XTREME's and X-MoE's tables, in which the spread is that of seeds and not of languages.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from ostinato.config.schema import leaves
from ostinato.errors import DataError
from ostinato.experiments.results import read_results
from ostinato.tasks.recipes import load_recipe
from ostinato.training.changes import is_free
from ostinato.training.rundir import RunDirectory

_OF_A_RUN = ("name", "seed", "training.init_from", "data.train", "data.dev", "data.test")
"""Beginnings of the keys in which the runs of one experiment may differ: seeds, and where something lies."""
_SHOWN = 3


def transfer(runs: Sequence[Path], split: str, metric: str, column: str) -> dict[str, Any]:
    """Return a score by language and in all, over finished runs that differ in their seeds only.

    Args:
        metric: "ranking": its accuracy. column: of languages, by which the runs were scored.

    Returns:
        split, metric, n_runs, seeds; by: language -> mean over runs; mean; sd (None for one run); runs: directory ->
        its mean over languages.

    Raises:
        CheckpointError: a run that is not finished.
        DataError: a run without such scores, or whose scores are no numbers, with other languages or other settings
            than the first, or a seed twice.
    """
    found = {str(run): read_results(run) for run in runs}
    scores: dict[str, dict[str, float]] = {}
    for run, results in found.items():
        try:
            of_split = results["splits"][split]
            # Targets are ranked apart from all other scores.
            by, name = (of_split["ranking"]["by"], "accuracy") if metric == "ranking" else (of_split["by"], metric)
            scores[run] = {language: values[name] for language, values in sorted(by[column].items())}
        except KeyError as error:
            reason = f"no {error} among its scores ({split}, by {column}, {metric})"
            raise DataError(f"{run}: {reason}: was it scored so? (task.language_field, evaluation.splits)") from error
        for language, value in scores[run].items():
            if not isinstance(value, int | float):  # JSON has null for what is not finite
                raise DataError(f"{run}: {metric} of {language} is no number that could be averaged ({split})")
    first_run, first = next(iter(scores.items()))
    for run, values in scores.items():
        if values.keys() != first.keys():
            raise DataError(f"{run} has the languages {', '.join(values)}, and {first_run} {', '.join(first)}")
    settings = {run: _settings(Path(run)) for run in found}
    expected = settings[first_run]
    for run, own in settings.items():
        if other := sorted(key for key in own | expected if own.get(key) != expected.get(key)):
            shown = ", ".join(f"{key} ({own.get(key)}, {expected.get(key)})" for key in other[:_SHOWN])
            more = f" and {len(other) - _SHOWN} more" if len(other) > _SHOWN else ""
            raise DataError(f"{run} and {first_run} differ in more than their seeds: {shown}{more}")
    seeds = [results["seed"] for results in found.values()]
    if len(found) < len(runs):
        raise DataError("a run is named twice, and counts once only")
    if len(set(seeds)) < len(seeds):
        raise DataError(f"the seeds of the runs are {seeds}: a seed that is there twice counts once only")
    means = {run: fmean(values.values()) for run, values in scores.items()}
    return {
        "split": split,
        "metric": metric,
        "n_runs": len(runs),
        "seeds": seeds,
        "by": {language: fmean(values[language] for values in scores.values()) for language in first},
        "mean": fmean(means.values()),
        "sd": stdev(means.values()) if len(means) > 1 else None,
        "runs": means,
    }


def _settings(run: Path) -> dict[str, Any]:
    """Return what runs of one experiment have in common: settings and data, also of what they start from."""
    recipe = load_recipe(run)
    settings = dict(leaves(recipe.model_dump(mode="json")))
    found = {key: value for key, value in settings.items() if not key.startswith(_OF_A_RUN) and not is_free(key)}
    found |= {f"data of {split}": digest for split, digest in RunDirectory(run).data_hashes().items()}
    if (start := recipe.training.init_from) is not None and RunDirectory(Path(start)).exists:
        found |= {f"start: {key}": value for key, value in _settings(Path(start)).items()}
    return found
