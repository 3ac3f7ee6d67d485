"""Products of experts' rows by the compiled kernel against those in float64, wherever rows and weights lie."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ostinato.kernels import Activation, Kept, dispatch, grouped_products, native
from ostinato.kernels.dispatch import Dispatch
from ostinato.kernels.feedforward import ExpertWeights, feed_forward_by
from ostinato.kernels.grouped_products import Placed, products, row_products
from ostinato.kernels.linear import linear_by
from ostinato.training.threads import cpu_threads
from reference.equations import ACTIVATIONS as OF

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C compiler here")

WIDTHS = st.integers(1, 20) | st.sampled_from([31, 33, 47, 48, 49, 64, 65, 97, 130])


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let the kernel take products of all sizes; return the names of those it took."""
    taken: list[str] = []
    for name in ("grouped_products", "grouped_gradients", "row_products"):
        kernel = getattr(native, name)

        def noted(*given: Any, name: str = name, kernel: Any = kernel) -> Any:
            taken.append(name)
            return kernel(*given)

        monkeypatch.setattr(native, name, noted)
    monkeypatch.setattr(grouped_products, "_LEAST_PRODUCTS", 0)
    monkeypatch.setattr(grouped_products, "_FEWEST", 0)
    return taken


def numbers(*sizes: int, seed: int = 0) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


def sent(counts: list[int], seed: int = 0) -> Dispatch:
    """Return rows of one choice each, so many to every expert, in any order."""
    experts = torch.tensor([e for e, n in enumerate(counts) for _ in range(n)])
    experts = experts[torch.randperm(len(experts), generator=torch.Generator().manual_seed(seed))]
    return dispatch(experts.view(-1, 1), len(counts))


def placed(M: int, D: int, how: str, seed: int) -> Placed:
    """Return rows of M places: some of more rows, in any order, or themselves; perhaps a part of wider ones."""
    make = torch.Generator().manual_seed(seed)
    n = M if how == "places" else M + 3
    x = torch.randn(n, D + 7, generator=make)[:, 3:-4] if how == "wide" else torch.randn(n, D, generator=make)
    return Placed(x, None if how == "places" else torch.randint(n, (M,), generator=make))


def stacked(E: int, D: int, F: int, seed: int, *, is_transposed: bool) -> Tensor:
    return numbers(E, F, D, seed=seed).transpose(1, 2) if is_transposed else numbers(E, D, F, seed=seed)


def close(found: Tensor, exact: Tensor, size: float) -> None:
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=1e-6 * (1 + size))


COUNTS = st.lists(st.sampled_from([0, 1, 2, 7, 8, 9, 63, 65, 130, 300]), min_size=1, max_size=4).filter(any)
HOW = st.sampled_from(["rows", "places", "wide"])


@given(COUNTS, WIDTHS | st.just(300), WIDTHS, HOW, st.booleans(), st.booleans())
def test_products_are_those_of_float64_whatever_the_number_of_threads(
    counts: list[int], D: int, F: int, how: str, is_transposed: bool, has_bias: bool
) -> None:
    to, E, M = sent(counts), len(counts), sum(counts)
    x, weight = placed(M, D, how, 1), stacked(E, D, F, 2, is_transposed=is_transposed)
    bias = numbers(E, F, seed=3) if has_bias else None
    found = []
    for n_threads in (1, 2, 3):
        around = torch.full((M, F + 3), 5.0)
        with cpu_threads(n_threads):
            native.grouped_products(*x, weight, bias, to.ends_E, around[:, 1:-2])
        assert (around[:, 0] == 5).all()
        assert (around[:, -2:] == 5).all()
        found.append(around[:, 1:-2])
    exact = torch.zeros(M, F, dtype=torch.float64)
    for e, (start, end) in enumerate(to.bounds()):
        rows = x.at(slice(start, end)).double()
        exact[start:end] = rows @ weight[e].double() + (0 if bias is None else bias[e])
    assert all(torch.equal(found[0], other) for other in found)
    close(found[0], exact, D * float(x.rows_ND.abs().max() * weight.abs().max()))


@given(COUNTS, WIDTHS, WIDTHS, HOW, HOW, st.booleans(), st.booleans())
def test_gradients_are_those_of_float64_whatever_the_number_of_threads(
    counts: list[int], D: int, F: int, of_x: str, of_grad: str, has_gates: bool, has_bias: bool
) -> None:
    to, E, M = sent(counts), len(counts), sum(counts)
    x, grad = placed(M, D, of_x, 1), placed(M, F, of_grad, 2)
    gates = numbers(M, seed=3) if has_gates else None
    found = []
    for n_threads in (1, 2, 3):
        of_weight, of_bias = torch.full((E, D, F), torch.nan), torch.full((E, F), torch.nan)
        with cpu_threads(n_threads):
            native.grouped_gradients(*x, *grad, gates, to.ends_E, of_weight, of_bias if has_bias else None)
        found.append((of_weight, of_bias))
    for e, (start, end) in enumerate(to.bounds()):
        at = slice(start, end)
        weighted = grad.at(at).double() * (1 if gates is None else gates[at, None].double())
        size = (end - start) * float(x.rows_ND.abs().max() * grad.rows_ND.abs().max()) * 4
        close(found[0][0][e], x.at(at).double().t() @ weighted, size)
        if has_bias:
            close(found[0][1][e], weighted.sum(0), size)
    assert all(torch.equal(found[0][0], other[0]) for other in found)
    assert not has_bias or all(torch.equal(found[0][1], other[1]) for other in found)


