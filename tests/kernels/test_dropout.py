"""Dropout by bytes: its frequencies, its independence, its mean, and its gradients against plain twins."""

from __future__ import annotations

import math
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import permutations

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from ostinato.kernels import native
from ostinato.kernels.activation import activate
from ostinato.kernels.dropout import (
    Kept,
    add_by,
    add_dropped,
    draw_kept,
    draws_as_torch,
    draws_bytes,
    drop,
    drop_activated,
    drop_by,
    drop_relu_by,
    drop_relu_gradient,
    realised,
)
from ostinato.training.threads import cpu_threads

needs_kernels = pytest.mark.skipif(native.library() is None, reason="no C compiler here")
CPU = torch.device("cpu")
N = 2**20
ACTIVATIONS = ("relu", "relu2", "gelu", "geglu", "swiglu")


def draw(p: float, n: int = N, seed: int = 3) -> torch.Tensor:
    torch.manual_seed(seed)
    return draw_kept((n,), p, CPU).bytes.double()


def by_hand(x: torch.Tensor, kept: Kept) -> torch.Tensor:
    return torch.where(kept.bytes.bool(), x * kept.scale, 0.0)


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def assert_same(found: torch.Tensor, expected: torch.Tensor, leaves: list[torch.Tensor]) -> None:
    torch.testing.assert_close(found, expected)
    seed = torch.randn_like(expected)
    theirs = torch.autograd.grad(expected, leaves, seed)
    for mine, other in zip(torch.autograd.grad(found, leaves, seed), theirs, strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("p", [1 / 256, 0.1, 0.3, 0.5, 0.9])
def test_elements_are_dropped_with_the_realised_probability(p: float) -> None:
    q = realised(p)
    assert abs(q - p) <= 1 / 512
    dropped = N - int(draw(p).sum())
    assert abs(dropped - N * q) < 4.5 * math.sqrt(N * q * (1 - q))


@pytest.mark.parametrize("place", range(8))
def test_every_byte_of_a_draw_has_the_same_probability(place: int) -> None:
    for p in (0.1, 0.5, 0.75):  # above a half the sign bit decides, too
        q, n = realised(p), N // 8
        dropped = n - int(draw(p).view(-1, 8)[:, place].sum())
        assert abs(dropped - n * q) < 4.5 * math.sqrt(n * q * (1 - q))


@pytest.mark.parametrize("lag", [*range(1, 17), 64, 256, 624 * 4, 624 * 8])
def test_neighbours_are_independent(lag: int) -> None:
    # Over n pairs the correlation of independent elements is normal with standard deviation 1 / sqrt(n).
    x = draw(0.1)
    x = (x - x.mean()) / x.std()
    assert abs(float((x[lag:] * x[:-lag]).mean())) < 4.5 / math.sqrt(N - lag)


def test_groups_of_eight_keep_as_many_as_a_binomial_does() -> None:
    q = realised(0.1)
    counts = torch.bincount((8 - draw(0.1).view(-1, 8).sum(1)).long(), minlength=9).double()
    expected = torch.tensor([math.comb(8, d) * q**d * (1 - q) ** (8 - d) for d in range(9)], dtype=torch.float64)
    expected *= N / 8
    few = expected < 10
    counts = torch.cat([counts[~few], counts[few].sum()[None]])
    expected = torch.cat([expected[~few], expected[few].sum()[None]])
    chi_squared = float(((counts - expected) ** 2 / expected).sum())
    assert chi_squared < 25  # at most six degrees of freedom: beyond it with a probability of 3e-4


@pytest.mark.parametrize("p", [0.1, 0.3, 0.99])
def test_the_mean_is_kept_although_the_probability_is_rounded(p: float) -> None:
    kept = draw_kept((8,), p, CPU)
    assert kept.scale * (1 - realised(p)) == pytest.approx(1.0, abs=1e-15)
    torch.manual_seed(1)
    mean = float(drop(torch.ones(N, dtype=torch.float64), p).mean())
    assert mean == pytest.approx(1.0, abs=4.5 * math.sqrt(p / (1 - p) / N))


def test_draws_come_from_the_global_generator_and_repeat_with_its_state() -> None:
    x = numbers(7, 9)
    torch.manual_seed(4)
    state = torch.get_rng_state()
    first, second = drop(x, 0.5), drop(x, 0.5)
    assert not torch.equal(first, second)
    torch.set_rng_state(state)
    assert torch.equal(drop(x, 0.5), first)
    assert torch.equal(drop(x, 0.5), second)


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 63])
def test_any_number_of_elements_is_drawn(n: int) -> None:
    kept = draw_kept((n,), 0.5, CPU).bytes
    assert kept.shape == (n,)
    assert kept.dtype == torch.uint8
    assert set(kept.tolist()) <= {0, 1}


