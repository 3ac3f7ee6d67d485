"""From settings to a checked configuration, above all a `Recipe`, with everything that is wrong reported at once.

A configuration is checked in two passes. The first collects unknown keys, wrong kinds and wrong types. Faulty settings
then fall back to their defaults, so that the second pass can look for impossible combinations among the others;
combinations that are impossible only because of such a default are not reported.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from ostinato.config.base import DEFER_CHECKS, Config, all_problems
from ostinato.config.files import (
    UNSET,
    FindBase,
    merge,
    parse_overrides,
    read_recipe,
    readable_yaml,
    resolve_references,
)
from ostinato.config.recipe import Recipe
from ostinato.config.renamed import renamed_in
from ostinato.config.schema import (
    PathTuple,
    Settings,
    Slot,
    describe,
    dotted,
    leaves,
    map_groups,
    slots_of,
    suggestions,
)
from ostinato.errors import ConfigError, Inert, Problem, see

C = TypeVar("C", bound=Config)

_MOST_SUGGESTIONS = 50
"""Unknown settings of one file for which a near name is looked for: with more it is no recipe."""

ExtraProblems = Callable[[C], Iterable[Problem]]
"""Checks that need more than configuration knows, such as the task's own settings."""


def no_base(name: str) -> Path:
    """Refuse a `base:` that is a recipe's name, for loading without the library's recipes."""
    raise ConfigError([Problem("base", name, "must be a path to a YAML file, relative to the recipe")])


def load_recipe_config(
    source: Path | Settings,
    overrides: Sequence[str] = (),
    find_base: FindBase = no_base,
    extra_problems: ExtraProblems[Recipe] | None = None,
    default_name: str | None = None,
) -> Recipe:
    """Read, merge, override and check a recipe.

    Args:
        source: a YAML file, or settings already read.
        overrides: `dotted.key=value`, the value in YAML; the last of several for one key wins.
        find_base: from the name after `base:` to its file.
        extra_problems: further checks, run on the recipe with faulty settings put back to their defaults.
        default_name: the recipe's name where it has none of its own.

    Raises:
        ConfigError: with every problem found.
    """
    if isinstance(source, Path):
        settings = read_recipe(source, find_base, Recipe, partial(settle, extra_problems=extra_problems))
    else:
        settings = copy.deepcopy(source)
    if default_name is not None:
        settings.setdefault("name", default_name)
    settings = resolve_references(settle(settings, parse_overrides(overrides), extra_problems))
    return check_recipe(settings, extra_problems)


def settle(settings: Settings, new: Settings | None, extra_problems: ExtraProblems[Recipe] | None = None) -> Settings:
    """Return a recipe's settings with new ones on top, without what nobody wrote for it and has no effect there.

    A setting that is useless only because of the new ones is left out, unless it is one of them. `new` None: `settings`
    are what a program stored, in which all useless ones are left out. Other useless settings stay: they are errors.
    `extra_problems` finds those that configuration cannot know.
    """
    merged = settings if new is None else merge(settings, new, Recipe)
    useless = _inert_keys(merged, extra_problems)
    if useless and new is not None:
        useless -= {key for key, _ in leaves(new)} | _inert_keys(settings, extra_problems)
    if not useless:
        return merged
    left = copy.deepcopy(merged)
    for key in useless:
        *groups, name = key.split(".")
        group = _get(left, tuple(groups))
        if isinstance(group, dict):
            group.pop(name, None)
    return left


def _inert_keys(settings: Settings, extra_problems: ExtraProblems[Recipe] | None) -> set[str]:
    """Return the keys of the settings of a recipe that have no effect, among those that can be read."""
    try:
        config = _Repair(map_groups(resolve_references(settings), Recipe, _with_kinds), Recipe).run()
    except ConfigError:
        return set()
    found = chain(all_problems(config), extra_problems(config) if extra_problems is not None else ())
    return {problem.key for problem in found if isinstance(problem, Inert)}


