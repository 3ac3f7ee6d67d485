"""Sweeps by name: those shipped with the library, and YAML files of the user's own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ostinato.config.files import (
    INPUT,
    YAML_SUFFIXES,
    find_file,
    from_file,
    map_data_paths,
    map_texts,
    parse_overrides,
    read_yaml,
    shipped_files,
)
from ostinato.config.load import check_settings
from ostinato.config.measures import as_overrides
from ostinato.config.recipe import Recipe
from ostinato.config.schema import Settings
from ostinato.config.sweep import ArmConfig, SweepConfig
from ostinato.errors import ConfigError, Problem
from ostinato.experiments.sweep.measure_checks import measure_problems
from ostinato.tasks.recipes import load_recipe

_FOLDER = "sweeps"
_ANOTHER_RUN = "another-arm's-run"


def load_sweep(source: str | Path | Mapping[str, Any], inputs: Mapping[str, str] | None = None) -> SweepConfig:
    """Load and check a sweep, and the recipe of each of its arms.

    Args:
        source: the name of a shipped sweep, a YAML file, or settings already read. In a file, recipes that are files
            and paths of `data` are relative to it, and a sweep that gives itself no name is called after its own name
            or file.
        inputs: files of the user's own, by the names that "input:NAME" in the sweep calls them.

    Raises:
        ConfigError: with every problem of the sweep, or else of its arms' recipes.
    """
    settings = dict(source) if isinstance(source, Mapping) else read_sweep_settings(source)
    return check_settings(fill_inputs(settings, inputs or {}), SweepConfig, _arm_problems)


def read_sweep_settings(name_or_path: str | Path) -> dict[str, Any]:
    """Return the settings in a sweep's file, with its name and the paths of recipes and data made whole.

    Raises:
        ConfigError: there is no such sweep, with the nearest names, or the file cannot be read.
    """
    path = find_file(_FOLDER, name_or_path, "sweep")
    settings = read_yaml(path)
    names = {file: name for name, file in shipped_files(_FOLDER).items()}
    settings.setdefault("name", names.get(path, path.stem))
    place = from_file(path)
    lists = [given for key in ("arms", "measures") if isinstance(given := settings.get(key), list)]
    for group in [settings, *(group for listed in lists for group in listed if isinstance(group, dict))]:
        recipe, changes = group.get("recipe"), group.get("set")
        if isinstance(recipe, str) and recipe.endswith(YAML_SUFFIXES):
            group["recipe"] = str(path.parent / recipe)
        if isinstance(changes, dict):
            group["set"] = map_data_paths(changes, place)
    if isinstance(overrides := settings.get("overrides"), list):
        settings["overrides"] = [
            new for text in overrides for new in _map_override(text, lambda given: map_data_paths(given, place))
        ]
    return settings


def fill_inputs(settings: Settings, inputs: Mapping[str, str]) -> Settings:
    """Return settings in which every "input:NAME" is the absolute path of the file that the user gave this name.

    It is filled in inside the texts of a sweep's `overrides`, too.

    Raises:
        ConfigError: names without a file, files that are not there, and names that occur nowhere.
    """
    wanted: dict[str, None] = {}

    def filled(text: str) -> str:
        if not text.startswith(INPUT):
            return text
        name = text.removeprefix(INPUT)
        wanted[name] = None
        return str(Path(inputs.get(name, name)).absolute())

    found: Settings = map_texts(settings, filled)
    if isinstance(texts := settings.get("overrides"), list):
        found["overrides"] = [new for text in texts for new in _map_override(text, lambda own: map_texts(own, filled))]
    known = f"it has {', '.join(wanted)}" if wanted else "it has none"
    missing = [name for name in wanted if name not in inputs]
    problems = [Problem(f"input.{name}", None, f"needs a file: --input {name}=PATH") for name in missing]
    for name, path in inputs.items():
        if name not in wanted:
            problems.append(Problem(f"input.{name}", path, f"no such input: {known}"))
        elif not Path(path).is_file():
            problems.append(Problem(f"input.{name}", path, "there is no such file"))
    if problems:
        raise ConfigError(problems)
    return found


def _map_override(override: Any, change: Callable[[Settings], Settings]) -> list[Any]:
    """Return what one override becomes when its settings are changed: itself where nothing is, or where it is none."""
    try:
        given = parse_overrides([override]) if isinstance(override, str) else {}
    except ConfigError:  # the check of the sweep says what is wrong with it
        given = {}
    changed = change(given)
    return [override] if changed == given else as_overrides(changed)


def arm_recipe(
    sweep: SweepConfig, arm: ArmConfig, seed: int, start: str | None = None, changes: Sequence[str] = ()
) -> Recipe:
    """Return the recipe that one arm is trained with.

    Args:
        start: the run directory that an arm with `after` starts from. changes: `dotted.key=value`, after all others.

    Raises:
        ConfigError: with every problem.
    """
    overrides = [*sweep.overrides, *arm.overrides(), f"seed={seed}"]
    if start is not None:
        overrides.append(f"training.init_from={json.dumps(start)}")
    return load_recipe(str(arm.recipe or sweep.recipe), [*overrides, *changes])


def first_recipe(sweep: SweepConfig, arm: ArmConfig, changes: Sequence[str] = ()) -> Recipe:
    """Return the recipe of an arm with its first seed; what it starts from is not known yet."""
    return arm_recipe(sweep, arm, sweep.seeds_of(arm)[0], None if arm.after is None else _ANOTHER_RUN, changes)


def _arm_problems(sweep: SweepConfig) -> Iterator[Problem]:
    if list(sweep.problems()):
        return  # an arm with problems of its own has no recipe to check
    of_measures: dict[str, Problem] = {}  # by what they say: once for all arms
    for arm in sweep.arms:
        try:
            recipe = first_recipe(sweep, arm)
        except ConfigError as error:
            if not error.problems:
                yield Problem(f"arms.{arm.name}", arm.recipe or sweep.recipe, str(error))
            for problem in error.problems:
                yield Problem(f"arms.{arm.name}: {problem.key}", problem.value, problem.reason)
        else:
            # Results that the run will not have, where the recipe says so itself.
            splits = recipe.evaluation.splits
            for measure in sweep.measures_of(arm.name):
                if measure.kind == "result" and measure.split and splits is not None and measure.split not in splits:
                    reason = f"{arm.name} is evaluated on {', '.join(splits)}: name it in evaluation.splits"
                    yield Problem(f"measures.{measure.name}.split", measure.split, reason)
                    continue
                try:
                    changed = first_recipe(sweep, arm, measure.overrides()) if measure.kind == "evaluate" else recipe
                    problems = list(measure_problems(measure, changed))
                except ConfigError as error:
                    key = f"measures.{measure.name}.set"
                    problems = [Problem(f"{key}.{one.key}", one.value, one.reason) for one in error.problems]
                of_measures |= {str(problem): problem for problem in problems}
    yield from of_measures.values()
