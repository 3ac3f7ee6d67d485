"""What was done of a long evaluation or generation, so that it can be killed and go on.

A JSON line for every batch, in their order, written as the results come; before them one that says what they are
results of. Started again, all is done as before, but that the results of the batches that stand there are read: so
whatever is made of them comes out the same, byte for byte.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from filelock import FileLock, Timeout

from ostinato.data.disk import hash_of_hashes
from ostinato.data.output_files import check_output
from ostinato.decoding.work import BatchRunner, Item, Result, Work
from ostinato.errors import ConfigError, DataError
from ostinato.evaluation.loading import LoadedRun
from ostinato.system_errors import naming
from ostinato.version import __version__

_FORMAT = 2


class Journal:
    """A `BatchRunner` that asks another one only for what does not stand in its file.

    Args:
        path: of the file, which is made where it is not there. question: what all results depend on, but the batches.

    Raises:
        ConfigError: on entry: a link, a device or a folder, before anything is made beside it; another process writes
            the file, or it is of other settings, or no journal.
    """

    def __init__(self, path: Path, question: Mapping[str, Any], runner: BatchRunner) -> None:
        self.path, self.runner, self.n_ahead = path, runner, runner.n_ahead
        self._head = json.dumps({"journal": _FORMAT, "question": dict(question)}, default=str).encode() + b"\n"
        self._lock = FileLock(path.with_name(f"{path.name}.lock"), timeout=0)
        self.n_read = 0
        """Batches whose results stood there."""

    def __enter__(self) -> Self:
        check_output(self.path, overwrite=True)
        with naming(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError), self.path.open("rb") as file:
                self._is_begun(file.readline())  # beside what is no journal no lock is made
            try:
                self._lock.acquire()
            except Timeout as error:
                raise ConfigError(f"{self.path}: another process writes this journal") from error
            self._file: BinaryIO = self.path.open("a+b")
            self._file.seek(0)
            try:
                is_begun = self._is_begun(self._file.readline())
            except ConfigError:
                self.close()
                raise
            if not is_begun:
                self._file.truncate(0)
                self._file.write(self._head)
                self._file.flush()
            self._is_replaying = True
        return self

    def _is_begun(self, head: bytes) -> bool:
        """Return whether a file of this first line holds it whole: one that is new, or was killed there, does not.

        Raises:
            ConfigError: it is another file.
        """
        if not head.endswith(b"\n") and self._head.startswith(head):
            return False
        if head != self._head:
            raise ConfigError(f"{self.path}: {_why_other(head)}: name another file, or delete it")
        return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After a write that failed, closing tries it once more: the first error is the one to be told.
        with nullcontext() if error is None else suppress(OSError):
            self.close()

    def close(self) -> None:
        """Close the file."""
        try:
            with naming(self.path):
                self._file.close()
        finally:
            self._lock.release()

    def submit(self, work: Work[Item, Result], item: Item) -> Callable[[], Result]:
        """Take an item; its result is read where it stands in the file."""
        key = work.key(item)
        if self._is_replaying and (line := self._next_line()) is not None:
            if line["batch"] != key:
                reason = f"batch {self.n_read} is of other inputs or settings: name another file, or delete it"
                raise DataError(f"{self.path}: {reason}")
            packed = line["result"]
            return lambda: work.unpack(packed)
        wait = self.runner.submit(work, item)

        def wait_and_write() -> Result:
            result = wait()
            with naming(self.path):
                self._file.write(json.dumps({"batch": key, "result": work.pack(result)}).encode() + b"\n")
                self._file.flush()
            return result

        return wait_and_write

    def _next_line(self) -> dict[str, Any] | None:
        """Return what stands there of the next batch; None after the last whole line, behind which is then written."""
        place = self._file.tell()
        line = self._file.readline()
        found: Any = None
        if line.endswith(b"\n"):
            with suppress(ValueError):  # a machine that went down may leave zeros
                found = json.loads(line)
        if not isinstance(found, dict) or not {"batch", "result"} <= found.keys():
            self._file.truncate(place)
            self._is_replaying = False
            return None
        self.n_read += 1
        return found


def _why_other(head: bytes) -> str:
    """Return why the first line of a file is not the one that is wanted."""
    if not head.startswith(b'{"journal":'):
        return "is no journal"
    with suppress(ValueError, LookupError, TypeError):  # it may be cut, or of another format
        if (version := json.loads(head)["question"]["version"]) != __version__:
            return f"is a journal that ostinato {version} began, and this is {__version__}"
    return "is the journal of another run or other settings, or was begun by other code"


def question_of(run: LoadedRun, device: str, **settings: Any) -> dict[str, Any]:
    """Return what the results of a run's batches depend on: its weights, how it runs, and the settings of the work.

    Args:
        device: the kind of device that does the batches.
    """
    return {
        "version": __version__,
        "weights": hash_of_hashes(run.hashes),
        "execution": repr(run.model.current_execution),
        "device": device,
        "decoding": run.recipe.decoding.model_dump(mode="json"),
        **settings,
    }
