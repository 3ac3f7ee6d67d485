"""Mixtures of data sets: how often each is drawn, by size or more evenly.

    q_g = n_g^(1 / T) / sum_h n_h^(1 / T)        Conneau and Lample (2019), section 3.1, with alpha = 1 / T

of n_g examples of data set g: T = 1 keeps the sizes, a large T draws all sets equally often. An epoch has N rows, as
many as all sets together, N q_g of them (rounded so that the sum is N) from set g: every row of the set
floor(N q_g / n_g) times, and as many different rows as are missing once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import DataError

if TYPE_CHECKING:
    from ostinato.config.data import MixtureConfig


class Mixture:
    """Draws the rows of an epoch.

    Args:
        columns: of every row.

    Raises:
        DataError: a row without the column that names its data set.
    """

    def __init__(self, config: MixtureConfig, columns: Sequence[dict[str, object]]) -> None:
        groups: dict[str, list[int]] = {}
        for number, row in enumerate(columns):
            if config.column not in row:
                there = ", ".join(row) or "none"
                raise DataError(f"row {number + 1} has no column {config.column!r} (data.mixture.column), but {there}")
            groups.setdefault(str(row[config.column]), []).append(number)
        self._groups = {name: np.array(rows) for name, rows in groups.items()}
        self.counts = counts({name: len(rows) for name, rows in groups.items()}, config.temperature)

    def draw(self, generator: np.random.Generator) -> NDArray[np.int64]:
        """Return the row numbers of one epoch, in random order."""
        drawn: list[NDArray[np.int64]] = []
        for name, rows in self._groups.items():
            whole, rest = divmod(self.counts[name], len(rows))
            drawn += [rows] * whole + [generator.permutation(rows)[:rest]]
        return generator.permutation(np.concatenate(drawn))


def counts(sizes: dict[str, int], temperature: float) -> dict[str, int]:
    """Return the number of rows of every data set in an epoch; their sum is the number of all rows.

    Shares are rounded down, and the missing rows go to the sets with the largest remainders.
    """
    total = sum(sizes.values())
    weights = {name: n ** (1.0 / temperature) for name, n in sizes.items()}
    exact = {name: total * weight / sum(weights.values()) for name, weight in weights.items()}
    found = {name: int(share) for name, share in exact.items()}
    by_remainder = sorted(sizes, key=lambda name: (found[name] - exact[name], name))
    for name in by_remainder[: total - sum(found.values())]:
        found[name] += 1
    return found
