from __future__ import annotations

import math

import numpy as np
import pytest

from ostinato.advise.curves import continue_curve, missed


def test_a_power_law_is_continued() -> None:
    points = [(u, 1.0 + 2.0 * u**-0.5) for u in (10, 20, 40, 80, 160)]
    found = continue_curve(points, 640)
    truth = 1.0 + 2.0 * 640**-0.5
    assert abs(found.mean - truth) < 0.04
    assert found.low <= truth <= found.high


def test_a_flat_end_stays() -> None:
    points = [(10, 3.0), (20, 1.0), (40, 0.5), (80, 0.5), (160, 0.5)]
    assert continue_curve(points, 1000).mean == pytest.approx(0.4, abs=0.15)


def test_what_is_further_away_is_less_certain() -> None:
    points = [(10, 2.0), (30, 1.5), (90, 1.3)]
    found = [continue_curve(points, update) for update in (90, 200, 2000)]
    assert [one.high - one.low for one in found] == sorted(one.high - one.low for one in found)


def test_one_point_says_no_more_than_the_spread_of_seeds() -> None:
    found = continue_curve([(50, 0.7)], 500, noise=0.1)
    assert found.mean == 0.7
    assert found.high - found.low == pytest.approx(2 * 1.645 * 0.1)


def test_no_curve_goes_beyond_the_best_value() -> None:
    points = [(30, 2.7), (94, 1.2), (691, 0.09)]
    assert continue_curve(points, 2000).mean < 0
    found = continue_curve(points, 2000, best=0.0)
    assert 0 < found.low < found.mean < found.high < 0.09
    better = continue_curve([(30, 0.2), (94, 0.6), (691, 0.95)], 2000, best=1.0)
    assert 0.95 < better.low < better.mean < better.high < 1


def test_what_is_left_may_be_gained_at_once() -> None:
    points = [(10, 2.3), (31, 2.2)]
    assert continue_curve(points, 100).low > 1.8, "a law does not see that the model has not begun to learn"
    assert continue_curve(points, 100, best=0.0).low < 1.5


def test_what_falls_ever_faster_may_go_on_so() -> None:
    points = [(u, 3 * math.exp(-u / 150)) for u in (30, 92, 300)]
    found = continue_curve(points, 900, best=0.0)
    assert found.low <= 3 * math.exp(-6) <= found.high < points[-1][1] / 2


def test_what_was_missed_before_widens_the_interval_about_the_same_mean() -> None:
    points = [(10, 2.0), (30, 1.5), (90, 1.3)]
    for best in (None, 0.0):
        plain, wide = (continue_curve(points, 270, best=best, drift=drift) for drift in (0.0, 2.0))
        assert wide.mean == plain.mean
        assert wide.low < plain.low < plain.high < wide.high
        assert continue_curve(points, 90, best=best, drift=2.0) == continue_curve(points, 90, best=best)


def test_a_miss_is_by_a_unit_of_the_logarithm_of_updates() -> None:
    flat = [(10, 0.5), (30, 0.5)]
    assert missed(flat, (30 * math.e, 0.4)) == pytest.approx(-0.1)
    assert missed(flat, (30 * math.e**2, 0.4)) == pytest.approx(-0.05)
    assert missed(flat, (30 * math.e, 0.25), best=0.0) == pytest.approx(-math.log(2))
    assert missed(flat, (30 * math.e, 0.75), best=1.0) == pytest.approx(-math.log(2))


def test_at_the_best_value_nothing_is_left() -> None:
    found = continue_curve([(10, 0.9), (30, 1.0)], 100, best=1.0).within(0.0, 1.0)
    assert found.high == 1.0
    # What was missed is then in logarithms, and says nothing of the distance from the best value.
    points = [(10, 0.9), (30, 1.0)]
    assert continue_curve(points, 100, best=1.0, drift=5.0) == continue_curve(points, 100, best=1.0)
    assert missed(points, (100, 1.0), best=1.0) <= 0.0


def test_a_curve_needs_a_point() -> None:
    with pytest.raises(ValueError, match="a curve needs a point"):
        continue_curve([], 10)


def test_nine_of_ten_intervals_hold_the_end_of_noisy_power_laws() -> None:
    draw, hits = np.random.default_rng(0), 0
    for _ in range(200):
        c, a, b = draw.uniform(0, 2), draw.uniform(0.5, 3), draw.uniform(0.2, 1.2)

        def at(u: float, c: float = c, a: float = a, b: float = b) -> float:
            return float(c + a * (u / 20) ** -b + draw.normal(0, 0.02))

        found = continue_curve([(u, at(u)) for u in (20, 60, 200)], 800, noise=0.02)
        hits += found.low <= at(800) <= found.high
    assert hits >= 170
