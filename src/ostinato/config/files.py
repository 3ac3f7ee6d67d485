"""Settings on disk: reading YAML, deriving from a `base:`, overriding single settings, writing the result.

Two groups of settings merge key by key. Where `kind` chooses between groups with different keys (positions, the model,
the task) and the new one names another kind, the settings of the old kind are dropped. Attentions and feed-forwards are
an exception: what two kinds of them have in common, such as d_ff and share, is kept when the kind changes.

Recipes, sweeps, spaces and claims that come with the library are YAML files in folders of the package.
"""

from __future__ import annotations

import copy
import logging
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache, lru_cache, partial
from importlib import resources
from pathlib import Path
from typing import Any, cast

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import InterpolationKeyError, OmegaConfBaseException
from pydantic import BaseModel

from ostinato.config.renamed import with_new_names
from ostinato.config.schema import Settings, are_alike, child, is_open, keeps_on_change, slots_of
from ostinato.errors import ConfigError, Problem, on_one_line, without_controls
from ostinato.system_errors import kind_of

FindBase = Callable[[str], Path]
"""Turns the name of a recipe into its file; raises ConfigError where there is none."""

_MOST_BYTES, _MOST_LEVELS, _MOST_VALUES, _MOST_DIGITS = 2_000_000, 60, 200_000, 100
_TOO_LARGE = f"larger than {_MOST_BYTES:,} bytes"
_NUMBER = re.compile(r"[+-]?[0-9.][0-9a-fA-FxobX_:.eE+-]*")
"""What may be read as a number: also hexadecimal, and in base 60."""
_NOT_YAML = (yaml.YAMLError, OmegaConfBaseException, ValueError, AttributeError, LookupError)
"""The last two are raised for values that are not of their explicit tag: `!!timestamp x`, `!!bool x`."""
_BARE_PATTERN = re.compile(r"[\[{,:]\s*\*")
"""A `*` that begins a value inside a list or a group, without quotes: to YAML the name of an anchor."""
# An even number of backslashes before a reference is text; an odd one makes the reference text, too.
_REFERENCE = re.compile(r"(?<!\\)(?:\\\\)*\$\{(\w[\w.\-\[\]]*)\}")
_ESCAPED = re.compile(r"(?<!\\)(?:\\\\)*\\\$\{")
YAML_SUFFIXES = (".yaml", ".yml")
"""Endings of the files of recipes, sweeps, claims and spaces."""
_DATA_PATHS = ("data.train", "data.dev", "data.test", "data.tokenizer.path", "data.target_tokenizer.path")
_SPLITS, _HF = _DATA_PATHS[:3], "hf"
_OF_DATA_SETS = ("split", "subset", "columns", "streaming", "revision")
"""Settings of a data set of Hugging Face that are no paths, whatever they hold."""
_log = logging.getLogger(__name__)
UNSET = "???"
"""What a recipe writes where the user has to give a value."""
INPUT = "input:"
"""Begins a value that stands for a file of the user's own."""
RUN_RECIPE, RUN_VERSIONS = "recipe.yaml", "versions.json"
"""Files by which the directory of a run is recognised."""
UNFINISHED_RUN = "the run is not finished (ostinato train ... --resume)"
"""Why what the end of training leaves is not there."""


def read_yaml(path: Path) -> Settings:
    """Return the settings in a YAML file, `${...}` references not yet resolved.

    Raises:
        ConfigError: the file cannot be read, is not YAML (naming the line), repeats a key, or is not a mapping.
    """
    if (kind := kind_of(path)) is not None:
        raise ConfigError(f"{path}: is {kind}, not a file")
    try:
        if path.stat().st_size > _MOST_BYTES:  # before it is read into memory
            raise ConfigError(f"{path}: is not valid YAML: {_TOO_LARGE}")
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text ({error.reason} at byte {error.start})") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    return parse_yaml(text, path)


