from __future__ import annotations

from collections import Counter
from itertools import product

import pytest

from ostinato.config.data import DataConfig
from ostinato.config.recipe import TaskRef
from ostinato.tasks.registry import build_task, task_problems
from ostinato.tasks.relay import pass_along

OPERATIONS = {">": lambda digit: digit, "+": lambda digit: (digit + 1) % 10}


def relay(**settings: object):
    small = {"n_train": 400, "n_eval": 300}
    return build_task(TaskRef.model_validate({"kind": "relay", **small, **settings}), DataConfig())


@pytest.mark.parametrize("operations", [chain for n in range(4) for chain in product(">+", repeat=n)])
@pytest.mark.parametrize("digit", ["0", "8", "9"])
def test_a_digit_is_handed_on_from_neighbour_to_neighbour(operations: tuple[str, ...], digit: str) -> None:
    held = int(digit)
    for operation in reversed(operations):
        held = OPERATIONS[operation](held)
    assert pass_along([*operations, digit]) == str(held)


@pytest.mark.parametrize(
    ("split", "n", "fewest", "most"), [("train", 400, 1, 4), ("dev", 300, 1, 4), ("far", 300, 5, 7)]
)
def test_the_answer_is_what_reaches_the_question_after_its_hops(split: str, n: int, fewest: int, most: int) -> None:
    found = list(relay(max_hops=4, far_max_hops=7, n_rest=2).examples(split))
    assert len(found) == n
    assert {example.columns["hops"] for example in found} == set(range(fewest, most + 1))
    for example in found:
        question, *symbols = example.source.split()
        hops = example.columns["hops"]
        chain, rest = symbols[:hops], symbols[hops:]
        assert question == "?"
        assert [symbol.isdigit() for symbol in chain] == [False] * (hops - 1) + [True]
        assert example.target == pass_along(chain)
        assert len(rest) == 2
        assert set(rest) <= set(">+0123456789")


def test_matched_sources_differ_by_hops_in_nothing_but_the_places_of_their_symbols() -> None:
    found = list(relay(max_hops=4, n_rest=5, matched=True).examples("dev"))
    assert {example.columns["hops"] for example in found} == {1, 2, 3, 4}
    for example in found:
        symbols, hops = example.source.split(), example.columns["hops"]
        assert len(symbols) == 1 + 4 + 5
        assert sum(symbol.isdigit() for symbol in symbols) == 1 + 2
        assert [symbol.isdigit() for symbol in symbols[1 : hops + 1]] == [False] * (hops - 1) + [True]
        assert example.target == pass_along(symbols[1 : hops + 1])
    assert len({example.source for example in found}) > 250


def test_hops_operations_digits_and_the_rest_are_drawn_uniformly() -> None:
    found = list(relay(n_train=6000, max_hops=6).examples("train"))
    hops = Counter(example.columns["hops"] for example in found)
    # 1,000 are expected of each: sd 29.
    assert all(abs(count - 1000) < 145 for count in hops.values())
    chains = [example.source.split()[1 : example.columns["hops"] + 1] for example in found]
    operations = Counter(symbol for chain in chains for symbol in chain[:-1])
    assert abs(operations["+"] / operations.total() - 0.5) < 0.02
    digits = Counter(chain[-1] for chain in chains)
    assert all(abs(count - 600) < 115 for count in digits.values())
    rests = [example.source.split()[example.columns["hops"] + 1 :] for example in found]
    assert set(map(len, rests)) == {5}
    symbols = Counter(symbol if symbol in ">+" else "digit" for rest in rests for symbol in rest)
    assert all(abs(count / symbols.total() - 1 / 3) < 0.02 for count in symbols.values())


def test_the_seed_fixes_every_split_whatever_the_sizes() -> None:
    first = list(relay().examples("test"))
    assert list(relay(n_train=5).examples("test")) == first
    assert list(relay(n_eval=100).examples("test")) == first[:100]
    assert list(relay(far_max_hops=20).examples("test")) == first
    assert list(relay(seed=1).examples("test")) != first
    assert list(relay().examples("dev")) != first


def test_the_questions_of_seed_0_never_change() -> None:
    (example,) = relay(n_eval=1).examples("test")
    assert (example.source, example.target, example.columns) == ("? + > + > + > > 7 > + > > >", "0", {"hops": 8})


def test_a_far_split_no_farther_than_training_is_refused() -> None:
    (problem,) = task_problems({"kind": "relay", "max_hops": 16})
    assert str(problem) == "task.far_max_hops is 16: must be larger than task.max_hops = 16"
