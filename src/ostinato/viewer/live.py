"""Runs as they are trained, read from their logs: only what was added since is read, and never written to."""

from __future__ import annotations

import hashlib
import json
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ostinato.errors import ConfigError, OstinatoError, Problem
from ostinato.system_errors import kind_of
from ostinato.tasks.recipes import load_recipe
from ostinato.training.records import METRICS, TIMINGS
from ostinato.version import __version__
from ostinato.viewer.chosen import ChosenRun
from ostinato.viewer.schema import EvaluationPoint, Metrics, MetricsQuery, TrainingPoint, Watched, WatchedRun

MOST = 2**20
"""Bytes of a log that one answer is made of."""
_LONGEST_LINE = 2**24
_TAIL = 65_536
_MARKED = 1024
"""Bytes before a place by which a log is known that was cut back and has grown again."""
_RECENT = 20
"""Last timings from which the time left is taken."""


class WatchedRunFiles:
    """The files of a run, which may not be there yet.

    Args:
        n_updates: of its recipe, where that is known before it begins.
    """

    def __init__(self, name: str, directory: Path, n_updates: int | None = None) -> None:
        self.name, self.directory, self._n_updates = name, directory, n_updates
        self._recipe: tuple[int, int] | None = None
        """When its recipe was written and how long it is, as it was read last."""

    def summary(self) -> WatchedRun:
        """Return how far the run is."""
        log = self.directory / METRICS
        n_updates = self.n_updates()
        finished = (self.directory / "results.json").is_file()
        try:
            age = max(0.0, time.time() - log.stat().st_mtime)
        except OSError:
            begun = (self.directory / "recipe.yaml").is_file()
            state: Any = "finished" if finished else "begun" if begun else "waiting"
            return WatchedRun(name=self.name, state=state, update=0, n_updates=n_updates, left=None, age=None)
        update, seconds = self._speed()
        left = None if finished or seconds is None or n_updates is None else max(0, n_updates - update) * seconds
        state = "finished" if finished else "begun"
        return WatchedRun(name=self.name, state=state, update=update, n_updates=n_updates, left=left, age=age)

    def n_updates(self) -> int | None:
        """Return how many updates the run is to have; a run that is resumed may have more than it began with."""
        try:
            found = (self.directory / "recipe.yaml").stat()
        except OSError:
            return self._n_updates
        if self._recipe != (written := (found.st_mtime_ns, found.st_size)):  # a page asks every two seconds
            with suppress(OstinatoError):
                self._n_updates = load_recipe(self.directory).training.n_updates
            self._recipe = written
        return self._n_updates

    def _speed(self) -> tuple[int, float | None]:
        """Return the last update that was logged, and the seconds that one takes now."""
        path = self.directory / TIMINGS
        size = path.stat().st_size if path.is_file() else 0
        start = max(0, size - _TAIL)
        lines = read_lines(path, start).records
        if start and lines:
            lines = lines[1:]  # it may begin in the middle
        last = deque((r for r in lines if r.get("kind") == "training"), maxlen=_RECENT)
        if not last:
            return 0, None
        updates, seconds = [r["update"] for r in last], [_number(r.get("seconds")) or 0.0 for r in last]
        # What was logged before the run was resumed says nothing of now.
        resumed = max((i for i in range(1, len(updates)) if updates[i] <= updates[i - 1]), default=0)
        # The first record says when its own updates ended only.
        done, spent = updates[-1] - updates[resumed], sum(seconds[resumed + 1 :])
        if not done and not resumed:
            done, spent = updates[-1], seconds[-1]
        return updates[-1], spent / done if done else None

    def metrics(self, query: MetricsQuery) -> Metrics:
        """Return what was added to the logs."""
        log = read_lines(self.directory / METRICS, query.metrics, query.metrics_mark)
        timed = read_lines(self.directory / TIMINGS, query.timings, query.timings_mark)
        size = _size(self.directory / METRICS)
        more = log.place < size and bool(log.records)
        training = [_training(r) for r in log.records if r.get("kind") == "training"]
        return Metrics(
            run=self.summary(),
            again=log.is_cut or timed.is_cut,
            more=more,
            metrics=log.place,
            metrics_mark=log.mark,
            timings=timed.place,
            timings_mark=timed.mark,
            training=training,
            evaluations=[_evaluation(r) for r in log.records if r.get("kind") == "evaluation"],
            speeds={
                r["update"]: speed
                for r in timed.records
                if r.get("kind") == "training" and (speed := _number(r.get("labels_per_second"))) is not None
            },
        )


