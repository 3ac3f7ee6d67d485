"""Statistics of claims, against numbers worked out by hand."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter

from ostinato.config.claim import ExpectationConfig
from ostinato.errors import DataError
from ostinato.experiments.claims.statistics import evaluate

ROWS = [
    {"arm": "a", "seed": 1, "values": {"x": 1.0, "t": 4.0}},
    {"arm": "a", "seed": 2, "values": {"x": 3.0, "t": 5.0}},
    {"arm": "a", "seed": 3, "values": {"x": 8.0, "t": 9.0}},
    {"arm": "b", "seed": 1, "values": {"x": 2.0}},
    {"arm": "b", "seed": 2, "values": {"x": 2.0}},
    {"arm": "b", "seed": 3, "values": {"x": 2.0}},
    {"arm": "c", "seed": 1, "values": {"x": 10.0}},
]


def found(statistic: dict, band=(None, 100.0), centre="mean", rows=ROWS):
    expectation = {"what": "it", "statistic": statistic, "band": band}
    return evaluate(TypeAdapter(ExpectationConfig).validate_python(expectation), rows, centre)


def test_a_mean_is_over_seeds_with_their_standard_deviation():
    it = found({"kind": "mean", "of": "a/x"})
    assert it.value == 4
    assert it.by_seed == {"1": 1, "2": 3, "3": 8}
    assert it.sd == pytest.approx(13**0.5)


def test_the_centre_of_rounds_is_their_median():
    assert found({"kind": "mean", "of": "a/x"}, centre="median").value == 3


def test_a_difference_is_paired_by_seed():
    it = found({"kind": "difference", "of": "a/x", "minus": "b/x"})
    assert it.value == 2
    assert it.by_seed == {"1": -1, "2": 1, "3": 6}


def test_a_difference_of_arms_with_other_seeds_is_one_of_means():
    it = found({"kind": "difference", "of": "c/x", "minus": "a/x"})
    assert it.value == 6
    assert it.by_seed == {"1": 9}
    assert it.sd is None


def test_a_ratio_is_the_mean_of_the_seeds_ratios():
    assert found({"kind": "ratio", "of": "a/x", "over": "a/t"}).value == pytest.approx((1 / 4 + 3 / 5 + 8 / 9) / 3)


def test_a_ratio_over_nothing_is_an_error():
    rows = [{"arm": "a", "seed": 1, "values": {"x": 1.0, "zero": 0.0}}]
    with pytest.raises(DataError, match="divisor is 0"):
        found({"kind": "ratio", "of": "a/x", "over": "a/zero"}, rows=rows)


def test_the_smallest_step_is_negative_where_the_order_breaks():
    assert found({"kind": "smallest_step", "along": ["b/x", "a/x", "c/x"]}).value == 2
    assert found({"kind": "smallest_step", "along": ["a/x", "b/x", "c/x"]}).value == -2


def test_the_spread_is_from_the_smallest_to_the_largest():
    assert found({"kind": "spread", "along": ["a/x", "b/x", "c/x"]}).value == 8


@pytest.mark.parametrize(("mode", "at"), [("max", 30), ("min", 20)])
def test_the_best_is_where_it_stands(mode, at):
    statistic = {"kind": "best_at", "along": ["a/x", "b/x", "c/x"], "at": [10.0, 20.0, 30.0], "mode": mode}
    assert found(statistic).value == at


@pytest.mark.parametrize(("figure", "value"), [("slope", 4.0), ("relative_slope", 2.0), ("r_squared", 1.0)])
def test_a_line_goes_through_the_means(figure, value):
    rows = [{"arm": n, "seed": 1, "values": {"s": y}} for n, y in (("p", 2.0), ("q", 6.0), ("r", 14.0))]
    statistic = {"kind": "line", "along": ["p/s", "q/s", "r/s"], "at": [1.0, 2.0, 4.0], "figure": figure}
    assert found(statistic, rows=rows).value == pytest.approx(value)


@pytest.mark.parametrize(
    ("band", "holds"), [((4.0, 4.0), True), ((None, 3.9), False), ((4.1, None), False), ((3.0, 5.0), True)]
)
def test_the_limits_belong_to_the_band(band, holds):
    assert found({"kind": "mean", "of": "a/x"}, band).holds is holds


@pytest.mark.parametrize(
    ("term", "said"), [("d/x", "no arm 'd'; there are a, b, c"), ("b/t", "no measure 't'; it has x")]
)
def test_a_term_that_nobody_measured_names_what_there_is(term, said):
    with pytest.raises(DataError, match=said):
        found({"kind": "mean", "of": term})
