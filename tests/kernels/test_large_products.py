"""Products of many rows by the compiled kernel against those in float64, as they lie in memory or transposed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import forward_ad

from ostinato.kernels import active_sums, large_products, native, product
from ostinato.kernels.dispatch import dispatch
from ostinato.kernels.feedforward import ExpertWeights, feed_forward_by
from ostinato.kernels.large_products import has_slow_products, multiply
from ostinato.kernels.sums import summing
from ostinato.training.threads import cpu_threads

needs_kernels = pytest.mark.skipif(native.library() is None, reason="no C compiler here")
SIZES = st.integers(1, 20) | st.sampled_from([31, 33, 47, 48, 49, 64, 65, 97, 130, 257, 600])


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Let the kernel take every product, whatever the processor and the sizes; return the sizes of those it took."""
    taken: list[tuple[int, ...]] = []
    kernel = native.large_product

    def noted(a: Tensor, b: Tensor, *given: Any, **named: Any) -> None:
        taken.append((*a.shape, b.shape[1]))
        kernel(a, b, *given, **named)

    monkeypatch.setattr(native, "large_product", noted)
    monkeypatch.setattr(large_products, "has_slow_products", lambda: True)
    monkeypatch.setattr(large_products, "_LEAST_PRODUCTS", 0)
    monkeypatch.setattr(large_products, "_FEWEST", 0)
    return taken


def numbers(*sizes: int, seed: int = 0) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


def laid(rows: int, columns: int, seed: int, layout: str) -> Tensor:
    """Return numbers as they may lie in memory."""
    if layout == "transposed":
        return numbers(columns, rows, seed=seed).t()
    if layout == "a part":
        return numbers(rows, columns + 7, seed=seed)[:, 3:-4]
    if layout == "a transposed part":
        return numbers(columns, rows + 5, seed=seed)[:, 2:-3].t()
    return numbers(rows, columns, seed=seed)


LAYOUTS = st.sampled_from(["", "transposed", "a part", "a transposed part"])


@needs_kernels
@given(SIZES, SIZES, SIZES, LAYOUTS, LAYOUTS, st.sampled_from(["", "bias", "adds", "out"]))
def test_a_product_is_that_of_float64_whatever_the_number_of_threads(
    N: int, D: int, n_out: int, of_a: str, of_b: str, mode: str
) -> None:
    a, b = laid(N, D, 1, of_a), laid(D, n_out, 2, of_b)
    bias = numbers(n_out, seed=3) if mode == "bias" else None
    around = numbers(N, n_out + 3, seed=4)
    found = []
    for n_threads in (1, 2, 3):
        written = around.clone()
        out = written[:, 1:-2] if mode in ("adds", "out") else torch.empty(N, n_out)
        with cpu_threads(n_threads):
            native.large_product(a, b, bias, out, adds=mode == "adds")
        found.append(out)
        if mode in ("adds", "out"):  # nothing beside it
            assert torch.equal(written[:, :1], around[:, :1])
            assert torch.equal(written[:, -2:], around[:, -2:])
    exact = a.double() @ b.double()
    if bias is not None:
        exact = exact + bias
    if mode == "adds":
        exact = exact + around[:, 1:-2]
    assert all(torch.equal(found[0], other) for other in found)
    scale = 1 + float(a.abs().double().matmul(b.abs().double()).max())
    torch.testing.assert_close(found[0].double(), exact, rtol=0, atol=1e-6 * scale)


@needs_kernels
def test_wide_maps_are_done_in_several_parts() -> None:
    a, b, bias = numbers(11, 300), numbers(300, 5000, seed=1), numbers(5000, seed=2)
    out = torch.empty(11, 5000)
    native.large_product(a, b, bias, out, adds=False)
    torch.testing.assert_close(out.double(), a.double() @ b.double() + bias, rtol=1e-4, atol=1e-4)


@needs_kernels
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("shape", [(30, 8), (4, 9, 8), (8,)])
def test_a_map_has_the_gradients_of_its_twin(
    shape: tuple[int, ...], has_bias: bool, ours: list[tuple[int, ...]]
) -> None:
    given = [numbers(*shape).requires_grad_(), numbers(6, 8, seed=1).requires_grad_()]
    given += [numbers(6, seed=2).requires_grad_()] if has_bias else []
    y, twin = product(*given, *[None] * (3 - len(given))), F.linear(*given)  # type: ignore[arg-type]
    assert ours
    torch.testing.assert_close(y, twin)
    seed = numbers(*y.shape, seed=5)
    expected = torch.autograd.grad(twin, given, seed, create_graph=True)
    n_forward = len(ours)
    for mine, other in zip(torch.autograd.grad(y, given, seed, retain_graph=True), expected, strict=True):
        torch.testing.assert_close(mine, other)
    assert len(ours) == n_forward + 2
    # Gradients that are differentiated again are made of torch's operations.
    again = torch.autograd.grad(y, given, seed, create_graph=True)
    first, second = (torch.autograd.grad(found[0].square().sum(), given[1]) for found in (again, expected))
    torch.testing.assert_close(first, second)


@needs_kernels
def test_gradients_of_a_matrix_that_many_steps_use_are_added_up_where_they_are(ours: list[tuple[int, ...]]) -> None:
    weight, bias = numbers(6, 8).requires_grad_(), numbers(6, seed=1).requires_grad_()
    x = [numbers(20, 8, seed=2 + i) for i in range(3)]

    def total(by: Any) -> Tensor:
        return sum(by(one, rows).square().sum() for one, rows in zip(x, (None, slice(2, 5), None), strict=True))

    with summing():
        sums = active_sums.get()
        assert sums is not None
        found = torch.autograd.grad(total(lambda x, rows: sums.product(x, weight, bias, rows)), (weight, bias))
    twin = total(lambda x, rows: F.linear(x, *((weight, bias) if rows is None else (weight[rows], bias[rows]))))
    for mine, other in zip(found, torch.autograd.grad(twin, (weight, bias)), strict=True):
        torch.testing.assert_close(mine, other)
    assert len(ours) == 6  # x wants no gradient


