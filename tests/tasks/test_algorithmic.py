from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.config.data import DataConfig
from ostinato.config.recipe import TaskRef
from ostinato.data.example import Example
from ostinato.tasks.algorithmic import add_reversed, draw_addition
from ostinato.tasks.overlap import _keys, measure_overlap
from ostinato.tasks.registry import build_task, task_problems


def algorithmic(**settings: object):
    small = {"n_train": 300, "n_eval": 200, "max_length": 12, "long_max_length": 30}
    return build_task(TaskRef.model_validate({"kind": "algorithmic", **small, **settings}), DataConfig())


def value(little_endian: str) -> int:
    return int(little_endian[::-1])


@given(st.integers(0, 10**60), st.integers(0, 10**60))
def test_adding_reversed_digits_is_adding(first, second):
    total = add_reversed(str(first)[::-1], str(second)[::-1])
    assert value(total) == first + second
    assert total[::-1] == str(first + second)


@given(st.integers(0, 2**32), st.integers(3, 60), st.integers(1, 60))
def test_additions_keep_to_their_lengths_and_are_right(seed, longest, shortest):
    source, target = draw_addition(Random(seed), min(shortest, longest), longest)
    first, second = source.split("+")
    assert min(shortest, longest) <= len(source) <= longest
    assert len(first) <= longest // 2
    assert value(first) + value(second) == value(target)
    assert all(len(number) == 1 or number[-1] != "0" for number in (first, second, target))


def test_numbers_beyond_pythons_printing_limit_are_added():
    assert add_reversed("9" * 6000, "1") == "0" * 6000 + "1"


@pytest.mark.parametrize(("operation", "step"), [("copy", 1), ("reverse", -1)])
def test_copies_and_reversals_are_right(operation, step):
    for split in ("train", "long"):
        for example in algorithmic(operation=operation).examples(split):
            assert example.target.split() == example.source.split()[::step]


@pytest.mark.parametrize("operation", ["copy", "reverse", "addition"])
def test_splits_have_their_sizes_and_lengths(operation):
    task = algorithmic(operation=operation)
    for split, n, shortest, longest in [
        ("train", 300, 1, 12),
        ("dev", 200, 1, 12),
        ("test", 200, 1, 12),
        ("long", 200, 13, 30),
    ]:
        lengths = [len(example.source.split()) for example in task.examples(split)]
        assert len(lengths) == n
        assert shortest <= min(lengths)
        assert max(lengths) == longest
        assert lengths == [example.columns["length"] for example in task.examples(split)]


def test_lengths_and_digits_are_uniform():
    task = algorithmic(n_train=6000, max_length=10)
    lengths = Counter(example.columns["length"] for example in task.examples("train"))
    digits = Counter(digit for example in task.examples("train") for digit in example.source.split())
    # 600 are expected of each length: sd 23.
    assert set(lengths) == set(range(1, 11))
    assert all(abs(count - 600) < 115 for count in lengths.values())
    n_digits = digits.total()
    assert all(abs(count / n_digits - 0.1) < 0.01 for count in digits.values())


def test_the_seed_fixes_every_split_whatever_the_sizes():
    first = list(algorithmic().examples("test"))
    assert list(algorithmic().examples("test")) == first
    assert list(algorithmic(n_train=5).examples("test")) == first
    assert list(algorithmic(n_eval=100).examples("test")) == first[:100]
    assert list(algorithmic(seed=1).examples("test")) != first
    assert list(algorithmic().examples("dev")) != first


def test_the_data_of_seed_0_never_changes():
    (example,) = algorithmic(operation="addition", n_eval=1, max_length=8).examples("test")
    assert (example.source, example.target) == ("2 4 6 6 + 1 9 5", "3 3 2 7")


def test_the_long_split_can_hold_every_length_as_in_tensor2tensor():
    lengths = {example.columns["length"] for example in algorithmic(long_min_length=1, n_eval=2000).examples("long")}
    assert lengths == set(range(1, 31))


def test_buckets_sort_as_text():
    task = algorithmic(long_max_length=120, n_eval=400)
    columns = [example.columns for example in task.examples("long")]
    buckets = sorted({str(column["length_bucket"]) for column in columns})
    assert buckets[0] == "011-020"
    assert buckets[-1] == "111-120"
    assert all(int(c["length_bucket"][:3]) <= c["length"] <= int(c["length_bucket"][4:]) for c in columns)


def test_too_short_a_maximum_is_refused():
    (problem,) = task_problems({"kind": "algorithmic", "operation": "addition", "max_length": 2})
    assert str(problem) == "task.max_length is 2: must be an integer in [3, 10000]"


def test_overlap_of_test_and_train_is_reported():
    task = algorithmic(n_train=2000)
    seen = {example.source for example in task.examples("train")}
    found = measure_overlap(task, "test")
    assert found.n == 200
    assert found.n_seen_sources == sum(example.source in seen for example in task.examples("test")) > 0
    assert found.n_seen_pairs == found.n_seen_sources
    assert measure_overlap(task, "long").n_seen_sources == 0
    assert found.fraction == found.n_seen_sources / 200


def test_a_text_that_goes_on_is_the_same_whether_a_blank_ends_its_beginning_or_not():
    whole = Example(None, "the key is")
    for source in ("the key", "the key "):
        assert _keys(Example(source, "is", continues=True))[0] == _keys(whole)[0]
