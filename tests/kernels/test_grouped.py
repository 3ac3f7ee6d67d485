"""Grouped products: every backend against a loop over single rows, outputs and all gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint

from ostinato.errors import ConfigError
from ostinato.kernels import Backend, Dispatch, choose_backend, dispatch, gather, routed_linear
from ostinato.kernels import choose as choose_module
from ostinato.kernels.linear import try_linear
from ostinato.kernels.products import PRODUCTS
from ostinato.kernels.segments import Order

pytestmark = pytest.mark.device

BACKENDS = ["loop", "segments", "padded", "grouped"]


@pytest.fixture(autouse=True)
def _fixed_numbers() -> None:
    torch.manual_seed(0)


class Drawn(NamedTuple):
    x: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    experts: torch.Tensor
    gates: torch.Tensor


def dtype_of(backend: str) -> torch.dtype:
    """torch's grouped product has no float64."""
    return torch.float32 if backend == "grouped" else torch.float64


def by_rows(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, experts: torch.Tensor, gates: torch.Tensor
) -> torch.Tensor:
    """Return sum_k gate (x W + b), a row and an expert at a time."""
    out = []
    for n in range(x.shape[0]):
        total = x.new_zeros(weight.shape[2])
        for k in range(experts.shape[1]):
            e = int(experts[n, k])
            total = total + gates[n, k] * (x[n] @ weight[e] + (0 if bias is None else bias[e]))
        out.append(total)
    return torch.stack(out) if out else x.new_zeros(0, weight.shape[2])


def through_kernels(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    experts: torch.Tensor,
    gates: torch.Tensor,
    backend: str,
    weight_N: torch.Tensor | None = None,
) -> torch.Tensor:
    to = dispatch(experts, weight.shape[0], weight_N)
    return routed_linear(x, weight, bias, to, reads="rows", writes="rows", gates_NK=gates, backend=backend)  # type: ignore[arg-type]


def problem(
    n: int, k: int, e: int, d: int, f: int, *, seed: int = 0, has_bias: bool = True, dtype: torch.dtype = torch.float64
) -> Drawn:
    make = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=make, dtype=dtype, requires_grad=True)
    weight = torch.randn(e, d, f, generator=make, dtype=dtype, requires_grad=True)
    bias = torch.randn(e, f, generator=make, dtype=dtype, requires_grad=True) if has_bias else None
    experts = torch.stack([torch.randperm(e, generator=make)[:k] for _ in range(n)]) if n else torch.zeros(0, k).long()
    gates = torch.rand(n, k, generator=make, dtype=dtype, requires_grad=True)
    return Drawn(x, weight, bias, experts, gates)


def assert_equal_to_single_rows(drawn: Drawn, backend: str, weight_N: torch.Tensor | None = None) -> None:
    """Compare output and gradients of everything that has one."""
    x, weight, bias, experts, gates = drawn
    leaves = [leaf for leaf in (x, weight, bias, gates) if leaf is not None]
    kept = gates if weight_N is None else gates * (weight_N > 0)[:, None]
    expected = by_rows(x, weight, bias, experts, kept)
    found = through_kernels(x, weight, bias, experts, gates, backend, weight_N)
    torch.testing.assert_close(found, expected)
    seed = torch.randn_like(expected)
    for mine, theirs in zip(
        torch.autograd.grad(found, leaves, seed), torch.autograd.grad(expected, leaves, seed), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=25)
@given(data=st.data())
def test_every_backend_equals_single_rows_in_outputs_and_all_gradients(backend: str, data: st.DataObject) -> None:
    e = data.draw(st.integers(1, 5))
    k = data.draw(st.integers(1, e))
    # torch's grouped product wants rows of a multiple of 16 bytes; `auto` finds that out by its trial.
    widths = st.sampled_from([4, 8]) if backend == "grouped" else st.integers(1, 9)
    n, d, f = data.draw(st.integers(1, 9)), data.draw(widths), data.draw(widths)
    drawn = problem(
        n, k, e, d, f, seed=data.draw(st.integers(0, 99)), has_bias=data.draw(st.booleans()), dtype=dtype_of(backend)
    )
    weight_N = None
    if data.draw(st.booleans()):
        weight_N = torch.tensor(data.draw(st.lists(st.sampled_from([0.0, 0.3, 1.0]), min_size=n, max_size=n)))
    assert_equal_to_single_rows(drawn, backend, weight_N)


