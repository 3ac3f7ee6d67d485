"""Parts of a tensor: their gradients are joined to what torch joins, as a view where they lie side by side."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ostinato.kernels import attend, native, split, unbind
from ostinato.kernels.attention import room_like

needs_kernels = pytest.mark.skipif(native.library() is None, reason="no C compiler here")


def numbers(*sizes: int, seed: int = 0) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


class _Given(torch.autograd.Function):
    """Nothing forwards; backwards a gradient that lies as it is given."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, grad: Tensor) -> Tensor:
        ctx.grad = grad
        return x.clone()

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, None]:
        return ctx.grad, None


def joined(parts: Any, x: Tensor, grads: list[Tensor]) -> Tensor:
    """Return the gradient of x when its parts have these."""
    x = x.detach().requires_grad_()
    made = x.view_as(x)  # not a leaf
    total = sum(_Given.apply(part, grad).sum() for part, grad in zip(parts(made), grads, strict=True))  # type: ignore[no-untyped-call]
    return torch.autograd.grad(total, x)[0]


def shares(a: Tensor, b: Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def test_gradients_that_lie_side_by_side_are_joined_where_they_are() -> None:
    x, whole = numbers(6, 10), numbers(6, 10, seed=1)
    found = joined(lambda x: split(x, (3, 2, 5)), x, list(whole.split([3, 2, 5], -1)))
    assert torch.equal(found, whole)
    assert shares(found, whole)
    x, whole = numbers(3, 4, 5), numbers(4, 3, 5, seed=1).transpose(0, 1)
    found = joined(unbind, x, list(whole.unbind(0)))
    assert torch.equal(found, whole)
    assert shares(found, whole)


@pytest.mark.parametrize("order", ["apart", "other order", "a gap", "same", "expanded"])
def test_others_are_copied_in_their_order(order: str) -> None:
    room = numbers(6, 40, seed=1)
    pairs = {
        "apart": [numbers(6, 4, seed=2), numbers(6, 4, seed=3)],
        "other order": [room[:, 4:8], room[:, :4]],
        "a gap": [room[:, :4], room[:, 5:9]],
        "same": [room[:, :4], room[:, :4]],
        "expanded": [room[:1, :1].expand(6, 4), room[:1, 4:5].expand(6, 4)],
    }
    grads = pairs[order]
    assert torch.equal(joined(lambda x: split(x, (4, 4)), numbers(6, 8), grads), torch.cat(grads, -1))
    assert torch.equal(joined(unbind, numbers(2, 6, 4), grads), torch.stack(grads))


def test_a_part_without_a_gradient_has_zeros() -> None:
    x = numbers(2, 3, 4).requires_grad_()
    first, _ = unbind(x)
    assert torch.equal(torch.autograd.grad(first.sum(), x)[0], torch.stack([torch.ones(3, 4), torch.zeros(3, 4)]))
    x = numbers(3, 5).requires_grad_()
    _, last = split(x, (2, 3))
    assert torch.equal(torch.autograd.grad(last.sum(), x)[0][:, :2], torch.zeros(3, 2))


def test_gradients_of_gradients_depend_on_all_parts() -> None:
    for parts in (lambda x: split(x, (2, 2)), lambda x: unbind(x.view(3, 2, 2).transpose(0, 1))):
        x = numbers(3, 4).double().requires_grad_()
        assert torch.autograd.gradgradcheck(lambda x, parts=parts: [part.pow(3) for part in parts(x)], (x,))


def test_parts_are_torchs_where_passes_are_transformed() -> None:
    x = numbers(3, 4)
    found = torch.func.grad(lambda x: sum(part.square().sum() for part in split(x, (1, 3))))(x)
    torch.testing.assert_close(found, 2 * x)


@pytest.mark.parametrize("n_heads", [(3, 3, 3), (4, 2, 2)])
def test_room_for_gradients_lies_as_heads_do(n_heads: tuple[int, ...]) -> None:
    B, T, K = 2, 5, 4
    packed = numbers(B, T, sum(n_heads), K)
    parts = [one.transpose(1, 2) for one in packed.split(list(n_heads), 2)]
    room = room_like(parts)
    assert [one.shape for one in room] == [one.shape for one in parts]
    assert [one.stride() for one in room] == [one.stride() for one in parts]
    assert all(shares(one, room[0]) for one in room)
    assert not shares(room[0], packed)
    for i, one in enumerate(room):  # none lies over another
        one.fill_(i)
    assert [one.unique().tolist() for one in room] == [[0.0], [1.0], [2.0]]


@pytest.mark.parametrize("case", ["other order", "one twice", "apart", "other lengths"])
def test_heads_that_are_no_parts_of_one_tensor_have_rooms_of_their_own(case: str) -> None:
    packed = numbers(2, 5, 6, 4)
    first, second = (one.transpose(1, 2) for one in packed.split([3, 3], 2))
    parts = {
        "other order": [second, first],
        "one twice": [first, first],
        "apart": [first, second.clone()],
        "other lengths": [first, second[:, :, :4]],
    }[case]
    room = room_like(parts)
    assert [one.shape for one in room] == [one.shape for one in parts]
    for i, one in enumerate(room):
        one.fill_(i)
    assert [one.unique().tolist() for one in room] == [[0.0], [1.0]]


@needs_kernels
def test_gradients_that_somebody_keeps_stay_what_they_were() -> None:
    """The gradient of a leaf is added up in place: it must not lie where gradients of parts do."""
    x, kept = numbers(2, 3, 32).requires_grad_(), []
    for _ in range(2):
        parts = split(x, (16, 8, 8))
        for part in parts:
            part.register_hook(lambda grad: kept.append((grad, grad.clone())))
        attend(*(part.unflatten(-1, (-1, 8)).transpose(1, 2) for part in parts), None, 0.3).pow(2).sum().backward()
    assert len(kept) == 6
    assert all(torch.equal(*pair) for pair in kept)


def test_parts_are_torchs_for_batches_of_gradients_and_without_memory() -> None:
    x = numbers(3, 4, 5).requires_grad_()
    for parts in (lambda x: split(x, (2, 3)), unbind):
        y = torch.cat([part.flatten() for part in parts(x * 2)])
        (found,) = torch.autograd.grad(y, x, torch.eye(60), is_grads_batched=True)
        assert torch.equal(found.sum(0), torch.full((3, 4, 5), 2.0))
    leaf = torch.ones(2, 3, 4, device="meta", requires_grad=True)
    (grad,) = torch.autograd.grad(sum(part.sum() for part in unbind(leaf * 2)), leaf)
    assert grad.stride() == leaf.stride()
