"""Copying, reversing and adding decimal digits (Dehghani et al. 2019, arXiv 1807.03819), as tensor2tensor draws them.

With lengths up to L and digits 0-9:

    copy      l ~ U{1..L}, x ~ U{0..9}^l                     target x
    reverse   the same                                       target x_l .. x_1
    addition  l1 ~ U{1..L/2}, l2 ~ U{1..L - l1 - 1}          source n1 + n2, target n1 + n2 worked out

Numbers are written least significant digit first; the last (most significant) digit is not 0 unless it is the only one.
`+` is the separator, so an addition has at most L symbols of source.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Annotated, Literal

from pydantic import Field

from ostinato.config.base import MOST, Count, Number, Size
from ostinato.data.example import Example
from ostinato.errors import Problem
from ostinato.tasks.base import Task, TaskConfig, bucket_of

Length = Annotated[int, Field(ge=3, le=MOST)]

_DIGITS = "0123456789"
_SEPARATOR = "+"


class AlgorithmicConfig(TaskConfig):
    """Settings of the algorithmic tasks; lengths are in source symbols."""

    kind: Literal["algorithmic"] = "algorithmic"
    operation: Literal["copy", "reverse", "addition"] = "copy"
    """What is done to the digits."""
    max_length: Length = 40
    """Longest source of train, dev and test."""
    long_min_length: Number | None = None
    """Shortest source of the split `long`; None: max_length + 1. 1 gives tensor2tensor's evaluation set."""
    long_max_length: Length = 400
    """Longest source of the split `long`."""
    n_train: Size = 100_000
    """Examples in train."""
    n_eval: Size = 10_000
    """Examples in each of dev, test and long."""
    bucket: Size = 10
    """Number of lengths that are one row of the report."""
    seed: Count = 0
    """Of the data; independent of the seed of training."""

    def problems(self, path: str = "") -> Iterator[Problem]:
        """The split `long` needs room above its shortest length."""
        yield from super().problems(path)
        if self.long_max_length < self.shortest_long:
            name = "max_length + 1" if self.long_min_length is None else "long_min_length"
            reason = f"must be at least {path}{name} = {self.shortest_long}"
            yield Problem(f"{path}long_max_length", self.long_max_length, reason)
        elif self.operation == "addition" and self.long_max_length < 3:
            yield Problem(f"{path}long_max_length", self.long_max_length, "an addition has at least 3 symbols")

    @property
    def shortest_long(self) -> int:
        """Shortest source of the split `long`."""
        return self.max_length + 1 if self.long_min_length is None else self.long_min_length


class AlgorithmicTask(Task):
    """Copy, reverse or add decimal digits; train on short sequences, measure on longer ones.

    Splits: train (`n_train`), dev and test (`n_eval` each, the training lengths), long (`n_eval`, longer than any in
    training up to `long_max_length`). Lengths are uniform up to the maximum, as in tensor2tensor, whose evaluation also
    holds the short lengths (long_min_length=1). Every split depends on `seed`, not on the others' sizes; the
    shortest sequences are few, so some occur in several splits: `ostinato.tasks.overlap` says how many.
    Tokens: words; digits and the separator, separated by blanks. Additions are written least significant digit first.
    Metric: exact match (the papers' seq-acc) and token accuracy with the end symbol (char-acc), both free running, by
    length; teacher-forced token accuracy, which tensor2tensor reports, stands beside them in every result.
    Selection: dev, which has the training lengths; nothing is selected on long.
    Departures from tensor2tensor: outputs are searched for, where its scores are teacher-forced; eleven symbols are
    declared for addition, where it declares ten for eleven.
    """

    config: AlgorithmicConfig
    by = ("length_bucket",)
    fixed_splits = ("train", "dev", "test", "long")

    def _examples(self, split: str) -> Iterator[Example]:
        config = self.config
        shortest, longest = (
            (config.shortest_long, config.long_max_length) if split == "long" else (1, config.max_length)
        )
        digits = len(str(max(config.long_max_length, config.max_length)))
        rng = Random(f"{config.seed}/{config.operation}/{split}/{shortest}-{longest}")
        for _ in range(config.n_train if split == "train" else config.n_eval):
            if config.operation == "addition":
                source, target = draw_addition(rng, shortest, longest)
            else:
                source = "".join(rng.choices(_DIGITS, k=rng.randint(shortest, longest)))
                target = source if config.operation == "copy" else source[::-1]
            columns = {"length": len(source), "length_bucket": bucket_of(len(source), config.bucket, digits=digits)}
            yield Example(" ".join(source), " ".join(target), columns)


def draw_addition(rng: Random, shortest: int, longest: int) -> tuple[str, str]:
    """Return source and target of one addition with `shortest` to `longest` source symbols, as strings of symbols.

    Both operands are drawn as for a maximum of `longest`; sources shorter than `shortest` are drawn again.
    """
    while True:
        n_first = rng.randint(1, longest // 2)
        n_second = rng.randint(1, longest - n_first - 1)
        if n_first + n_second + 1 >= shortest:
            break
    first, second = _draw_number(rng, n_first), _draw_number(rng, n_second)
    return f"{first}{_SEPARATOR}{second}", add_reversed(first, second)


def add_reversed(first: str, second: str) -> str:
    """Add two numbers written least significant digit first, digit by digit.

    Python refuses to convert integers of more than 4,300 digits to text.
    """
    width = max(len(first), len(second))
    digits, carry = [], 0
    for left, right in zip(first.ljust(width, "0"), second.ljust(width, "0"), strict=True):
        carry, digit = divmod(int(left) + int(right) + carry, 10)
        digits.append(_DIGITS[digit])
    if carry:
        digits.append(_DIGITS[carry])
    return "".join(digits)


def _draw_number(rng: Random, n_digits: int) -> str:
    """Return a number of exactly `n_digits` digits, least significant first."""
    lower = "".join(rng.choices(_DIGITS, k=n_digits - 1))
    return lower + rng.choice(_DIGITS if n_digits == 1 else _DIGITS[1:])
