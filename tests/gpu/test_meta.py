"""Recipes without experts and halting run on the `meta` device, which has no numbers: nobody may ask for one, and no
tensor may be left on the CPU."""

from __future__ import annotations

import pytest

from ostinato.config.recipe import Recipe
from ostinato.data.batch import Batch
from ostinato.models.build import without_memory
from ostinato.models.losses import label_smoothed_loss
from ostinato.tasks.recipes import list_recipes, load_recipe
from ostinato.training.optim import build_optimizer


def _runs(recipe: Recipe) -> bool:
    """Run forward, loss, backward and the optimiser's step; return False for a model that is not looked at here."""
    model = without_memory(recipe.model).train()
    if any(True for _ in model.routed()) or model.halting_thresholds() or not model.stacks:
        return False
    rows, joins = [[4, 5, 6, 7], [6, 5]], recipe.model.joins_pairs
    batch = Batch.from_lists(rows, rows if joins or recipe.model.has_two_sides else None, joins_pairs=joins).to("meta")
    if recipe.model.kind == "encoder":  # heads have labels of their own: what they read is enough here
        embedded_BTD = model.embed(batch.target.ids_BT, model.target_embedding)
        model.stacks["encoder"](embedded_BTD, keep_BT=batch.target.keep_BT).states_BTD.sum().backward()
    else:
        label_smoothed_loss(model(batch).logits_BTV, batch.labels_BT, batch.loss_mask_BT, 0.1).loss.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert {gradient.device.type for gradient in gradients} == {"meta"}
    optimizer = build_optimizer(model, recipe.training.optimizer)
    optimizer.step()
    states = [x for state in optimizer.state.values() for name, x in state.items() if name != "step"]
    assert {x.device.type for x in states} == {"meta"}
    return True


@pytest.mark.parametrize("name", ["dense/llama-toy", "dense/marian-toy", "dense/bert-toy"])
def test_a_dense_recipe_runs_without_numbers(name: str) -> None:
    assert _runs(load_recipe(name))


@pytest.mark.slow
def test_every_dense_recipe_runs_without_numbers() -> None:
    recipes = (load_recipe(one.name) for one in list_recipes())
    assert sum(map(_runs, recipes)) > 50
