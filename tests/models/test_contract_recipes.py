"""Contract 12 on the recipes in the wheel: what is counted from the configuration is what is built, and what runs."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
from test_contract_numbers import check_macs

from ostinato.budget import count_budget, count_parameters
from ostinato.config.model import ModelConfig
from ostinato.models import build_model
from ostinato.tasks.recipes import list_recipes, load_recipe

NAMES = [recipe.name for recipe in list_recipes()]
MOST_PARAMETERS = 4_000_000
"""Of models that are small enough to be run."""
LENGTH = 16
"""Of texts; no recipe has fewer learned positions."""
FOLDERS = sorted({name.rpartition("/")[0] for name in NAMES})
SLOW = {"looped"}
"""Folders of many models; `make test` has the mechanisms of theirs in test_contract_loops.py."""


def _models(folder: str, rows: int) -> dict[str, ModelConfig]:
    """Return the models of a folder's recipes, each once; vocabularies left to the data have so many rows."""
    found: dict[str, tuple[str, ModelConfig]] = {}
    for name in NAMES:
        if name.rpartition("/")[0] == folder:
            model = load_recipe(name).model
            sizes = model.vocabulary_sizes(rows, rows)
            model = model.model_copy(update={key: getattr(model, key) or size for key, size in sizes.items()})
            found[repr(model)] = name, model
    return dict(found.values())


@pytest.mark.sampled
@pytest.mark.parametrize("folder", FOLDERS)
def test_the_parameters_counted_are_those_of_the_model_that_would_be_built(folder: str) -> None:
    for name, config in _models(folder, rows=1000).items():
        # Shapes without numbers: the largest model costs nothing, and torch takes long over drawing none.
        with torch.device("meta"), patch.object(torch.Tensor, "normal_", lambda x, *given, **named: x):
            model = build_model(config)
        assert all(parameter.is_meta for parameter in model.parameters()), name
        budget = count_budget(config)
        assert budget.parameters.stored == sum(p.numel() for p in model.parameters()), name
        assert budget.bytes.weights == sum(p.nbytes for p in model.parameters()), name
        assert sum(budget.parameters.by_part.values()) == budget.parameters.stored, name
        assert sum(budget.macs.by_part.values()) == budget.macs.total, name


@pytest.mark.parametrize("folder", [pytest.param(f, marks=pytest.mark.slow) if f in SLOW else f for f in FOLDERS])
def test_the_macs_counted_are_those_that_run(folder: str) -> None:
    # Few rows, so that the output projection does not hide what stacks do.
    for config in _models(folder, rows=20).values():
        if count_parameters(config).stored <= MOST_PARAMETERS:
            check_macs(config, LENGTH, LENGTH)
