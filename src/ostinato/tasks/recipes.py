"""Recipes by name: those shipped with the library, YAML files of the user's own, and finished runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ostinato.config.files import did_you_mean, read_yaml, shipped_files
from ostinato.config.load import load_recipe_config
from ostinato.config.recipe import Recipe
from ostinato.errors import ConfigError, Problem

_SUFFIXES = (".yaml", ".yml")
_RUN_RECIPE = "recipe.yaml"
_FOLDER = "recipes"


@dataclass(frozen=True, slots=True)
class RecipeInfo:
    """A shipped recipe: its name and one line about it."""

    name: str
    description: str


def list_recipes() -> list[RecipeInfo]:
    """Return the shipped recipes in alphabetical order."""
    return [
        RecipeInfo(name, str(read_yaml(path).get("description", ""))) for name, path in shipped_files(_FOLDER).items()
    ]


def find_recipe(name_or_path: str | Path) -> Path:
    """Return the file of a recipe.

    Args:
        name_or_path: the name of a shipped recipe (`scan/universal`), a YAML file, or a run directory, whose
            `recipe.yaml` repeats the run.

    Raises:
        ConfigError: nothing of that name, with the nearest names.
    """
    name = str(name_or_path)
    if (shipped := shipped_files(_FOLDER).get(name)) is not None:
        return shipped
    path = Path(name_or_path)
    if path.is_file():
        return path
    if (path / _RUN_RECIPE).is_file():
        return path / _RUN_RECIPE
    raise ConfigError([Problem("recipe", name, _not_found(name, path))])


def _not_found(name: str, path: Path) -> str:
    if path.is_dir():
        return f"this folder holds no {_RUN_RECIPE}, so it is not a run"
    if path.suffix in _SUFFIXES:
        return "there is no such file"
    hint = did_you_mean(_FOLDER, name)
    return f"no recipe, file or run directory of that name{hint} (`ostinato recipes` lists the names)"


def load_recipe(name_or_path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Load and check a recipe with `dotted.key=value` overrides.

    A recipe that gives itself no name is called after its shipped name, its file or its run directory.

    Raises:
        ConfigError: with every problem of the recipe and of its task's settings.
    """
    path = find_recipe(name_or_path)
    return load_recipe_config(path, overrides, find_recipe, _problems, default_name=_default_name(path))


def _default_name(path: Path) -> str:
    by_path = {shipped: name for name, shipped in shipped_files(_FOLDER).items()}
    if path in by_path:
        return by_path[path]
    return path.resolve().parent.name if path.name == _RUN_RECIPE else path.stem


def _problems(recipe: Recipe) -> Iterator[Problem]:
    """Yield what is wrong between a recipe and its task: settings, kind of model, metrics."""
    from ostinato.tasks.checks import metric_problems, model_problems
    from ostinato.tasks.registry import task_config, task_problems

    # Files of the user's own need not be there: only who reads them needs them.
    found = task_problems(recipe.task.settings())
    has_sources = bool(found) or task_config(recipe.task).has_sources
    yield from metric_problems(recipe, has_sources)
    yield from found
    yield from model_problems(recipe, has_sources)
