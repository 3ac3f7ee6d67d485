"""Every operation by which a process changes files below a folder, seen before it is done.

Python tells audit hooks of all operations on names (open, rename, unlink, mkdir, rmdir, truncate, link, symlink). Of
writes and flushes it tells nothing: `io.open`, `os.write`, `os.sendfile`, `os.fsync` and the writer of safetensors,
which is not Python, are replaced. An audit hook cannot be taken away again: `FileOperations` is for forked processes.
"""

from __future__ import annotations

import builtins
import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from sys import addaudithook
from typing import Any

import safetensors.torch

Finish = Callable[[], object]


@dataclass(frozen=True)
class Operation:
    """One operation, before it is done.

    Args:
        kind: open (to make or empty a file), write, fsync, save (of safetensors), rename, unlink, ...
        path: what it changes; of a renaming the new name. source: of a renaming the old name.
        half: does the first half of a write or save, and leaves it to be seen by others; None: it has no middle.
    """

    kind: str
    path: Path
    source: Path | None = None
    half: Finish | None = None


class FileOperations:
    """Calls `before` with every operation below `root`; what `before` raises is what the operation raises."""

    def __init__(self, root: Path, before: Callable[[Operation], None]) -> None:
        self.root, self.before = root.resolve(), before
        self._is_busy = False  # what `before` does itself is no operation

    def install(self) -> None:
        self._open, self._write, self._fsync, self._sendfile = io.open, os.write, os.fsync, os.sendfile
        self._serialize = safetensors.torch.serialize_file
        addaudithook(self._hear)
        io.open = builtins.open = self.open  # type: ignore[assignment]
        os.write, os.fsync, os.sendfile = self.write, self.fsync, self.sendfile  # type: ignore[assignment]
        safetensors.torch.serialize_file = self.save

    def tell(self, kind: str, path: Path, source: Path | None = None, half: Finish | None = None) -> None:
        if self._is_busy or not path.is_relative_to(self.root):
            return
        self._is_busy = True
        try:
            self.before(Operation(kind, path, source, half))
        finally:
            self._is_busy = False

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        match event, arguments:
            case "open", (str() | bytes() | os.PathLike() as path, _, int(flags)) if flags & (os.O_CREAT | os.O_TRUNC):
                self.tell("open", _absolute(path))
            case "os.rename" | "os.link" | "os.symlink", (source, path, *folders):
                folder = folders[-1] if folders else -1
                self.tell(event.removeprefix("os."), _absolute(path, folder), _absolute(source, folder))
            case "os.remove" | "os.rmdir", (path, folder):
                self.tell({"os.remove": "unlink", "os.rmdir": "rmdir"}[event], _absolute(path, folder))
            case "os.mkdir", (path, _, folder):
                self.tell("mkdir", _absolute(path, folder))
            case "os.truncate" | "os.chmod", (path, *_):
                self.tell(event.removeprefix("os."), _file_of(path) if isinstance(path, int) else _absolute(path))

    def open(self, file: Any, mode: str = "r", buffering: int = -1, *rest: Any, **named: Any) -> Any:
        """Open as `io.open` does; what is written comes here as it goes to the system, after buffers."""
        path = _file_of(file) if isinstance(file, int) else _absolute(file)
        if not set(mode) & set("wax+") or not path.is_relative_to(self.root):
            return self._open(file, mode, buffering, *rest, **named)
        raw = _File(file, mode.replace("b", "").replace("t", ""), named.pop("closefd", True), named.pop("opener", None))
        raw.operations = self
        if buffering == 0:
            return raw
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, *rest, **named)

    def write(self, handle: int, data: Any) -> int:
        self.tell("write", _file_of(handle), half=lambda: self._write(handle, data[: len(data) // 2]))
        return self._write(handle, data)

    def sendfile(self, out: int, *arguments: Any) -> int:
        source, offset, count = arguments
        self.tell(
            "write", _file_of(out), half=lambda: self._sendfile(out, source, offset, os.fstat(source).st_size // 2)
        )
        return self._sendfile(out, source, offset, count)

    def fsync(self, handle: int) -> None:
        self.tell("fsync", _file_of(handle))
        self._fsync(handle)

    def save(self, tensors: Any, filename: Any, metadata: Any = None) -> None:
        """Save as safetensors does; the middle of it is the first half of the file."""

        def half() -> None:
            self._serialize(tensors, filename, metadata)
            os.truncate(filename, Path(filename).stat().st_size // 2)

        self.tell("save", _absolute(filename), half=half)
        self._serialize(tensors, filename, metadata)


class _File(io.FileIO):
    operations: FileOperations

    def write(self, data: Any) -> int:
        half = memoryview(data)[: len(data) // 2]
        self.operations.tell("write", _file_of(self.fileno()), half=lambda: io.FileIO.write(self, half))
        return super().write(data)

    def truncate(self, size: int | None = None) -> int:
        self.operations.tell("truncate", _file_of(self.fileno()))
        return super().truncate(size)


def flush_nothing() -> None:
    """Let fsync do nothing here and in forks: what the system has, a process that is killed does not take along."""
    os.fsync = lambda handle: None  # type: ignore[assignment]


def _absolute(path: Any, folder: int = -1) -> Path:
    """Return a path, which may be relative to an open folder, without looking at what it is."""
    name = os.fsdecode(path)
    return Path(os.path.abspath(name if folder == -1 else _file_of(folder) / name))  # noqa: PTH100


def _file_of(handle: int) -> Path:
    return Path(os.readlink(f"/proc/self/fd/{handle}"))  # noqa: PTH115
