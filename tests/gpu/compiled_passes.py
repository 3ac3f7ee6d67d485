"""Compile training passes of the plan that is named and print, as JSON, what came of it.

A process of its own: torch cannot trace the checks of shapes that the suite puts around every call.
"""

from __future__ import annotations

import functools
import json
import random
import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from plans import HALTING, ROUNDS, VOCABULARY, batch_of, is_dense, model_of, ragged_batch
from torch._dynamo.utils import counters

from ostinato.config.model import ModelConfig
from ostinato.config.training import TrainingConfig
from ostinato.data.batching import TrainingBatches
from ostinato.data.collate import Row
from ostinato.models import build_model
from ostinato.tasks.recipes import list_recipes, load_recipe
from ostinato.training.checks import _why_not_compilable
from ostinato.training.optim import build_optimizer
from ostinato.training.update import Updater

CPU = torch.device("cpu")


def as_traced(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
    """Run a graph as torch traced it: what generates code for it is torch's to test, and takes minutes."""
    return graph.forward


def epoch(name: str) -> dict[str, Any]:
    """Run batches of many lengths; return graphs so far by batch, and how far logits are from those of plain passes."""
    model, graphs, apart = model_of(name).train(), [], 0.0
    run = torch.compile(model, backend=as_traced, dynamic=True, fullgraph=name not in HALTING)
    for seed in range(8):
        batch = ragged_batch(n=3 + seed % 4, seed=seed, longest=4 + seed).to("cpu").as_padded()
        with torch.autocast("cpu", torch.bfloat16, enabled=name == "experts"):
            found, expected = run(batch).logits_BTV, model(batch).logits_BTV
        keep = batch.target.keep_BT
        apart = max(apart, float((found[keep] - expected[keep]).detach().abs().max()))
        graphs.append(counters["stats"]["unique_graphs"])
    return {"graphs": graphs, "apart": apart}


def training(name: str) -> dict[str, Any]:
    """Make the updates of an epoch with `training.compile` and without.

    Returns:
        graphs so far by update, how many shapes the batches had, and the losses of either run.
    """
    draw = random.Random(0)
    lists = [[draw.randrange(4, VOCABULARY) for _ in range(draw.randint(1, 24))] for _ in range(250)]
    losses, graphs, shapes = [], list[int](), set[tuple[int, int, int]]()
    for compiles in (True, False):
        batches = TrainingBatches([Row(ids, ids[::-1]) for ids in lists], 150, seed=1)
        precision = "bfloat16" if name == "experts" else "float32"
        settings: dict[str, Any] = {"n_updates": batches.n_batches, "compile": compiles, "precision": precision}
        settings |= {"optimizer": {"lr": 5e-3}, "schedule": {"kind": "constant", "warmup": 5}}
        config, model = TrainingConfig.model_validate(settings), model_of(name).train()
        with patch.object(torch, "compile", functools.partial(torch.compile, backend=as_traced)):
            updater = Updater(model, build_optimizer(model, config.optimizer), config)
        losses.append([])
        for update in range(1, batches.n_batches + 1):
            batch = next(batches)
            gradient = updater.accumulate([batch], update)
            updater.apply(gradient, update)
            losses[-1].append(sum(gradient.nlls) / gradient.n_labels)
            if compiles:
                graphs.append(counters["stats"]["unique_graphs"])
                shapes.add(batch.shape)
    return {"graphs": graphs, "n_shapes": len(shapes), "losses": losses}


def gradients(name: str) -> float:
    """Return how far the gradients of a compiled pass are from those of one that is not, relative to the largest."""
    model, batch = model_of(name).train(), ragged_batch(3, longest=4).to("cpu").as_padded()
    found = []
    for run in (model, torch.compile(model, backend="aot_eager", dynamic=True, fullgraph=True)):
        model.zero_grad()
        torch.where(batch.target.keep_BT[..., None], run(batch).logits_BTV, 0.0).square().sum().backward()
        found.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    return float((found[0] - found[1]).abs().max() / found[0].abs().max())


def explain(name: str) -> list[int]:
    """Return how many graphs a pass is, breaks between them, and how many it is with a round more in either stack."""
    batch, said = ragged_batch().to("cpu").as_padded(), []
    for n_rounds in (ROUNDS, ROUNDS + 1, ROUNDS + 2):
        model = model_of(name, dropout=0.1, n_rounds=n_rounds).train()
        torch._dynamo.reset()
        with torch.autocast("cpu", torch.bfloat16, enabled=name == "experts"):
            said.append(torch._dynamo.explain(model)(batch))
    return [said[0].graph_break_count, *(one.graph_count for one in said)]


def without_dropout(settings: Any) -> Any:
    """Return settings whose every dropout is 0: a compiled pass draws it otherwise."""
    if isinstance(settings, list):
        return [without_dropout(one) for one in settings]
    if not isinstance(settings, dict):
        return settings
    return {key: 0.0 if key == "dropout" else without_dropout(value) for key, value in settings.items()}


def recipes(names: str) -> dict[str, list[float]]:
    """Return breaks between graphs and the losses of an update, compiled and not, by recipe.

    Args:
        names: with commas between them; toy: all of toy size without experts and halting.
    """
    found = {}
    toys = sorted(one.name for one in list_recipes() if "toy" in one.name)
    for name in toys if names == "toy" else names.split(","):
        given: ModelConfig = load_recipe(name).model
        config = type(given).model_validate(without_dropout(given.model_dump()))
        config = config.model_copy(update=config.vocabulary_sizes(VOCABULARY, VOCABULARY))
        model = build_model(config)
        if names == "toy" and (not is_dense(model) or _why_not_compilable(model, CPU, is_lowered=False)):
            continue
        losses = []
        for compiles in (True, False):
            torch.manual_seed(0)
            model = build_model(config).train()
            settings, batch = TrainingConfig(n_updates=1, compile=compiles), batch_of(config)
            torch._dynamo.reset()
            counters.clear()
            with patch.object(torch, "compile", functools.partial(torch.compile, backend=as_traced)):
                updater = Updater(model, build_optimizer(model, settings.optimizer), settings)
            torch.manual_seed(1)
            losses.append(sum(updater.accumulate([batch], 1).nlls))
            if compiles:
                found[name] = [sum(counters["graph_break"].values())]
        found[name] += losses
    return found


def round_losses(name: str) -> dict[str, list[float]]:
    """Return the losses of an update, compiled and not, by the rounds that it is of: these leave a pass, too."""
    found: dict[str, list[float]] = {}
    for loss in ({"kind": "window"}, {"kind": "weights", "weights": [1.0, 2.0]}, {"kind": "drawn", "weight": 0.3}):
        for compiles in (True, False):
            config = TrainingConfig.model_validate({"n_updates": 1, "compile": compiles, "round_loss": loss})
            model = model_of(name).train()
            with patch.object(torch, "compile", functools.partial(torch.compile, backend=as_traced)):
                updater = Updater(model, build_optimizer(model, config.optimizer), config)
            found.setdefault(str(loss["kind"]), []).append(sum(updater.accumulate([ragged_batch()], 1).losses))
    return found


_WAYS = (epoch, training, gradients, explain, recipes, round_losses)
WAYS: dict[str, Callable[[str], Any]] = {one.__name__: one for one in _WAYS}

if __name__ == "__main__":
    what, plan = sys.argv[1:]
    print(json.dumps(WAYS[what](plan)))
