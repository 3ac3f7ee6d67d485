"""What a metric is: running totals over predictions and references."""

from __future__ import annotations

from abc import ABC, abstractmethod


class Metric(ABC):
    """A score of a whole set, from totals that do not grow with it.

    The order of the updates does not matter, and totals over two halves add up to those over the whole: no score here
    is a mean of per-batch scores.
    """

    @abstractmethod
    def update(self, prediction: str, reference: str) -> None:
        """Count one output of the model against the true text."""

    @abstractmethod
    def compute(self) -> dict[str, float | str]:
        """Return the score by name, and where it has one its signature; not a number before the first update."""