def parse_yaml(text: str, path: Path) -> Settings:
    """Return the settings in the text of a YAML file, as `read_yaml` does."""
    try:
        data = _parsed(text)
    except yaml.MarkedYAMLError as error:
        where = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{path}{where}: is not valid YAML: {_yaml_reason(error)}") from error
    except _NOT_YAML as error:
        raise ConfigError(f"{path}: is not valid YAML: {on_one_line(error)}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: must hold settings as 'key: value' lines")
    return cast(Settings, map_texts(data))


@lru_cache(maxsize=1024)
def _parsed(text: str) -> Any:
    """Return what YAML text holds. It is kept, because recipes share their bases: the caller changes a copy.

    As many are kept as the library ships, and more: one too few, and to list them all twice would find none of them.
    """
    check_size(text)
    try:
        return OmegaConf.to_container(OmegaConf.create(text), resolve=False)
    except AssertionError:  # OmegaConf's word for a single number
        return None


def map_data_paths(settings: Settings, change: Callable[[str, str], str], prefix: str = "") -> Settings:
    """Return settings of a recipe, nested or dotted, with every relative path of `data` changed.

    What is no path yet (a `${reference}`, an "input:NAME", `???`) stays as it is, and so does the name of a data set of
    Hugging Face (`hf`) that is no path of a file or folder.

    Args:
        change: from a setting's dotted key and its path to the new path.
    """

    def moved(name: str, value: Any) -> Any:
        if isinstance(value, dict) and _HF not in value:  # test splits by name
            return {split: moved(f"{name}.{split}", files) for split, files in value.items()}
        if isinstance(value, dict):
            return value | {_HF: map_texts(value[_HF], partial(moved_if_there, name))}
        return map_texts(value, lambda text: change(name, text) if _is_relative(text) else text)

    def moved_if_there(name: str, text: str) -> str:
        new = change(name, text) if _is_relative(text) else text
        return new if Path(new).exists() or Path(text).exists() else text

    changed: Settings = {}
    for key, value in settings.items():
        name = f"{prefix}{key}"
        group, _, last = name.rpartition(".")
        if last == _HF and group.startswith(_SPLITS):
            value = map_texts(value, partial(moved_if_there, group))
        elif name in _DATA_PATHS or (group == "data.test" and last not in _OF_DATA_SETS):
            value = moved(name, value)
        elif isinstance(value, dict):
            value = map_data_paths(value, change, f"{name}.")
        changed[key] = value
    return changed


def from_file(path: Path) -> Callable[[str, str], str]:
    """Return how `map_data_paths` makes paths whole that stand in a file: they are relative to it.

    One that is there from the current folder only is left as it is, with a line to the log.
    """

    def change(key: str, text: str) -> str:
        beside = path.parent / text
        if beside.exists() or not Path(text).exists():
            return str(beside)
        say_once(f"{key}: {text} is not beside {path}, but in the current folder, and is read from there")
        return text

    return change


def _is_relative(text: str) -> bool:
    return not (text in ("", UNSET) or text.startswith(INPUT) or "${" in text or Path(text).is_absolute())


@cache
def say_once(line: str) -> None:
    """Say a line to the log, once a process."""
    _log.warning(without_controls(line))


def refuse_sweep(path: Path, settings: Settings) -> None:
    """Refuse the settings of a sweep where a recipe is read: they have arms, as no recipe has.

    Raises:
        ConfigError: with the commands that read a sweep.
    """
    if isinstance(settings.get("arms"), list):
        named = shlex.quote(str(path))
        raise ConfigError(f"{path}: is a sweep, not a recipe: ostinato sweep {named}, ostinato table {named}")


