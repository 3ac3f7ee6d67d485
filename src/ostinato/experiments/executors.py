"""Where the jobs of a sweep are done: here, in processes of this machine, or one day on a cluster."""

from __future__ import annotations

import traceback
from collections import deque
from dataclasses import dataclass
from typing import Literal, Protocol

from ostinato.errors import OstinatoError
from ostinato.experiments.jobs import BusyError, Job, do_job
from ostinato.training.reporter import Reporter

How = Literal["done", "busy", "failed", "died"]


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

    def collect(self, timeout: float | None = None) -> Outcome | None:
        """Wait until a job that was submitted has ended, and return how; None where that took too many seconds."""

    def stop(self) -> None:
        """End all work that is going on; runs stay as their last checkpoints left them."""


class InProcess:
    """Does one job after the other in this process, when its outcome is asked for.

    Args:
        reporter: told about every event of every run.
    """

    def __init__(self, reporter: Reporter | None = None) -> None:
        self.reporter = reporter
        self._waiting: deque[Job] = deque()

    def submit(self, job: Job) -> None:
        """Take a job."""
        self._waiting.append(job)

    def collect(self, timeout: float | None = None) -> Outcome:
        """Do the next job, however long it takes."""
        return attempt(self._waiting.popleft(), self.reporter)

    def stop(self) -> None:
        """Forget the jobs that wait."""
        self._waiting.clear()


def attempt(job: Job, reporter: Reporter | None = None) -> Outcome:
    """Do a job and say how it ended; a fault of this package is reported with its traceback."""
    try:
        do_job(job, reporter)
    except BusyError as error:
        return Outcome(job, "busy", str(error))
    except OstinatoError as error:
        return Outcome(job, "failed", str(error))
    except Exception:
        return Outcome(job, "failed", traceback.format_exc())
    return Outcome(job, "done")
