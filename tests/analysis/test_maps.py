"""Halting maps, ponder times, entropy and mass of attention."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ostinato.analysis import attention_entropy, halting_map, mass_on, ponder_times
from ostinato.errors import DataError


def test_a_map_is_the_mass_before_each_round_and_nothing_once_halted() -> None:
    remaining = [[1.0, 0.75, 0.25], [1.0, 0.1, 0.05]]
    executed = [[True, True, True], [True, False, False]]
    np.testing.assert_allclose(halting_map(remaining, executed), [[1.0, 0.75, 0.25], [1.0, 0.0, 0.0]])
    assert ponder_times(executed).tolist() == [3, 1]


def test_without_halting_every_token_ponders_all_rounds() -> None:
    assert ponder_times(np.ones((4, 5), dtype=bool)).tolist() == [5] * 4


def test_masses_that_are_none_are_refused() -> None:
    with pytest.raises(DataError, match=r"must lie in \[0, 1\]"):
        halting_map([[1.5]], [[True]])
    with pytest.raises(DataError, match="same tokens and rounds"):
        halting_map([[1.0, 0.5]], [[True]])


def test_even_attention_has_the_entropy_of_its_keys_and_sharp_attention_none() -> None:
    weights = [[0.25] * 4, [0.0, 1.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0]]
    np.testing.assert_allclose(attention_entropy(weights), [math.log(4), 0.0, math.log(2)])


def test_order_and_keys_without_weight_do_not_matter() -> None:
    weights = np.random.default_rng(0).dirichlet(np.ones(6), size=(2, 3))
    padded = np.concatenate([weights[..., ::-1], np.zeros((2, 3, 2))], -1)
    np.testing.assert_allclose(attention_entropy(padded), attention_entropy(weights))
    expected = [[-sum(a * math.log(a) for a in row) for row in head] for head in weights.tolist()]
    np.testing.assert_allclose(attention_entropy(weights), expected)


def test_mass_is_the_weight_on_the_given_keys() -> None:
    weights = [[0.1, 0.2, 0.7], [0.6, 0.4, 0.0]]
    np.testing.assert_allclose(mass_on(weights, [True, False, True]), [0.8, 0.6])
    np.testing.assert_allclose(mass_on(weights, [[False] * 3, [True] * 3]), [0.0, 1.0])


def test_negative_weights_are_refused() -> None:
    with pytest.raises(DataError, match="at least 0"):
        attention_entropy([[-0.1, 1.1]])
