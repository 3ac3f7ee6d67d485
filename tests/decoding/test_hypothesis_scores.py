from __future__ import annotations

import math

import pytest

from ostinato.config.decoding import LengthPenaltyConfig
from ostinato.decoding import length_penalty


@pytest.mark.parametrize(
    ("kind", "alpha", "n", "expected"),
    [
        ("none", 0.6, 17, 1.0),
        ("gnmt", 0.6, 1, 1.0),
        ("gnmt", 1.0, 7, 2.0),
        ("gnmt", 0.5, 19, 2.0),
        ("gnmt", 0.6, 25, 5**0.6),
        ("exponent", 1.0, 7, 7.0),
        ("exponent", 0.5, 9, 3.0),
        ("exponent", 0.0, 9, 1.0),
    ],
)
def test_length_penalties_have_their_hand_computed_values(kind: str, alpha: float, n: int, expected: float) -> None:
    assert math.isclose(length_penalty(LengthPenaltyConfig(kind=kind, alpha=alpha), n), expected)
