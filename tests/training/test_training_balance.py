"""Balance losses in the objective: what they add up to, what tau_0 is, and how batches of one update count."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from routed_models import gradients, tiny_batches, tiny_model
from tiny_runs import BALANCE, ROUTERS, tiny_recipe
from torch import Tensor

from ostinato.config.training import BALANCE_LOSSES, BalanceConfig
from ostinato.models.losses import balance_loss, raw_balance_loss
from ostinato.nn import balance
from ostinato.nn.routing import HypersphereRouter
from ostinato.training.optim import build_optimizer
from ostinato.training.routing import observe_routing, rounds_of
from ostinato.training.update import Updater

ATTENTION = "self_attention.encoder_0"
NO_BALANCE = dict.fromkeys(BALANCE_LOSSES, 0.0)


def test_the_loss_is_the_weighted_sum_over_routers_and_losses(tmp_path: Path) -> None:
    model = tiny_model(tiny_recipe(tmp_path, experts=True)).eval()
    routings = model(tiny_batches()[0]).by_router()
    assert sorted(routings) == sorted(ROUTERS)
    assert [len(routings[name]) for name in ROUTERS] == [2, 1, 2, 1]
    config, temperatures = BalanceConfig(**BALANCE), model.balance_temperatures()
    expected = sum(
        weight * raw_balance_loss(name, mine, temperatures[router])
        for router, mine in routings.items()
        for name, weight in BALANCE.items()
    )
    torch.testing.assert_close(balance_loss(routings, config, temperatures), expected)
    assert balance_loss(routings, BalanceConfig(), temperatures) is None
    assert balance_loss({}, config, temperatures) is None


def test_tokens_that_halt_may_count_alike_in_the_mutual_information_and_in_its_record(tmp_path: Path) -> None:
    model = tiny_model(tiny_recipe(tmp_path, experts=True, halting=True)).eval()
    routings = model(tiny_batches()[0]).by_router()
    temperatures = model.balance_temperatures()
    config = BalanceConfig(mutual_information=1.0, token_weights="uniform")
    expected = torch.zeros(())
    for mine in routings.values():
        probs_NE = torch.cat([r.probs_NE[r.weight_N > 0] for r in mine])
        mean_E = probs_NE.mean(0)
        expected = expected + torch.special.entr(probs_NE).sum(1).mean() - torch.special.entr(mean_E).sum()
    loss = balance_loss(routings, config, temperatures)
    torch.testing.assert_close(loss, expected)
    other = balance_loss(routings, BalanceConfig(mutual_information=1.0), temperatures)
    assert other is not None
    assert abs(float(other.detach() - expected.detach())) > 1e-6
    observed = observe_routing(routings, config, temperatures, rounds_of(model), {})
    assert observed is not None
    record = observed.record(observed.values_V.tolist())
    assert sum(r["weighted"]["mutual_information"] for r in record.values()) == pytest.approx(float(expected.detach()))


def test_tau_0_is_the_temperature_a_router_starts_from_whatever_it_learns(tmp_path: Path) -> None:
    model = tiny_model(tiny_recipe(tmp_path, experts=True)).eval()
    # The configured one, and 1 where scores are not divided by a temperature.
    assert model.balance_temperatures() == {ATTENTION: 0.5} | dict.fromkeys(ROUTERS[1:], 1.0)
    [router] = [module for module in model.modules() if isinstance(module, HypersphereRouter)]
    batch = tiny_batches()[0]

    def loss(config: BalanceConfig) -> Tensor:
        # Of the first round alone: the scores of later ones hang on earlier gates, and so on the temperature.
        mine = {ATTENTION: model(batch).by_router()[ATTENTION][:1]}
        found = balance_loss(mine, config, model.balance_temperatures())
        assert found is not None
        return found

    by_default = BalanceConfig(hypersphere=1.0)
    before = loss(by_default)
    torch.testing.assert_close(before, balance.hypersphere(model(batch).by_router()[ATTENTION][:1], 0.5))
    [grad] = torch.autograd.grad(before, router.tau, allow_unused=True, materialize_grads=True)
    assert float(grad) == 0.0
    with torch.no_grad():
        router.tau.fill_(0.05)
    assert torch.equal(loss(by_default), before)
    named = loss(BalanceConfig(hypersphere=1.0, temperature=0.2))
    torch.testing.assert_close(named, balance.hypersphere(model(batch).by_router()[ATTENTION][:1], 0.2))
    assert not torch.allclose(named, before)


def test_batches_of_one_update_count_by_their_labels(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path, experts=True)
    model, batches = tiny_model(recipe).eval(), tiny_batches()
    n_labels = sum(batch.n_labels for batch in batches)
    found = {}
    for weights in (BALANCE, NO_BALANCE):
        config = recipe.training.model_copy(update={"balance": BalanceConfig(**weights)})
        updater = Updater(model, build_optimizer(model, config.optimizer), config)
        found[str(weights)] = updater.accumulate(batches), gradients(model)
    (with_losses, with_balance), (without_losses, without) = found.values()
    # What is reported as the loss is the likelihood alone.
    assert with_losses.losses == without_losses.losses
    total = None
    for batch in batches:
        loss = balance_loss(model(batch).by_router(), BalanceConfig(**BALANCE), model.balance_temperatures())
        assert loss is not None
        part = loss * batch.n_labels / n_labels
        total = part if total is None else total + part
    assert total is not None
    total.backward()
    for name, grad in gradients(model).items():
        torch.testing.assert_close(with_balance[name] - without[name], grad, atol=1e-6, rtol=1e-3)


@pytest.mark.parametrize("router", ROUTERS)
def test_the_balance_loss_alone_reaches_every_router_and_the_states_below(tmp_path: Path, router: str) -> None:
    model = tiny_model(tiny_recipe(tmp_path, experts=True)).eval()
    mine = {router: model(tiny_batches()[0]).by_router()[router]}
    loss = balance_loss(mine, BalanceConfig(**BALANCE), model.balance_temperatures())
    assert loss is not None
    loss.backward()
    found = gradients(model)
    embedding = "target_weight" if "decoder" in router else "source_weight"
    weights = [name for name in found if name.startswith(f"banks.{router}.router.") and not name.endswith("tau")]
    assert weights
    assert all(bool(found[name].any()) for name in [embedding, *weights])
