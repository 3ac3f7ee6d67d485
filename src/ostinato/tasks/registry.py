"""The tasks by name, and the check of their settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from ostinato.config.base import DEFER_CHECKS
from ostinato.config.data import DataConfig
from ostinato.config.own_code import is_own, own_class
from ostinato.config.recipe import TaskRef
from ostinato.config.schema import describe
from ostinato.errors import ConfigError, Inert, Problem, see
from ostinato.tasks.base import Task, TaskConfig

if TYPE_CHECKING:
    from ostinato.data.registry import DataAccess

_CLASSES = {
    "agreement": "AgreementTask",
    "algorithmic": "AlgorithmicTask",
    "arc": "ArcTask",
    "babi": "BabiTask",
    "cfq": "CfqTask",
    "classification": "ClassificationTask",
    "cogs": "CogsTask",
    "files": "FilesTask",
    "geoquery": "GeoQueryTask",
    "lambada": "LambadaTask",
    "learning_to_execute": "LearningToExecuteTask",
    "listops": "ListOpsTask",
    "logical_inference": "LogicalInferenceTask",
    "maze": "MazeTask",
    "mcwq": "McwqTask",
    "parity": "ParityTask",
    "passivization": "PassivizationTask",
    "pcfg_set": "PcfgSetTask",
    "relay": "RelayTask",
    "scan": "ScanTask",
    "span_extraction": "SpanExtractionTask",
    "sudoku": "SudokuTask",
    "tagging": "TaggingTask",
    "translation": "TranslationTask",
}
"""The class of every task; its module has the task's name."""


class _Tasks(Mapping[str, type[Task]]):
    """Our tasks by name, and any class of the user's own by `package.module:Class`; it lists ours.

    The module of a task is imported when the task is looked up, because a run needs one of them.
    """

    def __getitem__(self, kind: str) -> type[Task]:
        if is_own(kind):
            return own_class(kind, Task, "task.kind")  # type: ignore[type-abstract]
        name = _CLASSES[kind]
        task: type[Task] = getattr(import_module(f"ostinato.tasks.{kind}"), name)
        return task

    def __iter__(self) -> Iterator[str]:
        return iter(_CLASSES)

    def __len__(self) -> int:
        return len(_CLASSES)


TASKS: Mapping[str, type[Task]] = _Tasks()
"""Every task by its `kind`."""


def task_problems(settings: dict[str, Any], data: DataConfig | None = None) -> list[Problem]:
    """Return all problems of a task's settings, with keys such as `task.split`.

    Args:
        settings: the settings as given, `kind` included (default "files", as in a recipe).
        data: where given, also what of it has no effect on the task, and what it makes useless.
    """
    config, problems = _check(settings)
    return problems if config is None or data is None else [*problems, *config.data_problems(data)]


def task_config(ref: TaskRef) -> TaskConfig:
    """Return the checked settings of a task.

    Raises:
        ConfigError: every problem of the settings.
    """
    config, problems = _check(ref.settings())
    if config is None or problems:
        raise ConfigError(problems)
    return config


def build_task(ref: TaskRef, data: DataConfig, access: DataAccess | None = None, *, trains: bool = True) -> Task:
    """Return a task; nothing is downloaded or read yet.

    Args:
        ref: its kind and settings.
        data: the user's own files, for the tasks that use them.
        access: where published files come from; None: the default cache and mirror.
        trains: all files of the user's own must be there, one to train on among them; False: those of a split are
            missed when it is read.

    Raises:
        ConfigError: every problem of the settings, or files of the user's own that are missing.
    """
    config = task_config(ref)
    task = TASKS[config.kind](config, data, access)
    if trains:
        task.check_files()
    return task


def _check(settings: dict[str, Any]) -> tuple[TaskConfig | None, list[Problem]]:
    kind = settings.get("kind", "files")
    try:
        node = TASKS[str(kind)].config_type
    except KeyError:
        close = get_close_matches(str(kind), TASKS, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        return None, [Problem("task.kind", kind, f"must be one of {', '.join(TASKS)}{hint}{see('tasks')}")]
    except ConfigError as error:
        return None, list(error.problems)
    try:
        config = node.model_validate({**settings, "kind": kind}, context=DEFER_CHECKS)
    except ValidationError as error:
        return None, list(_explain(error, node, str(kind)))
    problems = list(config.problems("task."))
    return (config if all(isinstance(one, Inert) for one in problems) else None), problems


def _explain(error: ValidationError, node: type[TaskConfig], kind: str) -> Iterator[Problem]:
    """Yield one problem for every setting that pydantic refused."""
    first: dict[str, Any] = {}
    for item in error.errors(include_url=False):
        name = ".".join(map(str, item["loc"])) or "kind"
        if "error" in item.get("ctx", {}):  # what a validator of the class raised, whose words say why
            yield Problem(f"task.{name}", kind if name == "kind" else item["input"], str(item["ctx"]["error"]))
        else:
            first.setdefault(str(item["loc"][0]), item["input"])
    for name, given in first.items():
        field = node.model_fields.get(name)
        if field is not None:
            yield Problem(f"task.{name}", given, f"must be {describe(field.annotation, field.metadata)}")
            continue
        valid = [key for key in node.model_fields if key != "kind"]
        close = get_close_matches(name, valid, n=1)
        hint = f"did you mean task.{close[0]}? " if close else ""
        keys = f"its settings are {', '.join(valid)}" if valid else "it has no settings"
        yield Problem(f"task.{name}", given, f"the task {kind} has no such setting; {hint}{keys}{see('tasks')}")