def read_recipe(
    path: Path,
    find_base: FindBase,
    root: type[BaseModel],
    settle: Callable[[Settings, Settings | None], Settings],
    chain: tuple[Path, ...] = (),
) -> Settings:
    """Return the settings of a file merged onto its bases'.

    `base:` is a path to a YAML file, relative to the file that says it, or else the name of a recipe; paths of `data`
    are relative to the file that says them, too. The name and the description of a recipe are its own: neither is
    inherited. In the recipe of a run, which the program wrote, paths stay, and old names of settings are replaced by
    new ones.

    Args:
        settle: puts settings on top of others, see `ostinato.config.load.settle`.

    Raises:
        ConfigError: a file that cannot be read, or is a sweep, or bases that form a circle.
    """
    here = path.resolve()
    if here in chain:
        circle = " -> ".join(p.name for p in (*chain[chain.index(here) :], here))
        raise ConfigError([Problem("base", str(path), f"a recipe cannot derive from itself ({circle})")])
    own = read_yaml(path)
    refuse_sweep(path, own)
    if path.name == RUN_RECIPE and (path.parent / RUN_VERSIONS).is_file():
        own = settle(with_new_names(own, root), None)
    else:
        own = map_data_paths(own, from_file(path))
    base = own.pop("base", None)
    if base is None:
        return own
    if not isinstance(base, str):
        raise ConfigError([Problem("base", base, f"must be the name of a recipe or a path to a YAML file (in {path})")])
    beside = path.parent / base
    if not beside.is_file():
        if base.endswith(YAML_SUFFIXES):
            raise ConfigError([Problem("base", base, f"there is no such file beside {path}")])
        beside = find_base(base)
    parent = read_recipe(beside, find_base, root, settle, (*chain, here))
    for key in ("name", "description"):
        parent.pop(key, None)
    return settle(parent, own)


def check_size(text: str) -> None:
    """Look over YAML text without building anything: no recipe comes near these limits.

    Raises:
        ValueError: it is larger, nested deeper, or stands for more values, repeated anchors included, than is meant.
        YAMLError: it is not YAML.
    """
    if len(text.encode("utf-8", "replace")) > _MOST_BYTES:
        raise ValueError(_TOO_LARGE)
    n_values = [0]
    """Values so far, of the text and of every collection that is open."""
    anchors: dict[str, int] = {}
    opened: list[str | None] = []
    for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        match event:
            case yaml.CollectionStartEvent():
                opened.append(event.anchor)
                n_values.append(1)
                if len(opened) > _MOST_LEVELS:
                    raise ValueError(f"nested deeper than {_MOST_LEVELS} levels")
            case yaml.CollectionEndEvent():
                found, anchor = n_values.pop(), opened.pop()
                n_values[-1] += found
                if anchor is not None:
                    anchors[anchor] = found
            case yaml.AliasEvent():
                n_values[-1] += anchors.get(event.anchor or "", 1)
            case yaml.ScalarEvent():
                n_values[-1] += 1
                if len(event.value) > _MOST_DIGITS and event.implicit[0] and _NUMBER.fullmatch(event.value):
                    raise ValueError(f"a number of {len(event.value):,} digits")
        if n_values[-1] > _MOST_VALUES:
            raise ValueError(f"more than {_MOST_VALUES:,} values")


