"""The runs that a page shows: by name, with their examples and their queues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from ostinato.analysis.studies.base import Subject
from ostinato.config.decoding import DecodingConfig
from ostinato.data.example import Example
from ostinato.data.registry import DataAccess
from ostinato.errors import ConfigError, DataError, Problem
from ostinato.evaluation.loading import LoadedRun
from ostinato.tasks.base import Task
from ostinato.tasks.own_files import data_set_of
from ostinato.tasks.registry import build_task
from ostinato.viewer.calls import Calls
from ostinato.viewer.schema import Depth, ExampleRef, Limits, Search

_UNREAD = "this run's examples cannot be read here"


class OpenRun:
    """A loaded run under its name on the page.

    Args:
        access: where data files are found; nothing is downloaded.
    """

    def __init__(self, name: str, run: LoadedRun, limits: Limits, access: DataAccess | None = None) -> None:
        self.name, self.run, self.limits = name, run, limits
        self.calls = Calls(limits.seconds, limits.waiting)
        self.subject = Subject(name, run, [])
        self._examples: dict[str, list[Example]] = {}
        self._task: Task | None = None
        self._why_none = ""
        self.splits: list[str] = []
        """Those of its task whose data is here, those that it is scored on first."""
        named, access = run.recipe.evaluation.splits or [], (access or DataAccess.default()).offline()
        try:
            task = build_task(run.recipe.task, run.recipe.data, access, trains=False)
            self.splits = [split for split in dict.fromkeys([*named, *task.splits()]) if self._is_here(task, split)]
            self._task = task if self.splits else None
        except (ConfigError, DataError) as error:
            self._why_none = f"{_UNREAD}: {error}"

    def _is_here(self, task: Task, split: str) -> bool:
        """Return whether a split's data is here: a run may be looked into where its data is not."""
        try:
            _check_is_here(task, split)
        except (ConfigError, DataError) as error:
            self._why_none = f"{_UNREAD}: {error}"
            return False
        return True

    @property
    def metrics(self) -> Sequence[str]:
        """The metrics of outputs that it is scored by; none for texts, which have no answer."""
        if self._task is None:
            return ()
        named = self.run.recipe.evaluation.metrics
        return self._task.metrics if named is None else named

    def examples(self, split: str) -> list[Example]:
        """Return the first examples of a split, which stay in memory.

        Raises:
            ConfigError: no such split. DataError: its data cannot be read here.
        """
        if self._task is None:
            raise DataError(self._why_none)
        if split not in self._examples:
            _check_is_here(self._task, split)
            self._examples[split] = list(islice(self._task.examples(split), self.limits.known))
        return self._examples[split]

    def example(self, ref: ExampleRef) -> Example:
        """Return an example.

        Raises:
            ConfigError: there is none of that number. DataError: its data cannot be read here.
        """
        known = self.examples(ref.split)
        if ref.index >= len(known):
            raise ConfigError(
                [Problem("example.index", ref.index, f"must be below {len(known)}, those that are shown")]
            )
        return known[ref.index]

    def execution(self, depth: Depth) -> dict[str, Any]:
        """Return the changes of the model's execution that a request asks for.

        Raises:
            ConfigError: more rounds than a request may ask for.
        """
        plans = {name: stack.plan.n_rounds for name, stack in self.run.model.stacks.items()}
        for name, n in depth.rounds.items():
            most = self.limits.rounds * plans.get(name, n)
            if n > most:
                raise ConfigError([Problem(f"rounds.{name}", n, f"must be at most {most}")])
        changes: dict[str, Any] = {}
        if depth.rounds:
            changes["rounds"] = depth.rounds
        if depth.threshold is not None:
            changes["halting_threshold"] = depth.threshold
        if depth.exit is not None or depth.exit_scope != "token":
            changes |= {"exit": depth.exit, "exit_scope": depth.exit_scope}
        return changes

    def decoding(self, search: Search, max_length: int | None = None) -> DecodingConfig:
        """Return how outputs are searched for: the run's own way, with what the request says.

        Args:
            max_length: tokens written at most; None: as many as the run's own settings allow.

        Raises:
            ConfigError: a combination that is not possible.
        """
        chosen: dict[str, object] = {"n_best": 1}
        if search.temperature is not None:
            if (search.beam or 1) > 1:
                raise ConfigError([Problem("temperature", search.temperature, "draws one output: beam must be 1")])
            chosen |= {"strategy": "sample", "temperature": search.temperature, "seed": search.seed}
        elif search.beam is not None:
            chosen["beam"] = search.beam
        found = self.run.decoding(**chosen)
        if max_length is None:
            return found
        return found.model_copy(update={"max_length": max_length, "max_length_ratio": 0.0})

    def close(self) -> None:
        """End its queue."""
        self.calls.close()


def _check_is_here(task: Task, split: str) -> None:
    """Refuse a split whose files are not here, or that is a data set which a hub would be asked for."""
    task.check_files([split])
    named = data_set_of(task.data, split)
    if named is not None and not Path(named.hf).exists():
        reason = "is no file or folder here, and the page asks no hub for it: type a text of your own"
        raise DataError(f"{split}: the data set {named.hf} {reason}")


def open_runs(runs: Mapping[str, LoadedRun], limits: Limits, access: DataAccess | None = None) -> dict[str, OpenRun]:
    """Return runs by the names that they have on the page."""
    return {name: OpenRun(name, run, limits, access) for name, run in runs.items()}
