"""Jobs that a cluster does: Ray (`sweep.ray_cluster`), SLURM (`sweep.slurm_cluster`), or any other `Cluster`.

All that a job and the process that gave it share is the store's folder, which must be one that all nodes see: the job
writes what happens in its run to a file there, which is read here. A job whose node dies is started again; the run goes
on from its last checkpoint, under the same lock and the same key.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import time
from collections import deque
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol

from ostinato.errors import on_one_line
from ostinato.experiments.sweep.executors import Job, JobResult, Status, TakeEvent, attempt
from ostinato.experiments.sweep.watch import Event
from ostinato.version import __version__

EVENTS = "events"
"""Folder of the store: what happens in the runs that a cluster is at work on, a file each."""
_LOOK_EVERY_S = 0.5
_BUSY_AGAIN_S = 30.0
"""A node that was cut off may hold a lock for some time, and every try is a job of the cluster."""
N_RETRIES = 2


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
        """Take a job; return at once."""

    def stop(self) -> None:
        """Called last, when all tasks have ended or were cancelled."""


@dataclass
class _Going:
    """A job that the cluster is at work on.

    Args:
        events: file that it writes. n_started: how often it was started.
    """

    job: Job
    task: ClusterTask
    events: Path
    n_started: int
    n_read: int = 0
    update: int = 0

    def pass_events(self, on_event: TakeEvent) -> None:
        """Pass on what was written since the last call; a line that is being written waits for the next one."""
        with self.events.open("rb") as file:
            file.seek(self.n_read)
            lines = file.read().splitlines(keepends=True)
        for line in lines:
            if line.endswith(b"\n"):
                self.n_read += len(line)
                event = Event(**json.loads(line))
                self.update = event.update
                on_event(event)


class ClusterExecutor:
    """An `Executor` that gives its jobs to a cluster.

    Args:
        most: jobs that the cluster has at once; None: all. n_retries: how often a job is started again whose node died.
    """

    def __init__(self, cluster: Cluster, *, most: int | None = None, n_retries: int = N_RETRIES) -> None:
        self.cluster, self.most, self.n_retries = cluster, most, n_retries
        self._waiting: deque[tuple[Job, int]] = deque()
        self._going: list[_Going] = []

    def submit(self, job: Job) -> None:
        """Take a job."""
        self._waiting.append((job, 0))
        self._start_waiting()

    def collect(self, on_event: TakeEvent, timeout: float | None = None) -> JobResult | None:
        """Wait until a job has ended, passing events on; None where that took too many seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._start_waiting()
            for going in list(self._going):
                is_done = going.task.done()  # before its events: what it wrote last is read, too
                going.pass_events(on_event)
                if is_done and (result := self._end(going, on_event)) is not None:
                    return result
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
            one.events.unlink(missing_ok=True)
        self.cluster.stop()

    def _start_waiting(self) -> None:
        while self._waiting and (self.most is None or len(self._going) < self.most):
            job, n_started = self._waiting.popleft()
            job_there = replace(job, directory=job.directory.absolute())
            events = job_there.directory.parent / EVENTS / f"{job.directory.name}-{secrets.token_hex(4)}.jsonl"
            events.parent.mkdir(parents=True, exist_ok=True)
            events.touch()
            self._going.append(_Going(job, self.cluster.start(job_there, events), events, n_started + 1))

    def _end(self, going: _Going, on_event: TakeEvent) -> JobResult | None:
        """Return how a job that is done has ended; None where it is started again."""
        self._going.remove(going)
        going.events.unlink(missing_ok=True)
        try:
            status, reason = going.task.result()
        except Exception as error:
            reason = on_one_line(error) or type(error).__name__
            if going.n_started > self.n_retries:
                return JobResult(going.job, "died", f"{reason} (started {going.n_started} times)")
            text = f"its process or node has died, the run is started again: {reason}"
            on_event(Event(going.job.name, "warning", going.update, text))
            self._waiting.append((going.job, going.n_started))
            return None
        return JobResult(going.job, status, reason, again_after=_BUSY_AGAIN_S)


def attempt_on_node(job: Job, events: Path, version: str, folder: str) -> tuple[Status, str]:
    """Train and measure a run as `attempt` does; runs on a node.

    Args:
        events: file that the process which gave the job has made, and reads.
        version: of this package there. folder: in which it works, and that relative paths of data are relative to.

    Returns:
        Status and reason, see `JobResult`.
    """
    node = platform.node()
    if not events.is_file():
        return "failed", f"{events.parent.parent} is another folder on {node}, or none: give --store one that all share"
    if version != __version__:
        return "failed", f"{node} has ostinato {__version__}, and not {version}"
    if not Path(folder).is_dir():
        return "failed", f"{folder}, which paths of data are relative to, is not there on {node}"
    os.chdir(folder)
    with events.open("a", encoding="utf-8") as file:

        def write(event: Event) -> None:
            file.write(json.dumps(asdict(event)) + "\n")
            file.flush()

        result = attempt(job, write)
    return result.status, result.reason
