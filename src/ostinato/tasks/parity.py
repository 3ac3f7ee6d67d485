"""Running parity: for every bit, whether the number of ones so far is odd.

    source  x_1 .. x_n           bits
    tags    y_1 .. y_n           y_i = x_1 xor .. xor x_i

Example: the tags of `1 0 1 1` are `1 1 0 1`. The last tag is the parity of all bits. One step that is right at every
place, y_i = y_(i-1) xor x_i, is right at any length if it is repeated n times (Fan et al. 2024, arXiv 2409.15647, whose
task asks for the last tag alone).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from operator import xor
from random import Random
from typing import Literal

from pydantic import Field

from ostinato.config.base import Count, Number, Size
from ostinato.data.example import Example
from ostinato.errors import Problem
from ostinato.tasks.base import Task, TaskConfig


class ParityConfig(TaskConfig):
    """Settings of running parity; lengths are in bits."""

    kind: Literal["parity"] = "parity"
    max_length: Number = 8
    """Longest source of train, dev and test."""
    long_lengths: list[Number] = Field(default_factory=lambda: [12, 16, 24, 32])
    """Lengths of the split `long`, each with n_eval examples."""
    n_train: Size = 100_000
    """Examples in train."""
    n_eval: Size = 500
    """Examples in dev, in test, and of every length in long."""
    seed: Count = 0
    """Of the data; independent of the seed of training."""

    def problems(self, path: str = "") -> Iterator[Problem]:
        """The split `long` is longer than what is trained on."""
        yield from super().problems(path)
        if not self.long_lengths or min(self.long_lengths) <= self.max_length:
            reason = f"must be one length or more, all larger than {path}max_length = {self.max_length}"
            yield Problem(f"{path}long_lengths", self.long_lengths, reason)


class ParityTask(Task):
    """Running parity: tag every bit with the parity of the bits so far; train on short sequences, measure on longer.

    The tags of `1 0 1 1` are `1 1 0 1`.
    Splits: train (`n_train`), dev and test (`n_eval` each) with 1 to `max_length` bits, long with each of
    `long_lengths`, `n_eval` examples a length. Lengths are uniform in the first three, bits are fair coins. Every split
    depends on `seed`, not on the others' sizes. There are few short sequences (510 of up to 8 bits): those of dev and
    test are in train; nothing of long is.
    Tokens: words; 0 and 1, separated by blanks. A tag is read at its bit.
    Metric: sequence accuracy (all tags of a sequence right) and tag accuracy, by length; chance is 50 % a tag.
    Selection: dev, which has the training lengths; nothing is selected on long.
    Departures: Fan et al. ask for one answer a sequence, the last tag here; it is learned from far fewer answers a
    sequence there. Their lengths are 1 to 20 in training.
    """

    config: ParityConfig
    answers = "tags"
    metrics = ("tag_accuracy",)
    forced = ("sequence_accuracy_forced",)
    by = ("length",)
    fixed_splits = ("train", "dev", "test", "long")

    def _examples(self, split: str) -> Iterator[Example]:
        config = self.config
        rng = Random(f"{config.seed}/parity/{split}/{config.long_lengths if split == 'long' else config.max_length}")
        if split == "long":
            lengths = [length for length in config.long_lengths for _ in range(config.n_eval)]
        else:
            n = config.n_train if split == "train" else config.n_eval
            lengths = [rng.randint(1, config.max_length) for _ in range(n)]
        for length in lengths:
            bits = rng.choices((0, 1), k=length)
            tags = accumulate(bits, xor)
            yield Example(" ".join(map(str, bits)), " ".join(map(str, tags)), {"length": length})
