"""Reporters of a run: the training loop itself prints nothing, it calls a reporter.

A record is what metrics.jsonl gets (see `ostinato.training.records`), joined with its timing.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from ostinato.config.recipe import Recipe
from ostinato.errors import without_controls

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar

    from ostinato.data.packs.make import Progress


class Reporter:
    """Receives every event of a run, in order; what a subclass does not override does nothing."""

    def on_packing(self, progress: Progress) -> None:
        """Before the start: a part of a large training split has been tokenised (`ostinato.data.packs`)."""

    def on_start(self, recipe: Recipe, info: dict[str, Any]) -> None:
        """A run starts or resumes; `info`: directory, device, processes, parameters, n_examples, update (0 for a new
        one), new_parameters (those that `training.init_from` lacks)."""

    def on_update(self, record: dict[str, Any]) -> None:
        """Every log_every updates, and after the last: update, loss, nll, lr, grad_norm, n_labels, seconds,
        labels_per_second, peak_memory in bytes (where the system says).

        `loss` is smoothed, and like `nll` without balance losses and costs of depth; these are in `routing`, where
        there are routers, and in `depth`, where tokens halt. Where `training.round_loss` weighs several rounds, `loss`
        is their weighted loss and `nll` that of the last one; with its kind improvement `loss` is the gate's cross
        entropy. With `training.consistency` `loss` includes that of the second pass, weighted; `consistency` has it,
        and the distance of states, raw and weighted.
        """

    def on_note(self, update: int, message: str) -> None:
        """Something that is no problem, but that the user should know: what was changed when the run was resumed, or
        which settings a run that it starts from decides."""

    def on_warning(self, update: int, message: str) -> None:
        """A problem was found at an update, for example a router that has collapsed."""

    def on_evaluation(self, record: dict[str, Any]) -> None:
        """An evaluation ended: update, split, its scores, is_best, seconds."""

    def on_save(self, update: int, directory: Path) -> None:
        """A checkpoint is on disk."""

    def on_end(self, results: dict[str, Any]) -> None:
        """The run is finished; `results` is what results.json holds."""

    def close(self) -> None:
        """Always the last call, after an error too."""


class _TextReporter(Reporter, ABC):
    @abstractmethod
    def write(self, line: str) -> None:
        """Write a line."""

    def on_packing(self, progress: Progress) -> None:
        """Write how far it is."""
        self.write(str(progress))

    def on_start(self, recipe: Recipe, info: dict[str, Any]) -> None:
        """Write what is trained, on how many examples and on which device."""
        self.write(start_line(recipe, info))

    def on_note(self, update: int, message: str) -> None:
        """Write the note."""
        self.write(f"update {update}  {message}")

    def on_warning(self, update: int, message: str) -> None:
        """Write the warning."""
        self.write(warning_text(update, message))

    def on_evaluation(self, record: dict[str, Any]) -> None:
        """Write the scores."""
        self.write(evaluation_text(record))

    def on_end(self, results: dict[str, Any]) -> None:
        """Write how it ended."""
        self.write(end_line(results))


class Forgiving:
    """A stream that drops what it cannot write in place of raising an error: a run goes on where the pipe or terminal
    that shows it is closed."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text, if it can be."""
        with suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush, if that can be."""
        with suppress(OSError, ValueError):
            self._stream.flush()


class LinesReporter(_TextReporter):
    """One plain line per event: for logs, pipes and batch systems.

    Args:
        stream: where the lines go; where it takes no more, as a closed pipe, the run goes on.
    """

    def __init__(self, stream: IO[str]) -> None:
        self.stream = Forgiving(stream)
        self._first, self._n_updates, self._began = 0, 1, time.perf_counter()

    def write(self, line: str) -> None:
        """Write a line, at once."""
        self.stream.write(without_controls(f"{line}\n"))
        self.stream.flush()

    def on_start(self, recipe: Recipe, info: dict[str, Any]) -> None:
        """Write what is trained, on how many examples and on which device."""
        self._first, self._n_updates, self._began = info["update"], recipe.training.n_updates, time.perf_counter()
        super().on_start(recipe, info)

    def on_update(self, record: dict[str, Any]) -> None:
        """Write progress, loss, speed and time left, by the speed of this session."""
        update, n_updates = record["update"], self._n_updates
        seconds = (time.perf_counter() - self._began) / max(update - self._first, 1)
        left = duration(seconds * (n_updates - update))
        self.write(f"update {update}/{n_updates}  {update_text(record)}  {left} left")


class RichReporter(_TextReporter):
    """A progress bar on a terminal, with the other events as lines above it.

    Args:
        console: where to draw; where the terminal is closed, the run goes on.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        console.file = cast("IO[str]", Forgiving(console.file))
        self._progress: Bar | None = None

    def write(self, line: str) -> None:
        """Print a line above the bar."""
        self.console.print(without_controls(line), markup=False, highlight=False)

    def on_start(self, recipe: Recipe, info: dict[str, Any]) -> None:
        """Draw the bar."""
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.close()
        super().on_start(recipe, info)
        columns = (TextColumn("{task.fields[text]}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        # Records may come hours apart; the time left is told from two of them.
        self._progress = Progress(*columns, console=self.console, transient=True, speed_estimate_period=math.inf)
        self._progress.add_task("train", total=recipe.training.n_updates, completed=info["update"], text="")
        self._progress.start()

    def on_update(self, record: dict[str, Any]) -> None:
        """Move the bar."""
        if self._progress is not None:
            bar = self._progress.task_ids[0]
            self._progress.update(bar, completed=record["update"], text=update_text(record))

    def on_end(self, results: dict[str, Any]) -> None:
        """Take the bar away, and write how it ended."""
        self.close()
        super().on_end(results)

    def close(self) -> None:
        """Take the bar away."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def make_reporter(console: Console | None) -> Reporter:
    """Return a progress bar for a terminal, plain lines for a dumb one or another stream, silence without a console."""
    if console is None:
        return Reporter()
    if console.is_interactive:
        return RichReporter(console)
    return LinesReporter(console.file)


def duration(seconds: float) -> str:
    """Return seconds as 1:02:03 or 2:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def start_line(recipe: Recipe, info: dict[str, Any]) -> str:
    """Return what a run is, in one line."""
    begin = f"resuming at update {info['update']}" if info["update"] else f"{recipe.training.n_updates} updates"
    where = info["device"]
    if (n := info.get("processes", 1)) > 1:
        where = f"{n} processes on {where.partition(':')[0]}"
    parts = f"{info['parameters']:,} parameters, {info['n_examples']:,} examples, {where}"
    text = f"{recipe.name}: {parts}, seed {recipe.seed}, {begin}"
    if not (origin := recipe.training.init_from) or info["update"]:
        return text
    new = info["new_parameters"]
    return f"{text}, from {origin}" + (f"; new parameters: {', '.join(new)}" if new else "")


def update_text(record: dict[str, Any]) -> str:
    """Return the numbers of a training record, for people."""
    speed = f"{record['labels_per_second']:,.0f} tokens/s" if record.get("labels_per_second") else ""
    return f"loss {record['nll']:.4f}  norm {record['grad_norm']:.2f}  lr {record['lr']:.2e}  {speed}".rstrip()


def warning_text(update: int, message: str) -> str:
    """Return a warning, for people."""
    return f"update {update}  warning: {message}"


def evaluation_text(record: dict[str, Any]) -> str:
    """Return the numbers of an evaluation, for people."""
    numbers = [f"{key} {value:.4f}" for key, value in record["scores"].items() if isinstance(value, float)]
    mark = "  (best)" if record["is_best"] else ""
    return f"update {record['update']}  {record['split']}: {'  '.join(numbers)}{mark}"


def end_line(results: dict[str, Any]) -> str:
    """Return how a run ended, in one line."""
    stopped = f" ({results['stopped']})" if results["stopped"] else ""
    return (
        f"{results['n_updates']} updates in {duration(results['seconds'])}{stopped}; "
        f"best: update {results['best_update']}"
    )
