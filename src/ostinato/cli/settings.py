"""`ostinato recipes` and `ostinato settings`: the named recipes, what a recipe may set, and what it means."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from ostinato.cli.options import JsonOption
from ostinato.cli.output import print_columns, print_json, print_line, readable_width

if TYPE_CHECKING:
    from ostinato.config.settings import SettingInfo

_INDENT = "    "


def recipes(json: JsonOption = False) -> None:
    """List the recipes that come with Ostinato."""
    from ostinato.tasks.recipes import list_recipes

    found = list_recipes()
    if json:
        print_json([{"name": recipe.name, "description": recipe.description} for recipe in found])
    else:
        print_columns((recipe.name, recipe.description) for recipe in found)


def settings(
    key: Annotated[
        str | None,
        typer.Argument(
            metavar="KEY",
            help="A setting or a group (model.encoder), the end of a key (ffn.d_ff), or a word; default: all settings.",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """List the settings of recipes, and what they mean.

    Every setting has its type, default, unit and meaning; one that depends on a kind (`kind=`) also the kinds that have
    it. N in a key is a place in a list: 0, 1, and so on.
    """
    from dataclasses import asdict

    from ostinato.config.recipe import Recipe
    from ostinato.config.settings import find_settings, list_settings
    from ostinato.tasks.registry import TASKS

    found = list_settings(Recipe, {"task": {kind: task.config_type for kind, task in TASKS.items()}})
    if key is not None:
        found = find_settings(found, key)
    if json:
        print_json([asdict(setting) for setting in found])
        return
    for setting in found:
        for line in _lines(setting):
            print_line(line)


def _lines(setting: SettingInfo) -> Iterator[str]:
    """Yield the key with its default, what it accepts, the kinds that have it, and what it means."""
    yield setting.key if setting.default is None else f"{setting.key} = {setting.default}"
    facts = [setting.accepts, *([f"unit: {setting.unit}"] if setting.unit else [])]
    facts += [f"only with {key}={' or '.join(kinds)}" for key, kinds in setting.only_with.items()]
    texts = ["; ".join(facts), *setting.meaning.split("\n\n")]
    texts += [f"{kind}: {meaning}" for kind, meaning in setting.kinds.items()]
    for text in texts:
        if "  " in text:  # a table or formulas, whose lines are kept
            yield from textwrap.indent(text, _INDENT).splitlines()
        else:
            yield from textwrap.wrap(
                text, readable_width(), initial_indent=_INDENT, subsequent_indent=_INDENT, break_long_words=False
            )
