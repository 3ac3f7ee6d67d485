"""Mixtures of data sets: how often each is drawn, by size or more evenly.

    q_g = n_g^(1 / T) / sum_h n_h^(1 / T)        Conneau and Lample (2019), section 3.1, with alpha = 1 / T

of n_g examples of data set g: T = 1 keeps the sizes, a large T draws all sets equally often. Where weights w are given,
q_g = w_g / sum_h w_h. An epoch has N rows, as many as all sets together, N q_g of them (rounded so that the sum is N)
from set g: every row of the set floor(N q_g / n_g) times, and as many different rows as are missing once more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import DataError

if TYPE_CHECKING:
    from ostinato.config.data import MixtureConfig
    from ostinato.data.collate import AnyRow


class Mixture:
    """Draws the rows of an epoch.

    Args:
        data_sets: numbers of the rows of each.

    Raises:
        DataError: `config.weights` names other data sets than there are.
    """

    def __init__(self, config: MixtureConfig, data_sets: Mapping[str, NDArray[np.int64]]) -> None:
        self._groups = {name: rows for name, rows in data_sets.items() if len(rows)}
        sizes = {name: len(rows) for name, rows in self._groups.items()}
        if config.weights is not None and config.weights.keys() != sizes.keys():
            given, there = (", ".join(sorted(names)) or "none" for names in (config.weights, sizes))
            raise DataError(f"data.mixture.weights names the data sets {given}, but there are {there}")
        self.counts = counts(sizes, config.temperature, config.weights)

    def draw(self, generator: np.random.Generator) -> NDArray[np.int64]:
        """Return the row numbers of one epoch, in random order."""
        drawn: list[NDArray[np.int64]] = []
        for name, rows in self._groups.items():
            whole, rest = divmod(self.counts[name], len(rows))
            drawn += [rows] * whole + [generator.permutation(rows)[:rest]]
        return generator.permutation(np.concatenate(drawn))


def data_sets_of(config: MixtureConfig, rows: Iterable[AnyRow]) -> dict[str, NDArray[np.int64]]:
    """Return the numbers of the rows of every data set, by their columns.

    Raises:
        DataError: a row without the column that names its data set.
    """
    groups: dict[str, list[int]] = {}
    for number, row in enumerate(rows):
        groups.setdefault(data_set_of(config.column, row.columns, f"row {number + 1}"), []).append(number)
    return {name: np.array(numbers) for name, numbers in groups.items()}


def data_set_of(column: str, columns: Mapping[str, object], where: str) -> str:
    """Return which data set an example is of: what it has in the column.

    Raises:
        DataError: it has no such column; `where` names it.
    """
    if column not in columns:
        raise DataError(f"{where} has no column {column!r} (data.mixture.column), but {', '.join(columns) or 'none'}")
    return str(columns[column])


def counts(sizes: Mapping[str, int], temperature: float, weights: Mapping[str, float] | None = None) -> dict[str, int]:
    """Return the number of rows of every data set in an epoch; their sum is the number of all rows.

    Shares are rounded down, and the missing rows go to the sets with the largest remainders.
    """
    total = sum(sizes.values())
    weights = weights or {name: n ** (1.0 / temperature) for name, n in sizes.items()}
    exact = {name: total * weight / sum(weights.values()) for name, weight in weights.items()}
    found = {name: int(share) for name, share in exact.items()}
    by_remainder = sorted(sizes, key=lambda name: (found[name] - exact[name], name))
    for name in by_remainder[: total - sum(found.values())]:
        found[name] += 1
    return found
