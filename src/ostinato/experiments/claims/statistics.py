"""Numbers of claims: from rows of arms and seeds to samples, and from those to intervals and a verdict.

A row is {arm, seed, values: {measure: number}}. Terms are paired by seed: a number is computed for every seed that all
its terms have. Some numbers have several parts, which all have to lie in a band for the number to lie in its own, and
are judged by it (`ostinato.experiments.inference`):

    mean, difference, line      themselves
    ratio                       its logarithm, against those of the limits
    smallest_step               one difference a step
    spread                      the difference of every two terms, between - and + the largest spread
    best_at                     the difference of the best term inside the band to every term outside it, above 0

A number of several parts is supported where every part is, which needs no correction, and contradicted where one part
is, which does: the smallest p times the number of parts. The best of a band is chosen by the sample, so that its p is
multiplied by the number of terms inside; that the best lies outside is shown by one term there that beats every term
inside, whichever of them is truly the best: the largest p over those inside, the smallest of these over those outside,
times the number of those.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations, pairwise
from statistics import correlation, fmean, linear_regression, median
from typing import Any, NamedTuple

from ostinato.config.claim import (
    BestAtStatistic,
    ChangeTerm,
    DifferenceStatistic,
    ExpectationConfig,
    LineStatistic,
    MeanStatistic,
    RatioStatistic,
    SmallestStepStatistic,
    SpreadStatistic,
    Statistic,
    Term,
)
from ostinato.errors import DataError
from ostinato.experiments.inference import (
    Limits,
    Sampling,
    Verdict,
    holm,
    is_inside,
    judge,
    seeds_needed,
    verdict,
)

_Part = tuple[list[float], Limits]
"""A sample, and its band."""


class _Deciding(NamedTuple):
    """The parts that decide a number: the least supported one, and the one that contradicts it soonest.

    Args:
        n_tried: of how many the first was chosen as the best. n_against: of how many the second was.
    """

    least: _Part
    n_tried: int
    against: _Part
    n_against: int


@dataclass(frozen=True, slots=True)
class Found:
    """What was found for an expectation.

    Args:
        value: of several parts the statistic of the terms' means (rounds: medians); of one the mean (median) of
            by_seed, of a ratio the geometric mean. by_seed: of every seed that all terms have.
        low, high: 95 % interval; of several parts, of the one that is least supported, for a spread the larger term
            minus the smaller; None: nothing to judge by.
        p_supported, p_contradicted: corrected for the number of a claim's expectations.
        seeds_needed: by the power of the part that decides, corrected as the p values are; None: more than 1,000, or
            not known.
    """

    what: str
    band: Limits
    value: float
    by_seed: dict[str, float]
    low: float | None
    high: float | None
    p_supported: float
    p_contradicted: float
    seeds_needed: int | None

    @property
    def verdict(self) -> Verdict:
        """Say whether the number is shown to lie in its band, shown not to, or neither."""
        return verdict(self.p_supported, self.p_contradicted)

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {**asdict(self), "band": list(self.band), "verdict": self.verdict}


def find(
    expectations: Sequence[ExpectationConfig], rows: Sequence[dict[str, Any]], sampling: Sampling = "seeds"
) -> list[Found]:
    """Return the numbers of a claim, each with what it says about its band.

    Raises:
        DataError: a term that no row has, terms without a common seed, or a number that does not exist (ratio over 0).
    """
    parts = [_number(one, rows, sampling) for one in expectations]
    numbers = [number for number, _ in parts]
    supported = holm([number.p_supported for number in numbers])
    contradicted = holm([number.p_contradicted for number in numbers])
    seeds = _seeds_needed(parts) if sampling == "seeds" else [None] * len(parts)
    return [
        replace(number, p_supported=yes, p_contradicted=no, seeds_needed=needed)
        for number, yes, no, needed in zip(numbers, supported, contradicted, seeds, strict=True)
    ]


def _seeds_needed(numbers: Sequence[tuple[Found, _Deciding]]) -> list[int | None]:
    """Return for every number the seeds that would decide it, with Holm's correction.

    The k-th smallest p of m is multiplied by m - k + 1, and counts only where all before it do: so a number needs the
    seeds that its own multiple asks for, and at least those of the numbers before it on its side of the band.
    """
    found: list[int | None] = [None] * len(numbers)
    for inside in (True, False):
        p = [number.p_supported if inside else number.p_contradicted for number, _ in numbers]
        most: int | None = 0
        for place, index in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
            own = numbers[index][1]
            if is_inside(fmean(own.least[0]), own.least[1]) is inside:
                part, n_tests = (own.least, own.n_tried) if inside else (own.against, own.n_against)
                needed = seeds_needed(*part, (len(p) - place) * n_tests)
                most = None if most is None or needed is None else max(most, needed)
                found[index] = most
    return found


def claim_verdict(numbers: Sequence[Found]) -> Verdict:
    """Return a claim's verdict: supported where all of its numbers are, contradicted where one of them is."""
    verdicts = {number.verdict for number in numbers}
    if verdicts == {"supported"}:
        return "supported"
    return "contradicted" if "contradicted" in verdicts else "inconclusive"