class Added(NamedTuple):
    """What was added to a log.

    Args:
        records: of its whole lines. place: byte where the next one begins. mark: of what stands before that place.
        is_cut: the log was cut back, and is read from its beginning.
    """

    records: list[dict[str, Any]]
    place: int
    mark: str
    is_cut: bool


def read_lines(path: Path, start: int, mark: str = "") -> Added:
    """Return what was added to a log from a byte on.

    A log that is shorter than what was read, or has something else before that byte, was cut back: it is read from its
    beginning. Lines that are no records of an update, or are far longer than any, are left out: a log may be damaged,
    and the rest of it is shown. What is no plain file, such as a device, which may have no end, is not read.

    Args:
        mark: what was read before left; empty: whatever stands there.
    """
    if kind_of(path) is not None:
        return Added([], 0, "", start > 0)
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            is_cut = start > size or mark not in ("", _mark(file, start))
            start = 0 if is_cut else start
            file.seek(start)
            content = file.read(MOST)
            while b"\n" not in content and len(content) < _LONGEST_LINE and (part := file.read(MOST)):
                content += part
            whole = content[: content.rfind(b"\n") + 1]
            if len(content) >= _LONGEST_LINE:  # which is no record: its parts are passed over
                whole = whole or content
            place = start + len(whole)
            new_mark = _mark(file, place)
    except OSError:
        return Added([], 0, "", start > 0)
    found = []
    for line in whole.splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict) and type(record.get("update")) is int:
            found.append(record)
    return Added(found, place, new_mark, is_cut)


def _mark(file: BinaryIO, place: int) -> str:
    """Return a hash of the bytes before a place."""
    first = max(0, place - _MARKED)
    file.seek(first)
    return hashlib.sha256(file.read(place - first)).hexdigest() if place else ""


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _numbers(values: Any) -> list[float]:
    found = [_number(value) for value in values] if isinstance(values, list) else []
    return [value for value in found if value is not None]


def _groups(record: Mapping[str, Any], name: str, part: str) -> dict[str, list[float]]:
    groups = record.get(name)
    if not isinstance(groups, dict):
        return {}
    return {key: _numbers(own[part]) for key, own in groups.items() if isinstance(own, dict) and part in own}


def _training(record: Mapping[str, Any]) -> TrainingPoint:
    return TrainingPoint(
        update=record["update"],
        loss=_number(record.get("nll")),
        lr=_number(record.get("lr")),
        grad_norm=_number(record.get("grad_norm")),
        load=_groups(record, "routing", "load"),
        depth=_groups(record, "depth", "histogram"),
    )


def _evaluation(record: Mapping[str, Any]) -> EvaluationPoint:
    scores = record.get("scores")
    known = scores.items() if isinstance(scores, dict) else ()
    numbers = {name: number for name, value in known if (number := _number(value)) is not None}
    return EvaluationPoint(update=record["update"], split=str(record.get("split", "")), scores=numbers)


class Watch:
    """The runs that one page watches."""

    def __init__(self, runs: Sequence[ChosenRun]) -> None:
        self._runs = {run.name: WatchedRunFiles(run.name, run.directory, run.n_updates) for run in runs}

    def runs(self) -> Watched:
        """Return how far all of them are."""
        return Watched(version=__version__, runs=[run.summary() for run in self._runs.values()])

    def metrics(self, query: MetricsQuery) -> Metrics:
        """Return what was added to the logs of one of them.

        Raises:
            ConfigError: there is none of that name.
        """
        if query.run not in self._runs:
            raise ConfigError([Problem("run", query.run, f"must be one of {', '.join(self._runs)}")])
        return self._runs[query.run].metrics(query)
