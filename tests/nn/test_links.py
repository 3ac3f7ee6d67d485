"""Sub-layers of experts by compiled kernels against the modules themselves, and which modules kernels leave alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from ostinato.kernels import AttentionLink, CachedKeys, Chain, FeedForwardLink
from ostinato.kernels.native import library
from ostinato.nn.attention import Attention
from ostinato.nn.bank import Banks
from ostinato.nn.cross_attention import CrossAttention
from ostinato.nn.experts import ExpertAttention, ExpertFeedForward, ExpertMaps
from ostinato.nn.feedforward import FeedForward, FeedForwardSubLayer
from ostinato.nn.layers import build_norm
from ostinato.nn.links import link_of
from ostinato.nn.routing import Gate, HypersphereRouter, LinearRouter, MlpRouter, Router
from ostinato.nn.self_attention import SelfAttention
from ostinato.plan import Kind, Step, Use
from ostinato.training.threads import cpu_threads
from reference.equations import ACTIVATIONS

pytestmark = [
    pytest.mark.skipif(library() is None, reason="no C compiler here"),
    pytest.mark.usefixtures("every_thread"),
]
LENGTH = 5
STEP = Step(0, 0, ())
BEHIND = 64
"""Numbers behind the room that a chain asks for."""


def attention_link(
    module: nn.Module, norm: nn.Module | None, *, is_before: bool, makes_keys: bool
) -> AttentionLink | None:
    kind: Kind = "self_attention" if makes_keys else "cross_attention"
    banks = banks_of(kind, module, norm)
    use = use_of(kind, norm, is_before)
    if makes_keys:
        found = link_of(SelfAttention("s", STEP, use, banks, looks_back_only=True, dropout=0.0))
    else:
        found = link_of(CrossAttention("s", STEP, use, banks, dropout=0.0))
    assert found is None or isinstance(found, AttentionLink)
    return found


def use_of(kind: Kind, norm: nn.Module | None, is_before: bool) -> Use:
    name = None if norm is None else "n"
    return Use(kind, "a", before=name) if is_before else Use(kind, "a", after=name)


def banks_of(kind: Kind, module: nn.Module, norm: nn.Module | None) -> Banks:
    banks = Banks()
    getattr(banks, kind)["a"] = module
    if norm is not None:
        banks.norm["n"] = norm
    return banks


def feed_forward_link(module: nn.Module, norm: nn.Module | None, *, is_before: bool) -> FeedForwardLink | None:
    banks, use = banks_of("ffn", module, norm), use_of("ffn", norm, is_before)
    found = link_of(FeedForwardSubLayer("s", STEP, use, banks, dropout=0.0))
    assert found is None or isinstance(found, FeedForwardLink)
    return found


@contextmanager
def guarded_room() -> Iterator[None]:
    """Make sure that no kernel writes behind the room it asks for."""
    behind, asked = [], 0

    def room(*sizes: int) -> Tensor:
        nonlocal asked
        memory = torch.full((math.prod(sizes) + BEHIND,), math.nan)
        behind.append(memory[-BEHIND:])
        asked += math.prod(sizes)
        return memory[:-BEHIND].view(sizes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ostinato.kernels.native.links.room", room)
        yield
    assert asked > 0
    assert all(bool(memory.isnan().all()) for memory in behind)


def a_router(kind: str, d_model: int, n_experts: int) -> Router:
    if kind == "linear":
        return LinearRouter(d_model, n_experts)
    if kind == "mlp":
        return MlpRouter(d_model, n_experts, dropout=0.3)
    flags = {"is_normalised": kind != "projected", "has_projection": kind != "cosine"}
    return HypersphereRouter(d_model, n_experts, 3, temperature=0.2, **flags)


@st.composite
def routes(draw: st.DrawFn, d_model: int) -> tuple[Router, Gate]:
    n_experts = draw(st.integers(2, 5))
    kind = draw(st.sampled_from(["softmax", "topk_softmax", "sigmoid"]))
    is_renormalised = draw(st.booleans())
    # Of one expert no gate may be 1 for ever.
    k = draw(st.integers(2 if kind == "topk_softmax" or is_renormalised else 1, n_experts))
    router = a_router(
        draw(st.sampled_from(["linear", "mlp", "hypersphere", "cosine", "projected"])), d_model, n_experts
    )
    return router, Gate(kind, k, n_experts, is_renormalised)


LAYER_NORMS: list[dict[str, bool]] = [{}, {"bias": False}, {"weight": False}]
RMS_NORMS: list[dict[str, bool]] = [{}, {"unit_offset": True}, {"weight": False}]


def randomised(module: nn.Module, seed: int) -> None:
    make = torch.Generator().manual_seed(seed)
    for name, parameter in module.named_parameters():
        if "tau" not in name:
            parameter.data = torch.randn(parameter.shape, generator=make) / max(1, parameter.shape[-1]) ** 0.5
    module.eval()


def attended(module: ExpertAttention, x_ND: Tensor, seen_ND: Tensor | None, kv_2NHSK: Tensor) -> Tensor:
    """Return what an attention of experts gives, whose last keys and values are made of `seen_ND`, if any; plainly."""
    N, H, K = x_ND.shape[0], module.n_heads, module.d_head
    decision = module.route(x_ND)
    q_NCHK = module.queries(x_ND, decision).view(N, -1, H, K)
    if seen_ND is not None:
        kv_2NHSK[:, :, :, LENGTH - 1] = module.keys_values(seen_ND).view(N, 2, H, K).transpose(0, 1)
    keys, values = kv_2NHSK[:, :, :, :LENGTH]
    weights = torch.softmax(module.scale * torch.einsum("nchk,nhsk->nchs", q_NCHK, keys), -1)
    return module.output(torch.einsum("nchs,nhsk->nchk", weights, values).reshape(N, -1), decision)


@pytest.mark.slow
@settings(max_examples=120)
@given(st.data())
def test_experts_in_a_chain_are_the_modules(data: st.DataObject) -> None:
    draw = data.draw
    N, D, is_before = draw(st.integers(1, 9)), draw(st.sampled_from([6, 32, 37])), draw(st.booleans())
    H, K, F = draw(st.integers(1, 4)), draw(st.sampled_from([4, 16])), draw(st.sampled_from([5, 16, 70]))
    bias, seed = draw(st.booleans()), draw(st.integers(0, 999))
    of_attention, of_maps = draw(routes(D)), draw(routes(D))
    attention = ExpertAttention(*of_attention, D, H, K, bias=bias, dropout=0.2)
    activation = draw(st.sampled_from(list(ACTIVATIONS)))
    maps = ExpertMaps(of_maps[1].n_experts, D, F, activation, bias=bias, dropout=0.2)
    layer, rms = draw(st.sampled_from(LAYER_NORMS)), draw(st.sampled_from(RMS_NORMS))
    norms = [build_norm("layer", D, 1e-5, **layer), build_norm("rms", D, 1e-5, **rms)]
    experts = ExpertFeedForward(*of_maps, maps)
    for i, module in enumerate((attention, experts, *norms)):
        randomised(module, seed + i)
    make = torch.Generator().manual_seed(seed)
    x_ND, shown_ND = torch.randn(N, D, generator=make), torch.randn(N, D, generator=make)
    kv_2NHSK = torch.randn(2, N, H, 8, K, generator=make)
    # Of a memory keys and values are there already.
    makes_keys = draw(st.booleans())

    def entered(norm: nn.Module, states_ND: Tensor) -> Tensor:
        return norm(states_ND) if is_before else states_ND

    def left(norm: nn.Module, states_ND: Tensor) -> Tensor:
        return states_ND if is_before else norm(states_ND)

    with torch.no_grad():
        written = kv_2NHSK.clone()
        seen_ND = entered(norms[0], shown_ND) if makes_keys else None
        read_ND = attended(attention, entered(norms[0], x_ND), seen_ND, written)
        between_ND = left(norms[0], x_ND + read_ND)
        inner_ND = entered(norms[1], between_ND)
        expected = left(norms[1], between_ND + experts(inner_ND, experts.route(inner_ND)))
        first = attention_link(attention, norms[0], is_before=is_before, makes_keys=makes_keys)
        second = feed_forward_link(experts, norms[1], is_before=is_before)
        assert first is not None
        assert second is not None
        for n in (1, 2, 3):
            found = CachedKeys(kv_2NHSK.clone(), attention.scale, attention.n_choices)
            with cpu_threads(n), guarded_room():
                chain = Chain([first, second])  # which keeps the room that its first call asks for
                chain.read(0, found.see(LENGTH))
                torch.testing.assert_close(chain(x_ND, shown_ND), expected, rtol=2e-4, atol=2e-4)
            torch.testing.assert_close(found.kv_2RHSK, written, rtol=1e-4, atol=1e-4)


class OtherGate(Gate):
    """A gate that somebody has put in place of another."""


class OtherRouter(LinearRouter):
    """A router that somebody has put in place of another."""


CHANGES = [
    "nothing",
    "router's bias",
    "other k",
    "hook",
    "router's hook",
    "map's hook",
    "forward",
    "wrapped map",
    "other gate",
    "other router",
    "training",
    "float64",
    "one expert",
]


def test_norms_and_attention_of_ones_own_are_called() -> None:
    class Doubled(nn.LayerNorm):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    class Shifted(Attention):
        def attend(self, *given: Any, **named: Any) -> Tensor:
            return super().attend(*given, **named) + 1

    plain, own = (kind(8, 2, 4, bias=False, dropout=0.0).eval() for kind in (Attention, Shifted))
    assert attention_link(plain, nn.LayerNorm(8).eval(), is_before=True, makes_keys=True) is not None
    assert attention_link(plain, Doubled(8).eval(), is_before=True, makes_keys=True) is None
    assert attention_link(own, nn.LayerNorm(8).eval(), is_before=True, makes_keys=True) is None
    assert plain.is_read_plainly
    for name in ("attend", "query_heads", "key_value_heads", "normed_and_turned", "_mask"):
        changed = type("Changed", (Attention,), {name: lambda self, *given, **named: None})
        assert not changed(8, 2, 4, bias=False, dropout=0.0).is_read_plainly


@pytest.mark.parametrize("name", ["qkv", "out", "up", "down"])
@pytest.mark.parametrize("what", ["nothing", "wrapped", "forward"])
def test_maps_that_somebody_has_changed_are_called(name: str, what: str) -> None:
    module: Any = (
        Attention(8, 2, 4, bias=True, dropout=0.0)
        if name in ("qkv", "out")
        else FeedForward(8, 16, "relu", bias=True, dropout=0.0)
    )
    own = getattr(module, name)
    if what == "wrapped":  # in what has no weight
        setattr(module, name, nn.Sequential(own, nn.Dropout(0.1)))
    elif what == "forward":
        own.forward = lambda x: torch.zeros(*x.shape[:-1], own.out_features)
    module.eval()
    if name in ("qkv", "out"):
        link: Any = attention_link(module, None, is_before=True, makes_keys=True)
    else:
        link = feed_forward_link(module, None, is_before=True)
    assert (link is not None) == (what == "nothing")


@pytest.mark.parametrize("what", CHANGES)
def test_experts_that_somebody_has_changed_are_called(what: str) -> None:
    gate = (OtherGate if what == "other gate" else Gate)("softmax", 2, 3)
    router: Router | None = OtherRouter(4, 3) if what == "other router" else MlpRouter(4, 3)
    if what == "one expert":
        router, gate = None, Gate("softmax", 1, 1)
    maps = ExpertMaps(gate.n_experts, 4, 6, "relu", bias=True, dropout=0.0)
    experts = ExpertFeedForward(router, gate, maps)
    attention = ExpertAttention(router, gate, 4, 1, 4, bias=True, dropout=0.0)
    for module, own in ((experts, maps), (attention, attention.kv)):
        module.eval()
        if what.endswith("hook"):
            looked_at = {"hook": module, "router's hook": router, "map's hook": own}[what]
            assert looked_at is not None
            looked_at.register_forward_hook(lambda *given: None)
        elif what == "forward":  # of this instance alone, as patches are
            module.forward = lambda *given: given[0]  # type: ignore[method-assign]
        elif what == "wrapped map":
            assert isinstance(router, MlpRouter)
            router.hidden = nn.Sequential(nn.Linear(4, 4))  # type: ignore[assignment]
            attention.kv = nn.Sequential(attention.kv).eval()  # type: ignore[assignment]
        elif what == "router's bias":
            assert isinstance(router, MlpRouter)
            router.scores = nn.Linear(4, 3).eval()
        elif what == "other k":  # which its heads do not know
            attention.gate = Gate("sigmoid", 1, 3)
        elif what == "training":
            module.train()
        elif what == "float64":
            module.double()
    links = (
        feed_forward_link(experts, None, is_before=True),
        attention_link(attention, None, is_before=True, makes_keys=True),
    )
    assert [link is not None for link in links] == [what in ("nothing", "other k"), what == "nothing"]
