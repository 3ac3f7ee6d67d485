"""`ostinato recipes`: the named recipes."""

from __future__ import annotations

from ostinato.cli.options import JsonOption
from ostinato.cli.output import print_columns, print_json


def recipes(json: JsonOption = False) -> None:
    """List the recipes that come with Ostinato."""
    from ostinato.tasks.recipes import list_recipes

    found = list_recipes()
    if json:
        print_json([{"name": recipe.name, "description": recipe.description} for recipe in found])
    else:
        print_columns((recipe.name, recipe.description) for recipe in found)
