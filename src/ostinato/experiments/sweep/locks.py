"""Locks of a store: one process at a time trains a run, and writes a file that several may write.

The system releases a lock when the process that holds it ends, however it ends, so that a killed process leaves none
behind. The lock files stay: a lock is on an open file, and were the file deleted, another process could lock a new file
of the same name.

On a file system that several machines share, such a lock holds between them where the file system passes it on (NFS,
GPFS, CephFS, Lustre mounted with -o flock), and only between the processes of one machine where it does not. So the
holder of a run also holds a lease: a file that says who it is, and that it touches every 10 s. A process of another
machine that got the lock takes a lease over only when it saw it untouched for 30 s of its own clock; of a process of
the same machine it sees at once that it is gone. A holder that was held up for so long, and finds its lease with
another one, stops at the next thing that it reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, SoftFileLease, Timeout

from ostinato.errors import OstinatoError

LOCKS = "locks"
LEASE_S = 30.0
"""Seconds after which a lease that is not touched may be taken over."""
_PATIENCE = 1.5
"""Leases that a process waits for one to be touched or to run out."""


class BusyError(OstinatoError):
    """Another process is at work on the run."""


@contextmanager
def run_lock(directory: Path) -> Iterator[Callable[[], None]]:
    """Hold the lock and the lease of a run's directory.

    Yields:
        A function that raises a BusyError where the lease was lost, which is called before anything is written.

    Raises:
        BusyError: another process holds one of them.
    """
    lease = SoftFileLease(
        _file(directory.parent, directory.name, "lease"), lease_duration=LEASE_S, timeout=_PATIENCE * LEASE_S
    )

    def check_held() -> None:
        if lease.compromise is not None:
            raise BusyError(f"{directory}: this process was held up, and another one has taken the run over")

    try:
        with FileLock(_file(directory.parent, directory.name), timeout=0), lease:
            yield check_held
    except Timeout as error:
        raise BusyError(f"{directory}: another process is at work on this run") from error


def write_lock(store: Path, name: str) -> FileLock:
    """Return the lock of this name; to enter it waits until no other process holds it."""
    return FileLock(_file(store, name))


def _file(store: Path, name: str, kind: str = "lock") -> Path:
    folder = store / LOCKS
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}.{kind}"
