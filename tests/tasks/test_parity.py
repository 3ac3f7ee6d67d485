from __future__ import annotations

import pytest

from ostinato.config.data import DataConfig
from ostinato.config.recipe import TaskRef
from ostinato.tasks.registry import build_task, task_problems


def parity(**settings: object):
    small = {"n_train": 400, "n_eval": 100}
    return build_task(TaskRef.model_validate({"kind": "parity", **small, **settings}), DataConfig())


@pytest.mark.parametrize(
    ("split", "n", "lengths"),
    [("train", 400, {1, 2, 3, 4}), ("dev", 100, {1, 2, 3, 4}), ("test", 100, {1, 2, 3, 4}), ("long", 200, {6, 9})],
)
def test_every_tag_is_the_number_of_ones_so_far_modulo_two(split: str, n: int, lengths: set[int]) -> None:
    found = list(parity(max_length=4, long_lengths=[6, 9]).examples(split))
    assert len(found) == n
    assert {example.columns["length"] for example in found} == lengths
    for example in found:
        bits, tags = example.source.split(), example.target.split()
        assert len(bits) == len(tags) == example.columns["length"]
        assert [int(tag) for tag in tags] == [bits[: i + 1].count("1") % 2 for i in range(len(bits))]


def test_every_long_length_has_as_many_examples_and_bits_are_fair() -> None:
    found = list(parity(long_lengths=[16, 12]).examples("long"))
    assert [example.columns["length"] for example in found] == [16] * 100 + [12] * 100
    ones = sum(example.source.count("1") for example in found)
    assert abs(ones / 2800 - 0.5) < 0.05
    assert len({example.source for example in found}) > 190


def test_splits_differ_by_seed_and_not_by_the_sizes_of_others() -> None:
    long = list(parity().examples("long"))
    assert long == list(parity(n_train=7).examples("long"))
    assert long != list(parity(seed=1).examples("long"))


def test_long_lengths_are_longer_than_those_of_training() -> None:
    (problem,) = task_problems({"kind": "parity", "max_length": 12})
    assert "task.long_lengths" in str(problem)
    assert "larger than task.max_length = 12" in str(problem)
    assert task_problems({"kind": "parity", "long_lengths": []}) != []
