"""Recipes by name, and recipes that derive from one.

A recipe is shipped with the library, a YAML file of the user's own, or part of a run directory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ostinato.config.files import (
    RUN_RECIPE,
    YAML_SUFFIXES,
    did_you_mean,
    map_data_paths,
    parse_overrides,
    read_yaml,
    shipped_files,
    yaml_text,
)
from ostinato.config.load import load_recipe_config
from ostinato.config.recipe import Recipe
from ostinato.data.output_files import check_output, write_new_text
from ostinato.errors import ConfigError, Problem, see
from ostinato.system_errors import kind_of

_FOLDER = "recipes"
_DERIVED_MARK = "# Written by:"
"""Begins every file that `write_derived` wrote."""


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
    if (path / RUN_RECIPE).is_file():
        return path / RUN_RECIPE
    if path.is_dir():
        reason = f"this folder holds no {RUN_RECIPE}, so it is not a run"
    elif (kind := kind_of(path)) is not None:
        reason = f"is {kind}, not a file or run directory"
    elif path.suffix in YAML_SUFFIXES:
        reason = "there is no such file"
    else:
        hint = did_you_mean(_FOLDER, name)
        reason = f"no recipe, file or run directory of that name{hint} (`ostinato recipes` lists the names)"
        reason += see("recipes")
    raise ConfigError([Problem("recipe", name, reason)])


def load_recipe(name_or_path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Load and check a recipe with `dotted.key=value` overrides.

    A recipe that gives itself no name is called after its shipped name, its file or its run directory.

    Raises:
        ConfigError: with every problem of the recipe and of its task's settings.
    """
    path = find_recipe(name_or_path)
    by_path = {shipped: name for name, shipped in shipped_files(_FOLDER).items()}
    is_run = path.name == RUN_RECIPE
    file_name = path.resolve().parent.name if is_run else path.stem

    def problems(recipe: Recipe) -> Iterator[Problem]:
        # A run may be loaded for a split of other files; those that are scored are looked for then.
        is_own = is_run and not any(override.startswith("evaluation") for override in overrides)
        return (one for one in _problems(recipe) if not (is_own and one.key == "evaluation.splits"))

    return load_recipe_config(path, overrides, find_recipe, problems, default_name=by_path.get(path, file_name))


def _problems(recipe: Recipe) -> Iterator[Problem]:
    from ostinato.tasks.checks import metric_problems, model_problems, split_problems
    from ostinato.tasks.registry import build_task, task_config, task_problems

    found = task_problems(recipe.task.settings(), recipe.data)
    has_sources = bool(found) or task_config(recipe.task).has_sources
    yield from metric_problems(recipe, has_sources)
    yield from found
    yield from model_problems(recipe, has_sources)
    if found:
        return
    try:
        task = build_task(recipe.task, recipe.data)
    except ConfigError:
        return  # The user's own files are not here: a recipe can be shown and counted without them.
    for problem in split_problems(recipe, task):
        # Nor with some of them not named yet.
        if not (task.config.reads_own_files and task.why_missing(str(problem.value))):
            yield problem


def write_derived(
    path: Path,
    base: str,
    *,
    overrides: Sequence[str] = (),
    model: Mapping[str, int] | None = None,
    description: str,
    command: str,
) -> Path:
    """Write a recipe that is `base` with other settings, and return its file.

    Args:
        path: the new file; its folder is created. A file that an earlier call wrote is replaced.
        base: name, file or run directory of the recipe it derives from.
        overrides: `dotted.key=value`, as on the command line.
        model: settings by their path below ``model``; they win over `overrides`.
        description: one line about the recipe.
        command: the command line, for the comment at the head of the file.

    Raises:
        ConfigError: no such base, or a file of that name that this function did not write.
    """
    check_derived(path)
    settings = parse_overrides([*overrides, *(f"model.{key}={value}" for key, value in (model or {}).items())])
    # Files are written relative to the new file, so that all can be moved together: the base, and those of data, which
    # the command line names from the current folder.
    settings = map_data_paths(settings, lambda _, text: _from_folder(Path(text), path.parent))
    if base not in shipped_files(_FOLDER):
        base = _from_folder(find_recipe(base), path.parent)
    settings = {"base": base, "description": description} | settings
    text = f"{_DERIVED_MARK} {command}\n{yaml_text(settings)}"
    write_new_text(path, text, overwrite=True, is_ours=_is_derived)
    return path


def check_derived(path: Path) -> None:
    """Refuse a file that `write_derived` would refuse, before long work: one that it wrote may be written again.

    Raises:
        ConfigError: a file of that name that `write_derived` did not write, or no plain file.
    """
    if path.is_file() and not path.is_symlink() and not _is_derived(path):
        raise ConfigError([Problem("write", str(path), "is there already, and was not written by this command")])
    check_output(path, overwrite=True, is_ours=_is_derived)


def _is_derived(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(len(_DERIVED_MARK)) == _DERIVED_MARK.encode()


def _from_folder(file: Path, folder: Path) -> str:
    """Return the path that leads from a folder to a file."""
    return Path(os.path.relpath(file.resolve(), folder.resolve())).as_posix()
