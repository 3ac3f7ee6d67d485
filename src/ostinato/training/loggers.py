"""Programs of others that are told the numbers of a run, where `training.loggers` names them.

    tensorboard    event files in the run's directory, in the folder tensorboard
    trackio        its store on this machine
    wandb          the service of Weights & Biases, or its offline files, as its own settings say

A run's own logs are written in any case. Nothing is imported, and nothing leaves the machine, unless a recipe asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ostinato.config.recipe import Recipe
from ostinato.config.training import LoggerName
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
    made: Mapping[str, Callable[[], Reporter]] = {"tensorboard": TensorBoard}
    others = [made[name]() if name in made else Tracker(name) for name in names]
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
        """Tell them."""
        for one in self.reporters:
            one.close()


class TensorBoard(Reporter):
    """Writes TensorBoard's event files; those of updates that a resumed run repeats are shown no more."""

    def __init__(self) -> None:
        self._writer: Any = None

    def on_start(self, recipe: Recipe, info: dict[str, Any]) -> None:
        """Open a file."""
        from torch.utils.tensorboard import SummaryWriter

        folder = Path(info["directory"]) / "tensorboard"
        self._writer = SummaryWriter(str(folder), purge_step=info["update"] + 1)

    def on_update(self, record: dict[str, Any]) -> None:
        """Write its numbers."""
        self._write(record["update"], training_numbers(record))

    def on_evaluation(self, record: dict[str, Any]) -> None:
        """Write its scores."""
        self._write(record["update"], evaluation_numbers(record))

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _write(self, update: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, update)


class Tracker(Reporter):
    """Tells a module that has the functions of wandb: `init`, `log` and `finish`.

    Args:
        name: of the module.
    """

    def __init__(self, name: LoggerName) -> None:
        self._name = name
        self._module: Any = None

    def on_start(self, recipe: Recipe, info: dict[str, Any]) -> None:
        """Begin a run of that name with the recipe as its configuration.

        Raises:
            ConfigError: the module refuses, for example because nobody is logged in.
        """
        self._module = import_module(self._name)
        settings = recipe.model_dump(mode="json")
        try:
            self._module.init(project=_PROJECT, name=Path(info["directory"]).name, config=settings)
        except Exception as error:  # each library raises its own
            self._module = None
            told = f"it does not start: {on_one_line(error) or type(error).__name__}"
            raise ConfigError([Problem("training.loggers", self._name, told)]) from error

    def on_update(self, record: dict[str, Any]) -> None:
        """Log its numbers."""
        self._module.log(training_numbers(record), step=record["update"])

    def on_evaluation(self, record: dict[str, Any]) -> None:
        """Log its scores."""
        self._module.log(evaluation_numbers(record), step=record["update"])

    def close(self) -> None:
        """End the run."""
        if self._module is not None:
            self._module.finish()
            self._module = None


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
