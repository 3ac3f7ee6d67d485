"""Jobs that a cluster does: Ray (`sweep.ray_cluster`), SLURM (`sweep.slurm_cluster`), or any other `Cluster`.

All that a job and the process that gave it share is the store, a folder that all nodes see or an address
(`sweep.remote`): the job writes what happens in its run to a file there, which is read here. A job whose node dies is
started again; the run goes on from its last checkpoint, under the same lock and the same key.
"""

from __future__ import annotations

import json
import math
import os
import platform
import secrets
import time
from collections import deque
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol

from ostinato.errors import ConfigError, OstinatoError, on_one_line
from ostinato.experiments.sweep.executors import Job, JobResult, Status, TakeEvent, attempt
from ostinato.experiments.sweep.remote import RemoteError, RemoteStore
from ostinato.experiments.sweep.watch import Event
from ostinato.version import __version__

EVENTS = "events"
"""Folder of the store: what happens in the runs that a cluster is at work on, a file each."""
_LOOK_EVERY_S = 0.5
_PUBLISH_EVERY_S = 3.0
"""Seconds between two writes of events at an address, and between two looks at them."""
_BUSY_AGAIN_S = 30.0
"""A node that was cut off may hold a lock for some time, and every try is a job of the cluster."""
_REFUSED_AGAIN_S = 30.0
"""Seconds until a cluster is asked again that has refused a job: its queue may be full, or its master be away."""
N_RETRIES = 2


class RefusedError(ConfigError):
    """A cluster takes no job now: its queue is full, its master away, or the settings are wrong."""


class ClusterTask(Protocol):
    """A job that was given to a cluster."""

    def done(self) -> bool:
        """Whether it has ended, however it ended."""

    def result(self) -> tuple[Status, str]:
        """Return what `attempt_on_node` returned; called once it is done.

        Raises:
            Exception: it ended without a result: its process or its node has died.
        """

    def cancel(self) -> None:
        """End it as soon as may be."""


class Cluster(Protocol):
    """Does jobs on its nodes, by `attempt_on_node`."""

    def start(self, job: Job, events: Path) -> ClusterTask:
        """Take a job; return at once.

        Raises:
            RefusedError: not now, or never. ConfigError: never, as the cluster lacks what it needs.
        """

    def stop(self) -> None:
        """Called last, when all tasks have ended or were cancelled."""


class EventFile:
    """What happens in a run, a JSON line an event: a job writes it, and whoever gave the job reads it.

    Args:
        path: below a store's folder. remote: the store at an address where it is instead; None: it is a file.
    """

    def __init__(self, path: Path, remote: RemoteStore | None = None) -> None:
        self.path, self._remote = path, remote
        self._name = f"{path.parent.name}/{path.name}"
        self._lines = self._update = b""
        """What is, or waits to be, at an address; the last update is not among it yet."""
        self._seen = 0.0
        """When it was last written there, or looked at."""

    def make(self) -> None:
        """Make it, empty: a node that does not see it has another folder."""
        if self._remote is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.touch()

    def read(self, n_read: int, *, is_last: bool = False) -> bytes:
        """Return what comes after so many bytes.

        At an address it looks every few seconds; one that does not answer gives nothing, as it may later.

        Args:
            is_last: look in any case.
        """
        if self._remote is None:
            with self.path.open("rb") as file:
                file.seek(n_read)
                return file.read()
        if not is_last and time.monotonic() - self._seen < _PUBLISH_EVERY_S:
            return b""
        self._seen = time.monotonic()
        try:
            return self._remote.read(self._name, n_read)
        except RemoteError:
            return b""

    def append(self, event: Event) -> None:
        """Write an event; at an address every few seconds, and of updates in between only the last one."""
        line = json.dumps(asdict(event)).encode() + b"\n"
        if self._remote is None:
            place = os.O_WRONLY | os.O_APPEND  # not made anew: nobody reads it any more
            with suppress(FileNotFoundError), os.fdopen(os.open(self.path, place), "ab") as file:
                file.write(line)
            return
        if event.kind == "update":
            self._update = line
        else:
            self._lines += self._update + line
            self._update = b""
        if time.monotonic() - self._seen > _PUBLISH_EVERY_S:
            self.flush()

    def flush(self) -> None:
        """Write what waits. At an address that cannot be written it goes on waiting: the run is worth more."""
        self._lines, self._update = self._lines + self._update, b""
        if self._remote is not None and self._lines:
            with suppress(RemoteError):
                self._remote.write(self._name, self._lines)
            self._seen = time.monotonic()

    def remove(self) -> None:
        """Delete it."""
        if self._remote is None:
            self.path.unlink(missing_ok=True)
        else:
            with suppress(RemoteError):
                self._remote.remove(self._name)


@dataclass
class _Waiting:
    """A job that the cluster is still to be given.

    Args:
        n_started: how often it was started. n_refused: how often it was refused when no job was going on, since another
            was taken. told: why it waits.
    """

    job: Job
    n_started: int = 0
    n_refused: int = 0
    told: str | None = None


@dataclass
class _Going:
    """A job that the cluster is at work on.

    Args:
        events: that it writes. n_started: how often it was started.
    """

    job: Job
    task: ClusterTask
    events: EventFile
    n_started: int
    n_read: int = 0
    update: int = 0

    def pass_events(self, on_event: TakeEvent, *, is_last: bool) -> None:
        """Pass on what was written since the last call; a line that is being written waits for the next one."""
        for line in self.events.read(self.n_read, is_last=is_last).splitlines(keepends=True):
            if line.endswith(b"\n"):
                self.n_read += len(line)
                try:
                    event = Event(**json.loads(line))
                except (TypeError, ValueError):  # its writer died in it, and the next one went on behind it
                    continue
                self.update = event.update
                on_event(event)


