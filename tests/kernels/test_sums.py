"""Gradients that products add up in place, against those that autograd adds up."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from architectures import draws
from ostinato.kernels import active_sums, summing

pytestmark = pytest.mark.device

D, OUT = 5, 6
Part = tuple[int, slice | None]
"""Rows of x, and which outputs are wanted."""

parts = st.tuples(st.integers(0, 4), st.sampled_from([None, slice(0, 2), slice(2, 6), slice(1, 3)]))


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def outputs(uses: list[Part], x: list[Tensor], weight: Tensor, bias: Tensor | None, *, sums: bool) -> list[Tensor]:
    """Return what every use of the matrix gives, each of them changed by the one before."""
    found: list[Tensor] = []
    with summing():
        current = active_sums.get()
        assert current is not None
        for (_, rows), x_ND in zip(uses, x, strict=True):
            read = x_ND * (1.0 + found[-1].sum()) if found else x_ND
            part = slice(None) if rows is None else rows
            y = F.linear(read, weight[part], None if bias is None else bias[part])
            found.append(current.product(read, weight, bias, rows) if sums else y)
    return found


def total(found: list[Tensor]) -> Tensor:
    return torch.stack([(y.tanh() * numbers(*y.shape, seed=n)).sum() for n, y in enumerate(found, 1)]).sum()


@draws(60)
@given(st.lists(parts, min_size=1, max_size=5), st.booleans())
def test_outputs_and_gradients_are_those_of_autograd(uses: list[Part], has_bias: bool) -> None:
    weight, bias = numbers(OUT, D).requires_grad_(), numbers(OUT, seed=9).requires_grad_()
    x = [numbers(n, D, seed=3 + k).requires_grad_() for k, (n, _) in enumerate(uses)]
    leaves = [weight, *x, *([bias] if has_bias else [])]
    both = []
    for sums in (False, True):
        found = outputs(uses, x, weight, bias if has_bias else None, sums=sums)
        both.append([*found, *torch.autograd.grad(total(found), leaves)])
    for expected, actual in zip(*both, strict=True):
        torch.testing.assert_close(actual, expected)


def model() -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Return a weight, inputs, and what three products make of them."""
    weight = numbers(OUT, D).requires_grad_()
    uses: list[Part] = [(3, None), (2, slice(2, 6)), (4, None)]
    x = [numbers(n, D, seed=n).requires_grad_() for n, _ in uses]
    return weight, x, outputs(uses, x, weight, None, sums=True)


def test_a_backward_pass_that_leaves_out_the_weights_leaves_nothing_behind() -> None:
    weight, x, found = model()
    (expected,) = torch.autograd.grad(total(found), weight, retain_graph=True)
    torch.autograd.grad(total(found), x, retain_graph=True)
    (actual,) = torch.autograd.grad(total(found), weight)
    assert torch.equal(actual, expected)


def test_a_second_backward_pass_begins_anew() -> None:
    weight, _, found = model()
    loss = total(found)
    loss.backward(retain_graph=True)
    assert weight.grad is not None
    once = weight.grad.clone()
    loss.backward()
    assert torch.equal(weight.grad, 2.0 * once)


def test_gradients_can_be_differentiated_again() -> None:
    found = []
    for sums in (False, True):
        weight, x = numbers(OUT, D).requires_grad_(), numbers(3, D, seed=1).requires_grad_()
        given = outputs([(3, None), (3, slice(2, 6))], [x, x], weight, None, sums=sums)
        first = torch.autograd.grad(total(given), (weight, x), create_graph=True)
        found.append(torch.autograd.grad(total([one.reshape(1, -1) for one in first]), (weight, x)))
    for expected, actual in zip(*found, strict=True):
        torch.testing.assert_close(actual, expected)


@pytest.mark.device(False)
def test_matrices_that_are_not_learned_and_autocast_are_left_to_torch() -> None:
    with summing():
        sums = active_sums.get()
        assert sums is not None
        fixed, x = torch.randn(OUT, D), torch.randn(3, D).requires_grad_()
        assert torch.equal(sums.product(x, fixed, None), F.linear(x, fixed))
        learned = fixed.clone().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(sums.product(x, learned, None), F.linear(x, learned))
        assert not sums._used
        with torch.no_grad():
            assert not sums.product(x, learned, None).requires_grad
    assert active_sums.get() is None


def test_rows_of_several_dimensions_keep_them() -> None:
    weight, x = numbers(OUT, D).requires_grad_(), numbers(2, 3, D, seed=1)
    with summing():
        sums = active_sums.get()
        assert sums is not None
        y = sums.product(x, weight, None, slice(1, 3))
    torch.testing.assert_close(y, x @ weight[1:3].t())
