"""What the operating system says of files and memory: errors that name the file, and what is no plain file."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_CODE = re.compile(r"\(os error (\d+)\)(?: at path \"(.*)\")?")
"""How errors of libraries in Rust (safetensors, tokenizers) end."""
_KINDS = (
    (stat.S_ISLNK, "a link"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_NO_MEMORY = re.compile(r"not enough memory|can't allocate memory|Cannot allocate memory|out of memory", re.IGNORECASE)


@contextmanager
def naming(file: Path | str, partial: Path | None = None) -> Iterator[None]:
    """Give errors of the operating system the name of the file that is read or written meanwhile, where they have none.

    Writing and flushing, unlike opening, say no name; libraries in Rust wrap what the system said: it is unwrapped.

    Args:
        partial: the name under which the file, or folder, is written first: in errors it has its own name.

    Raises:
        OSError: with `filename`, in the place of one without, or of a wrapped one. All others as they are.
    """
    try:
        yield
    except Exception as error:
        found = system_error(error)
        if found is None:
            raise
        # A library's own temporary file, or none.
        is_named = found is error and found.filename is not None
        name = os.fsdecode(found.filename) if is_named and not isinstance(found.filename, int) else str(file)
        if partial is not None and name.startswith(str(partial)):
            name = f"{file}{name.removeprefix(str(partial))}"
        found.filename = name
        if found is error:
            raise
        raise found from error


def system_error(error: BaseException) -> OSError | None:
    """Return an error of the operating system, also where a library has wrapped it; None for any other error."""
    if isinstance(error, OSError):
        return None if error.errno is None else error
    if isinstance(error, Exception) and (match := _CODE.search(str(error))):
        number = int(match[1])
        return OSError(number, os.strerror(number), match[2])
    return None


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that the machine, or its GPU, has no more memory."""
    if isinstance(error, MemoryError):
        return True
    # torch is not imported for its type: what has not imported it cannot have raised it.
    if any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and _NO_MEMORY.search(str(error)) is not None


def kind_of(path: Path) -> str | None:
    """Return what a path is, where it is there and no plain file: "a folder", "a device"; links are followed."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):  # ValueError: a null byte in the name
        return None
    return None if stat.S_ISREG(mode) else kind_of_mode(mode)


def kind_of_mode(mode: int) -> str:
    """Return what is no plain file, by the mode that the operating system gives it."""
    return next((name for is_kind, name in _KINDS if is_kind(mode)), "no plain file")
