"""Recipes without experts and halting run on the `meta` device, which has no numbers: nobody may ask for one, and no
tensor may be left on the CPU."""

from __future__ import annotations

import pytest
from plans import batch_of, is_dense

from ostinato.config.recipe import Recipe
from ostinato.models.build import without_memory
from ostinato.models.losses import label_smoothed_loss
from ostinato.tasks.recipes import list_recipes, load_recipe
from ostinato.training.optim import build_optimizer


def _run(recipe: Recipe) -> bool:
    """Run forward, loss, backward and the optimiser's step; return False for a model that is not looked at here."""
    model = without_memory(recipe.model).train()
    if not is_dense(model):
        return False
    batch = batch_of(recipe.model).to("meta")
    loss = label_smoothed_loss(model(batch).logits_BTV, batch.labels_BT, batch.loss_mask_BT, 0.1).loss
    loss.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert {one.device.type for one in (loss, *gradients)} == {"meta"}
    optimizer = build_optimizer(model, recipe.training.optimizer)
    optimizer.step()
    states = [x for state in optimizer.state.values() for name, x in state.items() if name != "step"]
    assert {x.device.type for x in states} == {"meta"}
    return True


@pytest.mark.parametrize("name", ["dense/llama-toy", "dense/marian-toy", "dense/bert-toy"])
def test_a_dense_recipe_runs_without_numbers(name: str) -> None:
    assert _run(load_recipe(name))


@pytest.mark.slow
def test_every_dense_recipe_runs_without_numbers() -> None:
    n_run = 0
    for one in list_recipes():
        recipe = load_recipe(one.name)
        stacks = recipe.model.stacks().values()
        expected = bool(stacks) and not any(stack.has_router or stack.halting.kind != "none" for stack in stacks)
        assert _run(recipe) == expected, one.name
        n_run += expected
    assert n_run > 50