class ClusterExecutor:
    """An `Executor` that gives its jobs to a cluster.

    Where the cluster refuses the very first job, settings are wrong: an error. Later it may be full: a job waits until
    others have ended, and has failed where it is refused more than `n_retries` times on end when none is going on.

    Args:
        most: jobs that the cluster has at once; None: all. n_retries: how often a job is started again whose node died.
    """

    def __init__(self, cluster: Cluster, *, most: int | None = None, n_retries: int = N_RETRIES) -> None:
        self.cluster, self.most, self.n_retries = cluster, most, n_retries
        self._waiting: deque[_Waiting] = deque()
        self._going: list[_Going] = []
        self._has_started = False
        self._start_after = -math.inf
        self._ended: deque[JobResult] = deque()

    def submit(self, job: Job) -> None:
        """Take a job."""
        self._waiting.append(_Waiting(job))
        self._start_waiting()

    def collect(self, on_event: TakeEvent, timeout: float | None = None) -> JobResult | None:
        """Wait until a job has ended, passing events on; None where that took too many seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._start_waiting(on_event)
            if self._ended:
                return self._ended.popleft()
            for going in list(self._going):
                is_done = going.task.done()  # before its events: what it wrote last is read, too
                going.pass_events(on_event, is_last=is_done)
                if is_done and (result := self._end(going, on_event)) is not None:
                    self._ended.append(result)
            if self._ended:  # all that were found in one look: each look opens a file of every job
                continue
            left = _LOOK_EVERY_S if deadline is None else min(_LOOK_EVERY_S, deadline - time.monotonic())
            if left <= 0:
                return None
            time.sleep(left)

    def stop(self) -> None:
        """Cancel what is going on."""
        self._waiting.clear()
        going, self._going = self._going, []
        for one in going:
            one.task.cancel()
        for one in going:
            one.events.remove()
        self.cluster.stop()

    def _start_waiting(self, on_event: TakeEvent | None = None) -> None:
        while (
            self._waiting
            and (self.most is None or len(self._going) < self.most)
            and time.monotonic() >= self._start_after
        ):
            waiting = self._waiting.popleft()
            job = waiting.job
            job_there = replace(job, directory=job.directory.absolute())
            path = job_there.directory.parent / EVENTS / f"{job.directory.name}-{secrets.token_hex(4)}.jsonl"
            events = EventFile(path, None if job.remote is None else RemoteStore(job.remote))
            events.make()
            try:
                task = self.cluster.start(job_there, path)
            except ConfigError as error:
                events.remove()
                if not self._has_started:
                    raise
                waiting.n_refused += not self._going
                if not isinstance(error, RefusedError) or waiting.n_refused > self.n_retries:
                    self._ended.append(JobResult(job, "failed", str(error)))
                    continue
                self._waiting.append(waiting)
                self._start_after = time.monotonic() + _REFUSED_AGAIN_S
                text = f"waits, as the cluster takes no job: {on_one_line(error)}"
                if on_event is not None and waiting.told != text:
                    waiting.told = text
                    on_event(Event(job.name, "warning", 0, text))
                return
            self._has_started = True
            for other in self._waiting:
                other.n_refused = 0
            self._going.append(_Going(job, task, events, waiting.n_started + 1))

    def _end(self, going: _Going, on_event: TakeEvent) -> JobResult | None:
        """Return how a job that is done has ended; None where it is started again."""
        self._going.remove(going)
        going.events.remove()
        try:
            status, reason = going.task.result()
        except Exception as error:
            reason = on_one_line(error) or type(error).__name__
            if going.n_started > self.n_retries:
                return JobResult(going.job, "died", f"{reason} (started {going.n_started} times)")
            text = f"its process or node has died, the run is started again: {reason}"
            on_event(Event(going.job.name, "warning", going.update, text))
            self._waiting.append(_Waiting(going.job, going.n_started))
            return None
        if going.job.remote is not None and status == "done":  # what its row is made of
            try:
                RemoteStore(going.job.remote).fetch_rows(going.job.directory)
            except RemoteError as error:
                status, reason = "failed", str(error)
        return JobResult(going.job, status, reason, again_after=_BUSY_AGAIN_S)


def attempt_on_node(job: Job, events: Path, version: str, folder: str) -> tuple[Status, str]:
    """Train and measure a run as `attempt` does; runs on a node.

    Args:
        events: what the process which gave the job reads, see `EventFile`.
        version: of this package there. folder: in which it works, and that relative paths of data are relative to.

    Returns:
        Status and reason, see `JobResult`.
    """
    node = platform.node()
    try:
        remote = None if job.remote is None else RemoteStore(job.remote)
    except OstinatoError as error:
        return "failed", f"{node}: {error}"
    if remote is None and not events.is_file():
        return "failed", f"{events.parent.parent} is another folder on {node}, or none: give --store one that all share"
    if version != __version__:
        return "failed", f"{node} has ostinato {__version__}, and not {version}"
    if Path(folder).is_dir():
        os.chdir(folder)
    elif remote is None:
        return "failed", f"{folder}, which paths of data are relative to, is not there on {node}"
    try:
        job.directory.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return "failed", f"{job.directory.parent}: cannot be made on {node}: {error.strerror}; see OSTINATO_CACHE"
    file = EventFile(events, remote)
    try:
        result = attempt(job, file.append)
    finally:
        file.flush()
    return result.status, result.reason
