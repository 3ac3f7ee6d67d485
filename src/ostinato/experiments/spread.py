"""What repeated timings say together: the ratio of two in the same rounds, and the line through several.

Both come with an interval from the bootstrap over rounds: as many rounds as there are, drawn with replacement, give
the same number anew, many times; the interval holds the middle of what they give. With few rounds it is hardly wider
or narrower than the rounds' own range: read it as a spread, not as a proof.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import correlation, linear_regression, median, quantiles

from ostinato.errors import DataError

_DRAWS = 2000
FEWEST_ROUNDS = 6
"""Rounds below which no difference is claimed: 2^(1 - 6) < 5 %."""
_PARTS = 40
"""Quantiles at every 2.5 %: the first and the last one hold 95 %."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times as fast as a reference, with the interval that holds 95 % of the bootstrap's ratios.

    Args:
        n: rounds it comes from.
    """

    value: float
    low: float
    high: float
    n: int

    @property
    def verdict(self) -> str:
        """Say faster or slower where the interval excludes 1, else that no difference was shown.

        Of fewer than six rounds never: that all of five fall on one side has a probability of 2^-4 by chance alone.
        """
        if self.n < FEWEST_ROUNDS or self.low <= 1 <= self.high:
            return "no difference shown"
        return "faster" if self.low > 1 else "slower"

    def row(self) -> dict[str, float | str]:
        """Return it as JSON."""
        return {**asdict(self), "verdict": self.verdict}


def speed_ratio(seconds: Sequence[float], reference: Sequence[float], seed: int = 1) -> Ratio:
    """Return the median over rounds of reference seconds / own seconds.

    Args:
        seconds, reference: of the same rounds.
        seed: of the bootstrap's draws.

    Raises:
        DataError: no rounds, or different numbers of them.
    """
    if not seconds or len(seconds) != len(reference):
        raise DataError(f"a ratio needs the same rounds of both: {len(seconds)} against {len(reference)}")
    ratios = [theirs / mine for mine, theirs in zip(seconds, reference, strict=True)]
    low, high = _interval(lambda rounds: median(ratios[r] for r in rounds), len(ratios), seed)
    return Ratio(median(ratios), low, high, len(ratios))


@dataclass(frozen=True, slots=True)
class Line:
    """The least-squares line y = intercept + slope x through the medians, and how well it fits them.

    Args:
        r_squared: 1 - (squares left) / (squares about the mean); 1 where y does not vary.
        slope_low, slope_high: hold 95 % of the bootstrap's slopes.
    """

    slope: float
    intercept: float
    r_squared: float
    slope_low: float
    slope_high: float

    def at(self, x: float) -> float:
        """Return the line's value."""
        return self.intercept + self.slope * x


def fit_line(x: Sequence[float], rounds_y: Sequence[Sequence[float]], seed: int = 1) -> Line:
    """Fit a line through the medians of repeated measurements.

    Args:
        x: one value a point, at least two different ones.
        rounds_y: for every x its measurements, the same number of rounds for each.

    Raises:
        DataError: fewer than two different x, or points without the same number of rounds.
    """
    if len(set(x)) < 2:
        raise DataError("a line needs points at two different places or more")
    numbers = {len(y) for y in rounds_y}
    if len(x) != len(rounds_y) or len(numbers) != 1 or 0 in numbers:
        raise DataError(f"a line needs the same rounds at all {len(x)} points; there are {sorted(numbers)}")
    middles = [median(y) for y in rounds_y]
    slope, intercept = linear_regression(x, middles)
    r_squared = correlation(x, middles) ** 2 if len(set(middles)) > 1 else 1.0

    def slope_of(rounds: Sequence[int]) -> float:
        return linear_regression(x, [median(y[r] for r in rounds) for y in rounds_y]).slope

    low, high = _interval(slope_of, numbers.pop(), seed)
    return Line(slope, intercept, r_squared, low, high)


def _interval(statistic: Callable[[Sequence[int]], float], n_rounds: int, seed: int) -> tuple[float, float]:
    """Return what holds 95 % of a statistic over drawn rounds."""
    if n_rounds == 1:
        return statistic([0]), statistic([0])
    generator = random.Random(seed)
    drawn = [statistic(generator.choices(range(n_rounds), k=n_rounds)) for _ in range(_DRAWS)]
    cuts = quantiles(drawn, n=_PARTS, method="inclusive")
    return cuts[0], cuts[-1]
