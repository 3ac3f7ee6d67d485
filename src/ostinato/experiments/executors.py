"""Where the jobs of a sweep are done: here, in processes of this machine (`pool`), or one day on a cluster."""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from ostinato.errors import OstinatoError
from ostinato.experiments.jobs import Job, do_job
from ostinato.experiments.locks import BusyError
from ostinato.experiments.watch import Event, EventReporter

How = Literal["done", "busy", "failed", "died"]
TakeEvent = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended.

    Args:
        how: done; busy: another process is at work on the run; failed: with an error; died: with its process.
        reason: why, for people; empty where it was done.
    """

    job: Job
    how: How
    reason: str = ""


class Executor(Protocol):
    """Does jobs in any order; nothing is asked of it but that a job has one outcome."""

    def submit(self, job: Job) -> None:
        """Take a job; return at once."""

    def collect(self, on_event: TakeEvent, timeout: float | None = None) -> Outcome | None:
        """Wait until a job that was submitted has ended, and return how; None where that took too many seconds.

        Args:
            on_event: told meanwhile what happens in all runs.
        """

    def stop(self) -> None:
        """End all work that is going on; runs stay as their last checkpoints left them."""


class InProcess:
    """Does one job after the other in this process, when its outcome is asked for."""

    def __init__(self) -> None:
        self._waiting: deque[Job] = deque()

    def submit(self, job: Job) -> None:
        """Take a job."""
        self._waiting.append(job)

    def collect(self, on_event: TakeEvent, timeout: float | None = None) -> Outcome:
        """Do the next job, however long it takes."""
        return attempt(self._waiting.popleft(), on_event)

    def stop(self) -> None:
        """Forget the jobs that wait."""
        self._waiting.clear()


def attempt(job: Job, on_event: TakeEvent) -> Outcome:
    """Do a job and say how it ended; a fault of this package is reported with its traceback."""
    try:
        do_job(job, EventReporter(job.name, on_event))
    except BusyError as error:
        return Outcome(job, "busy", str(error))
    except OstinatoError as error:
        return Outcome(job, "failed", str(error))
    except Exception:
        return Outcome(job, "failed", traceback.format_exc())
    return Outcome(job, "done")