def dump_recipe(recipe: Recipe, path: Path) -> None:
    """Write a recipe as `recipe_text` has it."""
    path.write_text(recipe_text(recipe), encoding="utf-8")


def recipe_text(recipe: Recipe) -> str:
    """Return a recipe's YAML, every default spelled out; loading it from a run's directory gives an equal recipe."""
    return readable_yaml(recipe.model_dump(mode="json"))


def check_recipe(settings: Settings, extra_problems: ExtraProblems[Recipe] | None = None) -> Recipe:
    """Turn settings into a recipe.

    Raises:
        ConfigError: with every problem found.
    """
    return check_settings(settings, Recipe, extra_problems)


def check_settings(settings: Settings, root: type[C], extra_problems: ExtraProblems[C] | None = None) -> C:
    """Turn settings into a configuration of a type.

    Raises:
        ConfigError: with every problem found.
    """
    repair = _Repair(map_groups(settings, root, _with_kinds), root)
    config = repair.run()
    combined = list(all_problems(config))
    if extra_problems is not None:
        combined += extra_problems(config)
    problems = repair.problems + [problem for problem in combined if not repair.explains(problem)]
    if problems:  # Two passes may find the same one. Values may be unhashable, so that texts are compared.
        raise ConfigError({str(problem): problem for problem in problems}.values())
    return config


def _with_kinds(group: Settings, node: type[BaseModel]) -> Settings:
    """Spell out the default kind of every group inside a group that names none."""
    filled = dict(group)
    for key, value in group.items():
        slot = slots_of(node).get(key) if isinstance(value, dict) else None
        if slot is not None and slot.is_union and slot.default_kind is not None:
            filled[key] = {"kind": slot.default_kind} | value
    return filled


