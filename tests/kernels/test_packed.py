"""Packed products against the plain one, and when a copy is made, used and forgotten."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ostinato.kernels import PackedMatrix, lay_out, packing
from ostinato.kernels import packed as packed_module
from ostinato.kernels.packed import by_threads, has_packed_products
from ostinato.training.threads import cpu_threads

SIZES = [(1, 1, 1), (2, 3, 5), (7, 16, 8), (32, 8, 33), (160, 64, 24)]


@pytest.fixture(autouse=True)
def _fixed_numbers() -> None:
    torch.manual_seed(0)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """Note the shape of every copy that is packed."""
    shapes: list[torch.Size] = []
    pack = packed_module._pack

    def noting(weight: torch.Tensor) -> torch.Tensor:
        shapes.append(weight.shape)
        return pack(weight)

    monkeypatch.setattr(packed_module, "_pack", noting)
    return shapes


def numbers(n: int, d: int, f: int) -> tuple[torch.Tensor, nn.Parameter, nn.Parameter]:
    return torch.randn(n, d), nn.Parameter(torch.randn(f, d)), nn.Parameter(torch.randn(f))


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("is_table", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
def test_the_product_is_the_plain_one(sizes: tuple[int, int, int], is_table: bool, has_bias: bool) -> None:
    x, weight, bias = numbers(*sizes)
    given = bias if has_bias else None
    matrix = PackedMatrix(is_table)
    with torch.no_grad(), packing():
        for rows in (x, x[:1], x, x[:, None].expand(-1, 2, -1)):
            torch.testing.assert_close(matrix.product(rows, weight, given), F.linear(rows, weight, given))


def test_some_outputs_are_those_of_all() -> None:
    x, weight, bias = numbers(6, 8, 12)
    matrix = PackedMatrix()
    with torch.inference_mode(), packing():
        whole = F.linear(x, weight, bias)
        for start, end in ((0, 4), (4, 12), (0, 12), (0, 4)):
            part = matrix.product(x, weight, bias, slice(start, end))
            torch.testing.assert_close(part, whole[:, start:end])


def test_where_gradients_are_wanted_the_plain_product_gives_them(made: list[torch.Size]) -> None:
    x, weight, bias = numbers(4, 3, 5)
    with packing():
        PackedMatrix().product(x, weight, bias).square().sum().backward()
    found, weight.grad = weight.grad, None
    F.linear(x, weight, bias).square().sum().backward()
    torch.testing.assert_close(found, weight.grad)
    assert not made


@pytest.mark.skipif(not has_packed_products(), reason="this torch has no packed products")
def test_a_copy_is_made_once_while_packing_is_on_and_forgotten_with_it(made: list[torch.Size]) -> None:
    x, weight, _ = numbers(4, 3, 5)
    matrix = PackedMatrix()
    with torch.no_grad():
        with packing():
            for _ in range(3):
                matrix.product(x, weight)
            with packing():  # the copies of the outer one
                matrix.product(x, weight)
            matrix.product(x, weight)
        assert made == [weight.shape]
        assert vars(matrix) == vars(PackedMatrix())
        weight.data = torch.randn_like(weight)
        torch.testing.assert_close(matrix.product(x, weight), F.linear(x, weight))
        assert len(made) == 1
        with packing():
            torch.testing.assert_close(matrix.product(x, weight), F.linear(x, weight))
        assert len(made) == 2


def test_an_error_inside_forgets_the_copies_too() -> None:
    x, weight, _ = numbers(4, 3, 5)
    matrix = PackedMatrix(is_table=True)

    def fails() -> None:
        with torch.no_grad(), packing():
            matrix.product(x[:1], weight)
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fails()
    assert vars(matrix) == vars(PackedMatrix(is_table=True))


def test_a_table_that_a_single_row_meets_first_is_not_packed(made: list[torch.Size]) -> None:
    x, weight, _ = numbers(4, 3, 5)
    matrix = PackedMatrix(is_table=True)
    with torch.no_grad(), packing():
        matrix.product(x[:1], weight)
        torch.testing.assert_close(matrix.product(x, weight), F.linear(x, weight))
    assert not made


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_take_the_plain_product(dtype: torch.dtype, made: list[torch.Size]) -> None:
    x, weight, _ = (t.to(dtype) for t in numbers(4, 3, 5))
    with torch.no_grad(), packing():
        assert torch.equal(PackedMatrix().product(x, weight), F.linear(x, weight))
    assert not made


def test_so_does_autocast(made: list[torch.Size]) -> None:
    x, weight, _ = numbers(4, 3, 5)
    with torch.no_grad(), packing(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert PackedMatrix().product(x, weight).dtype == torch.bfloat16
    assert not made


def test_it_can_be_switched_off(made: list[torch.Size]) -> None:
    x, weight, _ = numbers(4, 3, 5)
    with torch.no_grad(), packing(False):
        assert torch.equal(PackedMatrix().product(x, weight), F.linear(x, weight))
    assert not made


def test_copies_of_a_model_do_not_take_its_packed_matrices_along() -> None:
    x, weight, _ = numbers(4, 3, 5)
    matrix = PackedMatrix(is_table=True)
    with torch.no_grad(), packing():
        matrix.product(x, weight)
        for other in (copy.deepcopy(matrix), pickle.loads(pickle.dumps(matrix))):
            assert vars(other) == vars(PackedMatrix(is_table=True))
            torch.testing.assert_close(other.product(x, weight), F.linear(x, weight))


@pytest.mark.parametrize("is_laid_out", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("sizes", [(256, 384), (384, 256), (512, 101), (8, 4)])
def test_a_single_row_is_multiplied_by_all_threads_alike(
    sizes: tuple[int, int], has_bias: bool, is_laid_out: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_in, n_out = sizes
    weight, bias = torch.randn(n_out, n_in) / n_in, torch.randn(n_out) if has_bias else None
    if is_laid_out:
        weight = weight.t().contiguous().t()
    x = torch.randn(1, 1, n_in)
    split: list[int] = []
    for name in ("bmm", "baddbmm"):
        original = getattr(torch, name)
        monkeypatch.setattr(torch, name, lambda *a, f=original: split.append(1) or f(*a))
    for n_threads in (1, 2, 3):
        with cpu_threads(n_threads):
            split.clear()
            found = by_threads(x, weight, bias)
            assert found.shape == (1, 1, n_out)
            torch.testing.assert_close(found, F.linear(x, weight, bias))
            assert bool(split) == (n_threads > 1 and n_out % n_threads == 0 and n_in * n_out >= 2**15)


def test_the_longer_side_of_a_projection_lies_together_and_nothing_else_changes() -> None:
    wide, narrow = nn.Linear(4, 9), nn.Linear(9, 4)
    model = nn.Sequential(wide, narrow)
    plain = copy.deepcopy(model)
    lay_out(model)
    assert wide.weight.stride() == (1, 9)
    assert narrow.weight.stride() == (9, 1)
    for name, tensor in plain.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor)


def test_a_model_laid_out_learns_the_same() -> None:
    plain = nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 4))
    model = copy.deepcopy(plain)
    lay_out(model)
    x = torch.randn(6, 4)
    for one in (plain, model):
        optimizer = torch.optim.AdamW(one.parameters(), lr=0.1, fused=True)
        for _ in range(3):
            optimizer.zero_grad()
            one(x).square().sum().backward()
            optimizer.step()
        for parameter in one.parameters():
            assert parameter.grad is not None
            assert parameter.grad.stride() == parameter.stride()
    for name, tensor in plain.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], tensor)
