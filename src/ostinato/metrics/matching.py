"""Scores that compare output and reference token by token, tokens being what white space separates.

With the tokens p_1 .. p_m of an output and r_1 .. r_n of its reference, and an end symbol after each, p_{m+1} and
r_{n+1}:

    exact_match          = examples with p = r / examples                                       the papers' seq-acc
    token_accuracy_free  = sum of [p_i = r_i, i = 1 .. n + 1] / sum of (n + 1)                   the papers' char-acc

Positions past the output's end are wrong; tokens past the reference's end cost the end symbol's position. One insertion
shifts all that follows, so this is no edit distance. "Free": the output was searched for, no true token was given.
"""

from __future__ import annotations

import math
from itertools import zip_longest

from ostinato.metrics.base import Metric

_END = ""
"""No token is empty, so this one stands for the end."""


class ExactMatch(Metric):
    """Share of the outputs, in [0, 1], that equal their reference up to the amount of white space."""

    def __init__(self) -> None:
        self._n = self._n_right = 0

    def update(self, prediction: str, reference: str) -> None:
        """Count one output."""
        self._n += 1
        self._n_right += prediction.split() == reference.split()

    def compute(self) -> dict[str, float | str]:
        """Return exact_match."""
        return {"exact_match": self._n_right / self._n if self._n else math.nan}


class TokenAccuracyFree(Metric):
    """Share of the reference's tokens, end symbol included, in [0, 1], that the output has at the same place."""

    def __init__(self) -> None:
        self._n = self._n_right = 0

    def update(self, prediction: str, reference: str) -> None:
        """Count one output."""
        wanted = [*reference.split(), _END]
        written = [*prediction.split(), _END][: len(wanted)]
        self._n += len(wanted)
        self._n_right += sum(token == other for token, other in zip_longest(wanted, written))

    def compute(self) -> dict[str, float | str]:
        """Return token_accuracy_free."""
        return {"token_accuracy_free": self._n_right / self._n if self._n else math.nan}
