"""Attention of all queries against its formula, by autograd, on the same draws; attention of some sentences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_dropout import assert_same
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ostinato.kernels.attention import attend, attend_by, attend_plainly, attend_some
from ostinato.kernels.dropout import Kept, draw_kept
from ostinato.kernels.native import FullAttention, library
from ostinato.training.threads import cpu_threads

B, H, K = 2, 3, 4
CPU = torch.device("cpu")


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def by_hand(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, scale: float, kept: Kept
) -> torch.Tensor:
    scores = scale * (q @ k.transpose(-1, -2))
    weights = torch.softmax(scores if mask is None else scores + mask, -1)
    return torch.where(kept.bytes.bool(), weights * kept.scale, 0.0) @ v


@pytest.mark.parametrize(("Q", "S"), [(5, 5), (1, 7), (6, 1), (3, 9)])
@pytest.mark.parametrize("mask_shape", [None, (1, 1, 1), (B, 1, 1), (1, H, 0), (B, H, 0)])
def test_equals_the_formula_in_outputs_and_all_gradients(Q: int, S: int, mask_shape: tuple[int, ...] | None) -> None:
    leaves = [numbers(B, H, n, K, seed=seed) for seed, n in enumerate((Q, S, S))]
    mask = None
    if mask_shape is not None:
        mask = numbers(*mask_shape[:2], mask_shape[2] or Q, S, seed=7)
        leaves.append(mask)
    kept = draw_kept((B, H, Q, S), 0.4, CPU)
    q, k, v, *_ = leaves
    assert_same(attend_by(q, k, v, mask, 0.5, kept), by_hand(q, k, v, mask, 0.5, kept), leaves)


def test_a_causal_query_sees_no_later_key() -> None:
    q, k, v = (numbers(B, H, 5, K, seed=seed) for seed in range(3))
    kept = draw_kept((B, H, 5, 5), 0.4, CPU)
    later = torch.ones(5, 5, dtype=torch.bool).triu(1)
    mask = torch.zeros(5, 5, dtype=torch.float64).masked_fill(later, -torch.inf)[None, None]
    assert_same(attend_by(q, k, v, None, 0.5, kept, is_causal=True), by_hand(q, k, v, mask, 0.5, kept), [q, k, v])


def test_heads_may_lie_in_any_order_in_memory() -> None:
    packed = numbers(B, 5, 3, H, K)
    q, k, v = packed.permute(2, 0, 3, 1, 4).unbind(0)
    kept = draw_kept((B, H, 5, 5), 0.4, CPU)
    assert_same(attend_by(q, k, v, None, 0.5, kept), by_hand(q, k, v, None, 0.5, kept), [packed])


def test_when_all_is_kept_it_is_torchs_attention() -> None:
    q, k, v = (numbers(B, H, 5, K, seed=seed) for seed in range(3))
    mask = numbers(B, 1, 5, 5, seed=4).detach()
    kept = Kept(torch.ones(B, H, 5, 5, dtype=torch.uint8), 1.0)
    assert_same(
        attend_by(q, k, v, mask, 0.3, kept), F.scaled_dot_product_attention(q, k, v, mask, scale=0.3), [q, k, v]
    )


def test_gradients_are_the_numerical_ones() -> None:
    q, k, v = (numbers(1, 2, 3, K, seed=seed) for seed in range(3))
    mask, kept = numbers(1, 1, 3, 3, seed=5), draw_kept((1, 2, 3, 3), 0.4, CPU)
    assert torch.autograd.gradcheck(lambda *given: attend_by(*given, 0.5, kept), (q, k, v, mask))


def test_torchs_draws_are_left_to_torch() -> None:
    q, k, v = (numbers(B, H, 5, K, seed=seed) for seed in range(3))
    torch.manual_seed(1)
    found = attend(q, k, v, None, 0.5, dropout=0.4, draws="torch")
    torch.manual_seed(1)
    assert torch.equal(found, F.scaled_dot_product_attention(q, k, v, dropout_p=0.4, scale=0.5))


def test_autocast_multiplies_in_its_type() -> None:
    q, k, v = (numbers(B, H, 5, K, seed=seed).detach().float().requires_grad_() for seed in range(3))
    kept = draw_kept((B, H, 5, 5), 0.4, CPU)
    exact = by_hand(q, k, v, None, 0.5, kept)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = attend_by(q, k, v, None, 0.5, kept)
    assert found.dtype == torch.bfloat16
    assert (found.float() - exact).norm() < 0.02 * exact.norm()
    grads = torch.autograd.grad(found.float().square().sum(), [q, k, v])
    for mine, other in zip(grads, torch.autograd.grad(exact.square().sum(), [q, k, v]), strict=True):
        assert mine.dtype == torch.float32
        assert (mine - other).norm() < 0.05 * other.norm()


@pytest.mark.parametrize("how", ["plain", "causal", "masked"])
def test_under_autocast_dropped_attention_is_nearly_as_exact_as_torchs(how: str) -> None:
    T, scale = 128, 0.5
    q, k, v, seed = (numbers(B, H, T, 16, seed=seed).detach().bfloat16() for seed in range(4))
    hidden = torch.randn(B, 1, 1, T, generator=torch.Generator().manual_seed(4)) > 0.5
    mask = torch.zeros(B, 1, 1, T).masked_fill(hidden, -1e30) if how == "masked" else None
    is_causal, all_kept = how == "causal", Kept(torch.ones(B, H, T, T, dtype=torch.uint8), 1.0)

    def results(dtype: torch.dtype, kept: Kept | None) -> list[torch.Tensor]:
        leaves = [x.to(dtype).requires_grad_() for x in (q, k, v)]
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            added = None if mask is None else mask.to(dtype)
            y = attend_by(*leaves, added, scale, kept, is_causal=is_causal)
        return [y.detach(), *torch.autograd.grad(y, leaves, seed.to(dtype))]

    exact, theirs, ours = (results(torch.float64, None), *(results(torch.bfloat16, kept) for kept in (None, all_kept)))
    for expected, other, found in zip(exact, theirs, ours, strict=True):
        assert found.dtype == torch.bfloat16
        assert (found - expected).norm() < 1.5 * (other - expected).norm()


@pytest.mark.parametrize("mask_shape", [None, (1, 1, 1), (5, 1, 1), (1, H, 2), (5, H, 2)])
@pytest.mark.parametrize("stretches", [[], [(0, 5)], [(1, 2), (3, 5)], [(0, 1), (2, 3), (4, 5)]])
def test_stretches_of_sentences_read_what_all_do(
    stretches: list[tuple[int, int]], mask_shape: tuple[int, ...] | None
) -> None:
    leaves = [numbers(5, H, n, K, seed=seed) for seed, n in enumerate((2, 7, 7))]
    mask = None if mask_shape is None else numbers(*mask_shape, 7, seed=7)
    is_read = torch.zeros(5, dtype=torch.bool)
    for first, end in stretches:
        is_read[first:end] = True
    read = F.scaled_dot_product_attention(*leaves, attn_mask=mask, scale=0.5)
    expected = torch.where(is_read[:, None, None, None], read, 0.0)
    found = attend_some(*leaves, mask, 0.5, stretches)
    if not stretches:
        assert torch.equal(found, expected)
        return
    assert_same(found, expected, leaves if mask is None else [*leaves, mask])


needs_kernels = pytest.mark.skipif(library() is None, reason="no C compiler here")


class Counted(FullAttention):
    """The compiled kernel; how often it has read, and gone back."""

    n_read = n_back = 0

    def read(self) -> tuple[torch.Tensor, torch.Tensor]:
        Counted.n_read += 1
        return super().read()

    def gradients(self, *given: torch.Tensor) -> None:
        Counted.n_back += 1
        super().gradients(*given)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> type[Counted]:
    monkeypatch.setattr("ostinato.kernels.attention.FullAttention", Counted)
    Counted.n_read = Counted.n_back = 0
    return Counted


def heads(*shape: int, seed: int, layout: str) -> torch.Tensor:
    """Return float32 numbers `[B, H, T, K]` as they may lie in memory."""
    B, H, T, K = shape
    generator = torch.Generator().manual_seed(seed)
    if layout == "by position":  # as projections make them
        return torch.randn(B, T, H, K, generator=generator).transpose(1, 2)
    if layout == "numbers apart":
        return torch.randn(B, H, K, T, generator=generator).transpose(2, 3)
    if layout == "a part":
        return torch.randn(B, T, 2, H, K + 3, generator=generator)[:, :, 1, :, 2:-1].transpose(1, 2)
    return torch.randn(shape, generator=generator)


def results(attend: Any, tensors: list[torch.Tensor], seed: torch.Tensor) -> list[torch.Tensor]:
    """Return what is read, and the gradients."""
    leaves = [x.detach().requires_grad_() for x in tensors]
    y = attend(*leaves)
    return [y.detach(), *torch.autograd.grad(y, leaves, seed.to(y.dtype))]


@st.composite
def attentions(draw: st.DrawFn) -> dict[str, Any]:
    size = st.integers(1, 9) | st.sampled_from([16, 17, 31, 48, 49, 64, 97, 130])
    n_heads, n_groups = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    is_causal = draw(st.booleans())
    n_queries = draw(size)
    n_keys = n_queries if is_causal else draw(size)
    mask = None if is_causal else draw(st.sampled_from([None, "keys", "queries", "heads", "all", "one number"]))
    return {
        "sizes": (draw(st.integers(1, 4)), n_heads * n_groups, n_heads, n_queries, n_keys, draw(st.integers(1, 40))),
        "mask": mask,
        "is_causal": is_causal,
        "p": draw(st.sampled_from([0.0, 0.4])),
        "layouts": draw(
            st.lists(st.sampled_from(["", "by position", "numbers apart", "a part"]), min_size=4, max_size=4)
        ),
    }


def mask_of(kind: str | None, B: int, H: int, Q: int, S: int) -> torch.Tensor | None:
    """Return a mask of some shape: some keys are hidden, sometimes all of a row; or a bias."""
    generator = torch.Generator().manual_seed(5)
    match kind:
        case None:
            return None
        case "keys":
            hidden = torch.rand(B, 1, 1, S, generator=generator) < 0.4
        case "queries":
            hidden = torch.rand(1, 1, Q, S, generator=generator) < 0.4
        case "heads":
            return torch.randn(1, H, Q, S, generator=generator)
        case "one number":
            return torch.randn(B, 1, Q, 1, generator=generator)
        case _:
            hidden = torch.rand(B, H, Q, S, generator=generator) < 0.4
    return torch.zeros(hidden.shape).masked_fill_(hidden, -1e30)


@needs_kernels
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(attentions())
def test_compiled_attention_is_the_plain_one_in_outputs_and_gradients(
    counted: type[Counted], case: dict[str, Any]
) -> None:
    B, H, G, Q, S, K = case["sizes"]
    layouts, is_causal = case["layouts"], case["is_causal"]
    shapes = (B, H, Q, K), (B, G, S, K), (B, G, S, K)
    tensors = [heads(*shape, seed=i, layout=layouts[i]) for i, shape in enumerate(shapes)]
    seed, mask = heads(B, H, Q, K, seed=3, layout=layouts[3]), mask_of(case["mask"], B, H, Q, S)
    kept = draw_kept((B, H, Q, S), case["p"], CPU) if case["p"] else None
    exact_mask = None if mask is None else mask.double().expand(*mask.shape[:3], S)

    def exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        every = Kept(torch.ones(B, H, Q, S, dtype=torch.uint8), 1.0) if kept is None else kept
        return attend_plainly(q, k, v, exact_mask, 0.7, every, is_causal=is_causal)

    expected = results(exact, [x.double() for x in tensors], seed)
    by_threads = []
    for n_threads in (1, 2, 3):
        before = counted.n_read, counted.n_back
        with cpu_threads(n_threads):
            found = results(lambda *x: attend_by(*x, mask, 0.7, kept, is_causal=is_causal), tensors, seed)
        # More threads than heads of keys would have nothing to do: torch's operations run.
        is_compiled = n_threads <= B * G
        assert (counted.n_read, counted.n_back) == (before[0] + is_compiled, before[1] + is_compiled)
        if is_compiled:
            by_threads.append(found)
    for found in by_threads:
        assert all(torch.equal(mine, other) for mine, other in zip(found, by_threads[0], strict=True))
    for mine, other in zip(by_threads[0], expected, strict=True):
        torch.testing.assert_close(mine.double(), other, rtol=1e-4, atol=1e-5 * (1 + float(other.abs().max())))


@needs_kernels
def test_few_queries_are_torchs_unless_gradients_are_wanted(counted: type[Counted]) -> None:
    for n_queries, learns, is_compiled in ((7, False, False), (7, True, True), (8, False, True)):
        q, k, v = (heads(2, 3, n, 4, seed=seed, layout="") for seed, n in enumerate((n_queries, 9, 9)))
        before = counted.n_read
        found = attend(q.requires_grad_(learns), k, v, None, 0.5)
        assert counted.n_read == before + is_compiled
        torch.testing.assert_close(found, attend_plainly(q, k, v, None, 0.5, None))


@needs_kernels
def test_keys_that_are_hidden_change_no_bit_of_what_is_read() -> None:
    q, k, v = (heads(2, 2, n, 8, seed=seed, layout="by position") for seed, n in enumerate((5, 60, 60)))
    hidden = torch.zeros(2, 1, 1, 60).masked_fill_(torch.arange(60) >= 21, -1e30)
    seed = heads(2, 2, 5, 8, seed=3, layout="")
    found = results(lambda *x: attend(*x, hidden, 0.5), [q, k, v], seed)
    expected = results(lambda *x: attend(*x, None, 0.5), [q, k[:, :, :21], v[:, :, :21]], seed)
    for mine, other in zip(found, expected, strict=True):
        length = other.shape[2]
        assert torch.equal(mine[:, :, :length], other)
        assert not mine[:, :, length:].any()


@needs_kernels
def test_what_is_no_number_stays_none() -> None:
    every = Kept(torch.ones(1, 1, 7, 7, dtype=torch.uint8), 1.0)  # torch's fused kernel makes zeros of such rows
    for place in range(3):
        tensors = [heads(1, 1, 7, 3, seed=seed, layout="") for seed in range(3)]
        tensors[place][0, 0, 4, 1] = torch.nan
        with cpu_threads(1):  # of more threads than heads torch's operations make use
            found = results(lambda *x: attend(*x, None, 0.5), tensors, torch.ones(1, 1, 7, 3))
        expected = results(lambda *x: attend_plainly(*x, None, 0.5, every), tensors, torch.ones(1, 1, 7, 3))
        for mine, other in zip(found, expected, strict=True):
            assert torch.equal(mine.isnan(), other.isnan())


@needs_kernels
def test_a_bias_that_is_learned_has_its_gradient() -> None:
    q, k, v = (heads(2, 3, 5, 4, seed=seed, layout="by position") for seed in range(3))
    bias = torch.randn(1, 3, 5, 5, generator=torch.Generator().manual_seed(1), requires_grad=True)
    attend(q, k, v, bias, 0.5).square().sum().backward()
    expected = bias.detach().double().requires_grad_()
    attend(q.double(), k.double(), v.double(), expected, 0.5).square().sum().backward()
    assert expected.grad is not None
    torch.testing.assert_close(bias.grad, expected.grad.float())


def test_attention_that_is_counted_traced_or_transformed_is_torchs() -> None:
    q, k, v = (heads(2, 3, 5, 4, seed=seed, layout="") for seed in range(3))
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        attend(q, k, v, None, 0.5)
    assert counter.get_total_flops() == 2 * 2 * 2 * 3 * 5 * 5 * 4
    with FakeTensorMode() as mode:
        fake = attend(*(mode.from_tensor(x) for x in (q, k, v)), None, 0.5)
    assert fake.shape == q.shape
    grad = torch.func.grad(lambda q: attend(q, k, v, None, 0.5).square().sum())(q)
    leaf = q.clone().requires_grad_()
    attend(leaf, k, v, None, 0.5).square().sum().backward()
    torch.testing.assert_close(grad, leaf.grad)


def test_without_kernels_plain_code_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (heads(2, 3, 5, 4, seed=seed, layout="") for seed in range(3))
    monkeypatch.setattr("ostinato.kernels.native.calls.has_kernels", lambda: False)
    assert torch.equal(attend(q, k, v, None, 0.5), F.scaled_dot_product_attention(q, k, v, scale=0.5))


@needs_kernels
def test_sizes_that_do_not_fit_are_named_by_torch() -> None:
    q, k, v = (heads(2, 4, n, 4, seed=seed, layout="") for seed, n in enumerate((5, 6, 6)))
    for wrong in (
        (q, k, v, torch.zeros(3, 1, 1, 6)),
        (q, k, v, torch.zeros(1, 1, 1, 5)),
        (q, k[..., :3], v, None),
        (q, k[:, :3], v[:, :3], None),
    ):
        with pytest.raises((RuntimeError, ValueError)):
            attend(*wrong, 0.5)


@needs_kernels
def test_values_may_have_another_width() -> None:
    q, k, v = (heads(2, 4, 5, n, seed=seed, layout="") for seed, n in enumerate((4, 4, 6)))
    torch.testing.assert_close(attend(q, k, v, None, 0.5), torch.softmax(0.5 * q @ k.mT, -1) @ v)


@needs_kernels
def test_weights_that_are_kept_may_lie_in_any_order() -> None:
    q, k, v = (heads(2, 4, 5, 4, seed=seed, layout="") for seed in range(3))
    kept = draw_kept((2, 4, 5, 5), 0.4, CPU)
    turned = Kept(kept.bytes.transpose(0, 1).contiguous().transpose(0, 1), kept.scale)
    assert torch.equal(attend_by(q, k, v, None, 0.5, turned), attend_plainly(q, k, v, None, 0.5, kept))
    with pytest.raises(RuntimeError):
        attend_by(q, k, v, None, 0.5, Kept(kept.bytes[:1, :1, :1, :1], kept.scale))


@needs_kernels
def test_gradients_of_gradients_are_refused_as_torch_refuses_them() -> None:
    q = heads(2, 3, 5, 4, seed=1, layout="").requires_grad_()
    (first,) = torch.autograd.grad(attend(q, q * 0.5, q * 0.2, None, 0.3).sum() + q.pow(2).sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="derivative"):
        torch.autograd.grad(first.pow(2).sum(), q)


@needs_kernels
def test_many_gradients_at_a_time_are_those_of_each() -> None:
    q, k, v = (heads(1, 2, 3, 4, seed=seed, layout="").requires_grad_() for seed in range(3))
    y = attend(q, k, v, None, 0.5)
    seeds = torch.eye(24).view(24, *y.shape)
    found = torch.autograd.grad(y, (q, v), seeds, is_grads_batched=True, retain_graph=True)
    each = [torch.autograd.grad(y, (q, v), seed, retain_graph=True) for seed in seeds]
    for mine, others in zip(found, zip(*each, strict=True), strict=True):
        torch.testing.assert_close(mine, torch.stack(others))


@pytest.mark.parametrize("lowered", [False, True])
@pytest.mark.parametrize("has_mask", [False, True])
def test_heads_share_keys_by_torchs_own_means_where_a_fused_kernel_knows_them(
    lowered: bool, has_mask: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fused, asked = F.scaled_dot_product_attention, []

    def noted(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **how: Any) -> torch.Tensor:
        asked.append((k.shape[1], how["enable_gqa"]))
        return fused(q, k, v, **how)

    monkeypatch.setattr(F, "scaled_dot_product_attention", noted)
    dtype = torch.bfloat16 if lowered else torch.float32
    for device in ("cpu", "meta"):  # any that is no CPU
        q, k = torch.ones(2, 4, 3, 8, dtype=dtype, device=device), torch.ones(2, 2, 3, 8, dtype=dtype, device=device)
        mask = torch.zeros(1, 1, 3, 3, dtype=dtype, device=device) if has_mask else None
        assert attend_plainly(q, k, k, mask, 1.0, None).shape == q.shape
    on_a_gpu = (2, True) if lowered and not has_mask else (4, False)
    assert asked == [(2, True), on_a_gpu]
