from __future__ import annotations

import math

import pytest
from test_answer import outcomes

from ostinato.advise.checks import baseline, check_data, why_not
from ostinato.advise.trials import Outcome, Trial
from ostinato.errors import DataError
from ostinato.tasks.recipes import load_recipe
from ostinato.tasks.registry import build_task

SMALL = ["task.n_train=200", "task.n_eval=40"]


def test_enough_data_is_counted() -> None:
    _, n, content = check_data(load_recipe("digits/transformer", SMALL))
    assert n == 40
    assert check_data(load_recipe("digits/transformer", SMALL))[2] == content
    assert check_data(load_recipe("digits/transformer", [*SMALL, "task.max_length=5"]))[2] != content


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("task.n_train=50", "the split 'train' has 50 examples, too few to tell models apart: at least 100"),
        ("task.n_eval=12", "the split 'dev' has 12 examples, too few to tell models apart: at least 30"),
    ],
)
def test_too_little_data_is_refused_in_one_line(change: str, message: str) -> None:
    with pytest.raises(DataError) as caught:
        check_data(load_recipe("digits/transformer", [*SMALL, change]))
    assert str(caught.value) == message


def test_the_baseline_of_a_loss_is_that_of_frequencies() -> None:
    recipe = load_recipe("digits/transformer", SMALL)
    found = baseline(recipe, build_task(recipe.task, recipe.data), "loss")
    assert found is not None
    name, score = found
    assert name == "unigram"
    assert 1.5 < score < math.log(12), "ten digits and the end symbol, which is not as frequent"


def test_the_baseline_of_answers_is_the_better_of_majority_and_copy() -> None:
    recipe = load_recipe("digits/transformer", SMALL)
    found = baseline(recipe, build_task(recipe.task, recipe.data), "exact_match")
    assert found is not None
    assert found[0] == "copy", "some numbers read the same from both ends"
    assert 0 < found[1] < 0.5


FINAL = {"a": [0.5], "b": [0.7]}


@pytest.mark.parametrize(
    ("scores", "metric", "without", "message"),
    [
        (FINAL, "exact_match", ("copy", 0.1), None),
        (FINAL, "loss", ("unigram", 2.0), None),
        (FINAL, "exact_match", ("copy", 0.7), "the best model has exact_match 0.7, no better than 0.7 without a model"),
        (FINAL, "loss", ("unigram", 0.4), "the best model has loss 0.5, no better than 0.4 without a model (unigram)"),
        ({"a": [1.0], "b": [0.999]}, "exact_match", None, "exact_match is at its ceiling (1) for every model"),
        ({"a": [100.0], "b": [60.0]}, "bleu", None, None),
        ({"a": [0.0], "b": [0.0]}, "exact_match", None, "exact_match is at its floor (0) for every model"),
    ],
)
def test_no_is_said_where_the_metric_tells_nothing(
    scores: dict[str, list[float]], metric: str, without: tuple[str, float] | None, message: str | None
) -> None:
    found = why_not(outcomes(scores), metric, "min" if metric == "loss" else "max", 100, without)
    assert (found is None) if message is None else (found is not None and found.startswith(message))


def test_that_all_trainings_failed_is_said_with_the_reason() -> None:
    failed = [Outcome(Trial("a", 1.0, 1, 10), None, reason="failed: update 3: the loss is nan")]
    assert why_not(failed, "loss", "min", 100, None) == (
        "no candidate could be trained: failed: update 3: the loss is nan"
    )
