"""What training would refuse of a recipe, found without training: by its settings, the names of the parameters, and the
first example of a split where its data are at hand. Nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.config.recipe import Recipe
from ostinato.data.columns import with_columns
from ostinato.data.example import Example
from ostinato.data.mixture import data_set_of
from ostinato.data.registry import DataAccess
from ostinato.errors import ConfigError, DataError
from ostinato.tasks.registry import build_task
from ostinato.tasks.start import load_tokenizers
from ostinato.training.checks import pattern_problems, useless_settings
from ostinato.training.prepare import with_splits


def check_trainable(recipe: Recipe, access: DataAccess | None = None, *, with_start: bool = True) -> None:
    """Refuse patterns, columns and a start that training would refuse.

    Args:
        recipe: whose splits its task has. with_start: False: the run it starts from need not be there yet.

    Raises:
        ConfigError: patterns that match no parameter; settings without effect; no run to start from.
        DataError: columns that the first examples do not have.
    """
    if problems := pattern_problems(recipe) or useless_settings(recipe):
        raise ConfigError(problems)
    if with_start and recipe.training.init_from is not None:
        load_tokenizers(recipe.training.init_from)
    try:
        task = build_task(recipe.task, recipe.data, access)
    except ConfigError:  # files of the user's own that are not here yet
        return
    check_mixture(recipe, task.splits()[0], access)
    for split in with_splits(recipe, task).evaluation.splits or []:
        check_by(recipe, split, recipe.evaluation.by or [], access)


def check_by(recipe: Recipe, split: str, by: Sequence[str], access: DataAccess | None = None) -> None:
    """Refuse columns that scores of a split cannot be reported by.

    Raises:
        ConfigError: of blocks of several texts. DataError: of its first example.
    """
    if by and (example := _first(recipe, split, access)) is not None:
        list(with_columns([example], by, recipe.data, split))


def check_mixture(recipe: Recipe, split: str, access: DataAccess | None = None) -> None:
    """Raise a DataError where the first example does not say which data set of `data.mixture` it is of."""
    mixture = recipe.data.mixture
    if mixture is not None and (example := _first(recipe, split, access)) is not None:
        data_set_of(mixture.column, example.columns, "row 1")


def _first(recipe: Recipe, split: str, access: DataAccess | None) -> Example | None:
    """Return the first example of a split, None where its data are not at hand."""
    task = build_task(recipe.task, recipe.data, (access or DataAccess.default()).offline())
    try:
        return next(task.examples(split), None)
    except DataError:
        if task.files():
            return None
        raise