def _number(
    expectation: ExpectationConfig, rows: Sequence[dict[str, Any]], sampling: Sampling
) -> tuple[Found, _Deciding]:
    """Return one number, its p values not yet corrected, and what its seeds are computed from."""
    statistic, band = expectation.statistic, expectation.band
    terms = terms_of(statistic)
    by_term = [values_of(term, rows) for term in terms]
    seeds = [seed for seed in by_term[0] if all(seed in values for values in by_term)]
    if not seeds:
        raise DataError(f"{expectation.what}: {', '.join(map(str, terms))} have no seed in common")
    values = {seed: [of_term[seed] for of_term in by_term] for seed in seeds}
    by_seed = {seed: _compute(statistic, own) for seed, own in values.items()}
    middle: Callable[[Sequence[float]], float] = median if sampling == "rounds" else fmean
    columns = [[values[seed][place] for seed in seeds] for place in range(len(terms))]
    parts = _parts(statistic, band, columns, list(by_seed.values()), middle)
    judged = [judge(sample, limits, sampling) for sample, limits in parts]
    least = max(range(len(parts)), key=lambda i: judged[i].p_supported)
    # The parts of a spread are differences with a sign, those of `best_at` differences of scores where its value is a
    # place: even a single part does not give their value.
    is_its_part = len(parts) == 1 and not isinstance(statistic, SpreadStatistic | BestAtStatistic)
    value = judged[0].value if is_its_part else _compute(statistic, [middle(column) for column in columns])
    low, high = judged[least].low, judged[least].high
    if isinstance(statistic, BestAtStatistic):
        low = high = None  # the interval is one of scores, the value a place
    if low is not None and high is not None:
        if isinstance(statistic, RatioStatistic):
            low, high = math.exp(low), math.exp(high)
        elif isinstance(statistic, SpreadStatistic) and judged[least].value < 0:
            low, high = -high, -low  # which of two terms is named first says nothing
    if isinstance(statistic, RatioStatistic):
        value = math.exp(value)
    if sampling == "exact" and low is not None:
        low = high = value  # of several parts, each of them exact, too
    p_contradicted, against, n_against = _against(statistic, band, columns, parts, sampling)
    n_tried = _n_tried(statistic, band)
    found = Found(
        expectation.what,
        band,
        value,
        by_seed,
        low,
        high,
        min(1.0, n_tried * judged[least].p_supported),
        min(1.0, n_against * p_contradicted),
        None,
    )
    return found, _Deciding(parts[least], n_tried, against, n_against)


def _against(
    statistic: Statistic, band: Limits, columns: Sequence[list[float]], parts: Sequence[_Part], sampling: Sampling
) -> tuple[float, _Part, int]:
    """Return the p of "the number is outside its band", of which part it is, and of how many it is the smallest.

    Of `best_at` it is not enough that a term outside beats the sample's best inside: another one may be truly the best.
    """
    groups = [[part] for part in parts]
    if isinstance(statistic, BestAtStatistic):
        inside, outside = _sides(statistic, band, columns)
        groups = [[(_differences(own, other), (0.0, None)) for own in inside] for other in outside]
    found = []
    for group in groups:
        p_values = [judge(*part, sampling).p_contradicted for part in group]
        found.append((max(p_values), group[p_values.index(max(p_values))]))
    p, part = min(found, key=lambda one: one[0])
    return p, part, len(groups)


