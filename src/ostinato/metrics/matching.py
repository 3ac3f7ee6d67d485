"""Scores that compare output and reference token by token, tokens being what white space separates.

With the tokens p_1 .. p_m of an output and r_1 .. r_n of its reference, and an end symbol after each, p_{m+1} and
r_{n+1}:

    exact_match          = examples with p = r / examples                                       the papers' seq-acc
    token_accuracy_free  = sum of [p_i = r_i, i = 1 .. n + 1] / sum of (n + 1)                   the papers' char-acc

Positions past the output's end are wrong; tokens past the reference's end cost the end symbol's position. One insertion
shifts all that follows, so this is no edit distance. "Free": the output was searched for, no true token was given.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from ostinato.metrics.base import Metric

_END = ""
"""No token is empty, so this one stands for the end."""


class ExactMatch(Metric):
    """Share of the outputs, in [0, 1], that equal their reference up to the amount of white space."""

    name = "exact_match"

    def counts(self, prediction: str, reference: str) -> list[int]:
        """Return whether they are equal, and 1."""
        return [int(prediction.split() == reference.split()), 1]

    def score(self, totals: Sequence[int]) -> float:
        """Return the share that is right."""
        n_right, n = totals
        return n_right / n


class TokenAccuracyFree(Metric):
    """Share of the reference's tokens, end symbol included, in [0, 1], that the output has at the same place."""

    name = "token_accuracy_free"

    def counts(self, prediction: str, reference: str) -> list[int]:
        """Return the tokens that are right, and the tokens of the reference."""
        wanted = [*reference.split(), _END]
        written = [*prediction.split(), _END][: len(wanted)]
        return [sum(token == other for token, other in zip_longest(wanted, written)), len(wanted)]

    def score(self, totals: Sequence[int]) -> float:
        """Return the share that is right."""
        n_right, n = totals
        return n_right / n
