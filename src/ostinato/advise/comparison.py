"""Candidates of one size, compared seed by seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ostinato.advise.trials import TrialOutcome, sign_of
from ostinato.config.training import Mode
from ostinato.experiments.inference import holm, judge


@dataclass(frozen=True, slots=True)
class Compared:
    """How much worse a candidate is than the best, seed by seed.

    Args:
        value: mean difference. low, high: its 95 % interval; None where there is no spread. p: that it is no worse,
            corrected. is_constant: several seeds differ by the same, and not by nothing, so that no test can judge.
    """

    value: float
    low: float | None
    high: float | None
    p: float
    is_constant: bool = False


def scores_by_seed(outcomes: Sequence[TrialOutcome]) -> dict[str, dict[int, float]]:
    """Return the scores of candidates, by seed."""
    found: dict[str, dict[int, float]] = {}
    for one in outcomes:
        if one.score is not None:
            found.setdefault(one.trial.candidate, {})[one.trial.seed] = one.score
    return found


def adjusted_means(scores: Mapping[str, Mapping[int, float]]) -> dict[str, float]:
    """Return the mean of every candidate that has a score, freed of which seeds it has.

    Least squares of score = candidate + seed, the effects of seeds zero on average: where all have the same seeds it is
    the plain mean; of two candidates it differs by the mean difference over the seeds that both have. Rounded to twelve
    digits, so that equal scores stay equal.
    """
    names = [name for name, own in scores.items() if own]
    seeds = sorted({seed for own in scores.values() for seed in own})
    if not names:
        return {}
    cells = [(i, seeds.index(seed), score) for i, name in enumerate(names) for seed, score in scores[name].items()]
    design = np.zeros((len(cells) + 1, len(names) + len(seeds)))
    for row, (i, j, _) in enumerate(cells):
        design[row, i] = design[row, len(names) + j] = 1.0
    design[-1, len(names) :] = 1.0
    effects = np.linalg.lstsq(design, np.array([score for *_, score in cells] + [0.0]), rcond=None)[0]
    return {name: float(f"{effects[i]:.12g}") for i, name in enumerate(names)}


def compare(scores: Mapping[str, Mapping[int, float]], best: str, mode: Mode) -> dict[str, Compared]:
    """Return how much worse the others are than the best, of those that have a seed in common with it.

    The p values are corrected by Holm as the smallest of those of all ordered pairs: any might have been the best.
    """
    sign = sign_of(mode)
    samples = {
        name: [sign * (own[seed] - score) for seed, score in scores[best].items() if seed in own]
        for name, own in scores.items()
        if name != best
    }
    judged = {name: judge(sample, (0.0, None)) for name, sample in samples.items() if sample}
    others = [1.0] * (n_pairs(len(judged)) - len(judged))
    corrected = holm([*(one.p_supported for one in judged.values()), *others])
    return {
        name: Compared(one.value, one.low, one.high, p, len(samples[name]) > 1 and one.low is None and one.value != 0)
        for (name, one), p in zip(judged.items(), corrected, strict=False)
    }


def n_pairs(n_rivals: int) -> int:
    """Return the ordered pairs of the best and its rivals."""
    return n_rivals * (n_rivals + 1)
