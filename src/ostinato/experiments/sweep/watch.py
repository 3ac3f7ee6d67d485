"""Progress of a sweep: one view over all of its runs, whichever process does them, as lines or as bars."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, cast

from ostinato.config.recipe import Recipe
from ostinato.errors import without_controls
from ostinato.training.reporter import (
    Forgiving,
    Reporter,
    duration,
    end_line,
    evaluation_text,
    start_line,
    update_text,
    warning_text,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from ostinato.experiments.sweep.runs import PlannedRun

_LINE_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in a run.

    Args:
        name: of the run, for people. update: how far it is. text: for people.
    """

    name: str
    kind: Literal["start", "update", "note", "warning", "evaluation", "end"]
    update: int
    text: str


class EventReporter(Reporter):
    """Turns what a run reports into events.

    Args:
        name: of the run. send: takes every event. on_saved: called when a checkpoint is on disk.
    """

    def __init__(self, name: str, send: Callable[[Event], None], on_saved: Callable[[int], None] | None = None) -> None:
        self.name, self.send, self.on_saved = name, send, on_saved

    def on_start(self, recipe: Recipe, info: dict[str, Any]) -> None:
        """Send what is trained."""
        self.send(Event(self.name, "start", info["update"], start_line(recipe, info)))

    def on_update(self, record: dict[str, Any]) -> None:
        """Send how far it is."""
        self.send(Event(self.name, "update", record["update"], update_text(record)))

    def on_note(self, update: int, message: str) -> None:
        """Send it, without the update: runs of a sweep that have it in common send the same."""
        self.send(Event(self.name, "note", update, message))

    def on_warning(self, update: int, message: str) -> None:
        """Send it."""
        self.send(Event(self.name, "warning", update, warning_text(update, message)))

    def on_evaluation(self, record: dict[str, Any]) -> None:
        """Send the scores."""
        self.send(Event(self.name, "evaluation", record["update"], evaluation_text(record)))

    def on_save(self, update: int, directory: Path) -> None:
        """Tell of it."""
        if self.on_saved is not None:
            self.on_saved(update)

    def on_end(self, results: dict[str, Any]) -> None:
        """Send how it ended."""
        self.send(Event(self.name, "end", results["n_updates"], end_line(results)))


class Watcher:
    """Is called with the progress of a sweep; this one says nothing."""

    def on_kept(self, folder: Path) -> None:
        """The results that were there hold other rows, and have been moved to this folder; before all else."""

    def on_plan(self, runs: Sequence[PlannedRun], n_there: int) -> None:
        """The runs that are to be done now, and how many are there already."""

    def on_event(self, event: Event) -> None:
        """Something happened in one of them."""

    def on_result(self, run: PlannedRun, status: str, reason: str) -> None:
        """A run has ended. status: done, failed or died. reason: empty where it is done."""

    def close(self) -> None:
        """Always the last call."""


