"""ListOps: the value of nested lists of digits (Nangia and Bowman 2018), as the Long Range Arena draws them.

    Tree(d) = digit ~ U{0..9}                                                 with probability 3/4, or where d = depth
              [OP Tree(d+1) .. Tree(d+1) ], n ~ U{2..args} of them,           else
              OP ~ U{MIN, MAX, MED, SM}, drawn after its arguments
    length(digit) = 1, length([OP .. ]) = 2 + lengths of the arguments;  kept where shortest <= length <= longest

MED is the median, the fraction of a mean of two dropped; SM the sum modulo 10. The arena (Tay et al. 2021,
arXiv 2011.04006) has depth 10, up to 10 arguments and 500 < length < 2000: 8 % of the trees stay, 1,040 tokens long.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from random import Random
from typing import Any, Literal, NamedTuple

from ostinato.config.base import Count, Size
from ostinato.data.example import Example
from ostinato.tasks.base import Task, TaskConfig, bucket_of

OPERATORS = ("MIN", "MAX", "MED", "SM")
CLOSE = "]"
_OPERATOR_SHARE = 0.25
_FEWEST_ARGUMENTS = 2


class TreeShape(NamedTuple):
    """The trees that are drawn and kept: greatest depth, most arguments, shortest and longest length."""

    depth: int
    arguments: int
    shortest: int
    longest: int


class _Version(NamedTuple):
    shape: TreeShape
    long: TreeShape | None
    n_train: int
    bucket: int


_VERSIONS = {
    "lra": _Version(TreeShape(10, 10, 501, 1999), None, 96_000, 500),
    "small": _Version(TreeShape(6, 5, 10, 100), TreeShape(6, 5, 101, 300), 50_000, 20),
}


class ListOpsConfig(TaskConfig):
    """Settings of ListOps."""

    kind: Literal["listops"] = "listops"
    version: Literal["lra", "small"] = "lra"
    """lra: as in the Long Range Arena. small: depth 6, up to 5 arguments, 10 to 100 tokens, and a split `long`."""
    n_train: Size | None = None
    """None: 96,000, and 50,000 for the small version."""
    n_eval: Size = 2000
    """Examples in each of dev, test and long."""
    seed: Count = 0
    """Of the data; independent of the seed of training."""


class ListOpsTask(Task):
    """ListOps: the value of a nested list of digits, 500 to 2,000 tokens long, as in the Long Range Arena.

    Splits: version=lra has train 96,000, dev 2,000 and test 2,000, the arena's sizes. version=small has train 50,000,
    dev, test (10 to 100 tokens) and long (101 to 300), 2,000 each. No tree occurs twice, in one split or in two. Test
    trees are drawn first, then dev, then train (the arena's order is arbitrary), so that they do not depend on n_train.
    Tokens: words: four operators, ten digits and `]`, of which there are as many as the length says. The arena's files
    also have round brackets, which its reader drops, and an X for every `]`.
    Metric: exact match, which with one symbol is accuracy; by length. 0 and 9 are the most frequent values, 17 % each.
    Selection: dev, which is like test; nothing is selected on long.
    Departures: the arena classifies from the first position of an encoder; here a decoder writes the one digit. The
    rows are drawn by the arena's rules and are not its rows.
    """

    config: ListOpsConfig
    missing = ("long", "task.version=small has it")
    metrics = ("exact_match",)
    by = ("length_bucket",)

    def splits(self) -> tuple[str, ...]:
        """Return train, dev and test, and long for the small version."""
        return ("train", "dev", "test") if self._version.long is None else ("train", "dev", "test", "long")

    def published_sizes(self) -> dict[str, int]:
        """Return the sizes of the Long Range Arena."""
        return {"train": 96_000, "dev": 2_000, "test": 2_000} if self.config.version == "lra" else {}

    @property
    def _version(self) -> _Version:
        return _VERSIONS[self.config.version]

    def _examples(self, split: str) -> Iterator[Example]:
        n = self.config.n_eval
        if split == "train":
            n_train = self.config.n_train or self._version.n_train
            yield from self._rows(2 * n + n_train)[2 * n : 2 * n + n_train]
        elif split == "long" and self._version.long is not None:
            trees = distinct_trees(Random(f"{self.config.seed}/listops/long"), self._version.long)
            yield from map(self._example, islice(trees, n))
        else:
            yield from self._rows(2 * n)[:n] if split == "test" else self._rows(2 * n)[n : 2 * n]

    def _rows(self, n: int) -> list[Example]:
        """Return at least the first n rows of test, dev and train; they are drawn once, because that is slow."""
        self._drawn.extend(map(self._example, islice(self._trees, max(0, n - len(self._drawn)))))
        return self._drawn

    @cached_property
    def _drawn(self) -> list[Example]:
        return []

    @cached_property
    def _trees(self) -> Iterator[list[str]]:
        return distinct_trees(Random(f"{self.config.seed}/listops/{self.config.version}"), self._version.shape)

    def _example(self, tokens: list[str]) -> Example:
        columns: dict[str, Any] = {
            "length": len(tokens),
            "length_bucket": bucket_of(len(tokens), self._version.bucket, digits=4),
            "depth": depth_of(tokens),
        }
        return Example(" ".join(tokens), str(evaluate(tokens)), columns)


def distinct_trees(rng: Random, shape: TreeShape) -> Iterator[list[str]]:
    """Yield the tokens of different trees of the right length, without end."""
    seen: set[bytes] = set()
    while True:
        tokens = draw_tree(rng, shape, is_list=shape.shortest > 1)
        if tokens is None or len(tokens) < shape.shortest:
            continue
        digest = hashlib.blake2b(" ".join(tokens).encode(), digest_size=16).digest()
        if digest not in seen:
            seen.add(digest)
            yield tokens


def draw_tree(rng: Random, shape: TreeShape, *, is_list: bool = False) -> list[str] | None:
    """Return the tokens of one tree; None as soon as it is longer than the longest.

    With `is_list` the tree is no single digit, which has the distribution of drawing again until it is none.
    """
    tokens: list[str] = []
    return tokens if _draw(rng, shape, 1, tokens, is_list) else None


def _draw(rng: Random, shape: TreeShape, depth: int, tokens: list[str], is_list: bool = False) -> bool:
    """Append a tree to the tokens; return False as soon as there are too many tokens."""
    if not is_list and (depth >= shape.depth or rng.random() > _OPERATOR_SHARE):
        tokens.append("0123456789"[int(10 * rng.random())])
        return len(tokens) <= shape.longest
    place = len(tokens)
    tokens.append("")
    for _ in range(rng.randint(_FEWEST_ARGUMENTS, shape.arguments)):
        if not _draw(rng, shape, depth + 1, tokens):
            return False
    tokens[place] = f"[{rng.choice(OPERATORS)}"
    tokens.append(CLOSE)
    return len(tokens) <= shape.longest


def evaluate(tokens: Sequence[str]) -> int:
    """Return the value of an expression, round brackets left out.

    Raises:
        ValueError: it is no expression, with the token and the reason.
    """
    # Every open list has its operator and the values so far; the first entry holds the value of the whole.
    stack: list[tuple[str, list[int]]] = [("", [])]
    for number, token in enumerate(tokens, 1):
        if token.startswith("["):
            if token[1:] not in OPERATORS:
                raise ValueError(f"token {number}: {token!r} is none of the operators {', '.join(OPERATORS)}")
            stack.append((token[1:], []))
        elif token == CLOSE:
            operator, arguments = stack.pop()
            if not stack or not arguments:
                raise ValueError(f"token {number}: nothing to close, or an operator without arguments")
            stack[-1][1].append(_apply(operator, arguments))
        elif len(token) == 1 and token.isdecimal():
            stack[-1][1].append(int(token))
        else:
            raise ValueError(f"token {number}: {token!r} is no digit, operator or {CLOSE}")
    if len(stack) != 1 or len(stack[0][1]) != 1:
        raise ValueError(f"{len(stack) - 1} lists are open at the end, {len(stack[0][1])} values stand side by side")
    return stack[0][1][0]


def _apply(operator: str, arguments: list[int]) -> int:
    if operator == "SM":
        return sum(arguments) % 10
    ordered = sorted(arguments)
    middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) // 2
    return {"MIN": ordered[0], "MAX": ordered[-1], "MED": middle}[operator]


def depth_of(tokens: Sequence[str]) -> int:
    """Return the depth of an expression; a digit has 1."""
    deepest = depth = 1
    for token in tokens:
        depth += token.startswith("[") - (token == CLOSE)
        deepest = max(deepest, depth)
    return deepest
