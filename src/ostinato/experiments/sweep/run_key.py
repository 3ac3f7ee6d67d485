"""The key of a run is its content address: runs that must find the same have the same key, wherever they lie.

    key = SHA-256 of (settings that decide the result, version of this package, SHA-256 of every split's examples)

Settings are the resolved recipe's without those that describe it or may change freely (`ostinato.training.changes`),
and without those at their defaults, so that a setting that is added later leaves the keys of existing runs as they are.
So does a new name: settings stand under the names that they had first (`ostinato.config.renamed`). What was changed in
a recipe after the run's first updates, and when, belongs to the key.
What only says where something lies is left out, and what is there stands in its place: for files of examples the hash
of the splits, for a tokenizer that of its files, for the run that training starts from that run's key. What follows
from these is left out: vocabulary sizes, and the special symbols of a tokenizer that keeps its own. The commit is not
part of a key: it is recorded beside the results.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from ostinato.config.data import DataSetConfig
from ostinato.config.own_code import is_own
from ostinato.config.recipe import Recipe
from ostinato.config.renamed import first_name
from ostinato.config.schema import slots_of
from ostinato.data.disk import MADE_AGAIN, hash_of, hash_of_hashes, read_json_object, reading, sha256_of, write_json
from ostinato.data.hub import may_change, state_of
from ostinato.data.packs.make import content_hash
from ostinato.data.packs.source import PackSource
from ostinato.data.paths import find_files
from ostinato.data.registry import DataAccess
from ostinato.data.tokenizers import tokenizer_files
from ostinato.errors import CheckpointError, ConfigError, DataError
from ostinato.evaluation.loading import find_checkpoint
from ostinato.experiments.sweep.locks import write_lock
from ostinato.models.checkpoint import WEIGHTS
from ostinato.tasks.base import Task
from ostinato.tasks.own_files import data_set_of, given_splits, paths_of
from ostinato.tasks.packing import pack_source
from ostinato.tasks.recipes import load_recipe
from ostinato.tasks.registry import build_task, task_config
from ostinato.tasks.start import is_run
from ostinato.training.changes import is_free
from ostinato.training.prepare import other_splits, with_splits
from ostinato.training.rundir import RunDirectory, describe_split
from ostinato.version import __version__, source_hash

_FILES = ("data.train", "data.dev", "data.test")
_TOKENIZER_FILES = ("data.tokenizer.path", "data.target_tokenizer.path")
_START = "training.init_from"
_HASHES = "data-hashes"


def run_key(
    recipe: Recipe,
    hashes: Mapping[str, str],
    *,
    start: str | None = None,
    version: str = __version__,
    changes: Sequence[Mapping[str, Any]] = (),
    noted: Mapping[str, str] | None = None,
) -> str:
    """Return the content address of a run.

    Args:
        recipe: resolved, the splits of its final evaluation named. hashes: SHA-256 of the examples of every split that
            the run reads. start: key of the run whose weights it starts from. changes: lines of its changes.jsonl.
        noted: see `key_settings`.
    """
    settings = key_settings(recipe, start, first_names=True, noted=noted)
    content = {"settings": settings, "version": version, "data": dict(hashes)}
    late = [{"update": line["update"], "changes": line["changes"]} for line in changes if line["update"]]
    return hash_of(content | ({"changes": late} if late else {}))


def key_settings(
    recipe: Recipe, start: str | None = None, *, first_names: bool = False, noted: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the settings that a key is made of, by their dotted paths.

    Args:
        start: key of the run whose weights it starts from. first_names: by the oldest names that settings had.
        noted: SHA-256 of a tokenizer's files by path, as a run noted them; others are read.
    """
    noted = noted or {}
    of_vocabulary = {f"model.{name}" for name in (*recipe.model.vocabulary_sizes(1, 1), "source_separator_id")}
    left_out = {"name", _START, *_FILES, *_TOKENIZER_FILES, *of_vocabulary}
    stated = dict(_stated(recipe.model_copy(update={"task": task_config(recipe.task)}), "", first_names))
    followed = [f"{name}." for name in _FILES]  # data sets
    tokenizers = dict(zip(_TOKENIZER_FILES, (recipe.data.tokenizer, recipe.data.target_tokenizer), strict=True))
    if any(one is not None and one.kind == "hf" for one in tokenizers.values()):
        followed.append("model.special_ids.")  # the tokenizer's, whose files are in the key
    kept = {key: value for key, value in stated.items() if not key.startswith(tuple(followed))}
    found = {key: value for key, value in kept.items() if key not in left_out and not is_free(key)}
    for key, tokenizer in tokenizers.items():
        if tokenizer is not None and (files := tokenizer_files(tokenizer, noted)):
            hashes = [noted.get(str(file)) or sha256_of(file) for file in files]
            found[key] = hashes[0] if len(hashes) == 1 else hash_of_hashes(hashes)
    return found if start is None else found | {_START: start}


def _stated(config: BaseModel, path: str, first_names: bool) -> Iterator[tuple[str, Any]]:
    """Yield every setting that is not at its default, and of every group that is not of its default kind the kind."""
    values = config.model_dump(mode="json")
    for name, slot in slots_of(type(config)).items():
        value, default = getattr(config, name), slot.default
        key = f"{path}{first_name(type(config), name) if first_names else name}"
        if isinstance(value, BaseModel):
            if type(value) is not type(default):
                yield key, getattr(value, "kind", "set")
            yield from _stated(value, f"{key}.", first_names)
        elif value != default:
            yield key, values[name]