def parse_overrides(overrides: Sequence[str]) -> Settings:
    """Turn `a.b=value` into nested settings; values are YAML (null, numbers, lists).

    The last of several for one key wins; a group adds to what others say inside it.

    Raises:
        ConfigError: every override that is not of this form.
    """
    if isinstance(overrides, str | Mapping):
        raise ConfigError(f'overrides are {overrides!r}: a list of texts is needed, as ["model.d_model=256"]')
    problems: list[Problem] = []
    values: dict[tuple[str, ...], Any] = {}
    for text in overrides:
        key, sign, value = text.partition("=")
        path = key.strip().split(".")
        if not sign or not all(path) or not key.isprintable():
            problems.append(Problem("override", text, "must look like key=value, for example model.d_model=256"))
        elif not value.strip():
            problems.append(
                Problem(".".join(path), value, "needs a value (null for none, '' in quotes for empty text)")
            )
        elif value.lstrip().startswith("#"):
            problems.append(Problem(".".join(path), value, "is a comment in YAML: put it in quotes of its own"))
        else:
            try:
                found = parse_value(value)
            except _NOT_YAML as error:
                reason = f"is not a YAML value ({_yaml_reason(error)})"
                if _BARE_PATTERN.search(value):  # a shell takes the quotes of ["*"] away
                    reason += f": put patterns in quotes, and all of it for the shell: '{'.'.join(path)}=[\"*\"]'"
                problems.append(Problem(".".join(path), _short(value), reason))
                continue
            if isinstance(found, str) and " #" in value and value.strip() != found and value.strip().startswith(found):
                reason = "is a comment in YAML from ' #' on: put all of it in quotes of its own"
                problems.append(Problem(".".join(path), _short(value), reason))
            values.pop(tuple(path), None)
            values[tuple(path)] = found
    if problems:
        raise ConfigError(problems)
    settings: Settings = {}
    for keys, nested in values.items():
        for name in reversed(keys):
            nested = {name: nested}
        settings = merge(settings, nested, None)
    return settings


def parse_value(text: str) -> Any:
    """Return what YAML text means: `1e-3` a number, `[a, null]` a list, `null` None; `*.txt` is text."""
    if text.lstrip().startswith("*"):  # to YAML an alias, for which a value by itself has no anchor
        return text.strip()
    check_size(text)
    parsed = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={text}"]), resolve=False)
    return map_texts(cast(Settings, parsed)["value"])


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
            slot = slots_of(node)[key]
            before, after = child(slot, old), child(slot, value)
            kind = old.get("kind", slot.default_kind)
            if before and not are_alike(before, old, value):  # the old settings mean something else in the new kind
                merged[key] = value
            # The same kind, or kinds with the same keys. Kinds of a union, and tasks, have keys of their own.
            elif value.get("kind", kind) == kind or not (slot.is_union or (before and is_open(before))):
                merged[key] = merge(old, value, before)
            # Attentions and feed-forwards keep what both kinds have.
            elif before and after and keeps_on_change(before) and keeps_on_change(after):
                of_both = before.model_fields.keys() & after.model_fields
                merged[key] = {name: old[name] for name in old if name in of_both} | value
            else:
                merged[key] = value
    return merged


def resolve_references(settings: Settings) -> Settings:
    """Replace `${key}` by the value of that key, given by its full path.

    OmegaConf knows more than that (resolvers that read environment variables, paths made of references): a recipe of
    somebody else must not look around here, and references to references could grow without bounds.

    Raises:
        ConfigError: a reference to nothing, or to what holds references itself, or anything else in `${...}`.
    """
    texts = dict(texts_of(settings))
    if not any("${" in text for text in texts.values()):
        return copy.deepcopy(settings)
    holders = [key for key, text in texts.items() if _REFERENCE.search(text)]
    for key, text in texts.items():
        if "${" in _ESCAPED.sub("", _REFERENCE.sub("", text)):
            reason = "only ${key}, the full path of another setting, may stand here"
            raise ConfigError([Problem(key, _short(text), reason)])
        for name in _REFERENCE.findall(text):
            if any(other == name or other.startswith((f"{name}.", f"{name}[")) for other in holders):
                raise ConfigError([Problem(key, _short(text), f"refers to {name}, which holds a reference itself")])
    try:
        return cast(Settings, OmegaConf.to_container(OmegaConf.create(settings), resolve=True))
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or "recipe"
        is_unset = isinstance(error, InterpolationKeyError)
        hint = ": only what the recipe, its base or an override sets is found, no default" if is_unset else ""
        raise ConfigError(f"{key}: cannot be resolved: {str(error).splitlines()[0]}{hint}") from error


