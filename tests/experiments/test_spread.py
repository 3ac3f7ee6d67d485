from __future__ import annotations

import numpy as np
import pytest

from ostinato.errors import DataError
from ostinato.experiments.spread import fit_line, speed_ratio


def test_a_ratio_is_the_median_over_the_same_rounds() -> None:
    # The second round was slow for both: its ratio is like the others'.
    ratio = speed_ratio([1.0, 4.0, 1.0], [2.0, 8.4, 2.2])
    assert ratio.value == pytest.approx(2.1)
    assert 2.0 <= ratio.low <= ratio.value <= ratio.high <= 2.2


def test_a_difference_is_claimed_where_the_interval_excludes_one_and_six_rounds_agree() -> None:
    assert speed_ratio([1.0] * 6, [1.1] * 5 + [1.2]).verdict == "faster"
    assert speed_ratio([1.0] * 6, [0.9] * 6).verdict == "slower"
    assert speed_ratio([1.0] * 6, [0.9, 1.0, 1.1] * 2).verdict == "no difference shown"
    assert speed_ratio([1.0] * 5, [2.0] * 5).verdict == "no difference shown"


def test_a_ratio_interval_agrees_with_the_exact_bootstrap_of_three_rounds() -> None:
    ratios = [0.8, 1.0, 1.3]
    drawn = [sorted((a, b, c))[1] for a in ratios for b in ratios for c in ratios]
    low, high = np.quantile(drawn, [0.025, 0.975])
    found = speed_ratio([1.0] * 3, ratios)
    assert (found.low, found.high) == (low, high) == (0.8, 1.3)


def test_a_ratio_needs_the_same_rounds() -> None:
    with pytest.raises(DataError, match="2 against 1"):
        speed_ratio([1.0, 2.0], [1.0])
    with pytest.raises(DataError, match="0 against 0"):
        speed_ratio([], [])


def test_a_line_is_numpys_least_squares_through_the_medians() -> None:
    generator = np.random.default_rng(3)
    x = [1.0, 2.0, 4.0, 7.0, 12.0]
    rounds = [[0.3 + 0.05 * n + 0.02 * float(e) for e in generator.standard_normal(5)] for n in x]
    y = np.median(np.array(rounds), axis=1)
    slope, intercept = np.polyfit(x, y, 1)
    line = fit_line(x, rounds)
    assert line.slope == pytest.approx(slope)
    assert line.intercept == pytest.approx(intercept)
    left = y - np.polyval([slope, intercept], x)
    assert line.r_squared == pytest.approx(1 - (left @ left) / ((y - y.mean()) @ (y - y.mean())))
    assert line.slope_low < line.slope < line.slope_high
    assert line.at(3.0) == pytest.approx(np.polyval([slope, intercept], 3.0))


def test_points_on_a_line_fit_it_whole() -> None:
    line = fit_line([1, 2, 3], [[3.0], [5.0], [7.0]])
    assert (line.slope, line.intercept, line.r_squared) == pytest.approx((2.0, 1.0, 1.0))
    assert (line.slope_low, line.slope_high) == pytest.approx((2.0, 2.0))
    assert fit_line([1, 2], [[3.0], [3.0]]).r_squared == 1.0


@pytest.mark.parametrize(
    ("x", "rounds"), [([1, 1], [[1.0], [2.0]]), ([1, 2], [[1.0], [2.0, 3.0]]), ([1, 2], [[], []]), ([1, 2], [[1.0]])]
)
def test_a_line_that_cannot_be_fitted_is_a_named_error(x: list[float], rounds: list[list[float]]) -> None:
    with pytest.raises(DataError, match="a line needs"):
        fit_line(x, rounds)
