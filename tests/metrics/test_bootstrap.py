from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest
from test_translation_metrics import damaged
from usable import usable_metric

from ostinato.errors import ConfigError, DataError
from ostinato.metrics import METRICS, Bleu, Chrf, ExactMatch
from ostinato.metrics.bootstrap import Compared, Estimate, paired_bootstrap, paired_means

TEXT = "a man in the blue shirt is standing on a ladder and cleans two old windows of his small house ."


def sentences(n: int, seed: int = 0) -> list[str]:
    rng = Random(seed)
    return [" ".join(rng.choices(TEXT.split(), k=rng.randint(3, 20))) for _ in range(n)]


def worsened(references: list[str], seed: int, times: int = 1) -> list[str]:
    rng = Random(seed)
    for _ in range(times):
        references = [damaged(reference, rng) for reference in references]
    return references


@pytest.mark.parametrize("name", METRICS)
def test_the_score_of_the_real_set_is_the_metrics_own(name: str) -> None:
    references = sentences(40)
    systems = [worsened(references, 1), worsened(references, 2)]
    for outputs, found in zip(systems, paired_bootstrap(usable_metric(name), systems, references), strict=True):
        metric = usable_metric(name)
        for output, reference in zip(outputs, references, strict=True):
            metric.update(output, reference)
        assert found.score.value == metric.compute()[name]
        assert found.score.low < found.score.value < found.score.high


@pytest.mark.parametrize(("ours", "theirs"), [(Bleu, BLEU), (Chrf, CHRF)])
def test_scores_and_intervals_are_those_of_sacrebleus_paired_bootstrap(ours, theirs, monkeypatch) -> None:
    monkeypatch.setenv("SACREBLEU_SEED", "77")
    references = sentences(60)
    systems = [worsened(references, 1), worsened(references, 2, times=2)]
    named = [("a", systems[0]), ("b", systems[1])]
    # Of 401 sorted scores the 11th is at the quantile 1/40 exactly, and sacreBLEU takes the 11th from either end.
    _, results = PairedTest(named, {"metric": theirs()}, [references], test_type="bs", n_samples=401)()
    (expected,) = (found for key, found in results.items() if key != "System")
    compared = paired_bootstrap(ours(), systems, references, n_samples=401, seed=77)
    for found, result, outputs in zip(compared, expected, systems, strict=True):
        assert found.score.value == result.score == theirs().corpus_score(outputs, [references]).score
        assert (found.score.high - found.score.low) / 2 == pytest.approx(float(result.ci), rel=1e-5)
    # Its p-value, of the same drawn sets, agrees with the verdict.
    assert expected[1].p_value < 0.05
    assert compared[1].verdict == "lower"


@pytest.mark.slow
def test_the_interval_of_a_difference_by_a_plain_loop() -> None:
    references = sentences(30)
    systems = [worsened(references, 1), worsened(references, 2)]
    rng = np.random.default_rng(5)
    differences = []
    for _ in range(100):
        drawn = rng.choice(30, 30)
        scores = [
            BLEU().corpus_score([outputs[i] for i in drawn], [[references[i] for i in drawn]]).score
            for outputs in systems
        ]
        differences.append(scores[1] - scores[0])
    found = paired_bootstrap(Bleu(), systems, references, n_samples=100, seed=5)[1].difference
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(differences, [0.025, 0.975])), abs=1e-9)


def test_exact_match_by_hand() -> None:
    # Half of 400 right: the share of a drawn set has a standard deviation of sqrt(1/4 / 400) = 0.025.
    references = ["x"] * 400
    found = paired_bootstrap(ExactMatch(), [["x", "y"] * 200, ["x"] * 400], references, n_samples=4000)
    half, all_right = found
    assert half.score.value == 0.5
    assert (half.score.low, half.score.high) == pytest.approx((0.5 - 1.96 * 0.025, 0.5 + 1.96 * 0.025), abs=0.005)
    assert all_right.score == Estimate(1.0, 1.0, 1.0)
    assert all_right.difference.value == 0.5
    assert all_right.verdict == "higher"


class Right(ExactMatch):
    """Exact match whose counts are truth values, as a metric of one's own may have them."""

    def counts(self, prediction: str, reference: str, source: str = "") -> list[int]:
        return [prediction == reference, True]


def test_truth_values_are_counted_as_numbers_are() -> None:
    references = sentences(40)
    systems = [[*references[:20], *["x"] * 20], [*references[:30], *["x"] * 10]]
    assert paired_bootstrap(Right(), systems, references) == paired_bootstrap(ExactMatch(), systems, references)


def test_a_system_does_not_differ_from_itself_and_pairing_cancels_what_is_hard_for_both() -> None:
    references = sentences(50)
    outputs = worsened(references, 1)
    nearly = [*outputs[:-1], references[-1]]
    same, _, other = paired_bootstrap(Chrf(), [outputs, outputs, nearly], references)
    assert same.difference == Estimate(0.0, 0.0, 0.0)
    assert same.verdict == "no difference shown"
    assert other.difference.high - other.difference.low < (other.score.high - other.score.low) / 4
    assert other.verdict == "no difference shown"


