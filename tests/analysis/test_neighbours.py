from __future__ import annotations

import numpy as np
import pytest

from ostinato.analysis import chance_level, local_neighbourhood_similarity, nearest_neighbours, normalise
from ostinato.errors import DataError


def states(n: int, width: int = 6, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, width))


def brute_force(x: np.ndarray, y: np.ndarray, k: int) -> float:
    def neighbours(rows: np.ndarray, i: int) -> set[int]:
        def distance(j: int) -> float:
            return 1 - float(rows[i] @ rows[j] / np.linalg.norm(rows[i]) / np.linalg.norm(rows[j]))

        return set(sorted((j for j in range(len(rows)) if j != i), key=distance)[:k])

    pairs = [(neighbours(x, i), neighbours(y, i)) for i in range(len(x))]
    return sum(len(a & b) / len(a | b) for a, b in pairs) / len(pairs)


def test_neighbours_are_the_nearest_by_angle_and_never_the_row_itself() -> None:
    rows = [[1.0, 0.0], [100.0, 1.0], [0.0, 1.0], [-1.0, 0.1]]
    assert nearest_neighbours(rows, 1).tolist() == [[1], [0], [3], [2]]
    assert nearest_neighbours(rows, 3).tolist() == [[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]]


@pytest.mark.parametrize("k", [1, 4])
def test_it_is_the_overlap_of_sets_of_neighbours(k: int) -> None:
    x, y = states(30), states(30, seed=1) + states(30)
    assert local_neighbourhood_similarity(x, y, k) == pytest.approx(brute_force(x, y, k))


def test_turning_and_scaling_change_nothing() -> None:
    x = states(50)
    turn, _ = np.linalg.qr(states(6))
    assert local_neighbourhood_similarity(x, 3 * x @ turn) == 1.0


def test_models_that_know_nothing_of_each_other_reach_the_chance_level() -> None:
    n = 600
    pairs = [(states(n, 40, seed), states(n, 40, seed + 100)) for seed in range(6)]
    found = sum(local_neighbourhood_similarity(x, y) for x, y in pairs) / 6
    assert found == pytest.approx(chance_level(n), rel=0.05)
    assert chance_level(2000) == pytest.approx(0.0257, abs=5e-5)


def test_a_k_that_cannot_be_is_refused() -> None:
    with pytest.raises(DataError, match=r"k is 5: must lie in \[1, 4\]"):
        nearest_neighbours(states(5), 5)


def test_modules_are_normalised_before_they_are_averaged() -> None:
    found = normalise([0.4, 0.3], [[0.5, 0.9], [0.3, 0.3]], [0.1, 0.3])
    np.testing.assert_allclose(found.by_module_M, [1.0, 0.5])
    assert found.mean == pytest.approx(0.75)
    assert found.lower == pytest.approx((0.25 + 0.5) / 2)


def test_another_seed_is_one_and_no_untrained_model_no_lower_bound() -> None:
    found = normalise([0.5, 0.7], [[0.5, 0.7]])
    assert (found.mean, found.lower) == (pytest.approx(1.0), None)


def test_seeds_with_other_modules_or_nothing_in_common_are_refused() -> None:
    with pytest.raises(DataError, match="1 modules, but the other seeds have 2"):
        normalise([0.5], [[0.5, 0.5]])
    with pytest.raises(DataError, match="not like the baseline"):
        normalise([0.5], [[0.0]])