def write_yaml(settings: Settings, path: Path) -> None:
    """Write settings so that reading them gives equal ones."""
    path.write_text(readable_yaml(settings), encoding="utf-8")


def readable_yaml(settings: Settings) -> str:
    """Return settings as YAML that reads as equal ones."""
    return yaml_text(without_references(settings))


def without_references(settings: Settings) -> Settings:
    """Return settings in which a text that looks like a `${...}` reference is written so that it is not resolved."""
    escaped: Settings = map_texts(settings, lambda text: re.sub(r"(\\*)\$\{", lambda m: m[1] * 2 + "\\${", text))
    return escaped


def yaml_text(settings: Settings) -> str:
    """Return settings as YAML, `${...}` references left to be resolved by whoever reads it."""
    return yaml.dump(settings, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Writes what `OmegaConf.to_yaml` does, in a fifteenth of the time: that first makes an object of every value."""


_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(f"(?:{_NUMBER.pattern})$"), list("+-.0123456789"))


def map_texts(value: Any, change: Callable[[str], str] = str) -> Any:
    """Return settings with every text changed, and every key a text: YAML reads `1:` and `on:` as other things."""
    if isinstance(value, dict):
        return {str(key): map_texts(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [map_texts(item, change) for item in value]
    return change(value) if isinstance(value, str) else value


def texts_of(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield every text among settings, by its path as OmegaConf writes it."""
    match value:
        case str():
            yield path, value
        case dict():
            for key, item in value.items():
                yield from texts_of(item, f"{path}.{key}" if path else str(key))
        case list():
            for i, item in enumerate(value):
                yield from texts_of(item, f"{path}[{i}]")


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


def _yaml_reason(error: Exception) -> str:
    """Return what is wrong without the parser's account of where it was."""
    reason = getattr(error, "problem", None) or getattr(error, "context", None)
    return str(reason or on_one_line(error))


_KINDS = "recipes", "sweeps", "spaces", "claims"
"""Of files that are shipped."""


def shipped_directory(kind: str) -> Path:
    """Return the folder of the files of a kind."""
    return Path(str(resources.files("ostinato"))) / kind


@cache
def shipped_files(kind: str) -> dict[str, Path]:
    """Return the files of a kind by name, their path in the folder without its ending, in alphabetical order."""
    root = shipped_directory(kind)
    return {path.relative_to(root).with_suffix("").as_posix(): path for path in sorted(root.rglob("*.yaml"))}


def find_file(kind: str, name_or_path: str | Path, key: str) -> Path:
    """Return the file of a sweep, claim or space: one that is shipped, by its name, or the user's own.

    Args:
        kind: "sweeps", "claims" or "spaces". key: what the error calls it.

    Raises:
        ConfigError: there is none, with the nearest names.
    """
    name, shipped, what = str(name_or_path), shipped_files(kind), kind.removesuffix("s")
    path = shipped.get(name, Path(name_or_path))
    if (found := kind_of(path)) is not None:
        raise ConfigError([Problem(key, name, f"is {found}, not a {what}'s file or name")])
    if not path.is_file():
        hint = did_you_mean(kind, name) or f"; shipped are {', '.join(shipped)}"
        reason = "there is no such file" if path.suffix in YAML_SUFFIXES else f"no {what} or file of that name{hint}"
        raise ConfigError([Problem(key, name, reason)])
    return path


def did_you_mean(kind: str, name: str) -> str:
    """Return a hint: what else has that name, else those below a folder of that name, else the nearest; "" for none."""
    if others := [other.removesuffix("s") for other in _KINDS if other != kind and name in shipped_files(other)]:
        return f"; there is a {' and a '.join(others)} of that name"
    known = list(shipped_files(kind))
    beginning = [other for other in known if other.startswith(f"{name.rstrip('/')}/")]
    near = beginning or get_close_matches(name, known, n=3)
    return f"; did you mean {' or '.join(near)}?" if near else ""
