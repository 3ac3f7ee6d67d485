"""Attention, feed-forward and norms against the papers' formulas, in outputs and gradients."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from ostinato.nn.attention import Attention, Visibility
from ostinato.nn.feedforward import Activation, FeedForward
from ostinato.nn.layers import build_norm
from reference.equations import ACTIVATIONS, layer_norm, rms_norm, softmax
from reference.grids import by_head, put_out
from reference.weights import read_affine, read_heads

B, T, D, H, K = 2, 4, 6, 2, 3


def _attention() -> Attention:
    torch.manual_seed(0)
    return Attention(D, H, K, bias=True, dropout=0.0).double()


def _plain(module: Attention, x_TD: Tensor, y_SD: Tensor, seen: list[list[int]], bias_HTS: Tensor) -> Tensor:
    """Attend from every row of x to the rows of y that it may see."""
    heads = read_heads(module, H, H, K)
    rows = []
    for t, visible in enumerate(seen):
        mixed = []
        for h in range(H):
            q = heads.query[h](x_TD[t])
            scores = [(q * heads.key[h](y_SD[s])).sum() / math.sqrt(K) + bias_HTS[h, t, s] for s in visible]
            values = [heads.value[h](y_SD[s]) for s in visible]
            weighted = [w * v for w, v in zip(softmax(scores), values, strict=True)]
            mixed.append(sum(weighted[1:], weighted[0]))
        rows.append(heads.out(torch.cat(mixed)))
    return torch.stack(rows)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("has_keep", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
def test_self_attention_equals_its_twin_in_outputs_and_gradients(
    is_causal: bool, has_keep: bool, has_bias: bool
) -> None:
    module = _attention()
    x_BTD = torch.randn(B, T, D).double().requires_grad_()
    keep_BT = torch.tensor([[True, True, True, True], [True, False, True, False]])
    bias = torch.randn(1, H, T, T).double() if has_bias else None
    visibility = Visibility(is_causal, keep_BT if has_keep else None)
    output = put_out(module, module.attend(*by_head(module, x_BTD), visibility, bias))
    zero = torch.zeros(H, T, T).double()
    expected = torch.stack(
        [
            _plain(module, x_BTD[b], x_BTD[b], _seen(is_causal, keep_BT[b] if has_keep else None), _first(bias, zero))
            for b in range(B)
        ]
    )
    real = keep_BT if has_keep else torch.ones_like(keep_BT)
    _assert_same(module, x_BTD, output[real], expected[real])


def _first(bias: Tensor | None, zero: Tensor) -> Tensor:
    return zero if bias is None else bias[0]


def _seen(is_causal: bool, keep_T: Tensor | None) -> list[list[int]]:
    return [
        [s for s in range(T) if (s <= t or not is_causal) and (keep_T is None or bool(keep_T[s]) or s == t)]
        for t in range(T)
    ]


def _assert_same(module: torch.nn.Module, x: Tensor, found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected)
    inputs = [x, *module.parameters()]
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(0)).double()
    for one, two in zip(
        torch.autograd.grad((found * weights).sum(), inputs),
        torch.autograd.grad((expected * weights).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(one, two)


def test_cross_attention_projects_its_two_sides_with_the_right_thirds() -> None:
    module = _attention()
    x_BTD, y_BSD = torch.randn(1, T, D).double().requires_grad_(), torch.randn(1, 6, D).double()
    output = put_out(module, module.attend(*by_head(module, x_BTD, y_BSD), Visibility()))
    expected = _plain(module, x_BTD[0], y_BSD[0], [list(range(6))] * T, torch.zeros(H, T, 6).double())
    _assert_same(module, x_BTD, output[0], expected)


@pytest.mark.parametrize("n_new", [1, 2, 3])
def test_queries_after_an_offset_see_the_cached_columns_and_their_own(n_new: int) -> None:
    module = _attention()
    x_BTD = torch.randn(B, T, D).double()
    q, k, v = by_head(module, x_BTD)
    full = put_out(module, module.attend(q, k, v, Visibility(True)))
    last = put_out(module, module.attend(q[:, :, -n_new:], k, v, Visibility(True, offset=T - n_new)))
    torch.testing.assert_close(last, full[:, -n_new:])


def test_attention_weights_on_request_are_those_that_made_the_output() -> None:
    module = _attention()
    q, k, v = by_head(module, torch.randn(B, T, D).double())
    visibility = Visibility(True, torch.tensor([[True] * T, [True, True, False, False]]))
    weights_BHTS = module.weights(q, k, visibility).detach()
    torch.testing.assert_close(weights_BHTS.sum(-1), torch.ones(B, H, T))
    assert float(weights_BHTS[0].triu(1).abs().max()) == 0.0
    assert float(weights_BHTS[1, :, :, 2:].abs().max()) == 0.0
    mixed = (weights_BHTS.double() @ v).transpose(1, 2).flatten(2)
    torch.testing.assert_close(
        module.out(mixed), put_out(module, module.attend(q, k, v, visibility)), rtol=0, atol=1e-6
    )


def test_attention_weights_on_request_are_those_of_float32_under_autocast() -> None:
    module = _attention().float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        q, k, _ = by_head(module, torch.randn(B, T, D))
        found = module.weights(q, k, Visibility(True))
    assert q.dtype == torch.bfloat16
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, module.weights(q, k, Visibility(True)), rtol=0, atol=0)


def test_a_query_that_sees_nothing_gets_numbers_and_finite_gradients() -> None:
    module = _attention()
    x_BTD = torch.randn(1, T, D).double().requires_grad_()
    output = put_out(
        module, module.attend(*by_head(module, x_BTD), Visibility(False, torch.zeros(1, T, dtype=torch.bool)))
    )
    assert bool(output.isfinite().all())
    assert all(bool(g.isfinite().all()) for g in torch.autograd.grad(output.sum(), [x_BTD, *module.parameters()]))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("bias", [False, True])
def test_feed_forwards_equal_their_twins(activation: Activation, bias: bool) -> None:
    torch.manual_seed(0)
    F = 5
    module = FeedForward(D, F, activation, bias=bias, dropout=0.0).double()
    x_BTD = torch.randn(B, T, D).double().requires_grad_()
    down, first, second = read_affine(module.down), read_affine(module.up, 0, F), read_affine(module.up, F, 2 * F)

    def plain(x: Tensor) -> Tensor:
        act, is_gated = ACTIVATIONS[activation]
        return down(act(first(x)) * second(x) if is_gated else act(first(x)))

    expected = torch.stack([plain(x) for x in x_BTD.flatten(0, 1)]).view(B, T, D)
    _assert_same(module, x_BTD, module(x_BTD), expected)


@pytest.mark.parametrize("eps", [1e-5, 0.1])
def test_norms_equal_their_formulas(eps: float) -> None:
    torch.manual_seed(0)
    x_BTD = torch.randn(B, T, D).double().requires_grad_()
    layer, rms = build_norm("layer", D, eps).double(), build_norm("rms", D, eps).double()
    for module in (layer, rms):
        for parameter in module.parameters():
            torch.nn.init.normal_(parameter)
    weight, bias, scale = layer.weight, layer.bias, rms.weight
    assert isinstance(weight, Tensor)
    assert isinstance(bias, Tensor)
    assert isinstance(scale, Tensor)
    rows = x_BTD.flatten(0, 1)
    _assert_same(
        layer, x_BTD, layer(x_BTD).flatten(0, 1), torch.stack([layer_norm(x, weight, bias, eps) for x in rows])
    )
    _assert_same(rms, x_BTD, rms(x_BTD).flatten(0, 1), torch.stack([rms_norm(x, scale, eps) for x in rows]))
