"""Statistics of claims: from rows of arms and seeds to one number, with its value for every seed.

A row is {arm, seed, values: {measure: number}}. A statistic of several terms is computed from the terms' means over
seeds; where all terms have the same seeds, it is computed for every seed as well, and for `mean`, `difference` and
`ratio` the number is the mean over those (they are linear, but for the ratio).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import correlation, fmean, linear_regression, median, stdev
from typing import Any, Literal

from ostinato.config.claim import (
    BestAtStatistic,
    DifferenceStatistic,
    ExpectationConfig,
    LineStatistic,
    MeanStatistic,
    RatioStatistic,
    SmallestStepStatistic,
    SpreadStatistic,
    Statistic,
)
from ostinato.errors import DataError

Centre = Literal["mean", "median"]
_CENTRES: dict[Centre, Callable[[Sequence[float]], float]] = {"mean": fmean, "median": median}


@dataclass(frozen=True, slots=True)
class ExpectationResult:
    """What was found for an expectation.

    Args:
        value: the statistic. by_seed: for every seed that all terms have. sd: of these (n - 1), None for fewer than 2.
    """

    what: str
    value: float
    by_seed: dict[str, float]
    sd: float | None
    band: tuple[float | None, float | None]

    @property
    def holds(self) -> bool:
        """True where the value is inside the band, its limits included."""
        low, high = self.band
        return (low is None or self.value >= low) and (high is None or self.value <= high)

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {**asdict(self), "band": list(self.band), "holds": self.holds}


def evaluate(
    expectation: ExpectationConfig, rows: Sequence[dict[str, Any]], centre: Centre = "mean"
) -> ExpectationResult:
    """Return an expectation's number.

    Args:
        centre: how a term is averaged over its seeds: the median for rounds of a timing.

    Raises:
        DataError: a term that no row has, or a number that does not exist (a ratio over 0).
    """
    statistic = expectation.statistic
    terms = terms_of(statistic)
    by_term = {term: values_of(term, rows) for term in terms}
    seeds = [seed for seed in by_term[terms[0]] if all(seed in by_term[term] for term in terms)]
    middle = _CENTRES[centre]
    by_seed = {seed: _number(statistic, [by_term[term][seed] for term in terms]) for seed in seeds}
    is_paired = len(seeds) == max(len(found) for found in by_term.values())
    if is_paired and isinstance(statistic, MeanStatistic | DifferenceStatistic | RatioStatistic):
        value = middle(list(by_seed.values()))
    else:
        value = _number(statistic, [middle(list(by_term[term].values())) for term in terms])
    sd = stdev(by_seed.values()) if len(by_seed) > 1 else None
    return ExpectationResult(expectation.what, value, by_seed, sd, expectation.band)


def terms_of(statistic: Statistic) -> list[str]:
    """Return the terms of a statistic, in its order."""
    match statistic:
        case MeanStatistic(of=of):
            return [of]
        case DifferenceStatistic(of=of, minus=other) | RatioStatistic(of=of, over=other):
            return [of, other]
        case _:
            return list(statistic.along)


def values_of(term: str, rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the values of `arm/measure` by seed.

    Raises:
        DataError: naming the arms or the measures that there are.
    """
    arm, _, measure = term.partition("/")
    mine = [row for row in rows if row["arm"] == arm]
    if not mine:
        raise DataError(f"{term!r}: no arm {arm!r}; there are {', '.join(dict.fromkeys(row['arm'] for row in rows))}")
    found = {str(row["seed"]): float(row["values"][measure]) for row in mine if measure in row["values"]}
    if not found:
        names = dict.fromkeys(name for row in mine for name in row["values"])
        raise DataError(f"{term!r}: the arm has no measure {measure!r}; it has {', '.join(names)}")
    return found


def _number(statistic: Statistic, values: Sequence[float]) -> float:
    match statistic:
        case MeanStatistic():
            return values[0]
        case DifferenceStatistic():
            return values[0] - values[1]
        case RatioStatistic():
            if values[1] == 0:
                raise DataError(f"{statistic.of} / {statistic.over}: the divisor is 0")
            return values[0] / values[1]
        case SmallestStepStatistic():
            return min(after - before for before, after in pairwise(values))
        case SpreadStatistic():
            return max(values) - min(values)
        case BestAtStatistic(at=at, mode=mode):
            best = max(values) if mode == "max" else min(values)
            return at[list(values).index(best)]
        case LineStatistic(figure="r_squared"):
            return correlation(statistic.at, values) ** 2 if len(set(values)) > 1 else 1.0
        case LineStatistic():
            slope = linear_regression(statistic.at, values).slope
            if statistic.figure == "slope":
                return slope
            if values[0] == 0:
                raise DataError(f"{statistic.along[0]} is 0: no slope relative to it")
            return slope / values[0]
