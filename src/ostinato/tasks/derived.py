"""Writing a recipe that derives from another one and changes some of its settings."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from ostinato.config.files import parse_overrides, yaml_text
from ostinato.errors import ConfigError, Problem
from ostinato.tasks.recipes import find_recipe, list_recipes

_MARK = "# Written by:"


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
        path: the file; its folder is made. A file that an earlier call wrote is replaced.
        base: name, file or run directory of the recipe it derives from.
        overrides: `dotted.key=value`, as on the command line.
        model: settings by their path below ``model``; they win over `overrides`.
        description: one line about the recipe.
        command: what wrote it, for the comment.

    Raises:
        ConfigError: no such base, or a file of that name that this function did not write.
    """
    if path.exists() and not path.read_text(encoding="utf-8").startswith(_MARK):
        raise ConfigError([Problem("write", str(path), "is there already, and was not written by this command")])
    settings = parse_overrides([*overrides, *(f"model.{key}={value}" for key, value in (model or {}).items())])
    settings = {"base": _base(base, path), "description": description} | settings
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{_MARK} {command}\n{yaml_text(settings)}", encoding="utf-8")
    return path


def _base(base: str, path: Path) -> str:
    """Return what the recipe at `path` calls its base: a shipped name, or a file relative to its own."""
    if base in {recipe.name for recipe in list_recipes()}:
        return base
    return Path(os.path.relpath(find_recipe(base).resolve(), path.parent.resolve())).as_posix()
