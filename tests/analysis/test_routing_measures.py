from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from ostinato.analysis import (
    expert_information,
    expert_token_pmi,
    expert_use,
    inter_run_consistency,
    routing_fluctuation,
    top_tokens,
)
from ostinato.errors import DataError
from ostinato.evaluation.routing import RoutingTotals, routing_sums
from ostinato.nn.types import Routing


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
        totals.add(routing_sums({"r": [rows]}))
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


def test_identical_checkpoints_do_not_fluctuate_and_relabelled_ones_do_wholly() -> None:
    experts = np.array([0, 1, 2, 0])
    assert routing_fluctuation(experts, experts) == 0.0
    assert routing_fluctuation(experts, (experts + 1) % 3) == 1.0


def test_tokens_that_halted_at_either_checkpoint_do_not_count() -> None:
    assert routing_fluctuation([0, 1, -1, 2], [0, 2, 1, -1]) == pytest.approx(0.5)
    assert np.isnan(routing_fluctuation([-1], [0]))
    with pytest.raises(DataError, match="same tokens"):
        routing_fluctuation([0], [0, 1])


def test_one_run_is_consistent_and_opposite_ones_cancel() -> None:
    assert inter_run_consistency([[5.0, 1.0, 2.0]]) == 1.0
    assert inter_run_consistency([[1.0, 2.0], [20.0, 40.0]]) == pytest.approx(1.0)
    assert inter_run_consistency([[1.0, 2.0], [2.0, 1.0]]) == pytest.approx(0.0)


def test_it_is_the_mean_of_all_correlations_with_the_diagonal() -> None:
    loads = np.random.default_rng(0).random((4, 6))
    assert inter_run_consistency(loads) == pytest.approx(np.corrcoef(loads).mean())


def test_an_even_load_correlates_with_itself_only() -> None:
    assert inter_run_consistency([[0.1, 0.1, 0.1], [0.2, 0.3, 0.5]]) == pytest.approx(0.5)


def test_independent_tokens_and_experts_have_no_mutual_information() -> None:
    counts = np.outer([10, 30, 60], [1, 3])
    np.testing.assert_allclose(expert_token_pmi(counts), 0.0, atol=1e-12)


def test_pmi_by_hand() -> None:
    found = expert_token_pmi([[3, 1], [0, 4], [0, 0]])
    np.testing.assert_allclose(found[0], np.log([3 * 8 / (4 * 3), 1 * 8 / (4 * 5)]))
    assert (found[1, 0], found[1, 1]) == (-np.inf, pytest.approx(np.log(4 * 8 / (4 * 5))))
    assert np.isnan(found[2]).all()


def test_an_expert_tells_as_much_as_its_tokens_differ_from_all() -> None:
    """Two experts with tokens of their own tell which half a token is from; one that takes all alike tells nothing."""
    np.testing.assert_allclose(expert_information([[8, 0], [0, 8]]), np.log(2))
    np.testing.assert_allclose(expert_information(np.outer([10, 30, 60], [1, 3])), 0.0, atol=1e-12)
    first = 3 / 4 * np.log(3 * 12 / (5 * 4)) + 1 / 4 * np.log(1 * 12 / (7 * 4))
    second = 2 / 8 * np.log(2 * 12 / (5 * 8)) + 6 / 8 * np.log(6 * 12 / (7 * 8))
    np.testing.assert_allclose(expert_information([[3, 2, 0], [1, 6, 0]]), [first, second, 0.0])


def test_top_tokens_are_those_of_the_highest_pmi_seen_often_enough() -> None:
    counts = [[9, 1], [5, 5], [4, 0], [0, 8], [10, 0]]
    first, second = top_tokens(counts, 2)
    assert first.tolist() == [4, 0]  # token 2 was routed too rarely
    assert second.tolist() == [3, 1]
    assert top_tokens(counts, 9, min_count=1)[0].tolist() == [4, 2, 0, 1]


@pytest.mark.parametrize("counts", [[[0, 0]], [[-1, 2]], [1, 2]])
def test_what_is_no_table_of_counts_is_refused(counts: object) -> None:
    with pytest.raises(DataError, match="counts must be"):
        expert_token_pmi(counts)  # type: ignore[arg-type]
