"""Contract 12 on every recipe in the wheel: what is counted from the configuration is what would be built."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch

from ostinato.budget import count_budget
from ostinato.config.model import ModelConfig
from ostinato.models import build_model
from ostinato.tasks.recipes import list_recipes, load_recipe

NAMES = [recipe.name for recipe in list_recipes()]
ROWS = 1000
"""Of the vocabularies that a recipe leaves to its data."""


def _sized(model: ModelConfig) -> ModelConfig:
    sizes = model.vocabulary_sizes(ROWS, ROWS)
    return model.model_copy(update={key: getattr(model, key) or rows for key, rows in sizes.items()})


@pytest.mark.sampled
@pytest.mark.parametrize("folder", sorted({name.rpartition("/")[0] for name in NAMES}))
def test_the_parameters_counted_are_those_of_the_model_that_would_be_built(folder: str) -> None:
    models = {name: _sized(load_recipe(name).model) for name in NAMES if name.rpartition("/")[0] == folder}
    for name, config in {repr(config): (name, config) for name, config in models.items()}.values():  # each model once
        # Shapes without numbers: the largest model costs nothing, and torch takes long over drawing none.
        with torch.device("meta"), patch.object(torch.Tensor, "normal_", lambda x, *given, **named: x):
            model = build_model(config)
        assert all(parameter.is_meta for parameter in model.parameters()), name
        budget = count_budget(config)
        assert budget.parameters.stored == sum(p.numel() for p in model.parameters()), name
        assert budget.bytes.weights == sum(p.nbytes for p in model.parameters()), name
        assert sum(budget.parameters.by_part.values()) == budget.parameters.stored, name
        assert sum(budget.macs.by_part.values()) == budget.macs.total, name
