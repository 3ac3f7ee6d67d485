from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice, product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ostinato.tasks.logical_inference as module
from ostinato.config.data import DataConfig
from ostinato.config.recipe import TaskRef
from ostinato.errors import ConfigError, DataError
from ostinato.tasks.logical_inference import PATTERNS, SEPARATOR, into_bins
from ostinato.tasks.overlap import measure_overlap
from ostinato.tasks.propositional import (
    ALL_WORLDS,
    MEANINGS,
    RELATIONS,
    VARIABLES,
    Pair,
    draw_pairs,
    meaning,
    relation,
)
from ostinato.tasks.registry import build_task


def generated(**settings: object):
    ref = {"kind": "logical_inference", "origin": "generated", "n_pairs": 6000, **settings}
    return build_task(TaskRef.model_validate(ref), DataConfig())


def truth_table(formula: str) -> int:
    """The worlds of a formula, by Python's own logic, one world at a time."""
    code = compile(formula.replace("( and", "and (").replace("( or", "or ("), "formula", "eval")
    worlds = 0
    for world in range(2 ** len(VARIABLES)):
        values = {name: bool(world >> place & 1) for place, name in enumerate(VARIABLES)}
        worlds |= bool(eval(code, {}, values)) << world
    return worlds


@pytest.mark.parametrize(
    ("left", "right", "symbol"),
    [
        ("a", "a", "="),
        ("( not ( a ( and b ) ) )", "( ( not a ) ( or ( not b ) ) )", "="),
        ("( a ( and b ) )", "a", "<"),
        ("a", "( a ( and b ) )", ">"),
        ("a", "( not a )", "^"),
        ("( a ( and b ) )", "( not a )", "|"),
        ("( a ( or b ) )", "( not a )", "v"),
        ("a", "b", "#"),
    ],
)
def test_relations_of_small_formulas(left, right, symbol):
    assert relation(meaning(left), meaning(right)) == symbol


@given(st.integers(0, 2**32))
def test_drawn_pairs_agree_with_python_and_stay_in_bounds(seed):
    pair = next(draw_pairs(Random(seed)))
    left, right = truth_table(pair.left), truth_table(pair.right)
    assert (meaning(pair.left), meaning(pair.right)) == (left, right)
    assert pair.relation == relation(left, right)
    assert not {left, right} & {0, ALL_WORLDS}
    assert len(set((pair.left + pair.right).split()) & set(VARIABLES)) <= 4
    assert pair.n_ops <= 22


@pytest.mark.parametrize("formula", ["", "g", "( a", "( not a ) b", "( a and b )", "( a ( xor b ) )", "( a ( and b )"])
def test_malformed_formulas_are_refused(formula):
    with pytest.raises(ValueError):
        meaning(formula)


def test_reversing_a_pair_reverses_its_relation():
    mirrored = dict(zip(RELATIONS, "=><^|v#", strict=True))
    masks = [MEANINGS["a"], MEANINGS["b"], MEANINGS["a"] & MEANINGS["b"], ALL_WORLDS & ~MEANINGS["a"]]
    for left, right in product(masks, repeat=2):
        assert relation(right, left) == mirrored[relation(left, right)]


@pytest.mark.slow
def test_generated_splits_have_no_row_twice_and_follow_the_protocol():
    task = generated()
    train, dev, test = (list(task.examples(split)) for split in ("train", "dev", "test"))
    assert len(dev) == (len(train) + len(dev)) // 10
    assert {example.columns["bin"] for example in [*train, *dev]} <= set(range(7))
    sources = [example.source for example in [*train, *dev, *test]]
    assert len(set(sources)) == len(sources)
    assert measure_overlap(task, "test").n_seen_sources == 0
    for example in test:
        left, right = example.source.split(f" {SEPARATOR} ")
        assert relation(meaning(left), meaning(right)) == example.target


@pytest.mark.slow
def test_generated_data_has_the_published_shares_of_labels_and_bins():
    pairs = list(islice(draw_pairs(Random(0)), 20000))
    bins = into_bins(pairs)
    labels = Counter(pair.relation for pairs_of in bins[:7] for pair in pairs_of)
    # Published training set: # 0.542, > 0.107, < 0.106, | 0.102, v 0.102, = 0.021, ^ 0.019.
    published = {"#": 0.542, ">": 0.107, "<": 0.106, "|": 0.102, "v": 0.102, "=": 0.021, "^": 0.019}
    for symbol, share in published.items():
        assert abs(labels[symbol] / labels.total() - share) < 0.02, symbol
    # Bins long enough to have hardly any repetitions: 10 to 5 as in the published files.
    assert abs(len(bins[10]) / len(bins[5]) - (8181 + 1444) / (34152 + 6027)) < 0.05
    assert len(bins[0]) <= 36


def test_generation_is_fixed_by_its_seed():
    first = list(generated().examples("train"))
    assert list(generated().examples("train")) == first
    assert list(generated(seed=1).examples("train")) != first


