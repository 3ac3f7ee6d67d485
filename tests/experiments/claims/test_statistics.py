"""Numbers of claims: against numbers worked out by hand, and their verdicts against truths that are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from ostinato.config.claim import ExpectationConfig
from ostinato.errors import DataError
from ostinato.experiments.claims.statistics import Found, claim_verdict, find
from ostinato.experiments.inference import ALPHA, holm, is_inside, judge, seeds_needed, verdict

ROWS = [
    {"arm": "a", "seed": 1, "values": {"x": 1.0, "t": 4.0}},
    {"arm": "a", "seed": 2, "values": {"x": 3.0, "t": 5.0}},
    {"arm": "a", "seed": 3, "values": {"x": 8.0, "t": 9.0}},
    {"arm": "b", "seed": 1, "values": {"x": 2.0}},
    {"arm": "b", "seed": 2, "values": {"x": 2.0}},
    {"arm": "b", "seed": 3, "values": {"x": 2.0}},
    {"arm": "c", "seed": 1, "values": {"x": 10.0}},
    {"arm": "d", "seed": 4, "values": {"x": 1.0}},
]


def number(statistic: dict, band=(None, 100.0), sampling="seeds", rows=ROWS) -> Found:
    expectation = ExpectationConfig.model_validate(
        {"what": "it", "unit": "points", "statistic": statistic, "band": band}
    )
    (found,) = find([expectation], rows, sampling)
    return found


def arms(**by_arm: list[float]) -> list[dict]:
    """Rows of one measure "s"; the places in the lists are the seeds."""
    return [
        {"arm": arm, "seed": seed, "values": {"s": value}}
        for arm, xs in by_arm.items()
        for seed, value in enumerate(xs)
    ]


def test_a_mean_is_over_seeds_with_its_interval_by_students_t():
    it = number({"kind": "mean", "of": "a/x"})
    assert it.value == 4
    assert it.by_seed == {"1": 1, "2": 3, "3": 8}
    half = stats.t.ppf(0.975, 2) * 13**0.5 / 3**0.5
    assert (it.low, it.high) == pytest.approx((4 - half, 4 + half))


def test_rounds_have_a_median_with_the_interval_of_the_sign_test():
    rounds = arms(a=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 100.0])
    it = number({"kind": "mean", "of": "a/s"}, (1.5, None), "rounds", rounds)
    # 2 and 9 are the second from either end: outside lie 2 * 11 of 1,024 ways to toss ten coins.
    assert (it.value, it.low, it.high) == (5.5, 2.0, 9.0)
    assert it.p_supported == pytest.approx(11 / 1024)
    assert it.verdict == "supported"


def test_a_difference_is_paired_by_seed():
    it = number({"kind": "difference", "of": "a/x", "minus": "b/x"})
    assert it.value == 2
    assert it.by_seed == {"1": -1, "2": 1, "3": 6}


def test_only_the_seeds_that_all_terms_have_count_and_there_must_be_one():
    it = number({"kind": "difference", "of": "c/x", "minus": "a/x"}, (0.0, None))
    assert (it.value, it.by_seed, it.verdict) == (9, {"1": 9}, "inconclusive")
    with pytest.raises(DataError, match="a/x, d/x have no seed in common"):
        number({"kind": "difference", "of": "a/x", "minus": "d/x"})


def test_a_ratio_is_judged_by_its_logarithm():
    it = number({"kind": "ratio", "of": "a/x", "over": "a/t"})
    logs = [math.log(1 / 4), math.log(3 / 5), math.log(8 / 9)]
    assert it.value == pytest.approx(math.exp(sum(logs) / 3))
    half = stats.t.ppf(0.975, 2) * np.std(logs, ddof=1) / 3**0.5
    assert it.high == pytest.approx(math.exp(sum(logs) / 3 + half))


@pytest.mark.parametrize(("value", "said"), [(0.0, "divisor is 0"), (-1.0, "must be positive")])
def test_a_ratio_over_nothing_or_less_is_an_error(value, said):
    rows = [{"arm": "a", "seed": 1, "values": {"x": 1.0, "y": value}}]
    with pytest.raises(DataError, match=said):
        number({"kind": "ratio", "of": "a/x", "over": "a/y"}, rows=rows)


RISING = arms(p=[1.0, 1.1, 0.9], q=[2.0, 2.2, 1.9], r=[3.0, 3.3, 3.1])
ORDER = {"kind": "smallest_step", "along": ["p/s", "q/s", "r/s"]}


def test_an_order_is_supported_where_every_step_is_and_contradicted_where_one_is():
    it = number(ORDER, (0.5, None), rows=RISING)
    assert it.value == pytest.approx(1.0333, abs=1e-3)
    assert it.verdict == "supported"
    assert number(ORDER, (1.0, None), rows=RISING).verdict == "inconclusive"
    assert number(ORDER, (1.5, None), rows=RISING).verdict == "contradicted"
    backwards = {"kind": "smallest_step", "along": ["p/s", "r/s", "q/s"]}
    assert number(backwards, (0.1, None), rows=RISING).value == pytest.approx(-1.1, abs=1e-3)
    assert number(backwards, (0.1, None), rows=RISING).verdict == "contradicted"


def test_a_spread_is_small_where_every_pair_is_shown_to_be_close():
    alike = arms(p=[1.0, 1.1, 0.9], q=[1.01, 1.1, 0.91], r=[1.0, 1.12, 0.9])
    spread = {"kind": "spread", "along": ["p/s", "q/s", "r/s"]}
    it = number(spread, (0.0, 0.1), rows=alike)
    assert it.value == pytest.approx(0.006667, abs=1e-5)
    assert it.verdict == "supported"
    assert number(spread, (0.0, 0.01), rows=alike).verdict == "inconclusive"
    assert number(spread, (0.0, 0.5), rows=RISING).verdict == "contradicted"


@pytest.mark.parametrize("along", [["p/s", "q/s"], ["q/s", "p/s"]])
def test_a_spread_of_two_terms_is_the_larger_minus_the_smaller(along):
    it = number({"kind": "spread", "along": along}, (0.0, 0.5), rows=RISING)
    assert it.value == pytest.approx(1.0333, abs=1e-3)
    assert it.by_seed == pytest.approx({"0": 1.0, "1": 1.1, "2": 1.0})
    assert it.low < it.value < it.high
    assert it.verdict == "contradicted"


@pytest.mark.parametrize("along", [["p/s", "q/s", "r/s"], ["r/s", "q/s", "p/s"]])
def test_the_interval_of_a_spread_does_not_depend_on_the_order_of_the_terms(along):
    it = number({"kind": "spread", "along": along}, (None, 0.5), rows=RISING)
    half = stats.t.ppf(0.975, 2) * np.std([2.0, 2.2, 2.2], ddof=1) / 3**0.5
    assert (it.low, it.high) == pytest.approx((6.4 / 3 - half, 6.4 / 3 + half))


@pytest.mark.parametrize(("kind", "value"), [("spread", 3.0), ("smallest_step", -3.0)])
def test_what_is_counted_of_several_parts_is_exact_too(kind, value):
    counted = arms(a=[4.0], b=[5.0], c=[2.0])
    it = number({"kind": kind, "along": ["a/s", "b/s", "c/s"]}, (None, 4.0), "exact", counted)
    assert (it.value, it.low, it.high) == (value, value, value)


@pytest.mark.parametrize(("mode", "at"), [("max", 30), ("min", 10)])
def test_the_best_is_where_it_is_shown_to_beat_all_outside(mode, at):
    best = {"kind": "best_at", "along": ["p/s", "q/s", "r/s"], "at": [10.0, 20.0, 30.0], "mode": mode}
    it = number(best, (at, at), rows=RISING)
    assert (it.value, it.low, it.high) == (at, None, None), "the interval would be of scores, not of places"
    assert number(best, (at, at), rows=RISING).verdict == "supported"
    assert number(best, (20.0, 20.0), rows=RISING).verdict == "contradicted"


@pytest.mark.parametrize(("figure", "value"), [("slope", 4.0), ("relative_slope", 2.0), ("r_squared", 1.0)])
def test_a_line_goes_through_the_terms(figure, value):
    line = {"kind": "line", "along": ["p/s", "q/s", "r/s"], "at": [1.0, 2.0, 4.0], "figure": figure}
    assert number(line, rows=arms(p=[2.0], q=[6.0], r=[14.0])).value == pytest.approx(value)


@pytest.mark.parametrize(
    ("band", "said"), [((4.0, 4.0), "supported"), ((None, 3.9), "contradicted"), ((4.1, None), "contradicted")]
)
def test_what_is_counted_is_exact_and_the_limits_belong_to_the_band(band, said):
    assert number({"kind": "mean", "of": "a/s"}, band, "exact", arms(a=[4.0])).verdict == said


def test_no_sample_shows_that_a_number_is_one_point():
    assert number({"kind": "mean", "of": "a/s"}, (4.0, 4.0), rows=arms(a=[3.99, 4.0, 4.01])).verdict == "inconclusive"
    assert number({"kind": "mean", "of": "a/s"}, (4.0, 4.0), rows=arms(a=[8.9, 9.0, 9.1])).verdict == "contradicted"


def test_one_seed_or_seeds_at_a_floor_say_nothing():
    for seeds in ([5.0], [5.0, 5.0, 5.0]):
        it = number({"kind": "mean", "of": "a/s"}, (0.0, None), rows=arms(a=seeds))
        assert (it.low, it.high, it.verdict, it.seeds_needed) == (None, None, "inconclusive", None)


@pytest.mark.parametrize(
    ("term", "said"), [("e/x", "no arm 'e'; there are a, b, c, d"), ("b/t", "no measure 't'; it has x")]
)
def test_a_term_that_nobody_measured_names_what_there_is(term, said):
    with pytest.raises(DataError, match=said):
        number({"kind": "mean", "of": term})


def test_the_p_values_of_a_claim_are_corrected_by_holm():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    rows = arms(a=[1.0, 1.2, 1.1], b=[1.0, 1.6, 1.3])
    expectations = [
        ExpectationConfig.model_validate(
            {"what": arm, "unit": "points", "statistic": {"kind": "mean", "of": f"{arm}/s"}, "band": band}
        )
        for arm, band in (("a", (0.5, None)), ("b", (0.4, None)))
    ]
    alone = [find([one], rows)[0] for one in expectations]
    together = find(expectations, rows)
    assert [one.verdict for one in alone] == ["supported", "supported"]
    assert together[0].p_supported == pytest.approx(2 * alone[0].p_supported)
    assert together[1].p_supported == alone[1].p_supported
    assert claim_verdict(together) == "supported"
    assert claim_verdict([together[0], number(ORDER, (1.5, None), rows=RISING)]) == "contradicted"
    assert claim_verdict([together[0], number(ORDER, (1.0, None), rows=RISING)]) == "inconclusive"


N_SIMULATED = 2000


def share(said: str, n_seeds: int, mean: float, band, sd: float = 1.0) -> float:
    """How often simulated claims of a known truth get a verdict."""
    draws = np.random.default_rng(7).normal(mean, sd, (N_SIMULATED, n_seeds))
    judged = (judge(sample, band) for sample in draws)
    return sum(verdict(one.p_supported, one.p_contradicted) == said for one in judged) / N_SIMULATED


@pytest.mark.slow
@pytest.mark.parametrize("n_seeds", [3, 5])
@pytest.mark.parametrize("band", [(2.0, None), (None, -2.0), (2.0, 30.0), (-30.0, 2.0)])
def test_an_effect_at_the_threshold_is_supported_or_contradicted_as_rarely_as_promised(n_seeds, band):
    most = 2 * ALPHA + 2 * (2 * ALPHA * (1 - 2 * ALPHA) / N_SIMULATED) ** 0.5
    at = band[1] if band[1] is not None and abs(band[1]) == 2 else band[0]
    for said in ("supported", "contradicted"):
        assert share(said, n_seeds, at, band) <= most / 2 + 0.005


@pytest.mark.slow
def test_no_loss_is_only_supported_where_a_loss_of_the_margin_is_excluded():
    margin = (-1.0, 1.0)
    assert share("supported", 5, 1.0, margin, sd=0.3) <= ALPHA + 2 * (ALPHA * (1 - ALPHA) / N_SIMULATED) ** 0.5
    assert share("supported", 5, 0.0, margin, sd=0.3) > 0.9
    assert share("supported", 5, 0.0, margin, sd=3.0) < 0.05
    assert share("contradicted", 5, 3.0, margin, sd=0.3) > 0.9


@pytest.mark.parametrize(
    "n_seeds", [pytest.param(4, marks=pytest.mark.slow), pytest.param(6, marks=pytest.mark.slow), 9]
)
def test_the_seeds_that_would_decide_do_so_with_the_power_that_is_promised(n_seeds):
    # A sample with this mean and spread: choose the distance for which n_seeds are said to be enough.
    sample = np.array([-1.0, 0.0, 1.0])
    distance = next(d for d in np.arange(0.5, 6, 0.01) if seeds_needed(sample + d, (0.0, None)) == n_seeds)
    power = share("supported", n_seeds, distance, (0.0, None))
    below = share("supported", n_seeds - 1, distance, (0.0, None))
    error = 2 * (0.8 * 0.2 / N_SIMULATED) ** 0.5
    assert power >= 0.8 - error
    assert below < 0.8 + error
    assert seeds_needed([1.0, 1.0, 1.0], (0.0, None)) is None
    assert seeds_needed([1.0, 1.001, 0.5], (0.834, None)) is None


def numbers(samples: list[np.ndarray], bands: list) -> list[Found]:
    """The numbers of one claim, each the mean of a sample."""
    expectations = [
        ExpectationConfig.model_validate(
            {"what": str(i), "unit": "", "statistic": {"kind": "mean", "of": f"{i}/s"}, "band": band}
        )
        for i, band in enumerate(bands)
    ]
    return find(expectations, arms(**{str(i): list(sample) for i, sample in enumerate(samples)}))


def decided(n_seeds: int, effects: list[float], bands: list) -> list[float]:
    """How often each number of a claim gets the verdict that is true, with a spread of 1."""
    draws = np.random.default_rng(11).normal(size=(N_SIMULATED, n_seeds, len(effects))) + effects
    count = np.zeros(len(effects))
    for seeds in draws:
        judged = [judge(sample, band) for sample, band in zip(seeds.T, bands, strict=True)]
        corrected = [holm([getattr(one, kind) for one in judged]) for kind in ("p_supported", "p_contradicted")]
        true = ["supported" if is_inside(*pair) else "contradicted" for pair in zip(effects, bands, strict=True)]
        count += [verdict(*pair) == said for *pair, said in zip(*corrected, true, strict=True)]
    return list(count / N_SIMULATED)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("effects", "bands"),
    [
        ([1.0, 1.0, 1.0], [(0.1, None)] * 3),
        ([3.0, 0.9], [(0.1, None)] * 2),  # one far harder than the other
        ([0.0, 1.0], [(-0.9, 0.9), (0.1, None)]),
        ([0.0, 1.0], [(0.9, 2.5), (0.1, None)]),  # one is contradicted
    ],
)
def test_the_seeds_that_would_decide_know_of_the_correction_for_all_numbers_of_a_claim(effects, bands):
    exact = [effect + np.array([-1.0, 0.0, 1.0]) for effect in effects]  # mean and spread are the true ones
    needed = [one.seeds_needed for one in numbers(exact, bands)]
    alone = [seeds_needed(sample, band) for sample, band in zip(exact, bands, strict=True)]
    assert all(of_all >= of_one for of_all, of_one in zip(needed, alone, strict=True))
    error = 2 * (0.8 * 0.2 / N_SIMULATED) ** 0.5
    assert min(decided(max(needed), effects, bands)) >= 0.8 - error


def test_three_alike_numbers_need_more_seeds_than_one_to_be_decided_together():
    sample = np.array([0.0, 1.0, 2.0])
    (alone,) = numbers([sample], [(0.1, None)])
    together = numbers([sample] * 3, [(0.1, None)] * 3)
    # The first of three has a third of alpha; the others wait for it.
    assert [one.seeds_needed for one in together] == [seeds_needed(sample, (0.1, None), 3)] * 3
    assert together[0].seeds_needed > alone.seeds_needed


def test_the_best_of_several_is_corrected_for_their_number():
    rows = arms(a=[3.0, 3.4, 3.1], b=[2.9, 3.3, 3.2], c=[1.0, 1.3, 1.2])
    along, at = ["a/s", "b/s", "c/s"], [1, 2, 3]
    of_one = number({"kind": "best_at", "along": along[::2], "at": at[::2]}, (1, 1), rows=rows)
    of_two = number({"kind": "best_at", "along": along, "at": at}, (1, 2), rows=rows)
    assert of_two.p_supported == pytest.approx(2 * of_one.p_supported)


def test_a_best_term_that_varies_is_not_contradicted_by_one_that_beats_only_the_others_of_its_band():
    # The first varies most and is truly the best; in one sample of eight another one of the band comes before it.
    draws = np.random.default_rng(5).normal([1.0, 0.5, 0.6], [1.0, 0.01, 0.01], (400, 5, 3))
    best = {"kind": "best_at", "along": ["a/s", "b/s", "c/s"], "at": [1, 2, 3]}
    found = [number(best, (1, 2), rows=arms(**dict(zip("abc", seeds.T.tolist(), strict=True)))) for seeds in draws]
    assert sum(one.value == 3 for one in found) > 40
    share_wrong = sum(one.verdict == "contradicted" for one in found) / len(found)
    assert share_wrong <= ALPHA + 2 * (ALPHA * (1 - ALPHA) / len(found)) ** 0.5


def test_the_best_is_contradicted_where_one_outside_beats_all_inside_corrected_for_those_outside():
    # The first inside is not the sample's best there, and beaten less surely.
    rows = arms(a=[0.2, 1.3, 1.9], b=[1.1, 1.2, 1.6], c=[2.0, 2.4, 2.1], d=[0.1, 0.3, 0.2])
    it = number({"kind": "best_at", "along": ["a/s", "b/s", "c/s", "d/s"], "at": [1, 2, 3, 4]}, (1, 2), rows=rows)
    beaten = [-1.8, -1.1, -0.2]
    assert it.p_contradicted == pytest.approx(2 * judge(beaten, (0.0, None)).p_contradicted)
    assert it.seeds_needed == seeds_needed(beaten, (0.0, None), 2)


def test_equal_numbers_show_no_spread_also_where_they_are_rounded():
    judged = judge([0.3 - 0.2, 0.4 - 0.3, 0.9 - 0.8], (0.0, None))
    assert (judged.low, judged.high, judged.p_supported) == (None, None, 1.0)
    assert judge([0.1, 0.1, 0.1 + 1e-6], (0.0, None)).low is not None