@pytest.mark.parametrize("backend", BACKENDS)
def test_all_rows_to_one_expert_and_one_row_alone(backend: str) -> None:
    for n in (1, 6):
        x, weight, bias, _, gates = problem(n, 1, 4, 4, 8, dtype=dtype_of(backend))
        assert_equal_to_single_rows(Drawn(x, weight, bias, torch.full((n, 1), 2), gates), backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_row_at_all_gives_zeros_and_runs_no_expert(backend: str) -> None:
    x, weight, bias, experts, gates = problem(5, 2, 3, 4, 8, dtype=dtype_of(backend))
    out = through_kernels(x, weight, bias, experts, gates, backend, torch.zeros(5))
    assert out.shape == (5, 8)
    assert not out.any()
    grads = torch.autograd.grad(out.sum(), [x, weight, gates], allow_unused=True)
    assert all(grad is None or not grad.any() for grad in grads)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_stride_zero_and_transposed_rows_are_taken(backend: str) -> None:
    x, weight, bias, experts, _ = problem(6, 2, 3, 4, 8, dtype=dtype_of(backend))
    turned = x.detach().t().contiguous().t().requires_grad_()
    to = dispatch(experts, 3)
    plain = routed_linear(gather(x, to), weight, bias, to, backend="loop")
    found = routed_linear(gather(turned, to), weight, bias, to, backend=backend)  # type: ignore[arg-type]
    for mine, theirs in zip(
        torch.autograd.grad(found.sum(), [turned, weight]), torch.autograd.grad(plain.sum(), [x, weight]), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("reads", "writes"), [("rows", "slots"), ("slots", "rows"), ("slots", "slots")])
def test_slots_are_read_and_written_as_by_the_loop(backend: Backend, reads: Order, writes: Order) -> None:
    _, weight, bias, experts, gates = problem(6, 2, 3, 4, 8, dtype=dtype_of(backend))
    to = dispatch(experts, 4, torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 1.0]))
    weight = torch.cat([weight, weight[:1]]).detach().requires_grad_()
    bias = torch.zeros(4, 8, dtype=weight.dtype, requires_grad=True)
    x = torch.randn(12 if reads == "slots" else 6, 4, dtype=weight.dtype, requires_grad=True)
    leaves = [x, weight, bias, *([gates] if writes == "rows" else [])]
    found, expected = (
        routed_linear(
            x, weight, bias, to, reads=reads, writes=writes, gates_NK=gates if writes == "rows" else None, backend=name
        )
        for name in (backend, "loop")
    )
    torch.testing.assert_close(found, expected)
    seed = torch.randn_like(expected)
    for mine, theirs in zip(
        torch.autograd.grad(found, leaves, seed), torch.autograd.grad(expected, leaves, seed), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


def test_gradients_are_the_numerical_ones() -> None:
    x, weight, bias, experts, gates = problem(5, 2, 3, 4, 6)
    for backend in ("loop", "segments", "padded"):
        assert torch.autograd.gradcheck(
            lambda x, w, b, g, backend=backend: through_kernels(x, w, b, experts, g, backend), (x, weight, bias, gates)
        )


@pytest.mark.device(False)
@pytest.mark.parametrize("backend", BACKENDS)
def test_autocast_multiplies_in_its_type_and_gradients_come_back_in_float32(backend: str) -> None:
    x, weight, bias, experts, _ = problem(6, 2, 3, 8, 8, dtype=torch.float32)
    to = dispatch(experts, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = routed_linear(gather(x, to), weight, bias, to, backend=backend)  # type: ignore[arg-type]
    assert found.dtype == torch.bfloat16
    expected = routed_linear(gather(x, to), weight, bias, to, backend="loop")
    assert (found.float() - expected).norm() <= 0.02 * expected.norm()
    grad, exact = (torch.autograd.grad(y.float().square().sum(), weight)[0] for y in (found, expected))
    assert grad.dtype == torch.float32
    assert (grad - exact).norm() <= 0.03 * exact.norm()


def test_gates_of_rows_that_take_no_part_are_not_read() -> None:
    x, weight, bias, experts, gates = problem(4, 2, 3, 4, 6)
    with torch.no_grad():
        gates[1] = float("nan")
    out = through_kernels(x, weight, bias, experts, gates, "segments", torch.tensor([1.0, 0.0, 1.0, 1.0]))
    assert out.isfinite().all()
    assert not out[1].any()
    assert torch.autograd.grad(out.sum(), gates)[0].isfinite().all()


def test_rows_of_an_expert_stand_side_by_side_in_their_own_order() -> None:
    to: Dispatch = dispatch(torch.tensor([[2, 0], [0, 2], [2, 1]]), 4)
    assert to.rows_M.tolist() == [0, 1, 2, 0, 1, 2]
    assert to.experts_M.tolist() == [0, 0, 1, 2, 2, 2]
    assert to.bounds() == [(0, 2), (2, 3), (3, 6), (6, 6)]


@pytest.mark.device(False)
def test_an_unknown_or_broken_backend_is_a_named_error(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    with pytest.raises(ConfigError, match="must be auto or one of loop, segments, padded, grouped"):
        choose_backend("triton", cpu, torch.float32, try_linear, 4, 4)  # type: ignore[arg-type]

    def broken(*args: object) -> torch.Tensor:
        raise RuntimeError("no such kernel\nand a long story")

    monkeypatch.setitem(PRODUCTS, "padded", broken)
    monkeypatch.setattr(choose_module, "_failure", choose_module._failure.__wrapped__)
    monkeypatch.setattr(choose_module, "first_that_works", choose_module.first_that_works.__wrapped__)
    with pytest.raises(ConfigError, match=r"does not work on cpu with torch.float32: no such kernel$"):
        choose_backend("padded", cpu, torch.float32, try_linear, 4, 4)
    monkeypatch.setitem(choose_module._PREFERRED, "cpu", ("padded", "loop"))
    with choose_module.noting_backends() as lines:
        for _ in range(2):
            assert choose_backend("auto", cpu, torch.float32, try_linear, 4, 4) == "loop"
        choose_backend("loop", cpu, torch.float32, try_linear, 4, 4)  # asked for: there is nothing to say
    assert list(lines) == ["experts on cpu in float32, linear 4x4: backend loop; not padded (no such kernel)"]

    def without_a_word(*args: object) -> torch.Tensor:
        raise NotImplementedError

    monkeypatch.setitem(PRODUCTS, "padded", without_a_word)
    with pytest.raises(ConfigError, match=r"does not work on cpu with torch.float32: NotImplementedError$"):
        choose_backend("padded", cpu, torch.float32, try_linear, 4, 4)

    def without_memory(*args: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("of the device")

    monkeypatch.setitem(PRODUCTS, "padded", without_memory)
    with pytest.raises(torch.OutOfMemoryError):  # not that another backend is better here
        choose_backend("auto", cpu, torch.float32, try_linear, 4, 4)


@pytest.mark.device(False)
def test_a_backend_with_wrong_results_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = PRODUCTS["loop"]
    monkeypatch.setitem(PRODUCTS, "padded", lambda *args: 2 * right(*args))
    failure = choose_module._failure.__wrapped__("padded", torch.device("cpu"), torch.float32, try_linear, 4, 4)
    assert failure == "its results differ from the plain loop's"


def test_a_first_trial_inside_a_recomputed_region_is_no_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    original, trials = choose_module._failure.__wrapped__, list[str]()

    def first(name: Backend, *rest: Any) -> str | None:
        trials.append(name)
        return original(name, *rest) if len(trials) == 1 else None

    monkeypatch.setattr(choose_module, "_failure", first)
    x, weight = torch.randn(4, 6, requires_grad=True), torch.randn(3, 6, 5)
    to = dispatch(torch.tensor([[0], [2], [0], [1]]), 3)

    def region(x: torch.Tensor) -> torch.Tensor:
        return routed_linear(x.square(), weight, None, to, backend="padded").square()

    recomputed = checkpoint(region, x, use_reentrant=False)
    [found] = torch.autograd.grad(recomputed.sum(), x)
    [expected] = torch.autograd.grad(region(x).sum(), x)
    assert len(trials) == 3
    torch.testing.assert_close(found, expected)