@pytest.mark.parametrize("how", ["rows", "places", "wide"])
def test_places_of_some_experts_have_the_numbers_of_all(how: str, ours: list[str]) -> None:
    to = sent([70, 0, 300, 9])
    x, weight, bias = placed(379, 33, how, 1), numbers(4, 33, 50, seed=2), numbers(4, 50, seed=3)
    with torch.no_grad():
        whole = products(x, weight, bias, to)
        assert products(x, weight, bias, to, None, out := torch.empty(379, 50)) is out
        assert torch.equal(out, whole)
        for experts in (slice(0, 1), slice(1, 2), slice(1, 3), slice(2, 9)):
            at = to.places(experts)
            own = Placed(x.at(at)) if x.index_M is None else Placed(x.rows_ND, x.index_M[at])
            assert torch.equal(products(own, weight, bias, to, experts), whole[at])
            of_twin = Placed(own.rows_ND.double(), own.index_M)
            close(whole[at], products(of_twin, weight.double(), bias.double(), to, experts), 30)
    assert ours == ["grouped_products"] * 6


def test_sizes_that_do_not_fit_are_refused(ours: list[str]) -> None:
    to, weight, gates = sent([20, 30]), numbers(2, 8, 6, seed=1), numbers(50, 1, seed=2)
    for reads, writes in (("rows", "places"), ("slots", "places"), ("places", "slots")):
        with pytest.raises(IndexError, match=f"49 {reads} where 50 were dispatched"):
            linear_by("segments", numbers(49, 8), weight, None, to, reads, writes, None)  # type: ignore[arg-type]
    with pytest.raises(IndexError):
        linear_by("segments", numbers(50, 8), weight[:1], None, to, "rows", "rows", gates)
    with pytest.raises(RuntimeError, match="shape"):
        linear_by("segments", numbers(50, 7), weight, None, to, "rows", "rows", gates)
    assert not ours


