"""Feed-forwards, sparse layers and attention of experts against plain loops, in outputs and all gradients."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ostinato.config.experts import ExpertAttentionConfig, ExpertFeedForwardConfig, RoutedConfig, SparseLayerConfig
from ostinato.config.sub_layers import AttentionConfig, DenseFeedForwardConfig
from ostinato.models.parts import build_sub_layer
from ostinato.nn.attention import Attention, Visibility
from ostinato.nn.experts import ExpertAttention, ExpertFeedForward, Routed, SparseLayer
from ostinato.nn.feedforward import FeedForward
from ostinato.nn.init import Init
from ostinato.nn.rows import Rows
from reference.equations import softmax
from reference.experts import choose, read_expert_heads, run_maps, run_stack, weighted
from reference.grids import by_head, put_out

B, T, D, F, H, K, EPS = 2, 3, 6, 5, 2, 3, 1e-5
KEEP = torch.tensor([[True, True, True], [True, False, False]])
INIT: Init = "xavier"

ROUTERS: dict[str, dict[str, Any]] = {
    "linear": {"kind": "linear"},
    "mlp": {"kind": "mlp"},
    "hypersphere": {"kind": "hypersphere", "d_router": 3},
    "hypersphere without projection": {"kind": "hypersphere", "project": False},
    "hypersphere without norm": {"kind": "hypersphere", "normalise": False},
}
GATES: dict[str, dict[str, Any]] = {
    "softmax": {"kind": "softmax", "renormalise": False},
    "softmax renormalised": {"kind": "softmax", "renormalise": True},
    "topk_softmax": {"kind": "topk_softmax"},
    "sigmoid": {"kind": "sigmoid"},
}


def build(config: Any) -> Any:
    """Return the sub-layer with every parameter random."""
    torch.manual_seed(0)
    module = build_sub_layer(config, D, INIT, 1, EPS).double()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.normal_(std=0.5)
            if name.endswith("tau"):
                parameter.fill_(0.4)
    return module


def states() -> Tensor:
    make = torch.Generator().manual_seed(1)
    return torch.randn(B, T, D, generator=make, dtype=torch.float64, requires_grad=True)


def plain(config: RoutedConfig, module: nn.Module, x_D: Tensor) -> Tensor:
    """One token through its experts."""
    choices = choose(config, module, x_D)
    if isinstance(config, SparseLayerConfig):
        return weighted(choices, lambda e: run_stack(module, e, config.activation, EPS, x_D))
    assert isinstance(config, ExpertFeedForwardConfig)
    assert isinstance(module, ExpertFeedForward)
    return weighted(choices, lambda e: run_maps(module.experts, e, config.activation, x_D))


def assert_same(module: nn.Module, x: Tensor, found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected)
    inputs = [x, *(p for p in module.parameters() if p.requires_grad)]
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(0)).double()
    one = torch.autograd.grad((found * weights).sum(), inputs, allow_unused=True, materialize_grads=True)
    two = torch.autograd.grad((expected * weights).sum(), inputs, allow_unused=True, materialize_grads=True)
    for a, b in zip(one, two, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.sampled
@pytest.mark.parametrize(("router", "gate", "k"), [*product(ROUTERS, GATES, [2]), ("linear", "sigmoid", 1)])
def test_experts_equal_their_plain_twin_in_outputs_and_gradients(router: str, gate: str, k: int) -> None:
    routed: dict[str, Any] = {"n_experts": 4, "top_k": k, "router": ROUTERS[router], "gate": GATES[gate]}
    for config in (
        ExpertFeedForwardConfig.model_validate({"d_ff": F, "activation": "geglu", **routed}),
        SparseLayerConfig.model_validate({"d_ff": F, "n_layers": 2, "activation": "gelu", **routed}),
    ):
        module, x_BTD = build(config), states()
        decision = module.route(x_BTD.flatten(0, 1), KEEP.flatten())
        found = module(x_BTD.flatten(0, 1), decision).view_as(x_BTD)
        expected = torch.stack([plain(config, module, x_D) for x_D in x_BTD[KEEP]])
        assert_same(module, x_BTD, found[KEEP], expected)
        assert float(found[~KEEP].detach().abs().max()) == 0.0
        routing = decision.routing("ffn.here_0", "here", 3, Rows.all(*x_BTD.shape[:2]))
        assert (routing.router, routing.stack, routing.step) == ("ffn.here_0", "here", 3)
        for row in routing.rows_N[routing.weight_N > 0].tolist():
            wanted = choose(config, module, x_BTD.flatten(0, 1)[row])
            assert routing.experts_NK[row].tolist() == [e for e, _ in wanted]
            torch.testing.assert_close(routing.gates_NK[row], torch.stack([g for _, g in wanted]))


def attend(module: Any, x_BTD: Tensor, keep_BT: Tensor | None = None) -> Tensor:
    weight_N = None if keep_BT is None else keep_BT.flatten()
    decision = module.route(x_BTD.flatten(0, 1), weight_N) if isinstance(module, ExpertAttention) else None
    mixed = module.attend(*by_head(module, x_BTD, None, decision), Visibility(keep_BS=keep_BT))
    return put_out(module, mixed, decision)


def attend_plainly(config: ExpertAttentionConfig, module: nn.Module, x_TD: Tensor) -> Tensor:
    def read(expert: int, x_D: Tensor) -> Tensor:
        heads, parts = read_expert_heads(module, expert, H, H, K), []
        for query, key, value in zip(heads.query, heads.key, heads.value, strict=True):
            weights = softmax([(query(x_D) * key(y_D)).sum() / K**0.5 for y_D in x_TD])
            parts.append(sum(w * value(y_D) for w, y_D in zip(weights, x_TD, strict=True)))
        return heads.out(torch.cat(parts))  # type: ignore[arg-type]

    rows = []
    for x_D in x_TD:
        rows.append(weighted(choose(config, module, x_D), lambda e, x_D=x_D: read(e, x_D)))  # type: ignore[misc]
    return torch.stack(rows)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("gate", GATES)
def test_attention_of_experts_equals_its_plain_twin(gate: str, bias: bool) -> None:
    config = ExpertAttentionConfig.model_validate(
        {"n_heads": H, "d_head": K, "bias": bias, "n_experts": 4, "top_k": 2, "gate": GATES[gate]}
    )
    module, x_BTD = build(config), states()
    found = attend(module, x_BTD, KEEP)
    expected = [attend_plainly(config, module, x[keep]) for x, keep in zip(x_BTD, KEEP, strict=True)]
    assert_same(module, x_BTD, found[KEEP], torch.cat(expected))
    assert float(found[~KEEP].detach().abs().max()) == 0.0


# --- special cases ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ["relu", "gelu", "geglu"])
def test_one_expert_is_the_dense_feed_forward_and_has_no_router(activation: Any) -> None:
    one = build(ExpertFeedForwardConfig(d_ff=F, n_experts=1, top_k=1, activation=activation))
    dense = build(DenseFeedForwardConfig(d_ff=F, activation=activation))
    assert isinstance(dense, FeedForward)
    assert not [name for name, _ in one.named_parameters() if "router" in name]
    with torch.no_grad():
        dense.up.weight.copy_(one.experts.up_EDF[0].T)
        dense.up.bias.copy_(one.experts.up_bias_EF[0])
        dense.down.weight.copy_(one.experts.down_EFD[0].T)
        dense.down.bias.copy_(one.experts.down_bias_ED[0])
    x_BTD = states()
    x_ND = x_BTD.flatten(0, 1)
    decision = one.route(x_ND)
    assert decision.routing("ffn.here_0", "here", 0, Rows.all(1, len(x_ND))) is None
    found, expected = one(x_ND, decision), dense(x_ND)
    torch.testing.assert_close(found, expected)
    weights = torch.randn_like(expected)
    mine = torch.autograd.grad((found * weights).sum(), [x_BTD, *one.parameters()])
    theirs = torch.autograd.grad((expected * weights).sum(), [x_BTD, dense.up.weight, dense.down.weight])
    by_name = dict(zip(["x", *dict(one.named_parameters())], mine, strict=True))
    torch.testing.assert_close(by_name["x"], theirs[0])
    torch.testing.assert_close(by_name["experts.up_EDF"][0].T, theirs[1])
    torch.testing.assert_close(by_name["experts.down_EFD"][0].T, theirs[2])


def test_one_expert_of_attention_is_multi_head_attention() -> None:
    one = build(ExpertAttentionConfig(n_heads=H, d_head=K, n_experts=1, top_k=1, bias=True))
    dense = build(AttentionConfig(n_heads=H, d_head=K))
    assert isinstance(one, ExpertAttention)
    assert isinstance(dense, Attention)
    assert one.query_bias_EI is not None
    assert one.out_bias_ED is not None
    with torch.no_grad():
        dense.qkv.weight.copy_(torch.cat([one.query_EDI[0].T, one.kv.weight]))
        dense.qkv.bias.copy_(torch.cat([one.query_bias_EI[0], one.kv.bias]))
        dense.out.weight.copy_(one.out_EID[0].T)
        dense.out.bias.copy_(one.out_bias_ED[0])
    x_BTD = states()
    found, expected = attend(one, x_BTD, KEEP), attend(dense, x_BTD, KEEP)
    torch.testing.assert_close(found[KEEP], expected[KEEP])
    weights = torch.randn_like(expected[KEEP])
    dx, dq, dkv, do = torch.autograd.grad(
        (found[KEEP] * weights).sum(), [x_BTD, one.query_EDI, one.kv.weight, one.out_EID]
    )
    dense_dx, dense_dqkv, dense_do = torch.autograd.grad(
        (expected[KEEP] * weights).sum(), [x_BTD, dense.qkv.weight, dense.out.weight]
    )
    torch.testing.assert_close(dx, dense_dx)
    torch.testing.assert_close(torch.cat([dq[0].T, dkv]), dense_dqkv)
    torch.testing.assert_close(do[0].T, dense_do)


@pytest.mark.parametrize("gate", ["softmax", "softmax renormalised", "topk_softmax"])
def test_all_experts_with_equal_gates_are_their_mean(gate: str) -> None:
    """SUT, section 8 (iv): a router whose scores are all equal; renormalising divides by 1 + 1e-6."""
    E = 3
    routed: dict[str, Any] = {"n_experts": E, "top_k": E, "gate": GATES[gate]}
    x_BTD = states()
    ffn = build(ExpertFeedForwardConfig.model_validate({"d_ff": F, **routed}))
    layer = build(SparseLayerConfig.model_validate({"d_ff": F, "n_layers": 2, **routed}))
    config = ExpertAttentionConfig.model_validate({"n_heads": H, "d_head": K, **routed})
    attention = build(config)
    for module in (ffn, layer, attention):
        nn.init.zeros_(module.router.experts_ED)
    tolerance = {"rtol": 2e-6, "atol": 1e-9}
    rows = x_BTD.flatten(0, 1)
    mean = torch.stack([sum(run_maps(ffn.experts, e, "relu", x) for e in range(E)) / E for x in rows])  # type: ignore[misc]
    torch.testing.assert_close(ffn(rows, ffn.route(rows)), mean, **tolerance)
    mean = torch.stack([sum(run_stack(layer, e, "relu", EPS, x) for e in range(E)) / E for x in rows])  # type: ignore[misc]
    torch.testing.assert_close(layer(rows, layer.route(rows)), mean, **tolerance)
    alone = []
    for e in range(E):
        one = build(ExpertAttentionConfig(n_heads=H, d_head=K, n_experts=1, top_k=1))
        with torch.no_grad():
            one.query_EDI.copy_(attention.query_EDI[e : e + 1])
            one.out_EID.copy_(attention.out_EID[e : e + 1])
            one.kv.weight.copy_(attention.kv.weight)
        alone.append(attend(one, x_BTD))
    torch.testing.assert_close(attend(attention, x_BTD), torch.stack(alone).mean(0), **tolerance)


def routed_sub_layers() -> list[Routed]:
    routed: dict[str, Any] = {"n_experts": 4, "top_k": 2}
    return [
        build(ExpertFeedForwardConfig(d_ff=F, **routed)),
        build(SparseLayerConfig(d_ff=F, n_layers=2, **routed)),
        build(ExpertAttentionConfig(n_heads=H, d_head=K, bias=True, **routed)),
    ]


def test_padding_alone_gives_zeros_and_runs_no_expert() -> None:
    """SUT, section 8 (v)."""
    nothing = torch.zeros(B, T, dtype=torch.bool)
    for module in routed_sub_layers():
        x_BTD = states()
        x_ND = x_BTD.flatten(0, 1)
        decision = module.route(x_ND, nothing.flatten())
        assert decision.to.slots_M.shape[0] == 0
        output = attend(module, x_BTD, nothing) if isinstance(module, ExpertAttention) else module(x_ND, decision)
        assert torch.equal(output, torch.zeros_like(output))
        experts = {n: p for n, p in module.named_parameters() if "router" not in n}
        grads = torch.autograd.grad(output.square().sum(), [x_BTD, *experts.values()], allow_unused=True)
        assert all(g is None or float(g.abs().max()) == 0.0 for g in grads)


def test_a_token_runs_as_many_experts_as_it_is_given_and_padding_none() -> None:
    for module in routed_sub_layers():
        to = module.route(states().flatten(0, 1), KEEP.flatten()).to
        assert to.slots_M.shape[0] == 2 * int(KEEP.sum())
        assert set((to.slots_M // 2).tolist()) == set(KEEP.flatten().nonzero().flatten().tolist())


def test_the_residual_enters_a_sparse_layer_once_whatever_the_gate() -> None:
    layer = build(SparseLayerConfig(d_ff=F, n_layers=3, n_experts=4, top_k=1))
    assert isinstance(layer, SparseLayer)
    with torch.no_grad():
        for maps in layer.experts:
            maps.down_EFD.zero_()
            maps.down_bias_ED.zero_()
    x_ND = states().flatten(0, 1)
    output = layer(x_ND, layer.route(x_ND))
    assert torch.equal(output, torch.zeros_like(output))
