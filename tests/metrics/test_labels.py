from __future__ import annotations

import math
import tracemalloc
from collections.abc import Sequence

import pytest

from ostinato.metrics import AnswerEm, AnswerF1, MacroF1, Metric, SpanF1, TagAccuracy, make_metric
from ostinato.metrics.bootstrap import paired_bootstrap
from ostinato.metrics.labels import normalised, spans_of_tags


def _score(metric: Metric, pairs: list[tuple[str, str]]) -> float:
    for prediction, reference in pairs:
        metric.update(prediction, reference)
    value = metric.compute()[metric.name]
    assert isinstance(value, float)
    return value


def test_macro_f1_is_the_mean_over_classes_that_occur() -> None:
    pairs = [("a", "a"), ("a", "a"), ("b", "a"), ("b", "b"), ("c", "b"), ("a", "a")]
    # a: TP 3, FN 1 -> 6/7. b: TP 1, FP 1, FN 1 -> 1/2. c: predicted once, never right -> 0.
    assert _score(MacroF1(), pairs) == pytest.approx((6 / 7 + 1 / 2 + 0) / 3)
    assert _score(make_metric("accuracy"), pairs) == pytest.approx(4 / 6)
    assert math.isnan(float(MacroF1().compute()["macro_f1"]))


def test_as_many_labels_as_examples_take_time_in_proportion() -> None:
    class Counted(MacroF1):
        def counts(self, prediction: str, reference: str, source: str = "") -> list[int]:
            raise AssertionError("a list of all classes for every example")

    metric = Counted.__new__(Counted)
    metric.__dict__.update(MacroF1().__dict__)
    for i in range(1000):
        metric.update(f"written {i}", "yes" if i % 2 else "no")
    metric.update("yes", "yes")
    assert metric.compute()["macro_f1"] == pytest.approx(2 / (2 + 500) / 1002)


def test_macro_f1_can_be_resampled() -> None:
    references = ["a", "b", "a", "b", "a", "b"] * 3
    worse = ["a", "a", "a", "b", "c", "b"] * 3
    first, second = paired_bootstrap(MacroF1(), [references, worse], references, n_samples=200)
    assert first.score.value == 1.0
    # a: TP 6, FP 3, FN 3 -> 2/3. b: TP 6, FN 3 -> 4/5. c: 0.
    assert second.score.value == pytest.approx((2 / 3 + 4 / 5 + 0) / 3)
    assert second.verdict == "lower"


def test_resampling_many_classes_takes_what_their_examples_take_and_not_all_classes_for_every_example() -> None:
    references = [str(i) for i in range(2000)]
    paired_bootstrap(MacroF1(), [references[:10]], references[:10], n_samples=100)  # imports what it needs
    tracemalloc.start()
    [found] = paired_bootstrap(MacroF1(), [references], references, n_samples=100)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.score.value == 1.0
    assert peak < 8e6  # a number of each of the 4,000 counts for every example: 64 MB


class RightByLabel(Metric):
    """A metric of one's own that names the counts that are not 0: all, and those right of labels that are numbers."""

    name = "mine:RightByLabel"

    def counts(self, prediction: str, reference: str, source: str = "") -> dict[int, int]:
        return {0: 1} | ({int(reference): 1} if prediction == reference != "" else {})

    def score(self, totals: Sequence[float]) -> float:
        return sum(totals[1:]) / totals[0]


def test_counts_may_be_given_by_their_places() -> None:
    pairs = [("3", "3"), ("1", "2"), ("7", "7"), ("1", "1")] * 3
    assert _score(RightByLabel(), pairs) == 3 / 4
    [found] = paired_bootstrap(RightByLabel(), [[p for p, _ in pairs]], [r for _, r in pairs], n_samples=100)
    assert found.score.value == 3 / 4


@pytest.mark.parametrize(
    ("tags", "spans"),
    [
        ("O B-PER I-PER O", [(1, 3, "PER")]),
        ("B-PER B-PER", [(0, 1, "PER"), (1, 2, "PER")]),
        ("I-PER I-PER O I-LOC", [(0, 2, "PER"), (3, 4, "LOC")]),
        ("B-PER I-LOC", [(0, 1, "PER"), (1, 2, "LOC")]),
        ("B-X I-X E-X I-X S-X S-X", [(0, 3, "X"), (3, 4, "X"), (4, 5, "X"), (5, 6, "X")]),
        ("B-X I-X L-X I-X U-X U-X", [(0, 3, "X"), (3, 4, "X"), (4, 5, "X"), (5, 6, "X")]),
        ("NP NP VP O NP", [(0, 2, "NP"), (2, 3, "VP"), (4, 5, "NP")]),
        ("O O", []),
        ("", []),
    ],
)
def test_spans_follow_the_rules_of_conlleval(tags: str, spans: list[tuple[int, int, str]]) -> None:
    assert list(spans_of_tags(tags.split())) == spans


def test_span_f1_counts_spans_with_both_ends_and_the_type_right() -> None:
    pairs = [("B-PER I-PER O B-LOC", "B-PER I-PER O B-ORG"), ("O B-LOC I-LOC", "O B-LOC O"), ("B-LOC", "B-LOC")]
    # Right: one of the first, none of the second, one of the third; written 4, wanted 4.
    assert _score(SpanF1(), pairs) == pytest.approx(2 * 2 / (4 + 4))
    assert _score(TagAccuracy(), pairs) == pytest.approx((3 + 2 + 1) / 8)
    assert _score(TagAccuracy(), [("A", "A B")]) == 0.5


def test_spans_in_bilou_are_those_of_conll() -> None:
    assert _score(SpanF1(), [("B-LOC I-LOC O", "B-LOC I-LOC L-LOC")]) == 0.0
    # Right: the first; written 3, wanted 2.
    pairs = [("U-PER U-PER B-LOC L-LOC O", "U-PER O B-LOC I-LOC L-LOC")]
    assert _score(SpanF1(), pairs) == pytest.approx(2 * 1 / (3 + 2))


def test_answers_are_compared_after_the_normalisation_of_squad() -> None:
    assert normalised(" The  Cat's, an  A-B! ") == "cats ab"
    pairs = [("the Cat", "cat\tdog"), ("in 1990", "1990"), ("x", "y"), ("", "the")]
    assert _score(AnswerEm(), pairs) == pytest.approx(2 / 4)
    # 1; 2 * 1 / (2 + 1); 0; both are nothing: 1.
    assert _score(AnswerF1(), pairs) == pytest.approx((1 + 2 / 3 + 0 + 1) / 4)


def test_the_best_reference_counts_for_an_answer() -> None:
    assert _score(AnswerF1(), [("big red dog", "red\tbig dog\tx")]) == pytest.approx(2 * 2 / (3 + 2))


def test_words_without_a_label_are_in_no_span() -> None:
    assert SpanF1().counts("O <no-label> O", "B-PER <no-label> O") == [0, 0, 1]
    assert SpanF1().counts("B-PER I-PER O", "B-PER <no-label> O") == [1, 1, 1]
    unlabelled = ["<no-label>"] * 49
    assert _score(SpanF1(), [(" ".join([*unlabelled, "B-PER"]), " ".join([*unlabelled, "O"]))]) == 0.0