@dataclass
class _Repair(Generic[C]):
    """The first pass: collects problems and removes faulty settings until the rest is a configuration.

    Args:
        settings: what the user gave, kinds filled in, without faulty settings. root: the configuration's type.
        problems: found so far.
        removed: paths that fell back to a default, and those an unknown key was probably meant for.
    """

    settings: Settings
    root: type[C]
    given: Settings = field(init=False)
    problems: list[Problem] = field(default_factory=list)
    removed: list[PathTuple] = field(default_factory=list)

    def run(self) -> C:
        """Return the configuration that is left."""
        self.given, self.settings = self.settings, copy.deepcopy(self.settings)
        for path in list(_unset(self.settings)):
            self._add(path, UNSET, f"must be given, for example {dotted(path)}=...")
            self._remove(path)
        before: Settings | None = None
        while self.settings != before:
            before = copy.deepcopy(self.settings)
            try:
                return self.root.model_validate(self.settings, context=DEFER_CHECKS)
            except ValidationError as error:
                found = error.errors(include_url=False)
            seen: set[PathTuple] = set()
            for item in found:
                path, slot, node = _locate(item["loc"], self.root)
                if path in seen or (slot is not None and slot.is_mixed and isinstance(_get(self.settings, path), dict)):
                    continue  # a group is meant: that it is no text says nothing
                seen.add(path)
                if item["type"] == "missing" and path in self.removed:
                    self._remove(_list_or_top(path))  # It was given, and its problem is already reported.
                    continue
                self._report(item["type"], path, slot, node)
        raise ConfigError(self.problems)

    def _report(self, kind: str, path: PathTuple, slot: Slot | None, node: type[BaseModel]) -> None:
        """Add one problem and repair it."""
        value = _get(self.settings, path)
        if value is None:  # The list that it stands in is removed already.
            value = _get(self.given, path)
        if slot is None:
            group = path[:-1]
            if new := renamed_in(node).get(str(path[-1])):
                meant, reason = [(*group, new)], f"was renamed: use {new}"
            else:
                meant = self._meant(node, path)
                hints = []
                if not any(p[: len(group)] == group for p in meant):
                    hints.append(f"valid here: {', '.join(node.model_fields)}")
                if meant:
                    same_group = len(meant) == 1 and meant[0][:-1] == group
                    names = " or ".join(str(p[-1]) if same_group else dotted(p) for p in meant)
                    hints.append(f"did you mean {names}?")
                reason = f"no such setting; {'; '.join(hints)}{see(self.root.page)}"
            self.removed += meant
            self._add(path, value, reason)
            self._remove(path)
        elif kind == "missing":
            self._add(path, None, f"is required: {describe(slot.annotation, slot.metadata)}")
            self._remove(_list_or_top(path))
        elif slot.is_union and isinstance(value, dict):
            near = get_close_matches(str(value.get("kind")), slot.nodes, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            self._add((*path, "kind"), value.get("kind"), f"must be one of {', '.join(slot.nodes)}{hint}")
            self.removed.append(path)
            if near:  # Go on with the kind it resembles, else without the group.
                value["kind"] = near[0]
            else:
                self._remove(path)
        else:
            valid = describe(slot.annotation, slot.metadata)
            if slot.is_union:
                valid = f"a group of settings with kind: {', '.join(slot.nodes)}"
            self._add(path, value, f"must be {valid}")
            self._remove(path)

    def _meant(self, node: type[BaseModel], path: PathTuple) -> list[PathTuple]:
        """Return the settings that an unknown one may stand for; looking for them takes a while."""
        return suggestions(self.root, node, path) if len(self.problems) < _MOST_SUGGESTIONS else []

    def _add(self, path: PathTuple, value: object, reason: str) -> None:
        text = repr(value)
        self.problems.append(Problem(dotted(path), value if len(text) <= 80 else f"{text[:37]}...", reason))

    def _remove(self, path: PathTuple) -> None:
        """Take a setting out; of a list, all of it."""
        while isinstance(path[-1], int):
            path = path[:-1]
        group = _get(self.settings, path[:-1])
        if isinstance(group, dict):
            group.pop(path[-1], None)
        self.removed.append(path)

    def explains(self, problem: Problem) -> bool:
        """Return True where a problem of the second pass involves a setting that fell back to its default."""
        for path in self.removed:
            key = dotted(path)
            mentioned = rf"(?<![\w.]){re.escape(key)}(?![\w])|(?<![\w.]){re.escape(str(path[-1]))}(?![\w.])"
            if f"{problem.key}.".startswith(f"{key}.") or re.search(mentioned, problem.reason):
                return True
        return False


def _list_or_top(path: PathTuple) -> PathTuple:
    """Return the list a setting is in, where it is in one, else the group at the top."""
    first_index = next((i for i, key in enumerate(path) if isinstance(key, int)), 1)
    return path[:first_index]


def _locate(loc: tuple[int | str, ...], root: type[BaseModel]) -> tuple[PathTuple, Slot | None, type[BaseModel]]:
    """Follow a validation error to the user's key: its path, what may stand there (None: unknown), and its group.

    Pydantic's locations also name the members of unions; those are dropped.
    """
    node = root
    path: PathTuple = ()
    rest = list(loc)
    while rest:
        key = rest.pop(0)
        path = (*path, key)
        slot = slots_of(node).get(str(key))
        if slot is None:
            return path, None, node
        if slot.nodes and rest and isinstance(rest[0], int):
            path = (*path, rest.pop(0))
        if slot.is_mixed and rest:
            rest.pop(0)
        if slot.is_union and rest and rest[0] in slot.nodes:
            inner: type[BaseModel] | None = slot.nodes[str(rest.pop(0))]
        else:
            inner = slot.nodes.get("")
        if inner is None or not rest:
            return path, slot, node
        node = inner
    return path, None, node


def _unset(settings: Settings, path: PathTuple = ()) -> Iterator[PathTuple]:
    """Yield the paths of settings that still wait for a value."""
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from _unset(value, (*path, key))
        elif value == UNSET:
            yield (*path, key)


def _get(settings: Any, path: PathTuple) -> Any:
    """Return the value under a path, None where there is none."""
    for key in path:
        try:
            settings = settings[key]
        except (KeyError, IndexError, TypeError):
            return None
    return settings