def test_gradients_taken_inside_autocast_are_those_of_float32(ours: list[str]) -> None:
    to, x, bias = sent([20, 30]), numbers(50, 8), numbers(2, 6, seed=2)
    weight, gates = numbers(2, 8, 6, seed=1), numbers(50, 1, seed=2).requires_grad_()
    y = linear_by("segments", x, weight, bias, to, "rows", "rows", gates)
    expected = torch.autograd.grad(y, gates, numbers(50, 6, seed=3), retain_graph=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = torch.autograd.grad(y, gates, numbers(50, 6, seed=3))
    torch.testing.assert_close(found, expected)


def test_products_of_rows_are_those_of_float64(ours: list[str]) -> None:
    for how in ("rows", "places", "wide"):
        a, b = placed(130, 37, how, 1), numbers(130, 37, seed=2)
        with torch.no_grad():
            found = row_products(a, b)
        torch.testing.assert_close(found.double(), (a.at(slice(None)).double() * b.double()).sum(1), atol=1e-5, rtol=0)
    assert ours == ["row_products"] * 3


def maps(activation: Activation, E: int, D: int, F: int) -> list[Tensor]:
    hidden = 2 * F if OF[activation][1] else F
    # Biases keep the hidden layer away from 0, where rounding would decide what relu lets through.
    up_bias = 4 * numbers(E, hidden, seed=2).sign()
    scale = D**-0.5
    return [scale * numbers(E, D, hidden, seed=1), up_bias, F**-0.5 * numbers(E, F, D, seed=3), numbers(E, D, seed=4)]


@pytest.mark.parametrize("has_gates", [True, False])
@pytest.mark.parametrize("is_dropped", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu", "swiglu"])
def test_a_feed_forward_of_experts_is_that_of_float64(
    activation: Activation, is_dropped: bool, has_gates: bool, ours: list[str]
) -> None:
    N, K, E, D, F = 90, 2, 5, 33, 20
    experts = (
        torch.rand(N, E - 1, generator=torch.Generator().manual_seed(1)).topk(K, 1).indices
    )  # the last stays empty
    to = dispatch(experts, E, torch.arange(N) % 7)
    M = to.slots_M.shape[0]
    kept = None
    if is_dropped:
        units = torch.rand(M, F, generator=torch.Generator().manual_seed(2)) < 0.7
        kept = Kept(units.view(torch.uint8), 1 / 0.7)
    found = []
    for dtype in (torch.float32, torch.float64):
        x, gates = numbers(N if has_gates else M, D), numbers(N, K, seed=7)
        leaves = [one.to(dtype).requires_grad_() for one in (x, gates, *maps(activation, E, D, F))]
        x, gates, *weights = leaves
        y = feed_forward_by("segments", x, ExpertWeights(*weights), gates if has_gates else None, to, activation, kept)
        wanted = leaves if has_gates else [leaves[0], *weights]
        found.append([y, *torch.autograd.grad(y, wanted, numbers(*y.shape, seed=6).to(dtype))])
        with torch.no_grad():
            again = feed_forward_by(
                "segments", x, ExpertWeights(*weights), gates if has_gates else None, to, activation, kept
            )
        assert torch.equal(again, y)
    for mine, other in zip(*found, strict=True):
        torch.testing.assert_close(mine.double(), other, rtol=1e-4, atol=1e-4)
    assert ours.count("grouped_products") == 2 + 2 + 2 * 3  # forward, backward, in three parts without gradients
    assert ours.count("grouped_gradients") == 2
    assert ours.count("row_products") == has_gates


@pytest.mark.parametrize(
    ("reads", "writes"), [("rows", "slots"), ("slots", "rows"), ("places", "places"), ("rows", "rows")]
)
def test_a_map_of_experts_is_that_of_float64(reads: Any, writes: Any, ours: list[str]) -> None:
    N, K, E, D, F = 90, 3, 4, 33, 20
    experts = torch.rand(N, E, generator=torch.Generator().manual_seed(1)).topk(K, 1).indices
    to = dispatch(experts, E)
    n = {"rows": N, "slots": N * K, "places": to.slots_M.shape[0]}
    found = []
    for dtype in (torch.float32, torch.float64):
        given = [numbers(n[reads], D), numbers(E, D, F, seed=1), numbers(E, F, seed=2)]
        given += [numbers(N, K, seed=3)] if writes == "rows" else []
        leaves = [one.to(dtype).requires_grad_() for one in given]
        gates = leaves[3] if writes == "rows" else None
        y = linear_by("segments", leaves[0], leaves[1], leaves[2], to, reads, writes, gates)
        found.append([y, *torch.autograd.grad(y, leaves, numbers(*y.shape, seed=6).to(dtype))])
    for mine, other in zip(*found, strict=True):
        torch.testing.assert_close(mine.double(), other, rtol=1e-4, atol=1e-4)
    assert ours == ["grouped_products", "grouped_products", *["row_products"] * (writes == "rows"), "grouped_gradients"]


def test_only_what_is_wanted_is_computed(ours: list[str]) -> None:
    to, x = sent([20, 30]), numbers(50, 8)
    weight, bias = numbers(2, 8, 6, seed=1).requires_grad_(), numbers(2, 6, seed=2).requires_grad_()

    def grad(of: Tensor) -> Tensor:
        ours.clear()
        y = linear_by("segments", x, weight.detach() if of is bias else weight, bias, to, "rows", "slots", None)
        return torch.autograd.grad(y, of, torch.ones(50, 6))[0]

    assert grad(weight).shape == weight.shape
    assert ours == ["grouped_products", "grouped_gradients"]
    torch.testing.assert_close(grad(bias), torch.tensor([[20.0], [30.0]]).expand(2, 6))
    assert ours == ["grouped_products"]


def test_other_products_are_the_plain_twins(ours: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    to, x, weight = sent([20, 30]), numbers(50, 8), numbers(2, 8, 6, seed=1)
    with torch.no_grad():
        expected = products(Placed(x, to.rows_M), weight, None, to)
        assert ours == ["grouped_products"]
        ours.clear()
        turned = x.t().contiguous().t()
        assert products(Placed(x.double(), to.rows_M), weight.double(), None, to).dtype == torch.float64
        torch.testing.assert_close(products(Placed(turned, to.rows_M), weight, None, to), expected)
        apart = numbers(2, 8, 12, seed=1)[..., ::2]
        torch.testing.assert_close(
            products(Placed(x, to.rows_M), apart, None, to), products(Placed(x, to.rows_M), apart.clone(), None, to)
        )
        assert ours == ["grouped_products"]  # of the copy
        ours.clear()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert products(Placed(x.bfloat16(), to.rows_M), weight.bfloat16(), None, to).dtype == torch.bfloat16
        monkeypatch.setattr(grouped_products, "_LEAST_PRODUCTS", 50 * 8 * 6 + 1)
        products(Placed(x, to.rows_M), weight, None, to)
        monkeypatch.setattr(grouped_products, "_LEAST_PRODUCTS", 0)
        monkeypatch.setattr(grouped_products, "_FEWEST", 26)
        products(Placed(x, to.rows_M), weight, None, to)
    assert not ours
