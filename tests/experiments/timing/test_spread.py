from __future__ import annotations

import numpy as np
import pytest

from ostinato.errors import DataError
from ostinato.experiments.timing.spread import speed_ratio


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