def key_of_run(directory: Path) -> str:
    """Return the content address of a run that has been started, from what its directory says.

    Raises:
        CheckpointError: it is no run's, its files cannot be read, or a run that it goes back to is gone.
    """
    run = RunDirectory(directory)
    if not run.exists:
        raise CheckpointError(f"{directory} holds no run")
    recipe, start = load_recipe(directory), None
    if (place := _start_of(directory, recipe)) is not None:
        if not is_run(place):
            reason = f"began from {place}, which holds no run, and whose key is part of its own"
            raise CheckpointError(f"{directory} {reason}: put that run back, there or beside this one")
        start = key_of_run(place)
    version = run_versions(directory)["ostinato"]
    # An imported or converted run has read no data: what it is, its weights say.
    hashes = run.data_hashes() or {"weights": sha256_of(find_checkpoint(directory, "last") / WEIGHTS)}
    noted = noted_files(directory, recipe)
    return run_key(recipe, hashes, start=start, version=version, changes=run.recorded_changes(), noted=noted)


def noted_files(directory: Path, recipe: Recipe) -> dict[str, str]:
    """Return the SHA-256 of the user's own files that a run began with, by path; of its tokenizers those of its start.

    Raises:
        CheckpointError: its data.json cannot be read.
    """
    found, start = RunDirectory(directory).file_hashes(), _start_of(directory, recipe)
    if start is not None:
        # It keeps the tokenizers of that run, whatever their files held by then; one that is gone says nothing.
        with suppress(CheckpointError, ConfigError):
            return found | noted_files(start, load_recipe(start))
    return found


def _start_of(directory: Path, recipe: Recipe) -> Path | None:
    """Return the run that a run began from: where it was, or, of a folder of runs that was moved, beside it."""
    if recipe.training.init_from is None:
        return None
    start = Path(recipe.training.init_from)
    beside = directory.parent / start.name
    return beside if not is_run(start) and is_run(beside) and beside != directory else start


def run_versions(directory: Path) -> dict[str, Any]:
    """Return versions.json of a run.

    Raises:
        CheckpointError: it cannot be read.
    """
    path = directory / "versions.json"
    with reading(path):
        found = read_json_object(path)
        return found | {"ostinato": str(found["ostinato"])}


@dataclass
class DataHashes:
    """The hashes of splits, computed once: reading a large data set for its hash takes longer than all else.

    Args:
        folder: where they are kept from one process to the next; None: nowhere.
        access: where published files come from; None: the default cache and mirror.
    """

    folder: Path | None = None
    access: DataAccess | None = None
    _known: dict[str, dict[str, str]] = field(default_factory=dict)

    def resolve(self, recipe: Recipe) -> tuple[Recipe, dict[str, str]]:
        """Return a recipe with the splits of its evaluation named, and the hash of every split its run reads.

        Raises:
            ConfigError: settings that do not fit the task. DataError: data that cannot be read.
        """
        task = build_task(recipe.task, recipe.data, self.access)
        recipe = with_splits(recipe, task)
        train = task.splits()[0]
        splits = [train, *other_splits(recipe, train)]
        source = pack_source(recipe, task)
        held = splits if source is None else [split for split in splits if split != train]
        name = hash_of(_origin(task, recipe, splits, source))
        note = None
        # Nothing says whether a task of the user's own still makes the same examples, or a hub still has the same rows.
        is_known = not is_own(recipe.task.kind) and not any(map(may_change, _data_sets(recipe)))
        if self.folder is not None and is_known:
            note = self.folder / _HASHES / f"{name[:16]}.json"
        if name not in self._known and note is not None and note.is_file():
            with reading(note, DataError, MADE_AGAIN):
                kept = read_json_object(note, DataError, MADE_AGAIN)
                self._known[name] = {split: str(kept[split]) for split in held}
        elif name not in self._known:
            found = {split: str(describe_split(split, task.examples(split))["sha256"]) for split in held}
            if note is not None:
                with suppress(OSError):  # who may only read the store reads the data every time
                    note.parent.mkdir(parents=True, exist_ok=True)
                    with write_lock(note.parent.parent, _HASHES):
                        write_json(note, found)
            self._known[name] = found
        if source is not None and train not in self._known[name]:  # it is quick to say, and a hub may have another now
            self._known[name] = {train: content_hash(source)} | self._known[name]
        return recipe, self._known[name]


def _origin(task: Task, recipe: Recipe, splits: list[str], source: PackSource | None) -> dict[str, Any]:
    """Return what decides the examples without reading them: settings, which files there are, how a pack reads them."""
    columns = [name for name in type(recipe.data).model_fields if name.endswith("_field")]
    data = recipe.data.model_dump(mode="json", include={"train", "dev", "test", "packed", *columns})
    named = [str(file) for split in given_splits(recipe.data) for file in find_files(paths_of(recipe.data, split))]
    there = {name: path for name, path in ((name, Path(name).absolute()) for name in named) if path.is_file()}
    sets = _data_sets(recipe)
    # Path, size and time of change; null where there is no such file.
    states = {name: [str(path), path.stat().st_size, path.stat().st_mtime_ns] for name, path in there.items()}
    return {
        "task": task.config.model_dump(mode="json"),
        "data": data,
        "files": dict.fromkeys(named) | states,
        **({"data_sets": [state_of(given) for given in sets]} if sets else {}),
        "published": {file.key: task.access.known_hash(file) for file in task.files()},
        **({"pack": source.settings()} if source is not None else {}),
        "splits": splits,
        "source": _reading_source(),
    }


def _data_sets(recipe: Recipe) -> list[DataSetConfig]:
    """Return the data sets that stand in place of files."""
    return [given for split in given_splits(recipe.data) if (given := data_set_of(recipe.data, split)) is not None]


@cache
def _reading_source() -> str:
    """Return the hash of the source that examples are read and made by; it is asked for with every arm."""
    return source_hash(("tasks", "data"))
