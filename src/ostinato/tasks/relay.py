"""Passing a digit along a chain: a task that can be made to need several rounds.

    source  ? o_1 .. o_(h-1) d rest        o_i: `>` passes on the digit from the right, `+` adds one to it, modulo 10
    target  (d + number of + among o) mod 10

Example: `? + > 7 + 3 >` is 8, after h = 3 hops: 7 comes to `>`, to `+`, to `?`. A model that has the order of symbols
from neighbours alone (convolution, no positions) has information from r places on either side after r rounds, so that
it has to pass the digit on. The rest of a source, operations and digits, hides which digit is the first one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Literal

from ostinato.config.base import Count, Number, NumberOrZero, Size
from ostinato.data.example import Example
from ostinato.errors import Problem
from ostinato.tasks.base import Task, TaskConfig

QUESTION, PASS, ADD = "?>+"
_DIGITS = "0123456789"


class RelayConfig(TaskConfig):
    """Settings of the relay task."""

    kind: Literal["relay"] = "relay"
    max_hops: Number = 8
    """Most hops of train, dev and test."""
    far_max_hops: Number = 16
    """Most hops of the split `far`, whose fewest are max_hops + 1."""
    n_rest: NumberOrZero = 5
    """Symbols after the digit."""
    matched: bool = False
    """With fewer hops more symbols stand after the digit, and n_rest // 2 of those are digits: all sources of a split
    have the same length and the same number of digits, and only the places differ."""
    n_train: Size = 100_000
    """Examples in train."""
    n_eval: Size = 10_000
    """Examples in each of dev, test and far."""
    seed: Count = 0
    """Of the data; independent of the seed of training."""

    def problems(self, path: str = "") -> Iterator[Problem]:
        """The split `far` needs hops beyond those of training."""
        yield from super().problems(path)
        if self.far_max_hops <= self.max_hops:
            reason = f"must be larger than {path}max_hops = {self.max_hops}"
            yield Problem(f"{path}far_max_hops", self.far_max_hops, reason)


class RelayTask(Task):
    """Pass a digit along a chain of neighbours: a question is h hops from its digit, so that questions differ in depth.

    `? + > 7 9 > + + +` asks what reaches `?`: the 7 comes to `>`, which hands it on, to `+`, which adds one (modulo
    10), and to `?`: 8, after three hops.
    Splits: train (`n_train`), dev and test (`n_eval` each) with 1 to `max_hops` hops, far (`n_eval`) with more, up to
    `far_max_hops`. Hops, operations and digits are drawn uniformly, and after the digit stand `n_rest` symbols that do
    not matter, each a digit with probability 1/3 (with `matched` as many as make sources alike but for the places of
    their symbols). Every split depends on `seed` and not on the others' sizes. With few hops there are few questions:
    `ostinato.tasks.overlap` says how many test examples are in train.
    Tokens: words, separated by blanks; the target is one digit.
    Metric: exact match, which with one symbol is accuracy, by hops; chance is 10 %.
    Selection: dev; nothing is selected on far.
    Departures: none, the task is our own and has no published number.
    The rounds that it needs depend on the model's positions: with relative or absolute ones an encoder of one round
    finds the first digit and counts the symbols before it.
    """

    config: RelayConfig
    metrics = ("exact_match",)
    by = ("hops",)
    fixed_splits = ("train", "dev", "test", "far")

    def _examples(self, split: str) -> Iterator[Example]:
        config = self.config
        fewest, most = (config.max_hops + 1, config.far_max_hops) if split == "far" else (1, config.max_hops)
        rng = Random(f"{config.seed}/relay/{split}/{fewest}-{most}/{config.n_rest}")
        for _ in range(config.n_train if split == "train" else config.n_eval):
            hops = rng.randint(fewest, most)
            chain = [*rng.choices((PASS, ADD), k=hops - 1), rng.choice(_DIGITS)]
            if config.matched:
                rest = rng.choices(_DIGITS, k=config.n_rest // 2)
                rest += rng.choices((PASS, ADD), k=config.n_rest + most - hops - len(rest))
                rng.shuffle(rest)
            else:
                rest = [rng.choice((PASS, ADD, rng.choice(_DIGITS))) for _ in range(config.n_rest)]
            yield Example(" ".join([QUESTION, *chain, *rest]), pass_along(chain), {"hops": hops})


def pass_along(chain: Sequence[str]) -> str:
    """Return the digit at the left end of a chain of operations, then a digit."""
    *operations, digit = chain
    return str((int(digit) + operations.count(ADD)) % 10)
