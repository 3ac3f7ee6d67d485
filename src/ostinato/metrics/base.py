"""The base of all metrics: counts of one output against its reference, and a score as a function of their sum."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import ClassVar

from ostinato.errors import DataError, OstinatoError

Counts = Sequence[float] | Mapping[int, float]
"""The counts of one output in a fixed order; of a metric with very many only those that are not 0, by their place."""


def unit_of(perfect: float) -> float:
    """Return what differences of scores are parts of: a perfect score, or 1 where that is not above 0."""
    return perfect if perfect > 0 else 1.0


class Metric(ABC):
    """A score of a whole set, from counts summed over its examples; larger is better.

    Because only the sum matters, totals do not grow with the set, the order of the updates does not matter, totals
    over two halves add up to those over the whole, and a resampled set is scored from weighted counts
    (`ostinato.metrics.bootstrap`): no score here is a mean of per-batch scores.
    """

    name: str
    """What recipes call it, and its score in results; of a class of the user's own `package.module:Class`."""
    perfect: ClassVar[float] = 1.0
    """The score of outputs that are their references; 0 or less where scores are, as minus a distance is."""

    # Here for classes of the user's own whose `__init__` does not call this one.
    _n = 0
    _totals: Sequence[float] = ()

    def __init__(self) -> None:
        # Empty texts say how many counts there are. A metric whose library or model is missing fails here: training
        # makes every metric before it begins.
        self._totals = [0] * len(self.checked_counts("", "", ""))

    @abstractmethod
    def counts(self, prediction: str, reference: str, source: str = "") -> Counts:
        """Return the counts of one output of the model against the true text; `source` is what the model was given.

        A later example may have more of them than an earlier one, whose missing ones are 0.
        """

    @abstractmethod
    def score(self, totals: Sequence[float]) -> float:
        """Return the score of a set of one or more examples from the sums of their counts.

        Of counts by place they end with the last place that any example has: 0 behind it.
        """

    def signature(self) -> str | None:
        """Return the settings that have to be quoted with a score, for metrics that have such a text."""
        return None

    def update(self, prediction: str, reference: str, source: str = "") -> None:
        """Count one output of the model against the true text.

        Raises:
            As `checked_counts`.
        """
        self._n += 1
        counts = self.checked_counts(prediction, reference, source)
        if isinstance(counts, Mapping):
            counts = [counts.get(place, 0) for place in range(max(counts, default=-1) + 1)]
        self._totals = [total + count for total, count in zip_longest(self._totals, counts, fillvalue=0)]

    def checked_counts(self, prediction: str, reference: str, source: str = "") -> Counts:
        """Return `counts`, whose faults are named.

        Raises:
            DataError: the metric cannot count them, as one of the user's own that has a fault.
        """
        try:
            return self.counts(prediction, reference, source)
        except OstinatoError:
            raise
        except Exception as error:  # whatever the user's code raises: --debug shows where
            raise self._failed(f"the output {prediction!r}", error) from error

    def checked_score(self, totals: Sequence[float]) -> float:
        """Return `score`, whose faults are named, as a number that JSON knows, which one of NumPy is not.

        Raises:
            DataError: the metric has no score for these totals, as one of the user's own that divides by a count of 0.
        """
        try:
            return float(self.score(totals))
        except OstinatoError:
            raise
        except Exception as error:  # as above
            raise self._failed(f"the totals {list(totals)}", error) from error

    def _failed(self, given: str, error: Exception) -> DataError:
        name = getattr(self, "name", type(self).__qualname__)
        return DataError(f"the metric {name} failed on {given} ({type(error).__name__}: {error})")

    def compute(self) -> dict[str, float | str]:
        """Return the score by name, and where it has one its signature; not a number before the first update.

        Raises:
            As `checked_score`.
        """
        result: dict[str, float | str] = {self.name: self.checked_score(self._totals) if self._n else math.nan}
        if (signature := self.signature()) is not None:
            result[f"{self.name}_signature"] = signature
        return result


class Proportion(Metric):
    """A proportion in [0, 1]: the counts are the number of right parts and the number of all parts."""

    def score(self, totals: Sequence[float]) -> float:
        """Return the share that is right; 1 where there are no parts."""
        n_right, n = totals
        return n_right / n if n else 1.0
