"""Scores that compare outputs token by token, with references or with other outputs; white space separates tokens.

With the tokens p_1 .. p_m of an output and r_1 .. r_n of its reference, and an end symbol after each, p_{m+1} and
r_{n+1}:

    exact_match          = examples with p = r / examples                                       the papers' seq-acc
    token_accuracy_free  = sum of [p_i = r_i, i = 1 .. n + 1] / sum of (n + 1)                   the papers' char-acc
    character_accuracy_free   the same with characters for tokens: for tasks whose tokens are characters
    first_word           = examples with p_1 = r_1 / examples
    second_word          = examples with p_2 = r_2 / examples

Positions past the output's end are wrong; tokens past the reference's end cost the end symbol's position. One insertion
shifts all that follows, so this is no edit distance. "Free" stands for free running: the output was generated without
the true tokens.

`consistency` is the share of inputs for which two outputs agree, whether they are right or wrong (Hupkes et al. 2020,
arXiv 1908.08351).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from ostinato.errors import DataError
from ostinato.metrics.base import Proportion

_END = ""
"""The end symbol: no token is an empty string."""


class ExactMatch(Proportion):
    """Share of the outputs, in [0, 1], that equal their reference up to the amount of white space."""

    name = "exact_match"

    def counts(self, prediction: str, reference: str, source: str = "") -> list[int]:
        """Return whether they are equal, and 1."""
        return [int(prediction.split() == reference.split()), 1]


class TokenAccuracyFree(Proportion):
    """Share of the reference's tokens, end symbol included, in [0, 1], that the output has at the same place."""

    name = "token_accuracy_free"

    def counts(self, prediction: str, reference: str, source: str = "") -> list[int]:
        """Return the tokens that are right, and the tokens of the reference."""
        wanted = [*self._tokens(reference), _END]
        written = [*self._tokens(prediction), _END][: len(wanted)]
        return [sum(token == other for token, other in zip_longest(wanted, written)), len(wanted)]

    def _tokens(self, text: str) -> Sequence[str]:
        return text.split()


class CharacterAccuracyFree(TokenAccuracyFree):
    """Share of the reference's characters, end symbol included, in [0, 1], that the output has at the same place.

    Blanks at the ends are dropped.
    """

    name = "character_accuracy_free"

    def _tokens(self, text: str) -> Sequence[str]:
        return text.strip()


class FirstWord(ExactMatch):
    """Share of the outputs, in [0, 1], whose first word is the reference's.

    Source: McCoy et al. 2020, "Does Syntax Need to Grow on Trees?": where a declarative is turned into a question, the
    first word is the auxiliary, and says whether the one of the main clause was moved to the front.
    """

    name = "first_word"

    def counts(self, prediction: str, reference: str, source: str = "") -> list[int]:
        """Return whether the first words are equal, a missing one being equal to a missing one, and 1."""
        return [int(prediction.split()[:1] == reference.split()[:1]), 1]


class SecondWord(ExactMatch):
    """Share of the outputs, in [0, 1], whose second word is the reference's.

    Source: Mueller et al. 2022, "Coloring the Blank Slate", whose passives begin with a determiner and
    the object's noun: the score says how often the right noun was moved to the front.
    """

    name = "second_word"

    def counts(self, prediction: str, reference: str, source: str = "") -> list[int]:
        """Return whether the second words are equal, a missing one being equal to a missing one, and 1."""
        return [int(prediction.split()[1:2] == reference.split()[1:2]), 1]


def consistency(outputs: Iterable[str], others: Iterable[str]) -> float:
    """Return the share of pairs of outputs, in [0, 1], that are equal up to the amount of white space.

    Args:
        outputs: of one set of inputs.
        others: of the same inputs with a change that should not matter, such as a synonym, in the same order.

    Raises:
        DataError: there are no outputs, or their numbers differ.
    """
    first, second = [output.split() for output in outputs], [output.split() for output in others]
    if len(first) != len(second) or not first:
        raise DataError(f"consistency needs as many outputs on both sides, not {len(first)} and {len(second)}")
    return sum(one == other for one, other in zip(first, second, strict=True)) / len(first)
