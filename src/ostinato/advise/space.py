"""Spaces by name or file, and the combinations of levels that are tried."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import combinations, product
from typing import Any

from ostinato.config.files import find_file, read_yaml
from ostinato.config.load import check_settings
from ostinato.config.space import LevelConfig, SpaceConfig
from ostinato.errors import ConfigError, Problem

Combination = dict[str, str]
"""The level of every axis, by name."""


def load_space(name_or_path: str) -> SpaceConfig:
    """Load and check a space: one that is shipped, or a YAML file.

    Raises:
        ConfigError: there is none of that name, or with every problem of it.
    """
    path = find_file("spaces", name_or_path, "--space")
    settings = read_yaml(path)
    settings.setdefault("name", path.stem)
    return check_settings(settings, SpaceConfig)


def in_balance(space: SpaceConfig) -> Iterator[Combination]:
    """Yield all combinations of a space, so that at any point levels, and pairs of them, came about equally often.

    The next one is always the one whose pairs came least often so far, of several the first of the product.
    """
    names = [axis.name for axis in space.axes]
    left = list(product(*([level.name for level in axis.levels] for axis in space.axes)))
    singles: Counter[tuple[int, str]] = Counter()
    pairs: Counter[tuple[tuple[int, str], tuple[int, str]]] = Counter()

    def often(combination: tuple[str, ...]) -> tuple[int, int]:
        own = list(enumerate(combination))
        return sum(pairs[pair] for pair in combinations(own, 2)), sum(singles[one] for one in own)

    while left:
        chosen = min(left, key=often)
        left.remove(chosen)
        own = list(enumerate(chosen))
        singles.update(own)
        pairs.update(combinations(own, 2))
        yield dict(zip(names, chosen, strict=True))


def name_of(space: SpaceConfig, combination: Combination) -> str:
    """Return the levels of a combination in a line, without those that change nothing.

    Levels of a name that several axes have stand with their axis.
    """
    seen = Counter(level.name for axis in space.axes for level in axis.levels)
    named = [
        level.name if seen[level.name] == 1 else f"{axis.name} {level.name}"
        for axis, level in zip(space.axes, levels_of(space, combination), strict=True)
        if level.set or level.free or level.numbers
    ]
    return ", ".join(named) or "as given"


def levels_of(space: SpaceConfig, combination: Combination) -> list[LevelConfig]:
    """Return the levels of a combination, in the order of the axes."""
    return [axis.level(combination[axis.name]) for axis in space.axes]


def settings_of(space: SpaceConfig, combination: Combination, recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a combination by dotted path, paths with `*` and numbers filled in.

    Args:
        recipe: all settings of the recipe, nested.

    Raises:
        ConfigError: a path that the recipe has nowhere, or a number that no level gives.
    """
    levels = levels_of(space, combination)
    numbers: dict[str, int] = {name: number for level in levels for name, number in level.numbers.items()}
    found: dict[str, Any] = {}
    for level in levels:
        for pattern, value in level.set.items():
            paths = list(_matches(recipe, pattern.split(".")))
            if not paths:
                raise ConfigError([Problem("space", pattern, "is no setting of this recipe")])
            filled = _filled(value, numbers, level.name)
            for path in paths:
                # What a later axis says of a setting, or of a group, replaces what stands below it.
                found = {key: old for key, old in found.items() if key != path and not key.startswith(f"{path}.")}
                found[path] = filled
    return found


def free_of(space: SpaceConfig, combination: Combination) -> list[str]:
    """Return the settings that are solved for the budget, one after the other."""
    named = [level.free for level in levels_of(space, combination) if level.free is not None]
    return named[-1] if named else space.free


def _matches(node: Any, parts: list[str], path: str = "") -> Iterator[str]:
    """Yield the dotted paths that a pattern stands for."""
    head, *rest = parts
    if not isinstance(node, Mapping):
        return
    names = list(node) if head == "*" else [head] if head in node else []
    for name in names:
        if rest:
            yield from _matches(node[name], rest, f"{path}{name}.")
        else:
            yield f"{path}{name}"


def _filled(value: Any, numbers: Mapping[str, int], level: str) -> Any:
    """Return a value of a level with every `$NAME` replaced by its number."""
    if isinstance(value, Mapping):
        return {key: _filled(inner, numbers, level) for key, inner in value.items()}
    if isinstance(value, list):
        return [_filled(inner, numbers, level) for inner in value]
    if isinstance(value, str) and value.startswith("$"):
        if value[1:] not in numbers:
            raise ConfigError(f"{level!r} needs the number {value[1:]!r}, which no level of this combination gives")
        return numbers[value[1:]]
    return value
