"""Cross entropy whose gradient takes the place of the log-probabilities, against torch's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from architectures import draws
from ostinato.kernels import IGNORED, cross_entropy_sums

pytestmark = pytest.mark.device

V = 7


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@draws(60)
@given(st.lists(st.sampled_from([IGNORED, *range(V)]), max_size=5), st.sampled_from([0.0, 0.1, 0.7]))
def test_sums_and_gradient_are_those_of_torch(ids: list[int], smoothing: float) -> None:
    labels = torch.tensor(ids, dtype=torch.int64)
    mine, theirs = (numbers(len(ids), V).requires_grad_() for _ in range(2))
    given = {"ignore_index": IGNORED, "reduction": "sum"}
    loss, nll = cross_entropy_sums(3.0 * mine, labels, smoothing)
    expected = F.cross_entropy(3.0 * theirs, labels, label_smoothing=smoothing, **given)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(nll, F.cross_entropy(3.0 * theirs.detach(), labels, **given))
    assert not nll.requires_grad
    (loss / 4).backward()
    (expected / 4).backward()
    torch.testing.assert_close(mine.grad, theirs.grad)


def test_the_gradient_lies_where_the_log_probabilities_were_and_logits_stay() -> None:
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    logits = numbers(3, V)
    leaf = logits.clone().requires_grad_()
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        loss, _ = cross_entropy_sums(leaf, torch.tensor([1, IGNORED, 2]), 0.1)
    places = [tensor.data_ptr() for tensor in kept if tensor.is_floating_point()]
    (gradient,) = torch.autograd.grad(loss, leaf)
    assert places == [gradient.data_ptr()]
    assert torch.equal(leaf, logits)


def test_a_second_backward_pass_is_refused() -> None:
    loss, _ = cross_entropy_sums(numbers(3, V).requires_grad_(), torch.tensor([1, 2, 3]), 0.0)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_an_infinite_gradient_is_nothing_to_rows_that_do_not_count() -> None:
    logits = numbers(2, V).requires_grad_()
    loss, _ = cross_entropy_sums(logits, torch.tensor([1, IGNORED]), 0.1)
    loss.backward(torch.tensor(torch.inf, dtype=torch.float64))
    assert logits.grad is not None
    assert torch.isinf(logits.grad[0]).all()
    assert not logits.grad[1].any()
