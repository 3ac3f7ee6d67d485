"""Every row at every expert: what passes that are traced once for all data do in place of sorting rows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ostinato.kernels import ExpertWeights, dense_dispatch, dispatch, expert_feed_forward

N, E, D, F = 7, 4, 5, 6


def numbers(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Case:
    def __init__(self, n_chosen: int, left_out: tuple[int, ...] = ()) -> None:
        self.weights = ExpertWeights(
            *(numbers(*shape, seed=seed) for seed, shape in enumerate([(E, D, F), (E, F), (E, F, D), (E, D)]))
        )
        self.x, self.gates = numbers(N, D, seed=5), numbers(N, n_chosen, seed=6)
        self.experts_NK = numbers(N, E, seed=7).topk(n_chosen, dim=1).indices
        self.weight_N = torch.ones(N, dtype=torch.float64).index_fill(0, torch.tensor(left_out, dtype=torch.long), 0.0)

    def run(self, *, is_dense: bool) -> list[Tensor]:
        """Return the output and, of what may have one, the gradient."""
        leaves = [x.detach().requires_grad_() for x in (self.x, self.gates, *self.weights)]  # type: ignore[union-attr]
        to = (dense_dispatch if is_dense else dispatch)(self.experts_NK, E, self.weight_N)
        weights = ExpertWeights(*leaves[2:])
        y_ND = expert_feed_forward(leaves[0], weights, leaves[1], to, "silu", backend="dense" if is_dense else "loop")
        return [y_ND.detach(), *torch.autograd.grad(y_ND.square().sum(), leaves)]


@pytest.mark.parametrize("n_chosen", [1, 2, E])
@pytest.mark.parametrize("left_out", [(), (1, 4)])
def test_outputs_and_gradients_are_those_of_sorted_rows(n_chosen: int, left_out: tuple[int, ...]) -> None:
    case = Case(n_chosen, left_out)
    for found, expected in zip(case.run(is_dense=True), case.run(is_dense=False), strict=True):
        torch.testing.assert_close(found, expected)


def test_what_overflows_in_an_expert_that_a_row_did_not_choose_does_not_reach_it() -> None:
    case = Case(2)
    case.weights.down_EFD[3].fill_(1e308)
    is_spared_N = (case.experts_NK != 3).all(1)
    assert 0 < int(is_spared_N.sum()) < N
    found, expected = (case.run(is_dense=is_dense)[0] for is_dense in (True, False))
    assert expected[is_spared_N].isfinite().all()
    torch.testing.assert_close(found[is_spared_N], expected[is_spared_N])


def test_rows_that_take_no_part_may_hold_anything() -> None:
    case = Case(2, left_out=(1, 4))
    expected = case.run(is_dense=False)[0]
    case.x[[1, 4]] = float("nan")
    case.gates[[1, 4]] = float("nan")
    torch.testing.assert_close(case.run(is_dense=True)[0], expected)
    assert not expected[[1, 4]].any()
