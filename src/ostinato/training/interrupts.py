"""Interrupts of a run of several processes: all end after the same update, so that none waits for one that is gone."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self

from ostinato.training.processes import Processes


class Interrupts:
    """Holds back interrupts of the body of a `with` until the processes have agreed; of one process, none.

    A second one is not held back, and neither is one that comes in `at_once`.
    """

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._came = self._passes = False
        # Only the main thread may say what an interrupt does.
        self._holds = not processes.is_alone and threading.current_thread() is threading.main_thread()

    def __enter__(self) -> Self:
        if self._holds:
            self._before = signal.signal(signal.SIGINT, self._on_interrupt)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._holds:
            signal.signal(signal.SIGINT, self._before)

    def check(self) -> None:
        """Raise KeyboardInterrupt in every process where one of them was interrupted; all of them call this."""
        if self._processes.any(self._came):
            raise KeyboardInterrupt

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Hold nothing back inside: where the others wait for the first, waiting for them would take too long."""
        self._passes = True
        try:
            yield
        finally:
            self._passes = False

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._came or self._passes:
            raise KeyboardInterrupt
        self._came = True
