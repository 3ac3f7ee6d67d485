"""Contract 4 to 8, 10 for experts in every model: routings and balance losses, with the logits' gradients.

That models with experts equal their twins, decode as they read, and so on, is shown by the other contract tests: their
random models have experts. Here stands what only experts have.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from architectures import (
    BOS,
    EOS,
    Model,
    Sentence,
    any_architecture,
    draws,
    left_padded,
    random_model,
    right_padded,
    sentences,
    texts,
)
from balance_losses import LOSSES
from contract import assert_all_equal, assert_equal, gradients, real_logits, weights_of
from ostinato.budget.sizes import choosing_heads
from ostinato.config.experts import HeadExpertAttentionConfig, RoutedConfig
from ostinato.config.halting import ActConfig, ExitConfig
from ostinato.config.model import LanguageModelConfig, Seq2SeqConfig
from ostinato.data.batch import Batch
from ostinato.models import build_model
from ostinato.nn.experts import Routed
from ostinato.nn.rows import Rows
from ostinato.nn.types import HaltingTrace, Routing
from running import run_as

pytestmark = pytest.mark.device

Config = Seq2SeqConfig | LanguageModelConfig


def has_router(config: Config) -> bool:
    """Whether a model chooses experts anywhere."""
    used = [(stack, use) for name, stack in config.stacks().items() for use in stack.plan(name).uses()]
    return any(isinstance(sub := s.settings_of(use), RoutedConfig) and sub.has_router for s, use in used)


def any_routed(**options: Any) -> st.SearchStrategy[Config]:
    """Draw a model that chooses experts somewhere."""
    return any_architecture(**options).filter(has_router)


def routings(model: Model, batch: Batch, n_steps: int | None = None) -> list[Routing]:
    """Return the routings of all stacks."""
    return [r for stack in model(batch, n_steps=n_steps).stacks.values() for r in stack.routings]


Where = tuple[str, str, int]
"""Stack, router and step."""


def by_sentence(found: list[Routing], batch: Batch) -> dict[Where, list[dict[str, Tensor]]]:
    """Return what every routing says of every sentence's real tokens."""
    rows = {}
    for routing in found:
        tokens = batch.target if batch.source is None or routing.stack != "encoder" else batch.source
        B, T = tokens.ids_BT.shape
        values = {"experts": routing.experts_NK, "gates": routing.gates_NK, "logits": routing.logits_NE}
        values |= {"probs": routing.probs_NE, "weight": routing.weight_N[:, None]}
        # Rows that were gathered away were given nothing.
        here = {name: Rows(B, T, routing.rows_N).grid(value) for name, value in values.items()}
        rows[routing.stack, routing.router, routing.step] = [
            {name: v[b][tokens.keep_BT[b]] for name, v in here.items()} for b in range(B)
        ]
    return rows


def assert_same_choices(found: dict[str, Tensor], expected: dict[str, Tensor], what: str) -> None:
    """Compare what tokens were given; a halted one is given nothing."""
    assert_equal(found["weight"], expected["weight"], f"weight {what}")
    runs = expected["weight"][:, 0] > 0
    assert torch.equal(found["experts"][runs], expected["experts"][runs]), what
    for name in expected:
        assert_equal(found[name][runs], expected[name][runs], f"{name} {what}")


def go_on_with_others(config: Config, stack: str) -> bool:
    """Whether halted tokens of a stack go on being transformed as long as any token of the batch runs."""
    halting = config.stacks()[stack].halting
    return isinstance(halting, ActConfig | ExitConfig) and not halting.freeze_halted_state


def all_losses(found: list[Routing]) -> dict[str, Tensor]:
    """Return every balance loss of every router."""
    routers = dict.fromkeys(r.router for r in found)
    return {
        f"{name} {of}": loss([r for r in found if r.router == of]) for name, loss in LOSSES.items() for of in routers
    }


