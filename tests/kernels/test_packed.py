"""Packed products against the plain one, and when a copy is made, used and forgotten."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ostinato.kernels import MOST_ROWS, PackedMatrix, packing
from ostinato.kernels import packed as packed_module
from ostinato.kernels.native import library
from ostinato.kernels.packed import compiled_packing, has_packed_products

SIZES = [(1, 1, 1), (2, 3, 5), (7, 16, 8), (32, 8, 33), (160, 64, 24)]
N_PACKED = MOST_ROWS + 1
"""Rows for which a copy is packed."""


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
@pytest.mark.parametrize("has_bias", [False, True])
def test_the_product_is_the_plain_one(sizes: tuple[int, int, int], has_bias: bool) -> None:
    x, weight, bias = numbers(*sizes)
    given = bias if has_bias else None
    matrix = PackedMatrix()
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
    x, weight, _ = numbers(N_PACKED, 3, 5)
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
    x, weight, _ = numbers(N_PACKED, 3, 5)
    matrix = PackedMatrix()

    def fails() -> None:
        with torch.no_grad(), packing():
            matrix.product(x, weight)
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fails()
    assert vars(matrix) == vars(PackedMatrix())


@pytest.mark.skipif(library() is None, reason="no C compiler here")
def test_few_rows_need_no_copy(made: list[torch.Size]) -> None:
    x, weight, bias = numbers(4, 3, 5)
    with torch.no_grad(), packing():
        matrix = PackedMatrix()
        torch.testing.assert_close(matrix.product(x, weight, bias), F.linear(x, weight, bias))
        torch.testing.assert_close(matrix.product(x, weight, bias, slice(1, 3)), F.linear(x, weight, bias)[:, 1:3])
        assert vars(matrix) == vars(PackedMatrix())
    assert not made


@pytest.mark.parametrize("n_rows", [1, 4, N_PACKED])
def test_without_a_compiler_products_are_the_same(n_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_module, "library", lambda: None)
    x, weight, bias = numbers(n_rows, 3, 5)
    with torch.no_grad(), packing():
        assert compiled_packing(x) is None
        torch.testing.assert_close(PackedMatrix().product(x, weight, bias), F.linear(x, weight, bias))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_take_the_plain_product(dtype: torch.dtype, made: list[torch.Size]) -> None:
    x, weight, _ = (t.to(dtype) for t in numbers(N_PACKED, 3, 5))
    with torch.no_grad(), packing():
        assert torch.equal(PackedMatrix().product(x, weight), F.linear(x, weight))
    assert not made


def test_so_does_autocast(made: list[torch.Size]) -> None:
    x, weight, _ = numbers(4, 3, 5)
    with torch.no_grad(), packing(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert PackedMatrix().product(x, weight).dtype == torch.bfloat16
    assert not made


def test_products_that_are_counted_are_torchs(made: list[torch.Size]) -> None:
    for n_rows in (4, N_PACKED):
        x, weight, _ = numbers(n_rows, 3, 5)
        with torch.no_grad(), packing(), FlopCounterMode(display=False) as counter:
            PackedMatrix().product(x, weight)
            assert compiled_packing(x) is None
        assert counter.get_total_flops() == 2 * n_rows * 3 * 5
    assert not made


def test_it_can_be_switched_off(made: list[torch.Size]) -> None:
    x, weight, _ = numbers(4, 3, 5)
    with torch.no_grad(), packing(False):
        assert torch.equal(PackedMatrix().product(x, weight), F.linear(x, weight))
    assert not made


def test_copies_of_a_model_do_not_take_its_packed_matrices_along() -> None:
    x, weight, _ = numbers(N_PACKED, 3, 5)
    matrix = PackedMatrix()
    with torch.no_grad(), packing():
        matrix.product(x, weight)
        for other in (copy.deepcopy(matrix), pickle.loads(pickle.dumps(matrix))):
            assert vars(other) == vars(PackedMatrix())
            torch.testing.assert_close(other.product(x, weight), F.linear(x, weight))


@pytest.mark.parametrize("wrong", ["width", "bias"])
def test_what_does_not_fit_is_refused_as_torch_refuses_it(wrong: str) -> None:
    x, weight, bias = numbers(2, 3, 5)
    given = (x[:, :2], weight, bias) if wrong == "width" else (x, weight, bias[:4])
    with torch.no_grad(), packing(), pytest.raises(RuntimeError):
        PackedMatrix().product(*given)
