"""Attention with dropped weights against its formula, by autograd, on the same draws; attention of some sentences."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from ostinato.kernels.attention import attend_by, attend_dropped, attend_some
from ostinato.kernels.dropout import Kept, draw_kept

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


def assert_same(found: torch.Tensor, expected: torch.Tensor, leaves: list[torch.Tensor]) -> None:
    torch.testing.assert_close(found, expected)
    seed = torch.randn_like(expected)
    theirs = torch.autograd.grad(expected, leaves, seed)
    for mine, other in zip(torch.autograd.grad(found, leaves, seed), theirs, strict=True):
        torch.testing.assert_close(mine, other)


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
    found = attend_dropped(q, k, v, None, 0.4, 0.5, draws="torch")
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
