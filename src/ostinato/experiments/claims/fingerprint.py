"""What an arm computes, in a few numbers: losses of three updates on random ids, and of one pass after them.

Two versions of the code that give the same numbers, up to rounding, train and score the arm alike; where they differ,
what was measured with the one is no evidence about the other. Nothing is read, and dropout is off, so that a
fingerprint is the same on every CPU up to a tolerance. `ostinato.experiments.claims.tiny_scores` is the same of data,
decoding and metrics.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch

from ostinato.config.base import Config
from ostinato.config.recipe import Recipe
from ostinato.evaluation.loading import resolve_device
from ostinato.experiments.timing.workloads import Bench, TimedModel, Workload, random_batch
from ostinato.tasks.vocabulary import size_model
from ostinato.training.optim import build_optimizer
from ostinato.training.rng import preserved_randomness
from ostinato.training.threads import cpu_threads
from ostinato.training.update import Updater

_VOCABULARY = 64
_WORK = Workload("update", batch_size=4, source_length=12, target_length=12)
PLACES = (0.0, 0.5, 1.0)
"""Where in the training the updates stand: what depends on the update (halting, its cost, the learning rate) shows."""
_TOLERANCE = 2e-3
"""Relative: three updates in float32 whose sums are in another order."""

C = TypeVar("C", bound=Config)


def fingerprint(recipe: Recipe) -> list[float]:
    """Return loss and gradient norm of three updates, then of a pass as in evaluation.

    The model is the recipe's at its own size, with a vocabulary of 64 and new weights; what it would start from and
    what is frozen are left out.
    """
    model = without_dropout(size_model(recipe, source=_VOCABULARY, target=_VOCABULARY).model)
    training = recipe.training.model_copy(update={"freeze": [], "freeze_except": []})
    found: list[float] = []
    with cpu_threads(1), preserved_randomness():
        bench = Bench(TimedModel("arm", model, training), resolve_device("cpu"))
        torch.manual_seed(1)  # of what a training pass draws
        batch = random_batch(model, _WORK, seed=1)
        updater = Updater(bench.model, build_optimizer(bench.model, training.optimizer), training)
        for place in PLACES:
            update = max(1, round(place * training.n_updates))
            gradient = updater.accumulate([batch], update)
            found += [sum(gradient.losses) / gradient.n_labels, gradient.norm]
            updater.apply(gradient, update)
        bench.model.eval()
        gradient = updater.accumulate([batch])
    return [*found, sum(gradient.losses) / gradient.n_labels, gradient.norm]


def is_alike(old: Sequence[float], new: Sequence[float]) -> bool:
    """Return whether two fingerprints are the same but for rounding."""
    return len(old) == len(new) and all(is_near(a, b) for a, b in zip(old, new, strict=True))


def is_near(a: float, b: float) -> bool:
    """Return whether two numbers are the same but for rounding."""
    return abs(a - b) <= _TOLERANCE * max(abs(a), abs(b), 1e-3)


def without_dropout(config: C) -> C:
    """Return a configuration with every dropout in it at 0."""
    changes: dict[str, Config | float] = {}
    for name, value in config:
        if isinstance(value, Config):
            changes[name] = without_dropout(value)
        elif "dropout" in name and isinstance(value, float):
            changes[name] = 0.0
    return config.model_copy(update=changes)
