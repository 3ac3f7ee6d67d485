"""One model call at a time, whichever the run: requests wait for their turn, have a time limit, end with their client.

Every run has a queue of its own, but two that compute at once would each measure what the other takes from it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from ostinato.errors import OstinatoError

T = TypeVar("T")


_COMPUTING = threading.Lock()


class BusyError(OstinatoError):
    """Too many requests wait for their turn."""


class TimeLimitError(OstinatoError):
    """A request took longer than it may."""


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


class Call:
    """One request's work, which asks from time to time whether it may go on.

    Args:
        seconds: it may take, from its beginning.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds, self._gone = seconds, threading.Event()
        self._began: float | None = None

    def begin(self) -> None:
        """Start its clock: its turn has come."""
        self._began = time.monotonic()
        self.check()

    def cancel(self) -> None:
        """Say that nobody waits for it any more."""
        self._gone.set()

    def check(self) -> None:
        """Raise an error where the work may not go on.

        Raises:
            ClientGone: nobody waits for it. TimeLimitError: it has taken too long.
        """
        if self._gone.is_set():
            raise ClientGone
        if self._began is not None and time.monotonic() - self._began > self._seconds:
            raise TimeLimitError(
                f"this took longer than {self._seconds:g} s: shorter texts or fewer examples take less"
            )


class Calls:
    """The requests of one run, in the order they came, while no other run's is at work.

    Args:
        seconds: that one may take. waiting: that may wait, the one at work included.
    """

    def __init__(self, seconds: float, waiting: int) -> None:
        self._seconds, self._waiting = seconds, waiting
        self._room = threading.BoundedSemaphore(waiting)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="model")

    def submit(self, work: Callable[[Call], T]) -> tuple[Call, Future[T]]:
        """Put work at the end of the queue.

        Raises:
            BusyError: the queue is full.
        """
        if not self._room.acquire(blocking=False):
            raise BusyError(f"{self._waiting} requests are waiting for this run: try again in a moment")
        call = Call(self._seconds)

        def turn() -> T:
            with _COMPUTING:
                call.begin()
                return work(call)

        future = self._pool.submit(turn)
        future.add_done_callback(lambda done: self._room.release())
        return call, future

    def close(self) -> None:
        """End the thread; work that waits is not begun."""
        self._pool.shutdown(wait=True, cancel_futures=True)
