"""Accuracy of groups of examples, and the Pareto front of systems.

Wilson's interval of k right ones among n:
    (k + z^2 / 2 +- z sqrt(k (n - k) / n + z^2 / 4)) / (n + z^2),   z = 1.96 for 95 %
a system is on the Pareto front where no other is at least as good and at most as dear, and better in one of both
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ostinato.analysis.arrays import Bools
from ostinato.errors import DataError


@dataclass(frozen=True, slots=True)
class GroupAccuracy:
    """Accuracy of the examples of one category.

    Args:
        n: examples. sequences: share with every label right, `low` and `high` its 95 % interval. tokens: share of the
            labels that are right.
    """

    n: int
    sequences: float
    low: float
    high: float
    tokens: float


def wilson_interval(n_right: int, n: int) -> tuple[float, float]:
    """Return the 95 % interval of the share of right ones (Wilson 1927), which stays within [0, 1].

    Raises:
        DataError: nothing was counted, or more right ones than there are.
    """
    if not 0 <= n_right <= n or not n:
        raise DataError(f"{n_right} right of {n}: at least one is needed, and no more right than there are")
    from scipy.stats import binomtest  # takes a second to import

    found = binomtest(n_right, n).proportion_ci(0.95, method="wilson")
    return float(found.low), float(found.high)


def accuracy_by_category(
    categories: Sequence[Hashable], right_N: ArrayLike, labels_N: ArrayLike
) -> dict[Hashable, GroupAccuracy]:
    """Return the accuracy of every category, in the order they first come.

    Args:
        categories: of every example. right_N, labels_N: its labels that are right, and all of them.

    Raises:
        DataError: not as many of each, or more right labels than labels.
    """
    right, labels = np.asarray(right_N, dtype=np.int64), np.asarray(labels_N, dtype=np.int64)
    if not len(categories) == len(right) == len(labels):
        raise DataError(f"{len(categories)} categories, {len(right)} and {len(labels)} counts: as many are needed")
    if (right > labels).any() or (right < 0).any():
        raise DataError("an example has more right labels than labels, or fewer than none")
    places: dict[Hashable, list[int]] = {}
    for i, category in enumerate(categories):
        places.setdefault(category, []).append(i)
    found = {}
    for category, mine in places.items():
        n, n_labels = len(mine), int(labels[mine].sum())
        n_whole = int(((right[mine] == labels[mine]) & (labels[mine] > 0)).sum())
        of_labels = right[mine].sum() / n_labels if n_labels else np.nan
        found[category] = GroupAccuracy(n, n_whole / n, *wilson_interval(n_whole, n), of_labels)
    return found


def pareto_front(costs_R: ArrayLike, qualities_R: ArrayLike) -> Bools:
    """Return which systems are on the front, `[R]`: equal ones all are, one whose number is NaN is not.

    Args:
        costs_R: less is better. qualities_R: more is better.

    Raises:
        DataError: not as many of each.
    """
    costs, qualities = np.asarray(costs_R, dtype=np.float64), np.asarray(qualities_R, dtype=np.float64)
    if costs.shape != qualities.shape or costs.ndim != 1:
        raise DataError(f"{costs.shape} costs and {qualities.shape} qualities: one of each is needed for every system")
    no_worse = (costs[None] <= costs[:, None]) & (qualities[None] >= qualities[:, None])
    better = (costs[None] < costs[:, None]) | (qualities[None] > qualities[:, None])
    return ~(no_worse & better).any(1) & np.isfinite(costs) & np.isfinite(qualities)