@needs_kernels
@pytest.mark.parametrize("activation", ["relu", "swiglu"])
def test_experts_of_few_rows_are_those_of_torchs_products(activation: Any, ours: list[tuple[int, ...]]) -> None:
    E, D, hidden = 3, 5, 8 if activation == "swiglu" else 4
    chosen = torch.tensor([[0, 2], [2, 0], [0, 2], [0, 2]])
    weights = [
        numbers(E, D, hidden, seed=1),
        numbers(E, hidden, seed=2),
        numbers(E, 4, D, seed=3),
        numbers(E, D, seed=4),
    ]
    found = []
    for dtype in (torch.float32, torch.float64):
        leaves = [one.to(dtype).requires_grad_() for one in (numbers(4, D), torch.full((4, 2), 0.5), *weights)]
        x, gates, *maps = leaves
        y = feed_forward_by("segments", x, ExpertWeights(*maps), gates, dispatch(chosen, E), activation)
        found.append([y, *torch.autograd.grad(y, leaves, numbers(4, D, seed=6).to(dtype))])
        assert len(ours) == 2 * 2 + 2 * 2 + 2 * 3  # of two experts with rows, gradients of all; none of float64
    for mine, other in zip(*found, strict=True):
        torch.testing.assert_close(mine.double(), other, rtol=1e-4, atol=1e-5)


@needs_kernels
def test_other_products_are_torchs(ours: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = numbers(9, 8), numbers(8, 7, seed=1)
    assert torch.equal(multiply(a.double(), b.double()), a.double() @ b.double())
    assert torch.equal(multiply(a[:, ::2], b[::2]), a[:, ::2] @ b[::2])
    assert torch.equal(multiply(a.requires_grad_(), b), a @ b)  # which is to be differentiated
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert multiply(a, b).dtype == torch.bfloat16
    with torch.no_grad():
        monkeypatch.setattr(large_products, "_LEAST_PRODUCTS", 9 * 8 * 7 + 1)
        multiply(a, b)
        monkeypatch.setattr(large_products, "_LEAST_PRODUCTS", 0)
        for few in (8, 10):
            monkeypatch.setattr(large_products, "_FEWEST", few)
            multiply(a, b)
        monkeypatch.setattr(large_products, "_FEWEST", 0)
        monkeypatch.setattr(large_products, "has_slow_products", lambda: False)
        multiply(a, b)
    assert not ours


@pytest.mark.parametrize(
    ("vendor", "capability", "has_mkl", "is_slow"),
    [
        ("AuthenticAMD", "AVX512", True, True),
        ("GenuineIntel", "AVX512", True, False),
        ("AuthenticAMD", "AVX2", True, False),
        ("AuthenticAMD", "AVX512", False, False),
    ],
)
def test_processors_of_which_mkl_leaves_a_part_unused_are_known(
    vendor: str, capability: str, has_mkl: bool, is_slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = f"processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: 25\nmodel\t\t: 17\n"
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: has_mkl)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(large_products.Path, "read_text", lambda self, **_: told)
    has_slow_products.cache_clear()
    try:
        assert has_slow_products() is is_slow
    finally:
        has_slow_products.cache_clear()


@needs_kernels
def test_sizes_that_do_not_fit_are_named_by_torch(ours: list[tuple[int, ...]]) -> None:
    a, b = numbers(9, 8), numbers(8, 7, seed=1)
    with torch.no_grad():
        with pytest.raises(RuntimeError, match="shape"):
            multiply(a[:, :5], b)
        with pytest.raises(RuntimeError, match="size"):
            multiply(a, b, bias_F=numbers(6))
        with pytest.warns(UserWarning, match="resized"):
            multiply(a, b, torch.zeros(9, 6))
    with pytest.raises(RuntimeError, match="shape"):
        product(a, numbers(7, 9), None)
    assert not ours


@needs_kernels
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # by torch's own forward differentiation
def test_products_that_are_transformed_or_empty_are_torchs(ours: list[tuple[int, ...]]) -> None:
    x, weight = numbers(3, 4), numbers(5, 4, seed=1)
    with forward_ad.dual_level():
        found = product(forward_ad.make_dual(x, torch.ones(3, 4)), weight, None)
        torch.testing.assert_close(forward_ad.unpack_dual(found).tangent, torch.ones(3, 4) @ weight.t())
    assert not ours
    leaf = x.clone().requires_grad_()
    y = product(leaf, weight, None)
    assert len(ours) == 1
    (many,) = torch.autograd.grad(y, leaf, torch.eye(15).view(15, 3, 5), is_grads_batched=True)
    assert len(ours) == 1
    torch.testing.assert_close(many.sum(0), weight.sum(0).expand(3, 4))
    assert torch.equal(product(numbers(2, 0), numbers(4, 0), numbers(4)), numbers(4).expand(2, 4))


@needs_kernels
def test_who_needs_what_a_product_is_written_over_hears_of_it(ours: list[tuple[int, ...]]) -> None:
    x = numbers(3, 5).requires_grad_()
    total = x * 1
    squared = total * total
    with torch.no_grad():
        multiply(numbers(3, 4), numbers(4, 5, seed=1), total, adds=True)
    assert ours
    with pytest.raises(RuntimeError, match="inplace operation"):
        squared.sum().backward()
