"""Locks of a store: one process at a time trains a run, and writes a file that several may write.

The system releases a lock when the process that holds it ends, however it ends, so that a killed process leaves none
behind. The lock files stay: a lock is on an open file, and were the file deleted, another process could lock a new file
of the same name.
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
    """Wait until no other process holds the lock of this name, and hold it."""
    with FileLock(_file(store, name)):
        yield


def _file(store: Path, name: str) -> Path:
    folder = store / LOCKS
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}.lock"