class LinesWatcher(Watcher):
    """One plain line an event, but for updates, of a run at most one a minute, and notes, once for all runs of a sweep.

    Args:
        say: takes every line.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._n_runs = self._n_ended = 0
        self._said: dict[str, float] = {}
        self._noted: set[str] = set()

    def say(self, line: str) -> None:
        """Say a line; where nobody hears it, the sweep goes on."""
        with suppress(OSError, ValueError):
            self._say(line)

    def on_kept(self, folder: Path) -> None:
        """Say it."""
        self.say(kept_text(folder))

    def on_plan(self, runs: Sequence[PlannedRun], n_there: int) -> None:
        """Say how many there are; several plans of one command add up."""
        self._n_runs += len(runs)
        self._noted.clear()
        self.say(f"{len(runs)} runs to do, {n_there} there")

    def on_event(self, event: Event) -> None:
        """Say it."""
        if event.kind == "note" and not is_new(event.text, self._noted):
            return
        now = time.monotonic()
        if event.kind == "update" and now - self._said.get(event.name, 0.0) < _LINE_EVERY_S:
            return
        self._said[event.name] = now
        text = f"update {event.update}  {event.text}" if event.kind == "update" else event.text
        self.say(f"{event.name}: {text}")

    def on_result(self, run: PlannedRun, status: str, reason: str) -> None:
        """Say it."""
        self._n_ended += 1
        self.say(f"[{self._n_ended}/{self._n_runs}] {result_text(run.name, run.directory, status, reason)}")


class RichWatcher(Watcher):
    """A bar for the whole sweep and one for every run that is going on; what is worth keeping stands above them.

    Args:
        console: where to draw.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        console.file = cast("IO[str]", Forgiving(console.file))
        self._progress: Progress | None = None
        self._bars: dict[str, TaskID] = {}
        self._sizes: dict[str, int] = {}
        self._done: dict[str, int] = {}
        self._noted: set[str] = set()
        self._n_runs = self._n_ended = 0
        self._began = time.monotonic()

    def on_kept(self, folder: Path) -> None:
        """Write it."""
        self._print(kept_text(folder))

    def on_plan(self, runs: Sequence[PlannedRun], n_there: int) -> None:
        """Draw the bar of all runs, as long as their updates."""
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

        self.close()
        # Runs of another sweep may have the names of those before.
        self._sizes = {run.name: run.recipe.training.n_updates for run in runs}
        self._bars, self._done = {}, {}
        self._noted.clear()
        self._n_runs += len(runs)
        self._print(f"{len(runs)} runs to do, {n_there} there")
        if not runs:
            return
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn())
        self._progress = Progress(
            *columns, TextColumn("{task.fields[text]}", markup=False), console=self.console, transient=True
        )
        self._progress.add_task("sweep", total=sum(self._sizes.values()), text="")
        self._progress.start()

    def on_event(self, event: Event) -> None:
        """Move the bars; write warnings above them, and notes, once for all runs of a sweep."""
        if self._progress is None:
            return
        self._done[event.name] = event.update
        if event.name not in self._bars:
            total = self._sizes.get(event.name, event.update)
            self._bars[event.name] = self._progress.add_task(event.name, total=total, text="")
        bar = self._bars[event.name]
        self._progress.update(bar, completed=event.update)
        if event.kind in ("update", "evaluation"):
            self._progress.update(bar, text=event.text)
        elif event.kind == "warning" or (event.kind == "note" and is_new(event.text, self._noted)):
            self._print(f"{event.name}: {event.text}")
        self._move()

    def on_result(self, run: PlannedRun, status: str, reason: str) -> None:
        """Take its bar away, and write how it ended above the others."""
        self._n_ended += 1
        self._done[run.name] = self._sizes.get(run.name, 0)
        if self._progress is not None and run.name in self._bars:
            self._progress.remove_task(self._bars.pop(run.name))
        text = result_text(run.name, run.directory, status, reason)
        self._print(f"[{self._n_ended}/{self._n_runs}] {text}")
        self._move()

    def close(self) -> None:
        """Take the bars away."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _print(self, line: str) -> None:
        self.console.print(without_controls(line), markup=False, highlight=False)

    def _move(self) -> None:
        if self._progress is not None:
            text = f"{self._n_ended} of {self._n_runs} runs, {duration(time.monotonic() - self._began)}"
            self._progress.update(self._progress.task_ids[0], completed=sum(self._done.values()), text=text)


def is_new(text: str, said: set[str]) -> bool:
    """Return whether a text has not been said yet, and note that it is said now."""
    is_first = text not in said
    said.add(text)
    return is_first


def result_text(name: str, directory: Path, status: str, reason: str) -> str:
    """Return how a run ended, for people."""
    return f"{name}: {status}, {directory}" if not reason else f"{name}: {status}: {reason}"


def kept_text(folder: Path) -> str:
    """Return where results of other rows are kept, for people."""
    return f"results of a sweep of this name with other rows are kept: {folder}"


def make_watcher(console: Console | None, say: Callable[[str], None]) -> Watcher:
    """Return bars for a terminal, lines for a dumb one or another stream, silence without a console."""
    if console is None:
        return Watcher()
    return RichWatcher(console) if console.is_interactive else LinesWatcher(say)