def _parts(
    statistic: Statistic,
    band: Limits,
    columns: Sequence[list[float]],
    sample: list[float],
    middle: Callable[[Sequence[float]], float],
) -> list[_Part]:
    """Return what has to lie where for the number to lie in its band.

    Args:
        columns: the terms' values, by seed. sample: the number's.
    """
    match statistic:
        case RatioStatistic():
            if min(sample) <= 0 or any(limit is not None and limit <= 0 for limit in band):
                raise DataError(f"{statistic.of} / {statistic.over}: ratios and their limits must be positive")
            low, high = (None if limit is None else math.log(limit) for limit in band)
            return [([math.log(ratio) for ratio in sample], (low, high))]
        case SmallestStepStatistic():
            return [(_differences(after, before), band) for before, after in pairwise(columns)]
        case SpreadStatistic():
            limit = band[1] or 0.0
            return [(_differences(a, b), (-limit, limit)) for a, b in combinations(columns, 2)]
        case BestAtStatistic():
            inside, outside = _sides(statistic, band, columns)
            best = max(inside, key=middle)
            return [(_differences(best, other), (0.0, None)) for other in outside]
        case _:
            return [(sample, band)]


def _sides(
    statistic: BestAtStatistic, band: Limits, columns: Sequence[list[float]]
) -> tuple[list[list[float]], list[list[float]]]:
    """Return the terms whose places lie inside the band, and those outside it, signed so that the largest is best."""
    sign = 1.0 if statistic.mode == "max" else -1.0
    found: tuple[list[list[float]], list[list[float]]] = ([], [])
    for place, column in zip(statistic.at, columns, strict=True):
        found[not is_inside(place, band)].append([sign * value for value in column])
    return found


def _n_tried(statistic: Statistic, band: Limits) -> int:
    """Return of how many the judged one was chosen as the best: of the terms inside the band, for `best_at`."""
    if not isinstance(statistic, BestAtStatistic):
        return 1
    return sum(is_inside(at, band) for at in statistic.at)


def _differences(of: Sequence[float], minus: Sequence[float]) -> list[float]:
    return [a - b for a, b in zip(of, minus, strict=True)]


def terms_of(statistic: Statistic) -> list[Term]:
    """Return the terms of a statistic, in its order."""
    match statistic:
        case MeanStatistic(of=of):
            return [of]
        case DifferenceStatistic(of=of, minus=other) | RatioStatistic(of=of, over=other):
            return [of, other]
        case _:
            return list(statistic.along)


def measured_by(term: Term) -> list[str]:
    """Return every `arm/measure` that a term is computed from."""
    return [term] if isinstance(term, str) else [term.of, term.minus or term.over or ""]


def values_of(term: Term, rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the values of a term by seed.

    Raises:
        DataError: naming the arms or the measures that there are; or a division by 0.
    """
    if isinstance(term, ChangeTerm):
        of, other = (values_of(one, rows) for one in measured_by(term))
        both = [seed for seed in of if seed in other]
        if term.over is None:
            return {seed: of[seed] - other[seed] for seed in both}
        if zero := [seed for seed in both if other[seed] == 0]:
            raise DataError(f"{term}: the divisor is 0 with seed {zero[0]}")
        return {seed: of[seed] / other[seed] for seed in both}
    arm, _, measure = term.partition("/")
    mine = [row for row in rows if row["arm"] == arm]
    if not mine:
        raise DataError(f"{term!r}: no arm {arm!r}; there are {', '.join(dict.fromkeys(row['arm'] for row in rows))}")
    found = {str(row["seed"]): float(row["values"][measure]) for row in mine if measure in row["values"]}
    if not found:
        names = dict.fromkeys(name for row in mine for name in row["values"])
        raise DataError(f"{term!r}: the arm has no measure {measure!r}; it has {', '.join(names)}")
    return found


def _compute(statistic: Statistic, values: Sequence[float]) -> float:
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
