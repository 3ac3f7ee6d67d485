from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from ostinato.analysis import expert_use
from ostinato.errors import DataError
from ostinato.evaluation.routing import RoutingTotals
from ostinato.models.base import ModelOutput
from ostinato.nn.types import Routing, StackOutput


def test_three_tokens_counted_by_hand() -> None:
    found = expert_use([[0], [1], [1]], [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.5, 0.5, 0.0]], [1.0, 0.25, 0.0])
    np.testing.assert_allclose(found.load_E, [0.8, 0.2, 0.0])
    assert found.load_entropy == pytest.approx(-0.8 * math.log(0.8) - 0.2 * math.log(0.2))
    assert found.row_entropy == pytest.approx(0.2 * math.log(2))
    assert found.dead == (2,)


def test_even_use_has_the_entropy_of_all_experts_and_sharp_choices_none() -> None:
    found = expert_use(np.arange(8)[:, None] % 4, np.eye(4)[np.arange(8) % 4])
    assert found.load_entropy == pytest.approx(math.log(4))
    assert found.row_entropy == 0.0
    assert found.dead == ()


def test_new_numbers_for_experts_change_no_entropy() -> None:
    draw = np.random.default_rng(0)
    probs = draw.dirichlet(np.ones(5), size=40)
    experts = np.argsort(-probs, axis=1)[:, :2]
    order = draw.permutation(5)
    one, other = expert_use(experts, probs), expert_use(np.argsort(order)[experts], probs[:, order])
    np.testing.assert_allclose(other.load_E, one.load_E[order])
    assert other.load_entropy == pytest.approx(one.load_entropy)
    assert other.row_entropy == pytest.approx(one.row_entropy)


def test_what_evaluation_adds_up_in_passes_is_the_same() -> None:
    draw = np.random.default_rng(1)
    probs, weights = draw.dirichlet(np.full(6, 0.3), size=50), draw.random(50) * (draw.random(50) > 0.2)
    experts = np.argsort(-probs, axis=1)[:, :2]
    totals = RoutingTotals()
    for part in (slice(0, 20), slice(20, 50)):
        p_NE, e_NK = torch.from_numpy(probs[part]), torch.from_numpy(experts[part].copy())
        w_N = torch.from_numpy(weights[part])
        rows = Routing("r", "encoder", 0, p_NE, p_NE, e_NK, p_NE[:, :2], w_N, torch.arange(len(w_N)))
        states = torch.zeros(1, len(w_N), 4)
        totals.add(ModelOutput(torch.zeros(1, 1, 1), {"encoder": StackOutput(states, routings=(rows,))}))
    [added] = totals.compute().values()
    found = expert_use(experts, probs, weights)
    np.testing.assert_allclose(found.load_E, added["load"])
    assert found.load_entropy == pytest.approx(added["load_entropy"])
    assert found.row_entropy == pytest.approx(added["row_entropy"])
    assert len(found.dead) == added["n_dead"]


@pytest.mark.parametrize(
    ("experts", "probs", "weights", "reason"),
    [
        ([[0]], [[0.5, 0.5], [0.5, 0.5]], None, "as many rows"),
        ([[2]], [[0.5, 0.5]], None, "numbered 0 to 1"),
        ([[0.5]], [[0.5, 0.5]], None, "whole numbers"),
        ([[0]], [[0.5, 0.5]], [0.0], "some token must count"),
    ],
)
def test_arrays_that_do_not_belong_together_are_refused(
    experts: list[list[float]], probs: list[list[float]], weights: list[float] | None, reason: str
) -> None:
    with pytest.raises(DataError, match=reason):
        expert_use(experts, probs, weights)
