"""The catalogue of tasks: their protocols, sizes, files and first examples."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from ostinato.config.files import YAML_SUFFIXES, parse_overrides
from ostinato.config.load import check_recipe
from ostinato.data.hub import title
from ostinato.data.registry import DataAccess, RemoteFile
from ostinato.errors import MissingFileError, OstinatoError
from ostinato.tasks.base import Task
from ostinato.tasks.overlap import measure_overlap
from ostinato.tasks.own_files import data_set_of, paths_of
from ostinato.tasks.recipes import load_recipe
from ostinato.tasks.registry import TASKS, build_task, task_problems

GENERATED, DOWNLOADED, OWN = "generated", "download", "your files"
_N_SHOWN = 3


@dataclass(frozen=True, slots=True)
class TaskEntry:
    """One task with its default settings.

    Args:
        name: its `task.kind`.
        origin: where the data comes from.
        splits, metrics: by name; empty for a task on files of the user's own, which needs them to exist.
        n_bytes: size of the download, without files of unknown size.
        licence: of the downloaded files.
        summary: first line of its protocol.
    """

    name: str
    origin: str
    splits: tuple[str, ...]
    metrics: tuple[str, ...]
    n_bytes: int
    licence: str
    summary: str

    def as_dict(self) -> dict[str, Any]:
        """Return the entry for JSON."""
        return asdict(self)


def list_tasks() -> list[TaskEntry]:
    """Return every task, in alphabetical order."""
    return [_entry(name) for name in sorted(TASKS)]


def _entry(name: str) -> TaskEntry:
    summary = protocol(TASKS[name]).splitlines()[0]
    try:
        task = open_task(name)
    except OstinatoError:
        # A task on files of the user's own cannot be built without them.
        return TaskEntry(name, OWN, (), (), 0, "", summary)
    files = task.files()
    licences = dict.fromkeys(file.licence for file in files)
    return TaskEntry(
        name=name,
        origin=origin(task),
        splits=tuple(task.splits()),
        metrics=tuple(task.metrics),
        n_bytes=sum(file.n_bytes or 0 for file in files),
        licence=", ".join(licences),
        summary=summary,
    )


def open_task(name: str, settings: Sequence[str] = (), access: DataAccess | None = None) -> Task:
    """Return a task by name, or that of a recipe.

    Args:
        name: of a task, or a recipe's name, YAML file or run directory.
        settings: the task's own as `key=value`, `data.key=value` for those of the data (the user's own files); of a
            recipe its settings as `dotted.key=value`.

    Raises:
        ConfigError: an unknown task or impossible settings, all of them together.
    """
    if name not in TASKS and (name.endswith(YAML_SUFFIXES) or "/" in name or Path(name).is_dir()):
        recipe = load_recipe(name, settings)
        return build_task(recipe.task, recipe.data, access)
    given = parse_overrides(settings)
    data = given.pop("data", {})
    recipe = check_recipe(
        {"task": {"kind": name, **given}, "data": data},
        lambda recipe: task_problems(recipe.task.settings(), recipe.data),
    )
    return build_task(recipe.task, recipe.data, access)


def origin(task: Task) -> str:
    """Return where a task's data comes from."""
    if task.files():
        return DOWNLOADED
    return GENERATED if task.is_generated else OWN


def protocol(task: type[Task]) -> str:
    """Return the protocol of a task, which is its class's documentation."""
    return inspect.getdoc(task) or task.__name__


def describe_task(task: Task) -> dict[str, Any]:
    """Return protocol, sizes, overlap, metrics, files and the first examples of a task; reads or downloads its data.

    What cannot be had is left out and named: `missing` has the reason for every split that lacks a published file, and
    a file says whether it is here (`is_here`) and whether a split is read from it (`is_read`). `stand_ins` are splits
    that are read from the user's own files in the place of published ones; these have no published size.

    Raises:
        DataError: the data cannot be read, or differs from what was published.
    """
    asked = _Asked(**asdict(task.access))
    task = type(task)(task.config, task.data, asked)
    splits = task.splits()
    stand_ins: dict[str, list[str]] = {}
    if task.data.train and not task.config.reads_own_files:
        given = data_set_of(task.data, "train")
        stand_ins[splits[0]] = paths_of(task.data, "train") if given is None else [title(given)]
    sizes, missing = dict[str, int](), dict[str, str]()
    for split in splits:
        try:
            sizes[split] = sum(1 for _ in task.examples(split))
        except MissingFileError as error:
            missing[split] = str(error)
    examples_of = next(iter(sizes), None)
    examples: list[dict[str, object]] = []
    for example in islice(task.examples(examples_of), _N_SHOWN) if examples_of else ():
        is_text = example.source is None
        texts = {"text": example.target} if is_text else {"source": example.source, "target": example.target}
        # A column may have the name of a text: where data.source_field=question, a row can have a source of its own.
        columns = {f"column {name!r}" if name in texts else name: value for name, value in example.columns.items()}
        examples.append({**texts, **columns})
    return {
        "task": task.name,
        "origin": origin(task),
        "protocol": protocol(type(task)),
        "settings": task.config.model_dump(mode="json"),
        "sizes": sizes,
        "missing": missing,
        "stand_ins": stand_ins,
        "published": {split: n for split, n in task.published_sizes().items() if split not in stand_ins},
        "overlap": {"test": asdict(measure_overlap(task, "test"))} if {"train", "test"} <= set(sizes) else {},
        "has_sources": task.config.has_sources,
        "metrics": list(task.metrics),
        "forced": list(task.forced),
        "by": list(task.by),
        "files": [
            asdict(file) | {"is_here": asked.is_here(file), "is_read": file in asked.files} for file in task.files()
        ],
        "examples_of": examples_of,
        "examples": examples,
    }


@dataclass(frozen=True)
class _Asked(DataAccess):
    """An access that remembers which files it was asked for."""

    files: set[RemoteFile] = field(default_factory=set)

    def fetch(self, file: RemoteFile) -> Path:
        """Return the path of the checked file."""
        self.files.add(file)
        return super().fetch(file)
