from __future__ import annotations

import json
import math

import numpy as np
import pytest
from usable import usable_metric

from ostinato.errors import ConfigError
from ostinato.metrics import METRICS, ExactMatch, TokenAccuracyFree, make_metric


def score(metric, pairs):
    for prediction, reference in pairs:
        metric.update(prediction, reference)
    (value,) = metric.compute().values()
    return value


@pytest.mark.parametrize(
    ("prediction", "reference", "expected"),
    [
        ("a b", "a b", 1.0),
        (" a  b\n", "a b", 1.0),
        ("a b c", "a b", 0.0),
        ("a", "a b", 0.0),
        ("A b", "a b", 0.0),
        ("", "", 1.0),
    ],
)
def test_exact_match_ignores_only_white_space(prediction, reference, expected):
    assert score(ExactMatch(), [(prediction, reference)]) == expected


@pytest.mark.parametrize(
    ("prediction", "reference", "n_right", "n"),
    [
        ("a b c", "a b c", 4, 4),
        ("a x c", "a b c", 3, 4),
        # Too short: the end came where b was due, and nothing stands at the last two places.
        ("a", "a b c", 1, 4),
        # Too long: d stands where the end was due.
        ("a b c d", "a b c", 3, 4),
        ("a b c d e f", "a b c", 3, 4),
        ("", "a", 0, 2),
        ("", "", 1, 1),
        # One insertion shifts all that follows.
        ("x a b c", "a b c", 0, 4),
    ],
)
def test_free_token_accuracy_counts_places_of_the_reference_and_its_end(prediction, reference, n_right, n):
    assert score(TokenAccuracyFree(), [(prediction, reference)]) == n_right / n


def test_totals_weigh_tokens_not_examples():
    pairs = [("a", "a"), ("x x x", "a b c")]
    assert score(TokenAccuracyFree(), pairs) == (2 + 1) / (2 + 4)
    assert score(ExactMatch(), pairs) == 0.5


@pytest.mark.parametrize("name", METRICS)
def test_nothing_measured_is_no_number(name):
    value = usable_metric(name).compute()[name]
    assert isinstance(value, float)
    assert math.isnan(value)


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_reports_under_its_own_name_and_computing_changes_nothing(name):
    metric = usable_metric(name)
    metric.update("the cat sat on a mat", "the cat sat on a mat")
    first = metric.compute()
    assert metric.compute() == first
    assert name in first
    metric.update("nothing alike", "the cat sat on a mat")
    assert metric.compute()[name] < first[name]


def test_an_unknown_metric_lists_the_valid_ones():
    with pytest.raises(ConfigError) as caught:
        make_metric("blue")
    assert str(caught.value) == (
        "evaluation.metrics is 'blue': must be one of exact_match, token_accuracy_free, character_accuracy_free, "
        "first_word, second_word, bleu, bleu_compounds_split, spbleu, chrf, comet, accuracy, macro_f1, tag_accuracy, "
        "span_f1, answer_em, answer_f1; did you mean bleu?"
    )


def test_the_first_word_is_compared_alone():
    metric = make_metric("first_word")
    metric.update("can your zebra giggle ?", "can your zebra that doesn't swim giggle ?")  # right
    metric.update("doesn't your zebra that can swim giggle ?", "can your zebra that doesn't swim giggle ?")  # wrong
    metric.update("", "")  # neither has one
    metric.update("", "can")  # missing
    assert metric.compute() == {"first_word": 0.5}


def test_the_second_word_is_compared_alone():
    metric = make_metric("second_word")
    metric.update("the zebra was seen .", "the zebra by my yak was seen .")  # right
    metric.update("your yak was seen .", "the zebra was seen .")  # wrong
    metric.update("", "the")  # neither has one
    metric.update("the", "the zebra")  # missing
    assert metric.compute() == {"second_word": 0.5}


@pytest.mark.parametrize("kind", [np.float32, np.int64])
def test_a_score_of_numpys_is_a_number_of_json(kind):
    class Own(ExactMatch):
        name = "own"

        def score(self, totals):
            return kind(totals[0])

    metric = Own()
    metric.update("a", "a")
    assert json.dumps(metric.compute()) == '{"own": 1.0}'
