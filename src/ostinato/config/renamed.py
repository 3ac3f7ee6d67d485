"""Settings that have another name than they once had.

A user who writes the old name in a recipe or an override is told the new one. What the program itself stored under an
old name (a run's recipe, a checkpoint's configuration) is read as if it had the new one.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from ostinato.config.data import TokenizerConfig
from ostinato.config.experts import RoutedConfig
from ostinato.config.schema import map_groups

RENAMED: dict[type[BaseModel], dict[str, str]] = {
    RoutedConfig: {"k": "top_k"},
}
"""Old name -> new name, by the group of settings that has them, wherever that group stands."""


_FIRST_VOCABULARY = 8000
"""What runs stored as the size of every vocabulary where none was given, also where it was ignored."""


def renamed_in(node: type[BaseModel]) -> dict[str, str]:
    """Return old name -> new name of the settings of a group, those of its base classes included."""
    return {old: new for base in node.__mro__ for old, new in RENAMED.get(base, {}).items()}


def first_name(node: type[BaseModel], name: str) -> str:
    """Return the oldest name of a setting: a hash of settings stays the same where only a name changes."""
    before = {new: old for old, new in renamed_in(node).items()}
    while name in before:
        name = before[name]
    return name


def with_new_names(stored: dict[str, Any], root: type[BaseModel]) -> dict[str, Any]:
    """Return settings that the program stored, old names replaced by new ones; `root` is what the settings are of."""

    def rename(group: dict[str, Any], node: type[BaseModel]) -> dict[str, Any]:
        names = renamed_in(node)
        while any(key in names for key in group):
            group = {names.get(key, key): value for key, value in group.items()}
        return group

    was_ignored = "special_ids" not in stored.get("model", {})  # which every later recipe has

    def change(group: dict[str, Any], node: type[BaseModel]) -> dict[str, Any]:
        group = rename(group, node)
        if (
            was_ignored
            and issubclass(node, TokenizerConfig)
            and (group.get("kind") not in ("bpe", "unigram") or group.get("vocab_size") == _FIRST_VOCABULARY)
        ):
            return {key: value for key, value in group.items() if key != "vocab_size"}
        return group

    return map_groups(stored, root, change)
