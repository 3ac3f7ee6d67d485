"""The catalogue of tasks: their protocols, sizes, files and first examples."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from ostinato.config.files import parse_overrides
from ostinato.config.load import check_recipe
from ostinato.data.registry import DataAccess
from ostinato.errors import OstinatoError
from ostinato.tasks.base import Task
from ostinato.tasks.overlap import measure_overlap
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
    """Return a task by name.

    Args:
        settings: its settings as `key=value`; `data.key=value` for those of the data (the user's own files).

    Raises:
        ConfigError: an unknown task or impossible settings, all of them together.
    """
    given = parse_overrides(settings)
    data = given.pop("data", {})
    recipe = check_recipe(
        {"task": {"kind": name, **given}, "data": data}, lambda recipe: task_problems(recipe.task.settings())
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

    Raises:
        DataError: the data cannot be downloaded or read.
    """
    splits = task.splits()
    examples: list[dict[str, object]] = []
    for example in islice(task.examples(splits[0]), _N_SHOWN):
        is_text = example.source is None
        texts = {"text": example.target} if is_text else {"source": example.source, "target": example.target}
        examples.append({**texts, **example.columns})
    return {
        "task": task.name,
        "origin": origin(task),
        "protocol": protocol(type(task)),
        "settings": task.config.model_dump(mode="json"),
        "sizes": {split: sum(1 for _ in task.examples(split)) for split in splits},
        "published": task.published_sizes(),
        "overlap": {split: asdict(measure_overlap(task, split)) for split in splits if split == "test"},
        "metrics": list(task.metrics),
        "forced": list(task.forced),
        "by": list(task.by),
        "files": [asdict(file) for file in task.files()],
        "examples": examples,
    }
