"""What a sample of seeds says about a band: an interval, two p values and a verdict.

x_1 .. x_n are a number's values by seed, of arms that are paired by seed, and the band [low, high] is where the number
agrees with the claim: its limits are the smallest effect of interest, or the margins of "no loss". With Student's t of
n - 1 degrees of freedom and alpha = 2.5 %:

    interval            mean +- t(1 - alpha) sd / sqrt(n)                                                  95 %
    p_supported         of the hypothesis that the true mean is outside: the larger of the one-sided tests against
                        low and against high (two one-sided tests, Schuirmann 1987, where there are both)
    p_contradicted      of the hypothesis that it is inside: the smaller of the opposite tests, times their number

so that without correction a number is supported where its interval lies inside the band, and contradicted where it lies
outside. The numbers of one claim are corrected by Holm (1979), each kind of p value for itself.

The rounds of a timing are no normal sample: there the median counts, with the sign test. A number without replicates
is exact where nothing was drawn (counts), and else says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

ALPHA = 0.025
"""Of each one-sided test: the intervals are of 95 %."""
POWER = 0.8
MOST_SEEDS = 1000

Sampling = Literal["seeds", "rounds", "exact"]
"""What replicates are: seeds of a training, rounds of a timing, or nothing that varies."""
Verdict = Literal["supported", "contradicted", "inconclusive"]
Limits = tuple[float | None, float | None]
Sample = NDArray[np.float64]
_Tests = tuple[Callable[[float], float], Callable[[float], float], float, float]
"""p of "above a limit" and of "below it", as functions of the limit; lower and upper end of the interval."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A sample against a band.

    Args:
        value: mean, or median of rounds. low, high: of the 95 % interval, None where there is none.
        p_supported, p_contradicted: see the module; uncorrected.
    """

    value: float
    low: float | None
    high: float | None
    p_supported: float
    p_contradicted: float


def judge(sample: Sequence[float], band: Limits, sampling: Sampling = "seeds") -> Judged:
    """Compare one sample with a band.

    Args:
        sample: a value for each seed or round, one or more. band: lowest and highest value that agree with the claim,
            in the sample's unit; None: no limit on that side, but one side has one.
    """
    x = np.asarray(sample, dtype=np.float64)
    value = float(np.median(x) if sampling == "rounds" else x.mean())
    if sampling == "exact":
        p_supported = 0.0 if is_inside(value, band) else 1.0
        return Judged(value, value, value, p_supported, 1 - p_supported)
    # One seed, or seeds at a floor or a ceiling, which all give the same number, show no spread to judge by.
    if _shows_no_spread(x):
        return Judged(value, None, None, 1.0, 1.0)
    p_above, p_below, low, high = (_sign_test if sampling == "rounds" else _t_test)(x)
    # Inside is above the lower limit and below the upper one.
    inside = [test(limit) for test, limit in zip((p_above, p_below), band, strict=True) if limit is not None]
    outside = [test(limit) for test, limit in zip((p_below, p_above), band, strict=True) if limit is not None]
    return Judged(value, low, high, max(inside), min(1.0, len(outside) * min(outside)))


def _shows_no_spread(x: Sample) -> bool:
    """Return whether all numbers are the same, but for the rounding of their difference."""
    return len(x) < 2 or bool(np.ptp(x) <= 1e-9 * np.abs(x).max())


def _t_test(x: Sample) -> _Tests:
    """Return p of "the mean is above" and of "it is below" as functions of a limit, and its interval."""
    from scipy import stats

    mean, error, free = float(x.mean()), float(x.std(ddof=1)) / len(x) ** 0.5, len(x) - 1
    half = float(stats.t.isf(ALPHA, free)) * error
    return (
        lambda limit: float(stats.t.sf((mean - limit) / error, free)),
        lambda limit: float(stats.t.cdf((mean - limit) / error, free)),
        mean - half,
        mean + half,
    )


def _sign_test(x: Sample) -> _Tests:
    """Return the same of the median."""
    from scipy import stats

    interval = stats.quantile_test(x, p=0.5).confidence_interval(1 - 2 * ALPHA)
    return (
        lambda limit: float(stats.quantile_test(x, q=limit, p=0.5, alternative="greater").pvalue),
        lambda limit: float(stats.quantile_test(x, q=limit, p=0.5, alternative="less").pvalue),
        float(interval.low),
        float(interval.high),
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p values corrected for their number: the k-th smallest of m is p (m - k + 1), at least the one before."""
    corrected, largest = [0.0] * len(p_values), 0.0
    for place, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, p_values[index] * (len(p_values) - place)))
        corrected[index] = largest
    return corrected


def verdict(p_supported: float, p_contradicted: float) -> Verdict:
    """Return what two corrected p values say."""
    if p_supported <= ALPHA:
        return "supported"
    return "contradicted" if p_contradicted <= ALPHA else "inconclusive"


def seeds_needed(sample: Sequence[float], band: Limits, n_tests: int = 1) -> int | None:
    """Return the seeds that would decide with a probability of 80 %, were the sample's mean and spread the true ones.

        power(n, limit) = P(T > t(1 - alpha / n_tests, n - 1))
        T: noncentral t, n - 1 degrees of freedom, noncentrality sqrt(n) |mean - limit| / sd

    A mean outside the band is told by the limit next to it, one inside by all of them: 1 - sum(1 - power) is the least
    probability that all tests succeed. None where more than 1,000 would be needed, or the sample shows no spread.

    Args:
        n_tests: p values that have to be this many times smaller than alpha: Holm's correction.
    """
    from scipy import stats

    x = np.asarray(sample, dtype=np.float64)
    if _shows_no_spread(x):
        return None
    distances = sorted(abs(float(x.mean()) - limit) for limit in band if limit is not None)
    if not is_inside(float(x.mean()), band):
        n_tests *= len(distances)  # either of two limits might have been the one
        distances = distances[:1]
    n = np.arange(2, MOST_SEEDS + 1)
    threshold = stats.t.isf(ALPHA / n_tests, n - 1)
    missed = np.zeros(len(n))
    for distance in distances:
        power = stats.nct.sf(threshold, n - 1, np.sqrt(n) * distance / x.std(ddof=1))
        missed += 1 - np.nan_to_num(power, nan=1.0)
    enough = np.flatnonzero(1 - missed >= POWER)
    return int(n[enough[0]]) if len(enough) else None


def is_inside(value: float, band: Limits) -> bool:
    """Return whether a value lies in a band, whose limits belong to it."""
    low, high = band
    return (low is None or value >= low) and (high is None or value <= high)
