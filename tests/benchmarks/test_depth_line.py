from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest

from ostinato.errors import DataError


def test_a_line_is_numpys_least_squares_through_the_medians(script: Callable[[str], ModuleType]) -> None:
    generator = np.random.default_rng(3)
    x = [1.0, 2.0, 4.0, 7.0, 12.0]
    rounds = [[0.3 + 0.05 * n + 0.02 * float(e) for e in generator.standard_normal(5)] for n in x]
    y = np.median(np.array(rounds), axis=1)
    slope, intercept = np.polyfit(x, y, 1)
    line = script("depth_line").fit_line(x, rounds)
    assert line.slope == pytest.approx(slope)
    assert line.intercept == pytest.approx(intercept)
    left = y - np.polyval([slope, intercept], x)
    assert line.r_squared == pytest.approx(1 - (left @ left) / ((y - y.mean()) @ (y - y.mean())))
    assert line.slope_low < line.slope < line.slope_high
    assert line.at(3.0) == pytest.approx(np.polyval([slope, intercept], 3.0))


def test_points_on_a_line_fit_it_whole(script: Callable[[str], ModuleType]) -> None:
    line = script("depth_line").fit_line([1, 2, 3], [[3.0], [5.0], [7.0]])
    assert (line.slope, line.intercept, line.r_squared) == pytest.approx((2.0, 1.0, 1.0))
    assert (line.slope_low, line.slope_high) == pytest.approx((2.0, 2.0))
    assert script("depth_line").fit_line([1, 2], [[3.0], [3.0]]).r_squared == 1.0


@pytest.mark.parametrize(
    ("x", "rounds"), [([1, 1], [[1.0], [2.0]]), ([1, 2], [[1.0], [2.0, 3.0]]), ([1, 2], [[], []]), ([1, 2], [[1.0]])]
)
def test_a_line_that_cannot_be_fitted_is_a_named_error(
    script: Callable[[str], ModuleType], x: list[float], rounds: list[list[float]]
) -> None:
    with pytest.raises(DataError, match="a line needs"):
        script("depth_line").fit_line(x, rounds)
