"""Programs of others that are told the numbers of a run, where `training.loggers` names them.

    tensorboard    event files in the run's directory, in the folder tensorboard
    trackio        its store on this machine
    wandb          the service of Weights & Biases, or its offline files, as its own settings say

A run's own logs are written in any case, and one of these that fails in the middle of a run does not stop it. Nothing
is imported, and nothing leaves the machine, unless a recipe asks.
"""

from __future__ import annotations

import hashlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ostinato.config.files import RUN_VERSIONS
from ostinato.config.recipe import Recipe
from ostinato.config.training import LoggerName
from ostinato.data.disk import read_json_object
from ostinato.data.packs.make import Progress
from ostinato.errors import ConfigError, Problem, on_one_line
from ostinato.training.reporter import Reporter

_PROJECT = "ostinato"
_NOT_SHOWN = ("kind", "update", "n_labels")


def check_loggers(names: Sequence[LoggerName]) -> None:
    """Raise a ConfigError that names every logger that is not installed."""
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        told = f"not installed: pip install {' '.join(missing)}"
        raise ConfigError([Problem("training.loggers", list(names), told)])


def with_loggers(reporter: Reporter, names: Sequence[LoggerName]) -> Reporter:
    """Return a reporter that tells loggers, too."""
    others = [(TensorBoard if name == "tensorboard" else Tracker)(name, reporter.on_warning) for name in names]
    return Together([reporter, *others]) if others else reporter


class Together(Reporter):
    """Tells several reporters every event, in their order."""

    def __init__(self, reporters: Sequence[Reporter]) -> None:
        self.reporters = list(reporters)

    def on_packing(self, progress: Progress) -> None:
        """Tell them."""
        for one in self.reporters:
            one.on_packing(progress)

    def on_start(self, recipe: Recipe, info: dict[str, Any]) -> None:
        """Tell them."""
        for one in self.reporters:
            one.on_start(recipe, info)

    def on_update(self, record: dict[str, Any]) -> None:
        """Tell them."""
        for one in self.reporters:
            one.on_update(record)

    def on_note(self, update: int, message: str) -> None:
        """Tell them."""
        for one in self.reporters:
            one.on_note(update, message)

    def on_warning(self, update: int, message: str) -> None:
        """Tell them."""
        for one in self.reporters:
            one.on_warning(update, message)

    def on_evaluation(self, record: dict[str, Any]) -> None:
        """Tell them."""
        for one in self.reporters:
            one.on_evaluation(record)

    def on_save(self, update: int, directory: Path) -> None:
        """Tell them."""
        for one in self.reporters:
            one.on_save(update, directory)

    def on_end(self, results: dict[str, Any]) -> None:
        """Tell them."""
        for one in self.reporters:
            one.on_end(results)

    def close(self) -> None:
        """Tell them, the first one last: the others may have a warning for it."""
        for one in reversed(self.reporters):
            one.close()


class _Logger(Reporter, ABC):
    """A program of others: where it fails after its start, a warning says so once, and the run does without it.

    What it prints goes to standard error, because standard output may be a command's JSON.

    Args:
        name: of the program.
        warn: takes the update and the warning.
    """

    def __init__(self, name: LoggerName, warn: Callable[[int, str], None]) -> None:
        self._name, self._warn = name, warn
        self._told: Any = None  # what takes the numbers; None before its start, after its end, and where it has failed
        self._update = 0

    @abstractmethod
    def _begin(self, recipe: Recipe, info: dict[str, Any]) -> Any:
        """Return what takes the numbers."""

    @abstractmethod
    def _log(self, numbers: Mapping[str, float]) -> None:
        """Log numbers of the present update."""

    @abstractmethod
    def _end(self) -> None:
        """End what was begun."""

    def on_start(self, recipe: Recipe, info: dict[str, Any]) -> None:
        """Begin."""
        self._update = info["update"]
        with redirect_stdout(sys.stderr):
            self._told = self._begin(recipe, info)

    def on_update(self, record: dict[str, Any]) -> None:
        """Log its numbers."""
        self._update = record["update"]
        self._attempt(lambda: self._log(training_numbers(record)))

    def on_evaluation(self, record: dict[str, Any]) -> None:
        """Log its scores."""
        self._update = record["update"]
        self._attempt(lambda: self._log(evaluation_numbers(record)))

    def close(self) -> None:
        """End."""
        self._attempt(self._end)
        self._told = None

    def _attempt(self, call: Callable[[], None]) -> None:
        if self._told is None:
            return
        try:
            with redirect_stdout(sys.stderr):
                call()
        except Exception as error:  # each library raises its own
            self._told = None
            why = on_one_line(error) or type(error).__name__
            self._warn(
                self._update, f"{self._name} takes no more: {why}; the run does without it, its own logs are whole"
            )


class TensorBoard(_Logger):
    """Writes TensorBoard's event files; those of updates that a resumed run repeats are shown no more."""

    def _begin(self, recipe: Recipe, info: dict[str, Any]) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(str(Path(info["directory"]) / "tensorboard"), purge_step=info["update"] + 1)

    def _log(self, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._told.add_scalar(name, value, self._update)

    def _end(self) -> None:
        self._told.close()


class Tracker(_Logger):
    """Tells a module that has the functions of wandb: `init`, `log` and `finish`."""

    def _begin(self, recipe: Recipe, info: dict[str, Any]) -> Any:
        """Begin a run of the directory's name with the recipe as its configuration; where it is resumed, go on with it.

        Raises:
            ConfigError: the module refuses, for example because nobody is logged in.
        """
        module, directory = import_module(self._name), Path(info["directory"])
        # wandb finds a run by an id, which has to be there from its first start; trackio by its name, the last of it.
        again: dict[str, str] = {"resume": "allow"} if info["update"] else {}
        if self._name == "wandb":
            again = {"resume": "allow", "id": _identity(recipe, directory)}
        try:
            module.init(project=_PROJECT, name=directory.name, config=recipe.model_dump(mode="json"), **again)
        except Exception as error:  # each library raises its own
            told = f"it does not start: {on_one_line(error) or type(error).__name__}"
            raise ConfigError([Problem("training.loggers", self._name, told)]) from error
        return module

    def _log(self, numbers: Mapping[str, float]) -> None:
        self._told.log(numbers, step=self._update)

    def _end(self) -> None:
        self._told.finish()


def _identity(recipe: Recipe, directory: Path) -> str:
    """Return what a run is known by when it is resumed, and no other one, such as the next in its directory."""
    began = read_json_object(directory / RUN_VERSIONS).get("began")
    return hashlib.sha256(f"{directory.resolve()} {recipe.seed} {began}".encode()).hexdigest()[:16]


def training_numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a training record by name: load of experts, depths, and losses of a second pass, too."""
    found = {f"train/{name}": value for name, value in _numbers(record) if name not in _NOT_SHOWN}
    for router, own in record.get("routing", {}).items():
        found |= {f"experts/{router}/load/{i}": float(share) for i, share in enumerate(own["load"])}
        found[f"experts/{router}/n_dead"] = float(own["n_dead"])
    for stack, own in record.get("depth", {}).items():
        found |= {f"depth/{stack}/{name}": float(own[name]) for name in ("mean", "expected")}
    of_second = record.get("consistency", {}).get("losses", {})
    return found | {f"consistency/{name}": float(value) for name, value in of_second.items()}


def evaluation_numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the scores of an evaluation by name."""
    return {f"{record['split']}/{name}": value for name, value in _numbers(record["scores"])}


def _numbers(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in record.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield name, float(value)
