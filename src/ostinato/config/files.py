"""Settings on disk: reading YAML, deriving from a `base:`, overriding single settings, writing the result.

Two groups of settings merge key by key. Where `kind` chooses between groups with different keys (positions, the model,
the task) and the new one names another kind, the settings of the old kind are dropped. Attentions and feed-forwards are
an exception: what two kinds of them have in common, such as d_ff and share, is kept when the kind changes.

Recipes, sweeps and claims that come with the library are YAML files in folders of the package.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, cast

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel

from ostinato.config.renamed import with_new_names
from ostinato.config.schema import Settings, are_alike, child, is_open, keeps_on_change, slot_of
from ostinato.errors import ConfigError, Problem

FindBase = Callable[[str], Path]
"""Turns the name of a recipe into its file; raises ConfigError where there is none."""

_SUFFIXES = (".yaml", ".yml")
INPUT = "input:"
"""Begins a value that stands for a file of the user's own."""
RUN_RECIPE, RUN_VERSIONS = "recipe.yaml", "versions.json"
"""Files by which the directory of a run is recognised."""


def read_yaml(path: Path) -> Settings:
    """Return the settings in a YAML file, `${...}` references not yet resolved.

    Raises:
        ConfigError: the file cannot be read, is not YAML (naming the line), repeats a key, or is not a mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text ({error.reason} at byte {error.start})") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    try:
        loaded = OmegaConf.create(text)
    except yaml.MarkedYAMLError as error:
        where = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{path}{where}: is not valid YAML: {_yaml_reason(error)}") from error
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"{path}: is not valid YAML: {_one_line(error)}") from error
    data = OmegaConf.to_container(loaded, resolve=False)
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: must hold settings as 'key: value' lines")
    return cast(Settings, _map_texts(data))


def fill_inputs(settings: Settings, inputs: Mapping[str, str]) -> Settings:
    """Return settings in which every "input:NAME" is the absolute path of the file that the user gave this name.

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

    found: Settings = _map_texts(settings, filled)
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


def read_recipe(
    path: Path,
    find_base: FindBase,
    root: type[BaseModel],
    settle: Callable[[Settings, Settings | None], Settings],
    chain: tuple[Path, ...] = (),
) -> Settings:
    """Return the settings of a file merged onto its bases'.

    `base:` is a path to a YAML file, relative to the file that says it, or else the name of a recipe. The name and
    the description of a recipe are its own: neither is inherited. In the recipe of a run, which the program wrote, old
    names of settings are replaced by new ones.

    Args:
        settle: puts settings on top of others, see `ostinato.config.load.settle`.

    Raises:
        ConfigError: a file that cannot be read, or bases that form a circle.
    """
    here = path.resolve()
    if here in chain:
        circle = " -> ".join(p.name for p in (*chain[chain.index(here) :], here))
        raise ConfigError([Problem("base", str(path), f"a recipe cannot derive from itself ({circle})")])
    own = read_yaml(path)
    if path.name == RUN_RECIPE and (path.parent / RUN_VERSIONS).is_file():
        own = settle(with_new_names(own, root), None)
    base = own.pop("base", None)
    if base is None:
        return own
    if not isinstance(base, str):
        raise ConfigError([Problem("base", base, f"must be the name of a recipe or a path to a YAML file (in {path})")])
    beside = path.parent / base
    if not beside.is_file():
        if base.endswith(_SUFFIXES):
            raise ConfigError([Problem("base", base, f"there is no such file beside {path}")])
        beside = find_base(base)
    parent = read_recipe(beside, find_base, root, settle, (*chain, here))
    for key in ("name", "description"):
        parent.pop(key, None)
    return settle(parent, own)


def parse_overrides(overrides: Sequence[str]) -> Settings:
    """Turn `a.b=value` into nested settings; values are YAML (null, numbers, lists).

    Raises:
        ConfigError: every override that is not of this form.
    """
    problems: list[Problem] = []
    settings: Settings = {}
    for text in overrides:
        key, sign, value = text.partition("=")
        path = key.strip().split(".")
        if not sign or not all(path):
            problems.append(Problem("override", text, "must look like key=value, for example model.d_model=256"))
        elif not value.strip():
            problems.append(
                Problem(".".join(path), value, "needs a value (null for none, '' in quotes for empty text)")
            )
        else:
            try:
                found = parse_value(value)
            except (yaml.YAMLError, OmegaConfBaseException) as error:
                problems.append(Problem(".".join(path), value, f"is not a YAML value ({_yaml_reason(error)})"))
                continue
            group = settings
            for name in path[:-1]:
                if not isinstance(group.get(name), dict):
                    group[name] = {}
                group = group[name]
            group[path[-1]] = found
    if problems:
        raise ConfigError(problems)
    return settings


