"""Locks of a store: one process at a time trains a run, and writes a file that several may write.

The system gives a lock back when the process that holds it ends, however it ends, so that none is left behind by what
was killed. The files stay: a lock is on an open file, and one that is deleted would be two.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from ostinato.errors import OstinatoError

LOCKS = "locks"


class BusyError(OstinatoError):
    """Another process is at work on the run."""


@contextmanager
def run_lock(directory: Path) -> Iterator[None]:
    """Hold the lock of a run's directory.

    Raises:
        BusyError: another process holds it.
    """
    try:
        with FileLock(_file(directory.parent, directory.name), timeout=0):
            yield
    except Timeout as error:
        raise BusyError(f"{directory}: another process is at work on this run") from error


@contextmanager
def write_lock(store: Path, name: str) -> Iterator[None]:
    """Wait until nobody else writes what is called so, and hold its lock."""
    with FileLock(_file(store, name)):
        yield


def _file(store: Path, name: str) -> Path:
    folder = store / LOCKS
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}.lock"
