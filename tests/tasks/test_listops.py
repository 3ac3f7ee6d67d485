from __future__ import annotations

from collections import Counter
from random import Random
from statistics import mean
from typing import Any

import pytest

from ostinato.config.data import DataConfig
from ostinato.config.recipe import TaskRef
from ostinato.metrics import make_metric
from ostinato.tasks.listops import TreeShape, depth_of, draw_tree, evaluate
from ostinato.tasks.overlap import measure_overlap
from ostinato.tasks.registry import build_task

LRA = TreeShape(10, 10, 501, 1999)


def listops(**settings: Any):
    small = {"version": "small", "n_train": 300, "n_eval": 100}
    return build_task(TaskRef.model_validate({"kind": "listops", **small, **settings}), DataConfig())


def value_of_nested(tokens: list[str]) -> int:
    """Evaluate by recursion, in other words than the library does."""
    token = tokens.pop(0)
    if not token.startswith("["):
        return int(token)
    values = []
    while tokens[0] != "]":
        values.append(value_of_nested(tokens))
    tokens.pop(0)
    values.sort()
    half = len(values) // 2
    median = values[half] if len(values) % 2 else int((values[half - 1] + values[half]) / 2)
    return {"[MIN": values[0], "[MAX": values[-1], "[SM": sum(values) % 10, "[MED": median}[token]


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("[MAX 2 9 [MIN 4 7 ] 0 ]", 9),
        ("[SM 3 9 [MED 1 5 8 ] ]", 7),
        ("[MED 1 2 ]", 1),
        ("[MED 3 8 [SM 9 9 ] 4 ]", 6),
        ("7", 7),
    ],
)
def test_the_worked_checks_come_out(expression: str, value: int) -> None:
    assert evaluate(expression.split()) == value_of_nested(expression.split()) == value


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("[MAX 2 x ]", "token 3: 'x' is no digit"),
        ("[AVG 2 ]", "none of the operators MIN, MAX, MED, SM"),
        ("[MAX ]", "an operator without arguments"),
        ("2 ]", "nothing to close"),
        ("[MAX 2", "1 lists are open at the end"),
        ("2 3", "2 values stand side by side"),
    ],
)
def test_what_is_no_expression_is_refused(expression: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        evaluate(expression.split())


def test_trees_are_evaluated_as_by_recursion_and_have_their_lengths_and_depths() -> None:
    for split, shortest, longest in (("train", 10, 100), ("test", 10, 100), ("long", 101, 300)):
        for example in listops().examples(split):
            tokens = str(example.source).split()
            assert shortest <= len(tokens) <= longest
            assert example.columns["length"] == len(tokens)
            assert 2 <= int(str(example.columns["depth"])) == depth_of(tokens) <= 6
            assert int(example.target) == value_of_nested(list(tokens))
            low, high = str(example.columns["length_bucket"]).split("-")
            assert int(low) <= len(tokens) <= int(high)


def test_every_leaf_and_operator_is_drawn_as_often_as_the_rules_say() -> None:
    rng = Random(0)
    trees = [tree for tree in (draw_tree(rng, TreeShape(2, 5, 1, 99)) for _ in range(20_000)) if tree is not None]
    assert abs(mean(len(tree) == 1 for tree in trees) - 0.75) < 0.012
    lists = [tree for tree in trees if len(tree) > 1]
    arguments = Counter(len(tree) - 2 for tree in lists)
    assert set(arguments) == {2, 3, 4, 5}
    assert all(abs(count / len(lists) - 1 / 4) < 0.025 for count in arguments.values())
    operators = Counter(tree[0] for tree in lists)
    assert all(abs(count / len(lists) - 1 / 4) < 0.025 for count in operators.values())
    digits = Counter(tree[0] for tree in trees if len(tree) == 1)
    assert all(abs(digits[digit] / 15_000 - 0.1) < 0.012 for digit in "0123456789")


@pytest.mark.slow
def test_the_arena_s_trees_are_kept_as_often_and_are_as_long_as_described() -> None:
    rng = Random(2)
    drawn = [draw_tree(rng, LRA) for _ in range(6000)]
    kept = [tree for tree in drawn if tree is not None and len(tree) >= 501]
    assert abs(len(kept) / len(drawn) - 0.08) < 0.015
    assert abs(mean(map(len, kept)) - 1080) < 70
    assert {depth_of(tree) for tree in kept} == {10}
    task = listops(version="lra", n_eval=3, n_train=3)
    assert [sum(1 for _ in task.examples(split)) for split in task.splits()] == [3, 3, 3]


@pytest.mark.slow
def test_no_tree_occurs_twice_and_the_test_does_not_depend_on_the_training_set() -> None:
    task = listops()
    assert [sum(1 for _ in task.examples(split)) for split in task.splits()] == [300, 100, 100, 100]
    sources = [example.source for split in task.splits() for example in task.examples(split)]
    assert len(set(sources)) == len(sources)
    assert measure_overlap(task, "test").n_seen_pairs == 0
    assert list(listops(n_train=5).examples("test")) == list(task.examples("test"))
    assert list(listops(seed=1).examples("test")) != list(task.examples("test"))


def test_the_published_sizes_are_the_defaults() -> None:
    task = build_task(TaskRef.model_validate({"kind": "listops"}), DataConfig())
    assert (task.config.version, task.config.n_eval) == ("lra", 2000)  # type: ignore[attr-defined]
    assert task._version.n_train == 96_000  # type: ignore[attr-defined]


def test_one_symbol_s_exact_match_is_accuracy() -> None:
    metric = make_metric("exact_match")
    for output, value in (("7", "7"), ("0", "9"), ("3 3", "3"), (" 1 ", "1")):
        metric.update(output, value)
    assert metric.compute() == {"exact_match": 0.5}
