"""`model.loss` is the objective of training: same number, same gradient, with every auxiliary loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from routed_models import tiny_batches, tiny_model
from tiny_runs import BALANCE, HALTING, tiny_recipe

from ostinato.config.model import LanguageModelConfig
from ostinato.config.training import BalanceConfig, DepthCostConfig
from ostinato.data.batch import Batch
from ostinato.errors import DataError
from ostinato.models import build_model
from ostinato.training.optim import build_optimizer
from ostinato.training.update import Updater

UPDATES = [1, 3, 5, 9]
"""At full depth, the last such, while the weight of depth grows, and after."""


@pytest.mark.parametrize("update", UPDATES)
def test_the_loss_of_a_batch_has_the_gradient_of_an_update(tmp_path: Path, update: int) -> None:
    recipe = tiny_recipe(tmp_path, experts=True, halting=True)
    losses: dict[str, Any] = {
        "label_smoothing": 0.1,
        "balance": BalanceConfig(**BALANCE),
        "halting": DepthCostConfig(**HALTING),
    }
    config = recipe.training.model_copy(update={**losses, "clip_norm": None})
    model, (batch, _) = tiny_model(recipe).eval(), tiny_batches()
    updater = Updater(model, build_optimizer(model, config.optimizer), config)
    found = updater.accumulate([batch], update)
    wanted = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    loss = model.loss(batch, **losses, update=update)
    loss.backward()  # type: ignore[no-untyped-call]
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert grads.keys() == wanted.keys()
    for name, grad in grads.items():
        assert torch.equal(grad, wanted[name]), name
    plain = model.loss(batch, label_smoothing=0.1, update=update, halting=DepthCostConfig(off_updates=3)).detach()
    assert float(plain) == pytest.approx(found.losses[0] / found.n_labels)
    assert abs(float(loss.detach()) - float(plain)) > 1e-4  # the others count
    if update == UPDATES[-1]:
        assert torch.equal(model.loss(batch, **losses), loss)


def test_the_loss_leaves_out_what_the_execution_says_times_its_own_warm_up() -> None:
    loop = {"n_steps": 4, "self_attention": {"n_heads": 2, "share": "all"}, "ffn": {"d_ff": 8, "share": "all"}}
    stack = loop | {"halting": {"kind": "select"}}
    torch.manual_seed(0)
    config = LanguageModelConfig.model_validate({"d_model": 8, "dropout": 0.0, "vocab_size": 9, "decoder": stack})
    model, batch = build_model(config), Batch.from_lists([[4, 5, 6, 7, 8, 4, 5]])
    warm = DepthCostConfig(capacity_warmup=2)  # half of it at update 1

    def chosen(halting: DepthCostConfig | None = None, **execution: float) -> float:
        with model.execution(**execution):
            return float(model.loss(batch, halting=halting, update=1).detach())

    assert chosen(left_out=0.0) != chosen()
    assert chosen(left_out=0.5) == chosen(warm)
    assert chosen(warm, left_out=0.5) == chosen(left_out=0.25)


def test_a_batch_without_labels_has_no_loss(tmp_path: Path) -> None:
    batch, _ = tiny_batches()
    batch.loss_mask_BT.zero_()
    with pytest.raises(DataError, match="no label of this batch counts"):
        tiny_model(tiny_recipe(tmp_path)).loss(batch)