@pytest.mark.parametrize("pattern", sorted(PATTERNS))
def test_held_out_patterns_never_reach_training(pattern):
    whole, held = generated(), generated(held_out=pattern)
    kept = [*held.examples("train"), *held.examples("dev")]
    removed = list(held.examples("test_removed"))
    assert not any(PATTERNS[pattern].search(example.source) for example in kept)
    assert all(PATTERNS[pattern].search(example.source) for example in [*removed, *held.examples("test")])
    everything = {example.source for example in [*whole.examples("train"), *whole.examples("dev")]}
    assert {example.source for example in [*kept, *removed]} == everything
    assert len(kept) + len(removed) == len(everything)


@pytest.mark.parametrize("pattern", ["none", "B"])
def test_a_curriculum_takes_rows_away_and_moves_none(pattern):
    whole, short = (generated(held_out=pattern, max_operators=n) for n in (6, 3))
    for split in ("train", "dev"):
        kept = [example for example in whole.examples(split) if example.columns["bin"] <= 3]
        assert list(short.examples(split)) == kept
        assert {example.columns["bin"] for example in kept} == {0, 1, 2, 3}
    assert list(short.examples("test")) == list(whole.examples("test"))


@pytest.mark.parametrize("pattern", ["none", "B"])
def test_the_test_may_end_at_short_formulas(pattern):
    whole, short = (generated(held_out=pattern, max_test_operators=n) for n in (12, 2))
    kept = [example for example in whole.examples("test") if example.columns["bin"] <= 2]
    assert kept
    assert list(short.examples("test")) == kept
    assert list(short.examples("train")) == list(whole.examples("train"))


@pytest.mark.slow
def test_the_published_size_is_that_of_the_bins_that_are_read(open_published):
    task = open_published("logical_inference", max_operators=2, max_test_operators=2)
    sizes = {split: sum(1 for _ in task.examples(split)) for split in ("train", "dev", "test")}
    assert task.published_sizes() == {"train": 30 + 2319 + 12451, "test": 6 + 410 + 2198}
    assert sizes["train"] + sizes["dev"] == task.published_sizes()["train"]
    assert sizes["test"] == task.published_sizes()["test"]


def test_removed_rows_exist_only_with_a_pattern():
    with pytest.raises(ConfigError, match=r"task\.held_out=none removes no rows"):
        generated().examples("test_removed")


@pytest.mark.slow
def test_published_splits_have_the_known_sizes(open_published):
    task = open_published("logical_inference", held_out="C")
    n_train, n_test, n_removed = 51896, 27232, 83633
    counts = {split: sum(1 for _ in task.examples(split)) for split in task.splits()}
    assert counts == {
        "train": n_train - n_train // 10,
        "dev": n_train // 10,
        "test": n_test,
        "test_removed": n_removed,
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("held_out", "n_train", "n_test"), [("none", 135529, 37367), ("A", 128969, 2472), ("B", 87948, 17544)]
)
def test_other_published_splits_have_the_known_sizes(open_published, held_out, n_train, n_test):
    task = open_published("logical_inference", held_out=held_out)
    counts = {split: sum(1 for _ in task.examples(split)) for split in task.splits()}
    assert (counts["train"] + counts["dev"], counts["dev"], counts["test"]) == (n_train, n_train // 10, n_test)
    assert counts.get("test_removed", 0) == 135529 - n_train


def check_rows(task, oracle, part: str, every: int) -> None:
    """Rows, columns and recomputed labels of every n-th row."""
    rows = list(task._rows(part))
    published = oracle(f"logical_inference/{part}")
    assert len(rows) == len(published)
    for example, record in islice(zip(rows, published, strict=True), None, None, every):
        left, right = example.source.split(f" {SEPARATOR} ")
        assert f"{left}\t{right}" == record["source"]
        assert example.target == record["target"] == relation(meaning(left), meaning(right))
        assert example.columns == {key: record[key] for key in ("bin", "n_ops", "patterns")}


@pytest.mark.slow
def test_labels_of_published_rows_follow_from_truth_tables(open_published, oracle):
    check_rows(open_published("logical_inference"), oracle, "test", every=23)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["train", "test"])
def test_every_published_label_follows_from_truth_tables(open_published, oracle, part):
    check_rows(open_published("logical_inference"), oracle, part, every=1)


@pytest.mark.slow
def test_half_a_million_generated_pairs_have_the_published_sizes():
    task = generated(n_pairs=500_000)
    sizes = Counter(example.columns["bin"] for part in ("train", "test") for example in task._rows(part))
    published = [36, 2729, 14649, 27356, 35734, 40179, 38768]
    for bin_index, size in enumerate(published):
        assert abs(sizes[bin_index] - size) <= max(3, 0.02 * size), bin_index


def test_equal_pairs_are_kept_once_and_bins_end_at_12():
    deep = "( not " * 15 + "a" + " )" * 15
    pairs = [Pair("a", "b", "#"), Pair("a", "b", "#"), Pair("b", "a", "#"), Pair(deep, "b", "#")]
    bins = into_bins(pairs)
    assert bins[0] == [pairs[0], pairs[2]]
    assert bins[12] == [pairs[3]]


def test_a_published_file_of_another_length_is_refused(open_published, monkeypatch):
    task = open_published("logical_inference")
    monkeypatch.setitem(module._FILES, "test0", replace(module._FILES["test0"], n_rows=7))
    with pytest.raises(DataError, match=r"6 lines, but .*test0 was published with 7"):
        list(task.examples("test"))