@pytest.mark.parametrize("p", [0.001, 0.999])
def test_probabilities_that_bytes_cannot_come_near_are_torchs(p: float) -> None:
    assert not draws_bytes(p, CPU)
    x = numbers(3000)
    torch.manual_seed(1)
    found = drop(x, p)
    torch.manual_seed(1)
    assert torch.equal(found, F.dropout(x, p))


@needs_kernels
@pytest.mark.parametrize("p", [0.002, 0.1, 0.5, 0.998])
@pytest.mark.parametrize("n", [1, 7, 8, 511, 512, 513, 5000])
def test_compiled_draws_are_the_plain_ones(n: int, p: float, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(6)
    torch.rand(5)  # not at the beginning of what the generator makes at a time
    start = torch.get_rng_state()
    found = [draw_kept((n,), p, CPU).bytes for _ in range(3)]
    after = torch.get_rng_state()
    monkeypatch.setattr(native, "takes", lambda *_: False)
    torch.set_rng_state(start)
    expected = [draw_kept((n,), p, CPU).bytes for _ in range(3)]
    assert all(torch.equal(mine, other) for mine, other in zip(found, expected, strict=True))
    assert torch.equal(after, torch.get_rng_state())


@needs_kernels
def test_this_torchs_generator_is_known() -> None:
    draws_as_torch.cache_clear()
    torch.manual_seed(3)
    state = torch.get_rng_state()
    assert draws_as_torch()
    assert torch.equal(torch.get_rng_state(), state)


@needs_kernels
def test_a_generator_that_draws_otherwise_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(3)
    expected = draw_kept((100,), 0.5, CPU).bytes
    monkeypatch.setattr(native, "draw_kept", lambda level, kept, generator: kept.fill_(1))
    draws_as_torch.cache_clear()
    try:
        assert not draws_as_torch()
        torch.manual_seed(3)
        assert torch.equal(draw_kept((100,), 0.5, CPU).bytes, expected)
    finally:
        draws_as_torch.cache_clear()


@needs_kernels
@pytest.mark.parametrize("n_threads", [1, 3])
@pytest.mark.parametrize("size", [(1,), (50, 7), (130, 300)])
def test_compiled_dropout_is_the_plain_one_in_outputs_and_gradients(
    size: tuple[int, ...], n_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = draw_kept(size, 0.4, CPU)

    def all_of_it() -> list[torch.Tensor]:
        x, residual = numbers(*size, dtype=torch.float32), numbers(*size, seed=1, dtype=torch.float32)
        found = []
        for y in (drop_by(x, kept), add_by(residual, x, kept), drop_relu_by(x * 1, kept)):
            found += [y.detach(), *torch.autograd.grad(y, x, residual.detach())]
        return found

    called = []
    for name in ("drop", "add_dropped", "drop_relu", "drop_relu_gradient"):
        kernel = getattr(native, name)
        noted = partial(lambda name, kernel, *given: (called.append(name), kernel(*given))[1], name, kernel)
        monkeypatch.setattr(native, name, noted)
    with cpu_threads(n_threads):
        found = all_of_it()
    assert Counter(called) == {"drop": 3, "add_dropped": 1, "drop_relu": 1, "drop_relu_gradient": 1}
    monkeypatch.setattr(native, "takes", lambda *_: False)
    for mine, other in zip(found, all_of_it(), strict=True):
        torch.testing.assert_close(mine, other)


@needs_kernels
def test_what_is_no_number_stays_none() -> None:
    x, kept = torch.full((3, 4), torch.nan), draw_kept((3, 4), 0.5, CPU)
    assert drop_by(x, kept).isnan().all()
    assert add_by(torch.ones(3, 4), x, kept).isnan().all()
    assert drop_relu_by(x, kept).isnan().all()


@needs_kernels
def test_nothing_comes_back_where_relu_or_dropout_left_nothing() -> None:
    y = torch.tensor([0.0, -0.0, 2.0, 2.0, 2.0, math.nan]).repeat(5)
    grad = torch.tensor([math.inf, math.nan, math.inf, math.nan, -3.0, 1.0]).repeat(5)
    expected = torch.tensor([0.0, 0.0, math.inf, math.nan, -6.0, 2.0]).repeat(5)
    in_place = grad.clone()
    for found in (drop_relu_gradient(grad, y, 2.0), drop_relu_gradient(in_place, y, 2.0, in_place)):
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    assert not in_place[:2].signbit().any()


def test_a_map_whose_result_is_dropped_in_place_copies_no_gradient() -> None:
    """The result of a linear map is a view: changed in place, autograd would write its gradient into zeros, twice."""
    x = numbers(3, 4, 5, dtype=torch.float32)
    hidden = drop_activated(F.linear(x, numbers(6, 5, seed=1, dtype=torch.float32)), "relu", 0.5)
    nodes, seen = [hidden.grad_fn], []
    while nodes:
        node = nodes.pop()
        if node is not None:
            seen.append(node.name())
            nodes += [before for before, _ in node.next_functions]
    assert "_DropReluBackward" in seen
    assert not any("CopySlices" in name or "AsStrided" in name for name in seen)


def test_torchs_draws_are_what_they_were() -> None:
    x, residual = numbers(6, 5), numbers(6, 5, seed=1)

    def after_seed(run: object) -> torch.Tensor:
        torch.manual_seed(8)
        return run()  # type: ignore[operator, no-any-return]

    expected = after_seed(lambda: F.dropout(x, 0.3))
    assert torch.equal(after_seed(lambda: drop(x, 0.3, "torch")), expected)
    assert torch.equal(after_seed(lambda: add_dropped(residual, x, 0.3, "torch")), residual + expected)
    hidden = after_seed(lambda: F.dropout(F.relu(x), 0.3))
    assert torch.equal(after_seed(lambda: drop_activated(x, "relu", 0.3, "torch")), hidden)
    torch.manual_seed(8)
    dropped = torch.empty(6, 5, dtype=torch.bool).bernoulli_(0.3)
    torch.manual_seed(8)
    assert torch.equal(draw_kept((6, 5), 0.3, CPU, "torch").bytes.bool(), ~dropped)


def test_dropping_equals_its_twin_in_outputs_and_gradients() -> None:
    x, kept = numbers(5, 7), draw_kept((5, 7), 0.4, CPU)
    assert_same(drop_by(x, kept), by_hand(x, kept), [x])
    other_order = numbers(7, 5).t()
    assert_same(drop_by(other_order, kept), by_hand(other_order, kept), [other_order])


def test_adding_what_is_kept_equals_its_twin_in_outputs_and_gradients() -> None:
    residual, x, kept = numbers(5, 7), numbers(5, 7, seed=1), draw_kept((5, 7), 0.4, CPU)
    assert_same(add_by(residual, x, kept), residual + by_hand(x, kept), [residual, x])


def test_a_residual_of_another_type_is_added_in_the_wider_one() -> None:
    residual = numbers(4, 4, dtype=torch.float32)
    x = numbers(4, 4, dtype=torch.float32).detach().bfloat16().requires_grad_()
    torch.manual_seed(2)
    found = add_dropped(residual, x, 0.5)
    assert found.dtype == torch.float32
    torch.manual_seed(2)
    assert_same(found, residual + by_hand(x, draw_kept((4, 4), 0.5, CPU)), [residual, x])


def test_relu_and_dropout_equal_their_twin_in_outputs_and_gradients() -> None:
    x, kept = numbers(50, 7), draw_kept((50, 7), 0.4, CPU)
    assert_same(drop_relu_by(x * 1, kept), by_hand(F.relu(x), kept), [x])


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_dropped_activation_equals_its_twin(activation: str) -> None:
    x = numbers(6, 8)
    torch.manual_seed(3)
    found = drop_activated(x * 1, activation, 0.4)  # type: ignore[arg-type]
    torch.manual_seed(3)
    hidden = activate(x, activation)  # type: ignore[arg-type]
    assert_same(found, by_hand(hidden, draw_kept(hidden.shape, 0.4, CPU)), [x])


def test_gradients_are_the_numerical_ones() -> None:
    x, residual, kept = numbers(3, 5), numbers(3, 5, seed=1), draw_kept((3, 5), 0.4, CPU)
    assert torch.autograd.gradcheck(lambda x: drop_by(x, kept), (x,))
    assert torch.autograd.gradcheck(lambda r, x: add_by(r, x, kept), (residual, x))
    assert torch.autograd.gradcheck(lambda x: drop_relu_by(x * 1, kept), (x,))


def test_recomputed_activations_are_dropped_as_at_first() -> None:
    x = numbers(40, 8)

    def run(x: torch.Tensor) -> torch.Tensor:
        return drop_activated(add_dropped(x, drop(x, 0.2), 0.3) * 2, "relu", 0.4)

    found = []
    for is_checkpointed in (False, True):
        torch.manual_seed(2)
        y = checkpoint(run, x, use_reentrant=False) if is_checkpointed else run(x)
        found.append([y, *torch.autograd.grad(y.square().sum(), x)])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_a_residual_that_all_rows_share_is_added_to_each() -> None:
    residual, x = torch.arange(4.0), torch.ones(3, 4)
    kept = draw_kept((3, 4), 0.5, CPU)
    torch.testing.assert_close(add_by(residual.expand(3, 4), x, kept), residual + by_hand(x, kept))
    torch.testing.assert_close(add_by(residual, x, kept), residual + by_hand(x, kept))


def test_who_needs_what_is_dropped_in_place_hears_of_it() -> None:
    for dtype in (torch.float32, torch.float64):
        x = numbers(30, 4, dtype=dtype)
        hidden = x * 1
        squared = hidden * hidden
        drop_activated(hidden, "relu", 0.5)
        with pytest.raises(RuntimeError, match="inplace operation"):
            squared.sum().backward()
        with pytest.raises(RuntimeError, match="leaf"):
            drop_activated(x, "relu", 0.5)


def test_what_is_kept_may_lie_in_any_order() -> None:
    x, kept = numbers(6, 5, dtype=torch.float32), draw_kept((5, 6), 0.5, CPU)
    turned = Kept(kept.bytes.t(), kept.scale)
    expected = by_hand(x, Kept(turned.bytes.contiguous(), kept.scale))
    torch.testing.assert_close(drop_by(x, turned), expected)
    torch.testing.assert_close(add_by(x, x, turned), x + expected)
    with pytest.raises(RuntimeError, match="shape"):
        drop_by(x, Kept(torch.ones(6, 1, dtype=torch.uint8), 2.0))


@needs_kernels
def test_threads_that_draw_at_once_draw_other_numbers() -> None:
    torch.manual_seed(3)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: draw_kept((3_000_000,), 0.5, CPU).bytes, range(2))
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    in_turn = [draw_kept((3_000_000,), 0.5, CPU).bytes for _ in range(2)]
    assert any(torch.equal(first, one) and torch.equal(second, other) for one, other in permutations(in_turn))
