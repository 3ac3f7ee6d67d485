from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

from ostinato.decoding.generate import Generation

Script = Callable[[str], ModuleType]


def output(text: str, score: float) -> Generation:
    return Generation(text, score, score, True, 3)


def test_outputs_that_differ_are_listed_and_those_of_equal_scores_are_ties(script: Script) -> None:
    one = [output("a b", -1.0), output("c", -2.0), output("d", -3.0)]
    other = [output("a b", -1.0), output("x", -2.000001), output("y", -3.1)]
    found = script("translation").differences(one, other)
    assert [(line["row"], line["outputs"], line["is_tie"]) for line in found] == [
        (1, ["c", "x"], True),
        (2, ["d", "y"], False),
    ]


def test_scores_come_with_their_signatures(script: Script) -> None:
    sentence = "ein Mann mit einem Hut sitzt auf einer Bank ."
    found = script("translation").score([sentence], [sentence], ("bleu", "chrf"))
    assert found["bleu"] == pytest.approx(100)
    assert found["chrf"] == pytest.approx(100)
    assert "tok:13a" in found["bleu_signature"]
