from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from test_answer import outcomes

from ostinato.advise.checks import baseline, check_data, why_not
from ostinato.advise.trials import Trial, TrialOutcome
from ostinato.errors import DataError
from ostinato.metrics.matching import ExactMatch
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


class MinusDistance(ExactMatch):
    """A user's own metric, of which 0 is the best."""

    perfect = 0.0


FINAL = {"a": [0.5], "b": [0.7]}
OWN = f"{__name__}:MinusDistance"


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
        ({"a": [-2.0], "b": [-0.5]}, OWN, None, None),
        ({"a": [-2e-3], "b": [-1e-3]}, OWN, None, None),
        ({"a": [0.0], "b": [0.0]}, OWN, None, f"{OWN} is at its ceiling (0) for every model"),
        ({"a": [-2.0], "b": [-0.5]}, OWN, ("copy", -0.1), f"the best model has {OWN} -0.5, no better than -0.1"),
    ],
)
def test_no_is_said_where_the_metric_tells_nothing(
    scores: dict[str, list[float]], metric: str, without: tuple[str, float] | None, message: str | None
) -> None:
    found = why_not(outcomes(scores), metric, "min" if metric == "loss" else "max", 100, without)
    assert (found is None) if message is None else (found is not None and found.startswith(message))


def test_that_all_trainings_failed_is_said_with_the_reason() -> None:
    failed = [TrialOutcome(Trial("a", 1.0, 1, 10), None, reason="failed: update 3: the loss is nan")]
    assert why_not(failed, "loss", "min", 100, None) == (
        "no candidate could be trained: failed: update 3: the loss is nan"
    )


def test_of_a_stage_that_is_not_finished_no_ceiling_is_said() -> None:
    done = outcomes({"a": [1.0]})
    assert why_not(done, "exact_match", "max", 100, None, is_complete=False) is None
    assert why_not(done, "exact_match", "max", 100, None) is not None


def test_the_baseline_of_labels_counts_labels() -> None:
    recipe = load_recipe("parity/transformer", SMALL)
    task = build_task(recipe.task, recipe.data)
    loss, right = baseline(recipe, task, "loss"), baseline(recipe, task, "token_accuracy")
    assert loss is not None
    assert loss == ("unigram", pytest.approx(math.log(2), abs=0.05))
    assert right is not None
    assert right[0] == "majority"
    assert 0.3 < right[1] < 0.7


@pytest.mark.parametrize("kind", ["words", "characters"])
def test_labels_need_not_be_words_of_the_texts(tmp_path: Path, kind: str) -> None:
    rows = [{"source": f"w{i % 7} x{i % 5}", "target": ["good", "bad", "ugly", "good"][i % 4]} for i in range(300)]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = [f"data.{split}={file}" for split in ("train", "dev", "test")]
    recipe = load_recipe("classification/small", [*data, f"data.tokenizer={{kind: {kind}}}"])
    task = build_task(recipe.task, recipe.data)
    assert baseline(recipe, task, "token_accuracy") == ("majority", 0.5)
    entropy = -sum(p * math.log(p) for p in (0.5, 0.25, 0.25))
    assert baseline(recipe, task, "loss") == ("unigram", pytest.approx(entropy, abs=0.01))


def test_the_baseline_is_scored_on_the_examples_that_models_are() -> None:
    recipe = load_recipe("digits/transformer", [*SMALL, "training.selection.max_examples=7"])
    task = build_task(recipe.task, recipe.data)
    found = baseline(recipe, task, "exact_match")
    assert found is not None
    assert found[1] * 7 == pytest.approx(round(found[1] * 7))
