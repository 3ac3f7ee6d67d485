"""What a shell may complete: names of recipes, sweeps and claims, and keys of settings.

`ostinato --install-completion` teaches it to the shell. Nothing is read before a shell asks.
"""

from __future__ import annotations


def recipe_names(incomplete: str) -> list[str]:
    """Return the names of recipes that begin so."""
    return _shipped("recipes", incomplete)


def sweep_names(incomplete: str) -> list[str]:
    """Return the names of sweeps that begin so."""
    return _shipped("sweeps", incomplete)


def claim_names(incomplete: str) -> list[str]:
    """Return the names of claims that begin so."""
    return _shipped("claims", incomplete)


def setting_keys(incomplete: str) -> list[str]:
    """Return the keys of settings that begin so, each with the `=` behind it; of a single key values, too.

    Shells put a space behind the only word that is possible, but a value has to follow the `=`. With the default beside
    it, or all kinds that may be chosen, there are several words, which begin alike.
    """
    from ostinato.config.recipe import Recipe
    from ostinato.config.settings import list_settings
    from ostinato.tasks.registry import TASKS

    known = list_settings(Recipe, {"task": {kind: task.config_type for kind, task in TASKS.items()}})
    found = [setting for setting in known if f"{setting.key}=".startswith(incomplete)]
    keys = [f"{setting.key}=" for setting in found]
    if len(set(keys)) == 1:
        keys += [f"{one.key}={value}" for one in found for value in one.kinds or [one.default or "null"]]
    return list(dict.fromkeys(keys))


def recipe_names_and_setting_keys(incomplete: str) -> list[str]:
    """Return both, for commands that take several recipes with settings."""
    return [*recipe_names(incomplete), *setting_keys(incomplete)]


def _shipped(kind: str, incomplete: str) -> list[str]:
    from ostinato.config.files import shipped_files

    return [name for name in shipped_files(kind) if name.startswith(incomplete)]
