"""What models store and compute, as rows of a claim."""

from __future__ import annotations

from typing import Any

from ostinato.budget import Assumptions, count_budget
from ostinato.config.claim import CountSource, TimedArm
from ostinato.config.measures import FigureName
from ostinato.config.model import ModelConfig
from ostinato.config.recipe import Recipe
from ostinato.data.registry import DataAccess
from ostinato.experiments.results import assumptions_of
from ostinato.tasks.recipes import load_recipe
from ostinato.tasks.vocabulary import size_model

_COUNTED: tuple[FigureName, ...] = ("parameters", "active", "macs")


def counted_rows(source: CountSource, access: DataAccess | None) -> list[dict[str, Any]]:
    """Return parameters, active parameters and MACs of every arm."""
    rows = []
    for arm in source.arms:
        recipe, model = sized(arm, access, source.vocabulary)
        assumed = Assumptions(source.source_length, source.target_length)
        budget = count_budget(model, assumptions_of(recipe, assumed))
        values = {figure: budget.figure(figure) for figure in _COUNTED}
        rows.append({"arm": arm.name, "seed": None, "values": values})
    return rows


def sized(arm: TimedArm, access: DataAccess | None, vocabulary: int | None) -> tuple[Recipe, ModelConfig]:
    """Return an arm's recipe, and its model with its vocabulary sizes."""
    recipe = load_recipe(arm.recipe, arm.overrides)
    return recipe, size_model(recipe, access, source=vocabulary, target=vocabulary).model
