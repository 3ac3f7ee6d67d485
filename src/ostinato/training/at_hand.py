"""What the first examples of a recipe's splits refuse, where its data are at hand: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.config.recipe import Recipe
from ostinato.data.example import Example
from ostinato.data.mixture import Mixture
from ostinato.data.registry import DataAccess
from ostinato.errors import DataError
from ostinato.evaluation.evaluate import check_reported
from ostinato.evaluation.tally import check_columns
from ostinato.tasks.registry import build_task


def check_by(recipe: Recipe, split: str, by: Sequence[str], access: DataAccess | None = None) -> None:
    """Refuse columns that scores of a split cannot be reported by.

    Raises:
        ConfigError: of blocks of several texts. DataError: of its first example.
    """
    check_reported(by, recipe.data)
    if by and recipe.data.block_length is None and (example := _first(recipe, split, access)) is not None:
        check_columns(example.columns, by, f"{split}: example 1")


def check_mixture(recipe: Recipe, split: str, access: DataAccess | None = None) -> None:
    """Raise a DataError where the first example does not say which data set of `data.mixture` it is of."""
    mixture = recipe.data.mixture
    if mixture is not None and (example := _first(recipe, split, access)) is not None:
        Mixture(mixture, [example.columns])


def _first(recipe: Recipe, split: str, access: DataAccess | None) -> Example | None:
    """Return the first example of a split, None where its data are not at hand."""
    task = build_task(recipe.task, recipe.data, (access or DataAccess.default()).offline())
    try:
        return next(task.examples(split), None)
    except DataError:
        if task.files():
            return None
        raise
