"""Accuracy of groups with its interval, and the Pareto front."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ostinato.analysis import accuracy_by_category, pareto_front, wilson_interval
from ostinato.errors import DataError


def test_the_interval_is_where_the_normal_test_just_does_not_reject() -> None:
    low, high = wilson_interval(7, 10)
    for p in (low, high):
        assert abs(0.7 - p) / math.sqrt(p * (1 - p) / 10) == pytest.approx(1.959964, abs=1e-6)
    assert low < 0.7 < high
    assert wilson_interval(0, 5)[0] == 0.0
    assert wilson_interval(5, 5)[1] == 1.0
    assert wilson_interval(700, 1000)[0] > low


def test_categories_by_hand() -> None:
    found = accuracy_by_category(["b", "a", "b", "b"], [2, 1, 3, 0], [2, 2, 3, 1])
    assert list(found) == ["b", "a"]
    assert (found["b"].n, found["b"].sequences, found["b"].tokens) == (3, 2 / 3, 5 / 6)
    assert (found["a"].n, found["a"].sequences, found["a"].tokens) == (1, 0.0, 0.5)
    assert (found["b"].low, found["b"].high) == wilson_interval(2, 3)


def test_the_order_of_examples_does_not_matter() -> None:
    rng = np.random.default_rng(0)
    categories, right, labels = rng.integers(0, 3, 50), rng.integers(0, 3, 50), rng.integers(3, 6, 50)
    order = rng.permutation(50)
    first = accuracy_by_category(categories.tolist(), right, labels)
    second = accuracy_by_category(categories[order].tolist(), right[order], labels[order])
    assert first == {name: second[name] for name in first}


def test_counts_that_cannot_be_are_refused() -> None:
    with pytest.raises(DataError, match="as many are needed"):
        accuracy_by_category(["a"], [1, 1], [1, 1])
    with pytest.raises(DataError, match="more right labels than labels"):
        accuracy_by_category(["a"], [2], [1])
    with pytest.raises(DataError, match="3 right of 2"):
        wilson_interval(3, 2)


def test_the_front_is_whom_nobody_beats() -> None:
    rng = np.random.default_rng(1)
    costs, qualities = rng.integers(0, 6, 40).astype(float), rng.integers(0, 6, 40).astype(float)

    def beats(j: int, i: int) -> bool:
        no_worse = costs[j] <= costs[i] and qualities[j] >= qualities[i]
        return bool(no_worse and (costs[j], qualities[j]) != (costs[i], qualities[i]))

    expected = [not any(beats(j, i) for j in range(40)) for i in range(40)]
    assert pareto_front(costs, qualities).tolist() == expected
    assert pareto_front(3 * costs + 1, np.exp(qualities)).tolist() == expected


def test_equal_systems_are_both_on_the_front_and_unknown_ones_are_not() -> None:
    assert pareto_front([1, 1, 2], [5, 5, 5]).tolist() == [True, True, False]
    assert pareto_front([1, 2, math.nan], [5, math.nan, 9]).tolist() == [True, False, False]
    with pytest.raises(DataError, match="one of each"):
        pareto_front([1, 2], [1])


def test_the_share_lies_in_its_interval_where_rounding_says_otherwise() -> None:
    for n in (*range(1, 60), 511, 512, 2000):
        for n_right in {0, 1, n // 2, n - 1, n}:
            low, high = wilson_interval(n_right, n)
            assert 0 <= low <= n_right / n <= high <= 1
