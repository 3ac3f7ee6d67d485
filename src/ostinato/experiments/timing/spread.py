"""The ratio of two timings of the same rounds, with an interval.

The interval is from the bootstrap over rounds: as many rounds as there are, drawn with replacement, give the ratio
anew, many times; the interval holds the middle 95 % of these. With few rounds it is hardly wider or narrower than the
rounds' own range: read it as a spread, not as a proof.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median, quantiles

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


def speed_ratio(seconds: Sequence[float], reference: Sequence[float]) -> Ratio:
    """Return the median over rounds of reference seconds / own seconds.

    Args:
        seconds, reference: of the same rounds.

    Raises:
        DataError: no rounds, or different numbers of them.
    """
    if not seconds or len(seconds) != len(reference):
        raise DataError(f"a ratio needs the same rounds of both: {len(seconds)} against {len(reference)}")
    ratios = [theirs / mine for mine, theirs in zip(seconds, reference, strict=True)]
    low, high = bootstrap_interval(lambda rounds: median(ratios[r] for r in rounds), len(ratios), seed=1)
    return Ratio(median(ratios), low, high, len(ratios))


def bootstrap_interval(statistic: Callable[[Sequence[int]], float], n_rounds: int, seed: int) -> tuple[float, float]:
    """Return the interval that holds 95 % of a statistic over drawn rounds; `statistic` gets the rounds' numbers."""
    if n_rounds == 1:
        return statistic([0]), statistic([0])
    generator = random.Random(seed)
    drawn = [statistic(generator.choices(range(n_rounds), k=n_rounds)) for _ in range(_DRAWS)]
    cuts = quantiles(drawn, n=_PARTS, method="inclusive")
    return cuts[0], cuts[-1]
