"""Jobs in worker processes of this machine, each of which does one job after the other.

A worker is spawned, not forked, has a pipe of its own to the process that gives it jobs, and ends when that process
does, however it ends. When a worker dies, its job has the status "died", and a new worker takes its place.
"""

from __future__ import annotations

import signal
import time
from collections import deque
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from ostinato.cluster.processes import end_with_parent
from ostinato.experiments.sweep.executors import Job, JobResult, TakeEvent, attempt
from ostinato.experiments.sweep.watch import Event

_PATIENCE_S = 5.0
"""For a worker that was told to end."""
_LONGEST_WAIT_S = 3600.0
"""At once: the system takes no more than 24 days."""


class _Worker:
    """One process, the pipe to it, and what it is doing."""

    def __init__(self) -> None:
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(target=_work, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()  # so that the pipe ends with the process
        self.job: Job | None = None

    def end(self) -> int | None:
        """End the process, if it has not; return its exit code. A run that is killed loses nothing that it saved."""
        self.process.kill()
        self.process.join()
        self.pipe.close()
        return self.process.exitcode


class LocalPool:
    """Does jobs in at most so many processes at once.

    Args:
        n_workers: they are started when there is something to do.
    """

    def __init__(self, n_workers: int) -> None:
        self.n_workers = n_workers
        self._waiting: deque[Job] = deque()
        self._ended: deque[JobResult] = deque()
        self._workers: list[_Worker] = []

    def submit(self, job: Job) -> None:
        """Take a job, and start on it where a worker is free."""
        self._waiting.append(job)
        self._assign()

    def collect(self, on_event: TakeEvent, timeout: float | None = None) -> JobResult | None:
        """Wait until a job has ended, passing events on; None where that took too many seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._ended:
            self._assign()
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return None
            pipes = {worker.pipe: worker for worker in self._workers}
            # The pipe of a worker that has died is ready too: reading it raises EOFError.
            for pipe in wait(list(pipes), None if left is None else min(left, _LONGEST_WAIT_S)):
                worker = pipes[pipe]  # type: ignore[index]
                try:
                    message = worker.pipe.recv()
                except (EOFError, OSError):
                    self._workers.remove(worker)
                    worker.process.join(_PATIENCE_S)
                    code = worker.end()
                    if worker.job is not None:
                        self._ended.append(JobResult(worker.job, "died", death_text(code)))
                    continue
                if isinstance(message, Event):
                    on_event(message)
                else:
                    worker.job = None
                    self._ended.append(message)
        return self._ended.popleft()

    def stop(self) -> None:
        """End all workers."""
        self._waiting.clear()
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.process.kill()
        for worker in workers:
            worker.end()

    def _assign(self) -> None:
        while self._waiting:
            free = next((worker for worker in self._workers if worker.job is None), None)
            if free is None:
                if len(self._workers) == self.n_workers:
                    return
                free = _Worker()
                self._workers.append(free)
            job = self._waiting.popleft()
            free.job = job
            with suppress(OSError):  # it has died meanwhile: its pipe says so when it is read
                free.pipe.send(job)


def death_text(code: int | None) -> str:
    """Return how a process ended that should not have, for people."""
    if code is None or code >= 0:
        return f"its process ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:  # one that has no name, as most of those of real-time programs
        name = f"signal {-code}"
    hint = "; the system does that when memory runs out" if name == "SIGKILL" else ""
    return f"its process was killed by {name}{hint}"


def _work(pipe: Connection) -> None:
    """Do jobs until there are no more; runs in the worker."""
    end_with_parent()
    with suppress(EOFError, BrokenPipeError):
        while True:
            pipe.send(attempt(pipe.recv(), pipe.send))
