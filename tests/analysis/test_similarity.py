from __future__ import annotations

import numpy as np
import pytest

from ostinato.analysis import (
    CrossCovariance,
    chance_level,
    checkerboard,
    cka_matrix,
    linear_cka,
    local_neighbourhood_similarity,
    nearest_neighbours,
    normalise,
)
from ostinato.errors import DataError


def states(n: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, width)) + 3.0


def by_gram_matrices(x: np.ndarray, y: np.ndarray) -> float:
    """CKA by its definition: the alignment of centred n x n kernels, element by element."""
    n = len(x)
    centre = np.eye(n) - np.ones((n, n)) / n
    k, l = (centre @ (a @ a.T) @ centre for a in (x, y))
    top = sum(k[i, j] * l[i, j] for i in range(n) for j in range(n))
    return float(top / np.sqrt((k**2).sum() * (l**2).sum()))


def test_a_case_by_hand() -> None:
    # Centred: x = (-1, 0, 1), y = (1, -2, 1) / 3 + a part along x: |y^T x|^2 = 1, |x|^2 = 2, |y|^2 = 2/3.
    assert linear_cka([[0.0], [1.0], [2.0]], [[0.0], [0.0], [1.0]]) == pytest.approx(1 / (2 * 2 / 3))


@pytest.mark.parametrize(("n", "widths"), [(12, (3, 5)), (6, (9, 4))])
def test_it_is_the_alignment_of_centred_kernels(n: int, widths: tuple[int, int]) -> None:
    x, y = states(n, widths[0]), states(n, widths[1], 1)
    assert linear_cka(x, y) == pytest.approx(by_gram_matrices(x, y), abs=1e-12)


def test_turning_scaling_and_moving_change_nothing_and_scaling_one_column_does() -> None:
    x, y = states(40, 5), states(40, 7, 1)
    turn, _ = np.linalg.qr(np.random.default_rng(2).normal(size=(7, 7)))
    value = linear_cka(x, y)
    assert linear_cka(x, -2.5 * y @ turn + 4.0) == pytest.approx(value, abs=1e-12)
    assert linear_cka(y, x) == pytest.approx(value, abs=1e-12)
    assert linear_cka(x, x) == pytest.approx(1.0, abs=1e-12)
    assert abs(linear_cka(x * [9, 1, 1, 1, 1], y) - value) > 1e-3


@pytest.mark.parametrize("size", [1, 7, 40])
def test_batches_of_any_size_give_the_exact_value_of_all_rows(size: int) -> None:
    x, y = states(40, 5) + 1e6, states(40, 7, 1) - 1e6
    sums = CrossCovariance()
    for start in range(0, 40, size):
        sums.add(x[start : start + size], y[start : start + size])
    assert sums.n == 40
    assert sums.cka() == pytest.approx(linear_cka(x, y), rel=1e-9)


def test_the_matrix_holds_every_pair() -> None:
    modules, others = [states(20, 3 + i, i) for i in range(3)], [states(20, 4, 9)]
    found = cka_matrix(modules)
    np.testing.assert_allclose(found, [[linear_cka(x, y) for y in modules] for x in modules], atol=1e-12)
    assert cka_matrix(modules, others).shape == (3, 1)
    assert cka_matrix(modules, others)[2, 0] == pytest.approx(linear_cka(modules[2], others[0]))


def test_states_that_do_not_vary_have_no_cka() -> None:
    assert np.isnan(linear_cka(np.full((5, 2), 0.1), states(5, 2)))
    assert np.isnan(CrossCovariance().cka())


def test_the_checkerboard_is_second_neighbours_less_first() -> None:
    board = [[1.0 if (i + j) % 2 == 0 else 0.25 for j in range(4)] for i in range(4)]
    assert checkerboard(board) == pytest.approx(0.75)
    assert checkerboard(np.exp(-abs(np.subtract.outer(range(5), range(5))))) == pytest.approx(np.exp(-2) - np.exp(-1))
    assert np.isnan(checkerboard(np.eye(2)))


def test_rows_that_do_not_belong_together_are_named() -> None:
    with pytest.raises(DataError, match="x has 3, y has 4"):
        linear_cka(states(3, 2), states(4, 2))
    with pytest.raises(DataError, match="not finite"):
        linear_cka([[np.nan]], [[1.0]])
    sums = CrossCovariance()
    sums.add(states(3, 2), states(3, 2))
    with pytest.raises(DataError, match=r"widths 3 and 1.*\(2, 2\)"):
        sums.add(states(3, 3), states(3, 1))


def centred_states(n: int, width: int = 6, seed: int = 0) -> np.ndarray:
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
    x, y = centred_states(30), centred_states(30, seed=1) + centred_states(30)
    assert local_neighbourhood_similarity(x, y, k) == pytest.approx(brute_force(x, y, k))


def test_turning_and_scaling_change_nothing() -> None:
    x = centred_states(50)
    turn, _ = np.linalg.qr(centred_states(6))
    assert local_neighbourhood_similarity(x, 3 * x @ turn) == 1.0


def test_models_that_know_nothing_of_each_other_reach_the_chance_level() -> None:
    n = 600
    pairs = [(centred_states(n, 40, seed), centred_states(n, 40, seed + 100)) for seed in range(6)]
    found = sum(local_neighbourhood_similarity(x, y) for x, y in pairs) / 6
    assert found == pytest.approx(chance_level(n), rel=0.05)
    assert chance_level(2000) == pytest.approx(0.0257, abs=5e-5)


def test_a_k_that_cannot_be_is_refused() -> None:
    with pytest.raises(DataError, match=r"k is 5: must lie in \[1, 4\]"):
        nearest_neighbours(centred_states(5), 5)


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
