"""Bootstrap intervals of scores, and of the difference between two systems on the same references (Koehn 2004).

From a test set of N sentences, N are drawn with replacement, `n_samples` times. Every drawn set is scored like the
real one, from the sums of its sentences' counts (`ostinato.metrics.base.Metric`), and the interval holds the middle
share `level` of those scores:

    interval(f) = [quantile((1 - level) / 2), quantile((1 + level) / 2)] of f(set_1) .. f(set_n_samples)

with f a system's score, or, paired, score(system) - score(reference system) on the SAME drawn sentences, so that the
difficulty of the sentences cancels. The interval covers the choice of test sentences, and not how much a model's score
varies with its training seed. With the same seed, sacreBLEU's `PairedTest` draws the same sets.

Koehn, P. (2004). Statistical significance tests for machine translation evaluation. EMNLP, sections 3 and 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import ConfigError, DataError, Problem
from ostinato.metrics.base import Counts, Metric

if TYPE_CHECKING:
    from scipy.sparse import csr_array

N_SAMPLES, SEED, LEVEL = 1000, 12345, 0.95
"""Defaults; number and seed are sacreBLEU's."""
_FEWEST_SAMPLES = 100
Score = Callable[[Sequence[float]], float]
"""From the summed counts of a set to its score."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value on the real test set with its interval."""

    value: float
    low: float
    high: float

    def as_dict(self) -> dict[str, float]:
        """Return value, low and high."""
        return {"value": self.value, "low": self.low, "high": self.high}


@dataclass(frozen=True, slots=True)
class Compared:
    """One system's score, and by how much it is above the first system's."""

    score: Estimate
    difference: Estimate

    @property
    def verdict(self) -> str:
        """Say "higher" or "lower" where the difference's interval excludes 0, else "no difference shown"."""
        if self.difference.low > 0:
            return "higher"
        return "lower" if self.difference.high < 0 else "no difference shown"


def paired_bootstrap(
    metric: Metric,
    systems: Sequence[Sequence[str]],
    references: Sequence[str],
    sources: Sequence[str] | None = None,
    *,
    n_samples: int = N_SAMPLES,
    seed: int = SEED,
    level: float = LEVEL,
) -> list[Compared]:
    """Return every system's score and difference to the first system, with intervals.

    A system's intervals depend on its own outputs, the first system's, the references and the seed, and not on the
    other systems.

    Args:
        systems: the outputs of each system, in the references' order.
        sources: what the systems were given, for metrics that read it.
        n_samples: number of drawn sets.
        seed: of the draws.
        level: share of the drawn scores inside an interval.

    Raises:
        ConfigError: too few samples, a negative seed, or a level outside (0, 1).
        DataError: a system with another number of outputs than there are references; so few sentences that no
            difference could be told from chance: if all N favour one system, that has a probability of 2^(1 - N); the
            metric cannot count an output, or has no score for a drawn set.
    """
    groups = [[outputs] for outputs in systems]
    return paired_means(metric, groups, references, sources, n_samples=n_samples, seed=seed, level=level)


def paired_means(
    metric: Metric,
    groups: Sequence[Sequence[Sequence[str]]],
    references: Sequence[str],
    sources: Sequence[str] | None = None,
    *,
    n_samples: int = N_SAMPLES,
    seed: int = SEED,
    level: float = LEVEL,
) -> list[Compared]:
    """Return every group's mean score over its systems, and its difference to the first group's, with intervals.

    As `paired_bootstrap`, with the systems of a group (one model, several training seeds) scored on the same drawn
    sentences and their scores averaged. Sentences are drawn, and seeds are not.

    Raises:
        As `paired_bootstrap`.
    """
    n = len(references)
    for number, outputs in enumerate((outputs for group in groups for outputs in group), 1):
        if len(outputs) != n:
            raise DataError(f"system {number} has {len(outputs)} outputs for {n} references")
    given = sources or [""] * n
    counts = [[list(map(metric.checked_counts, outputs, references, given)) for outputs in group] for group in groups]
    return paired_counts(metric.checked_score, counts, n_samples=n_samples, seed=seed, level=level)


def paired_counts(
    score: Score,
    groups: Sequence[Sequence[Sequence[Counts]]],
    *,
    n_samples: int = N_SAMPLES,
    seed: int = SEED,
    level: float = LEVEL,
) -> list[Compared]:
    """Return what `paired_means` does, of a score that is given as counts of every example.

    Args:
        score: of a set, from the sums of its examples' counts. groups: of systems: the counts of every example, in
            one order for all.

    Raises:
        As `paired_bootstrap`.
    """
    _check(n_samples, seed, level)
    counts = [rows for group in groups for rows in group]
    n = len(counts[0])
    if 2.0 ** (1 - n) > 1 - level:
        raise DataError(f"{n} sentences are too few to compare systems at a level of {level:.0%}")
    # A metric may have more counts for later examples; the missing ones of earlier examples are 0.
    n_counts = max(max(_places(row), default=-1) for rows in counts for row in rows) + 1
    tables = [_table(rows, n_counts) for rows in counts]
    generator = np.random.default_rng(seed)
    # One draw serves all systems.
    draws = (np.bincount(generator.integers(n, size=n), minlength=n) for _ in range(n_samples))
    real_S = _scores(score, tables, np.ones(n, dtype=np.int64))
    drawn_BS = np.array([_scores(score, tables, times_N) for times_N in draws])
    ends = np.cumsum([len(group) for group in groups])[:-1]
    real_G = np.array([part.mean() for part in np.split(real_S, ends)])
    drawn_BG = np.stack([part.mean(1) for part in np.split(drawn_BS, ends, axis=1)], 1)
    scores = _estimates(real_G, drawn_BG, level)
    differences = _estimates(real_G - real_G[0], drawn_BG - drawn_BG[:, :1], level)
    return [Compared(score, difference) for score, difference in zip(scores, differences, strict=True)]


def _check(n_samples: int, seed: int, level: float) -> None:
    problems = []
    if n_samples < _FEWEST_SAMPLES:
        problems.append(Problem("n_samples", n_samples, f"must be at least {_FEWEST_SAMPLES}"))
    if seed < 0:
        problems.append(Problem("seed", seed, "must be at least 0"))
    if not 0 < level < 1:
        problems.append(Problem("level", level, "must be above 0 and below 1"))
    if problems:
        raise ConfigError(problems)


def _table(rows: Sequence[Counts], n_counts: int) -> csr_array:
    """Return the counts of a system's examples, [N, K], without the many that are 0 where there is a count by class."""
    from scipy.sparse import csr_array  # takes a second to import

    places = [place for row in rows for place in _places(row)]
    values = [value for row in rows for value in (row.values() if isinstance(row, Mapping) else row)]
    ends = np.cumsum([0, *map(len, rows)])
    return csr_array((values, places, ends), shape=(len(rows), n_counts))


def _places(row: Counts) -> Iterable[int]:
    return row if isinstance(row, Mapping) else range(len(row))


def _scores(score: Score, tables: Sequence[csr_array], times_N: NDArray[Any]) -> NDArray[np.float64]:
    """Return every system's score of a set in which examples occur so many times."""
    return np.array([score((times_N @ table_NK).tolist()) for table_NK in tables], dtype=np.float64)


def _estimates(real_S: NDArray[Any], drawn_BS: NDArray[Any], level: float) -> list[Estimate]:
    low_S, high_S = np.quantile(drawn_BS, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return [Estimate(*map(float, values)) for values in zip(real_S, low_S, high_S, strict=True)]