def loss_gradients(model: Model, losses: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the gradient of all losses together, every one with a weight of its own."""
    total = sum(loss.double() * (i + 1) for i, loss in enumerate(losses.values()))
    assert isinstance(total, Tensor)
    learned = {name: p for name, p in model.named_parameters() if p.requires_grad}
    grads = torch.autograd.grad(total, list(learned.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(learned, grads, strict=True))


# --- independence ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [None, "encoder"])
@draws(25)
@given(data=st.data())
def test_padding_changes_no_choice_no_balance_loss_and_no_gradient_of_it(kind: str | None, data: st.DataObject) -> None:
    config = data.draw(any_routed(kind=kind))
    batch = data.draw(texts(config) if kind == "encoder" else sentences(config))
    extra, fill = data.draw(st.integers(1, 3)), data.draw(st.integers(0, 4))
    model = random_model(config)
    tight = [right_padded([s]) for s in batch]
    alone = [by_sentence(routings(model, one), one) for one in tight]
    assume(any(alone))  # tokens may halt before the first step that routes them
    expected_losses: dict[str, Tensor] | None = None
    for padded in (right_padded(batch), right_padded(batch, extra, fill), left_padded(batch, extra, fill)):
        found = routings(model, padded)
        rows = by_sentence(found, padded)
        assert all(one.keys() <= rows.keys() for one in alone)
        for where, of_router in rows.items():
            for b, row in enumerate(of_router):
                if where in alone[b]:
                    assert_same_choices(row, alone[b][where][0], f"of sentence {b} at {where}")
                else:  # the sentence had halted, and others had not
                    assert go_on_with_others(config, where[0]) or not bool(row["weight"].any())
        losses = all_losses(found)
        grads = loss_gradients(model, losses)
        if expected_losses is None:
            expected_losses, expected_grads = losses, grads
        assert_all_equal(losses, expected_losses)
        assert_all_equal(grads, expected_grads)


@draws(20)
@given(st.data())
def test_past_choices_never_depend_on_the_future(data: st.DataObject) -> None:
    config = data.draw(any_routed())
    (sentence,) = data.draw(sentences(config, max_sentences=1))
    rows = config.vocab_size if isinstance(config, LanguageModelConfig) else config.target_vocab_size
    future = data.draw(st.lists(st.integers(EOS, (rows or 0) - 1), min_size=1, max_size=4))
    n_past = data.draw(st.integers(max(1, sentence.n_prefix or 0), len(sentence.target)))
    model = random_model(config)
    one, other = (right_padded([s]) for s in (sentence, sentence.with_target(sentence.target[:n_past] + future)))
    before, after = (by_sentence(routings(model, batch), batch) for batch in (one, other))
    for where in before.keys() | after.keys():
        if where[0] == "decoder":
            ran = [rows[where][0] for rows in (after, before) if where in rows]
            past = [{name: value[:n_past] for name, value in of.items()} for of in ran]
            if len(past) == 2:
                assert_same_choices(past[0], past[1], f"at {where}")
            else:  # with one of the futures all tokens had halted
                assert go_on_with_others(config, "decoder") or not bool(past[0]["weight"].any())


# --- which routings there are ----------------------------------------------------------------------------------------


@draws(25)
@given(st.data())
def test_every_routed_sub_layer_says_at_every_step_what_it_chose(data: st.DataObject) -> None:
    n_rounds = data.draw(st.sampled_from([None, None, 1, 3]))
    config = data.draw(any_architecture(fully_shared=n_rounds is not None))
    batch = right_padded(data.draw(sentences(config)))
    output = random_model(config)(batch, n_steps=n_rounds)
    for name, stack in config.stacks().items():
        plan = stack.plan(name) if n_rounds is None else stack.plan(name).with_rounds(n_rounds)
        expected, weights = [], []
        tokens = batch.source if name == "encoder" else batch.target
        assert tokens is not None
        trace = output.stacks[name].halting
        for step in plan.steps:
            in_loop = plan.segments[step.segment].is_loop
            if in_loop and trace is not None and step.round >= trace.executed_BTR.shape[-1]:
                continue  # every token had halted
            for use in step.uses:
                sub = stack.settings_of(use)
                if not isinstance(sub, RoutedConfig) or not sub.has_router:
                    continue
                routers = [("", choosing_heads(sub))]
                if isinstance(sub, HeadExpertAttentionConfig) and step.makes_keys:
                    routers.append((".values", sub.n_key_heads))
                for ending, n in routers:
                    router = f"{use.kind}.{use.weights}{ending}"
                    expected.append((router, name, step.index, n * sub.n_experts, n * sub.top_k))
                    weights.append(
                        _left_of_tokens(config, name, trace if in_loop else None, step.round, tokens.keep_BT)
                    )
        found = output.stacks[name].routings
        assert [(r.router, r.stack, r.step, r.probs_NE.shape[1], r.experts_NK.shape[1]) for r in found] == expected
        for routing, left_BT in zip(found, weights, strict=True):
            weight_BT = Rows(*left_BT.shape, routing.rows_N).grid(routing.weight_N)
            assert_equal(weight_BT, left_BT, "weight")
            assert torch.equal(weight_BT > 0, left_BT > 0)
            torch.testing.assert_close(routing.probs_NE.sum(1), torch.ones(len(routing.rows_N)).double())
            assert bool((routing.experts_NK.sort(1).values.diff(dim=1) > 0).all())


def _left_of_tokens(config: Config, stack: str, trace: HaltingTrace | None, round_: int, keep_BT: Tensor) -> Tensor:
    if trace is None or go_on_with_others(config, stack):
        return keep_BT.double()
    # An exit gives the state that a token leaves with, whole.
    left_BTR = 1.0 if isinstance(config.stacks()[stack].halting, ExitConfig) else trace.remaining_BTR
    return (left_BTR * trace.executed_BTR)[..., round_].double()


# --- experts have no order -------------------------------------------------------------------------------------------

OF_ROUTERS = tuple(
    f"{which}.{part}" for which in ("router", "value_router") for part in ("hidden.", "projection.", "tau")
)
OF_ALL_EXPERTS = ("sum_bias_D", "kv.", "qk.", "q_norm.", "k_norm.", *OF_ROUTERS)


def of_heads(order: Tensor, n: int) -> Tensor:
    """Return the order of n experts, of heads that each have theirs in the same order."""
    return (torch.arange(n // len(order))[:, None] * len(order) + order).flatten()


@draws(30)
@given(st.data())
def test_permuting_experts_with_their_rows_of_the_router_changes_nothing(data: st.DataObject) -> None:
    config = data.draw(any_routed())
    batch = data.draw(sentences(config))
    model, permuted = random_model(config), random_model(config)
    orders: dict[str, Tensor] = {}
    for prefix, module in permuted.named_modules():
        if isinstance(module, Routed):
            order = torch.tensor(data.draw(st.permutations(range(module.gate.n_experts))))
            orders[prefix.removeprefix("banks.")] = order
            for name, parameter in module.named_parameters():
                if not name.startswith(OF_ALL_EXPERTS):
                    assert parameter.shape[0] % len(order) == 0, name
                    with torch.no_grad():
                        parameter.copy_(parameter[of_heads(order, len(parameter))])
    plain, other = (real_logits(m, right_padded(batch)) for m in (model, permuted))
    weights = weights_of(batch, plain[0].shape[1])
    for found, wanted in zip(other, plain, strict=True):
        assert_equal(found, wanted, "with permuted experts")
    expected = gradients(model, plain, weights)
    for name in expected:
        prefix = next((p for p in orders if name.startswith(f"banks.{p}.")), None)
        if prefix is not None and not name.removeprefix(f"banks.{prefix}.").startswith(OF_ALL_EXPERTS):
            expected[name] = expected[name][of_heads(orders[prefix], len(expected[name]))]
    assert_all_equal(gradients(permuted, other, weights), expected)
    for was, now in zip(routings(model, right_padded(batch)), routings(permuted, right_padded(batch)), strict=True):
        real, order = was.weight_N > 0, orders[was.router.removesuffix(".values")]
        assert torch.equal(of_heads(order, was.probs_NE.shape[1])[now.experts_NK][real], was.experts_NK[real])
        assert_all_equal(all_losses([now]), all_losses([was]))


# --- training --------------------------------------------------------------------------------------------------------


@draws(20)
@given(st.data())
def test_recomputed_steps_have_the_same_routings_and_gradients_of_their_losses(data: st.DataObject) -> None:
    config = data.draw(any_routed())
    batch = right_padded(data.draw(sentences(config)))
    model = random_model(config).train()
    halts = any(stack.halting.kind != "none" for stack in config.stacks().values())
    found = {}
    for enabled in (False, True):
        run_as(model, recompute=enabled)
        torch.manual_seed(5)  # of sampled experts
        output = model(batch)
        chosen = [r for stack in output.stacks.values() for r in stack.routings]
        losses = all_losses(chosen) | {"of the model": output.logits_BTV[batch.target.keep_BT].square().mean()}
        found[enabled] = (chosen, losses, loss_gradients(model, losses))
    for was, now in zip(found[False][0], found[True][0], strict=True):
        assert (was.router, was.stack, was.step) == (now.router, now.stack, now.step)
        assert torch.equal(was.experts_NK, now.experts_NK)
        # A step that is run again makes keys of halted rows anew, in products of other sizes: last bits may differ.
        torch.testing.assert_close(now.gates_NK, was.gates_NK, rtol=0.0, atol=1e-12 if halts else 0.0)
    assert_all_equal(found[True][1], found[False][1])
    assert_all_equal(found[True][2], found[False][2])


def routed_model(
    *,
    router: str = "linear",
    gate: str = "softmax",
    k: int = 2,
    n_sampled: int = 0,
    attention: str = "experts",
    has_sparse_layer: bool = False,
    **options: Any,
) -> Model:
    """Return a float32 language model of two shared steps whose attention and feed-forward have four experts."""
    routed = {"n_experts": 4, "top_k": k, "router": {"kind": router}, "gate": {"kind": gate, "n_sampled": n_sampled}}
    decoder = {
        "n_steps": 2,
        "self_attention": routed | {"kind": attention, "share": "all", "n_heads": 2, "d_head": 4},
        "ffn": routed | {"kind": "experts", "share": "all", "d_ff": 8},
        "sparse_layer": routed | {"after": 1, "n_layers": 2, "d_ff": 8} if has_sparse_layer else None,
    }
    torch.manual_seed(0)
    config = {"d_model": 8, "dropout": 0.0, "vocab_size": 9, "decoder": decoder} | options
    return build_model(LanguageModelConfig.model_validate(config))


def text(n_sentences: int = 4, length: int = 12) -> Batch:
    make = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 9, (n_sentences, length), generator=make)
    return right_padded([Sentence(None, [BOS, *row]) for row in ids.tolist()])


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("router", ["linear", "mlp", "hypersphere"])
def test_every_balance_loss_reaches_every_router(router: str, name: str) -> None:
    model = routed_model(router=router, gate="sigmoid" if router == "hypersphere" else "softmax")
    chosen = routings(model, text())
    for of in ("self_attention.decoder_0", "ffn.decoder_0"):
        mine = [r for r in chosen if r.router == of]
        assert [r.step for r in mine] == [0, 1]
        module = next(m for n, m in model.named_modules() if isinstance(m, Routed) and n == f"banks.{of}")
        assert module.router is not None
        learned = {n: p for n, p in module.router.named_parameters() if n != "tau"}
        grads = torch.autograd.grad(LOSSES[name](mine), list(learned.values()), retain_graph=True)
        assert all(float(g.norm()) > 1e-7 for g in grads), name


def test_a_frozen_router_still_sends_its_balance_loss_into_the_states_below() -> None:
    """X-MoE, section 2.8: router and experts frozen, the loss stays on."""
    model = routed_model(router="hypersphere", gate="sigmoid")
    for module in model.routed():
        module.requires_grad_(False)
    before = {name: p.clone() for name, p in model.named_parameters() if not p.requires_grad}
    assert before
    loss = sum(all_losses(routings(model, text())).values())
    assert isinstance(loss, Tensor)
    loss.backward()  # type: ignore[no-untyped-call]
    assert model.target_weight.grad is not None
    assert float(model.target_weight.grad.norm()) > 1e-6
    assert all(p.grad is None for p in model.parameters() if not p.requires_grad)
    torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1).step()
    model.project_routers()
    now = dict(model.named_parameters())
    assert all(torch.equal(now[name], value) for name, value in before.items())


def test_experts_are_sampled_in_training_only() -> None:
    model, plain = routed_model(n_sampled=1), routed_model()
    batch = text()
    torch.manual_seed(0)
    trained = [routings(model.train(), batch)[0].experts_NK for _ in range(2)]
    calm = [routings(model.eval(), batch)[0].experts_NK for _ in range(2)]
    assert not torch.equal(trained[0], trained[1])
    assert torch.equal(calm[0], calm[1])
    assert torch.equal(calm[0], routings(plain.eval(), batch)[0].experts_NK)
    assert torch.equal(trained[0][:, 0], calm[0][:, 0])


# --- precision -------------------------------------------------------------------------------------------------------


@pytest.mark.device(False)
@pytest.mark.parametrize("gate", ["softmax", "topk_softmax", "sigmoid"])
@pytest.mark.parametrize("router", ["linear", "mlp", "hypersphere"])
@pytest.mark.parametrize("attention", ["experts", "head_experts"])
def test_routers_gates_and_balance_losses_are_float32_under_autocast(attention: str, router: str, gate: str) -> None:
    model = routed_model(router=router, gate=gate, attention=attention, has_sparse_layer=True).eval()
    batch = text()
    twice = right_padded([Sentence(None, row) for row in batch.target.ids_BT.tolist() * 2])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(twice, request=("input",)).stacks["decoder"]
        losses = all_losses(list(output.routings))
    assert len({routing.router for routing in output.routings}) == (4 if attention == "head_experts" else 3)
    for routing in output.routings:
        kind, name, *ending = routing.router.split(".")
        module = getattr(model.banks, kind)[name]
        own = module.value_router if ending else module.router
        inner_BTD = output.captures["decoder", routing.step, kind, "input"]
        logits_NE = own(inner_BTD.flatten(0, 1).float())
        # Every head has experts of its own, and its share of the probability.
        choice = module.gate((logits_NE / own.temperature()).view(-1, module.gate.n_experts))
        probs_NE, gates_NK = choice.probs_NE.view_as(logits_NE) / routing.n_heads, choice.gates_NK
        expected = (logits_NE, probs_NE, gates_NK.reshape(len(logits_NE), -1))
        for found, wanted in zip((routing.logits_NE, routing.probs_NE, routing.gates_NK), expected, strict=True):
            assert found.dtype == torch.float32
            torch.testing.assert_close(found, wanted, rtol=0, atol=0)
        first, second = routing.experts_NK.chunk(2)
        same = (inner_BTD.flatten(0, 1).chunk(2)[0] == inner_BTD.flatten(0, 1).chunk(2)[1]).all(1)
        assert bool(same.any())
        assert torch.equal(first[same], second[same])
    plain = all_losses(list(output.routings))
    for name, loss in losses.items():
        assert loss.dtype == torch.float32
        torch.testing.assert_close(loss, plain[name], rtol=0, atol=0)
