from __future__ import annotations

import numpy as np
import pytest

from ostinato.analysis import expert_token_pmi, inter_run_consistency, routing_fluctuation, top_tokens
from ostinato.errors import DataError


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