def parse_value(text: str) -> Any:
    """Return what YAML text means: `1e-3` a number, `[a, null]` a list, `null` None."""
    parsed = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={text}"]), resolve=False)
    return _map_texts(cast(Settings, parsed)["value"])


def merge(base: Settings, new: Settings, node: type[BaseModel] | None) -> Settings:
    """Return `base` with `new` on top; `node` is the configuration they belong to, where it is known."""
    merged = dict(base)
    for key, value in new.items():
        old = merged.get(key)
        if not (isinstance(old, dict) and isinstance(value, dict)):
            merged[key] = value
        elif node is None or key not in node.model_fields:
            merged[key] = merge(old, value, None)
        else:
            slot = slot_of(node.model_fields[key])
            before, after = child(slot, old), child(slot, value)
            kind = old.get("kind", slot.default_kind)
            if before and not are_alike(before, old, value):
                merged[key] = value
            elif value.get("kind", kind) == kind or not (slot.is_union or (before and is_open(before))):
                merged[key] = merge(old, value, before)
            elif before and after and keeps_on_change(before) and keeps_on_change(after):
                of_both = before.model_fields.keys() & after.model_fields
                merged[key] = {name: old[name] for name in old if name in of_both} | value
            else:
                merged[key] = value
    return merged


def resolve_references(settings: Settings) -> Settings:
    """Replace `${key}` by the value of that key.

    Raises:
        ConfigError: a reference to nothing, or in a circle.
    """
    try:
        return cast(Settings, OmegaConf.to_container(OmegaConf.create(settings), resolve=True))
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or "recipe"
        raise ConfigError(f"{key}: cannot be resolved: {str(error).splitlines()[0]}") from error


def write_yaml(settings: Settings, path: Path) -> None:
    """Write settings so that reading them gives equal ones."""
    # Text that looks like a `${...}` reference must not be resolved when it is read again.
    escaped = _map_texts(settings, lambda text: re.sub(r"(\\*)\$\{", lambda m: m[1] * 2 + "\\${", text))
    path.write_text(yaml_text(escaped), encoding="utf-8")


def yaml_text(settings: Settings) -> str:
    """Return settings as YAML, `${...}` references left to be resolved by whoever reads it."""
    return OmegaConf.to_yaml(OmegaConf.create(settings))


def _map_texts(value: Any, change: Callable[[str], str] = str) -> Any:
    """Return settings with every text changed, and every key a text: YAML reads `1:` and `on:` as other things."""
    if isinstance(value, dict):
        return {str(key): _map_texts(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [_map_texts(item, change) for item in value]
    return change(value) if isinstance(value, str) else value


def _yaml_reason(error: Exception) -> str:
    """Return what is wrong without the parser's account of where it was."""
    reason = getattr(error, "problem", None) or getattr(error, "context", None)
    return str(reason or _one_line(error))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def shipped_directory(kind: str) -> Path:
    """Return the folder of the files of a kind: "recipes", "sweeps" or "claims"."""
    return Path(str(resources.files("ostinato"))) / kind


@cache
def shipped_files(kind: str) -> dict[str, Path]:
    """Return the files of a kind by name, their path in the folder without its ending, in alphabetical order."""
    root = shipped_directory(kind)
    return {path.relative_to(root).with_suffix("").as_posix(): path for path in sorted(root.rglob("*.yaml"))}


def did_you_mean(kind: str, name: str) -> str:
    """Return "; did you mean a or b?" with those below a folder of that name, else the nearest names; "" for none."""
    known = list(shipped_files(kind))
    beginning = [other for other in known if other.startswith(f"{name.rstrip('/')}/")]
    near = beginning or get_close_matches(name, known, n=3)
    return f"; did you mean {' or '.join(near)}?" if near else ""
