from __future__ import annotations

import numpy as np
import pytest

from ostinato.analysis import cumulative_share, effective_rank, excess_area, singular_values
from ostinato.errors import DataError


def test_singular_values_are_those_of_the_gram_matrix() -> None:
    weight = np.random.default_rng(0).normal(size=(4, 7))
    expected = np.sqrt(np.linalg.eigvalsh(weight @ weight.T))[::-1]
    np.testing.assert_allclose(singular_values(weight), expected)
    np.testing.assert_allclose(singular_values(weight.T), expected)


def test_a_case_by_hand() -> None:
    values = singular_values(np.diag([1.0, 3.0, 0.0, 4.0]))
    np.testing.assert_allclose(cumulative_share(values), [0.5, 0.875, 1.0, 1.0])
    assert effective_rank([1.0, 1.0, 2.0]) == pytest.approx(2**1.5)
    assert excess_area([1.0, 0.0]) == pytest.approx(0.25)


def test_equal_values_use_every_direction_and_a_single_one_uses_one() -> None:
    turn, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(6, 6)))
    even = singular_values(5 * turn)
    assert effective_rank(even) == pytest.approx(6.0)
    assert excess_area(even) == pytest.approx(0.0, abs=1e-12)
    outer = singular_values(np.outer([1.0, 2.0, 3.0], [1.0, 1.0]))
    assert effective_rank(outer) == pytest.approx(1.0, abs=1e-10)


def test_scale_changes_nothing() -> None:
    values = np.random.default_rng(0).random(5)
    assert effective_rank(7 * values) == pytest.approx(effective_rank(values))
    assert excess_area(7 * values) == pytest.approx(excess_area(values))


@pytest.mark.parametrize("values", [[0.0, 0.0], [-1.0, 2.0], []])
def test_what_has_no_shares_is_refused(values: list[float]) -> None:
    with pytest.raises(DataError, match="not all 0"):
        cumulative_share(values)