def test_a_clearly_better_system_is_higher_and_from_its_side_the_other_is_lower() -> None:
    references = sentences(50)
    good, bad = worsened(references, 1), worsened(references, 2, times=3)
    up, down = (paired_bootstrap(Bleu(), pair, references)[1] for pair in ([bad, good], [good, bad]))
    assert (up.verdict, down.verdict) == ("higher", "lower")
    assert up.difference.value == -down.difference.value > 0
    assert (up.difference.low, up.difference.high) == pytest.approx((-down.difference.high, -down.difference.low))


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.1, 0.3, "higher"),
        (-0.3, -0.1, "lower"),
        (-0.1, 0.3, "no difference shown"),
        (0.0, 0.3, "no difference shown"),
        (-0.3, 0.0, "no difference shown"),
    ],
)
def test_a_difference_is_claimed_only_where_the_interval_excludes_zero(low: float, high: float, verdict: str) -> None:
    assert Compared(Estimate(1, 0, 2), Estimate((low + high) / 2, low, high)).verdict == verdict


def test_intervals_follow_the_seed_and_not_the_other_systems() -> None:
    references = sentences(30)
    a, b, c = (worsened(references, seed) for seed in (1, 2, 3))
    first, again = (paired_bootstrap(Bleu(), [a, b], references, seed=4) for _ in range(2))
    assert first == again
    assert paired_bootstrap(Bleu(), [a, c, b], references, seed=4)[2] == first[1]
    assert paired_bootstrap(Bleu(), [a, b], references, seed=5)[1].score.low != first[1].score.low


def test_a_higher_level_gives_a_wider_interval() -> None:
    references = sentences(30)
    outputs = [worsened(references, 1)]
    (narrow,), (wide,) = (paired_bootstrap(Chrf(), outputs, references, level=level) for level in (0.5, 0.99))
    assert wide.score.low < narrow.score.low < narrow.score.high < wide.score.high


def test_texts_are_read_once_whatever_the_number_of_samples() -> None:
    references = sentences(100)
    metric, outputs = Chrf(), worsened(references, 1)
    counted = []
    count = metric.counts
    metric.counts = lambda *texts: counted.append(texts) or count(*texts)  # type: ignore[method-assign, func-returns-value]
    paired_bootstrap(metric, [outputs, references], references, n_samples=300)
    assert len(counted) == 200


def test_what_cannot_be_resampled_is_named() -> None:
    with pytest.raises(DataError, match="system 2 has 6 outputs for 7 references"):
        paired_bootstrap(ExactMatch(), [["x"] * 7, ["x"] * 6], ["x"] * 7)
    # Five sentences that all favour one system are no rarer than 1 in 16.
    with pytest.raises(DataError, match="5 sentences are too few to compare systems at a level of 95%"):
        paired_bootstrap(ExactMatch(), [["x"] * 5], ["x"] * 5)
    with pytest.raises(ConfigError) as caught:
        paired_bootstrap(ExactMatch(), [["x"] * 9], ["x"] * 9, n_samples=10, seed=-1, level=1.0)
    assert [problem.key for problem in caught.value.problems] == ["n_samples", "seed", "level"]


@pytest.mark.slow
def test_groups_of_systems_are_compared_by_their_mean_scores_on_the_same_drawn_sentences() -> None:
    references = sentences(30)
    first, second = [worsened(references, 1)], [worsened(references, seed) for seed in (2, 3)]
    rng = np.random.default_rng(5)
    differences = []
    for _ in range(100):
        drawn = rng.choice(30, 30)
        scores = [
            BLEU().corpus_score([outputs[i] for i in drawn], [[references[i] for i in drawn]]).score
            for outputs in [*first, *second]
        ]
        differences.append((scores[1] + scores[2]) / 2 - scores[0])
    found = paired_means(Bleu(), [first, second], references, n_samples=100, seed=5)
    expected = tuple(np.quantile(differences, [0.025, 0.975]))
    assert (found[1].difference.low, found[1].difference.high) == pytest.approx(expected, abs=1e-9)
    assert found[0] == paired_bootstrap(Bleu(), first, references, n_samples=100, seed=5)[0]


def test_a_metric_that_fails_on_an_output_is_named() -> None:
    class Broken(ExactMatch):
        name = "mine:Broken"

        def counts(self, prediction: str, reference: str, source: str = "") -> list[int]:
            return [1 // 0 if prediction != reference else 1, 1]

    references = sentences(10)
    with pytest.raises(DataError, match=r"the metric mine:Broken failed on the output 'x'.*ZeroDivisionError"):
        paired_bootstrap(Broken(), [references, ["x"] * 10], references)


def test_a_metric_without_a_score_for_a_drawn_set_is_named() -> None:
    class OfLongTexts(ExactMatch):
        name = "mine:OfLongTexts"

        def counts(self, prediction: str, reference: str, source: str = "") -> list[int]:
            return [prediction == reference, reference == long]

        def score(self, totals: Sequence[float]) -> float:
            return totals[0] / totals[1]

    references = sentences(10)
    long = references[0]
    with pytest.raises(DataError, match=r"mine:OfLongTexts failed on the totals \[\d+, 0\] \(ZeroDivisionError"):
        paired_bootstrap(OfLongTexts(), [references], references)
    metric = OfLongTexts()
    metric.update(references[0], references[0])
    assert metric.compute() == {"mine:OfLongTexts": 1.0}
