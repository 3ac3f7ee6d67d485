"""What the machine refuses (a full disk, a folder without leave to write, memory) in a line that says what to do."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from pathlib import Path
from types import FrameType, TracebackType

_ADVICE = {
    errno.ENOSPC: "the disk is full: make room there, or write to another one",
    errno.EROFS: "write to another folder",
    errno.EACCES: "change its permissions, or choose another place",
    errno.EPERM: "change its permissions, or choose another place",
    errno.EMFILE: "this process may open no more files: raise the limit with ulimit -n",
    errno.ENFILE: "the machine has no more open files to give: end other programs",
    errno.EISDIR: "name a file in it",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EIO: "the disk, or the network to it, fails",
}
if hasattr(errno, "EDQUOT"):  # Windows has no quotas of this kind.
    _ADVICE[errno.EDQUOT] = "your quota is used up: make room there, or write to another disk"

_CODE = re.compile(r"\(os error (\d+)\)(?: at path \"(.*)\")?")
"""How errors of libraries in Rust (safetensors, tokenizers) end."""
_NO_MEMORY = re.compile(r"not enough memory|can't allocate memory|Cannot allocate memory|out of memory", re.IGNORECASE)
_AMOUNT = re.compile(r"[Tt]ried to allocate ([\d.]+ ?[KMGT]iB|\d+ bytes)|allocate (\d+ bytes|[\d.]+ [KMGT]iB)")
_PATHS = ("filename", "path", "partial", "self", "file", "folder", "directory")
"""What functions that write call their file; `self` is that of a method of `Path`."""
_N_FRAMES = 3


def describe_failure(error: BaseException, words: Sequence[str] = ()) -> str | None:
    """Return the line for an error of the operating system or of memory, None for any other error.

    Args:
        words: the command line, from which the advice for memory is made.
    """
    if _is_out_of_memory(error):
        return _memory_line(error, words)
    found = _os_error(error)
    if found is None:
        return None
    number, reason, where = found
    if where is None and _is_printing(error):
        where = "standard output"
    where = where or _file_of(error) or "a file"
    advice = _ADVICE.get(number)
    return f"{where}: {reason}{f'; {advice}' if advice else ''}"


def _os_error(error: BaseException) -> tuple[int, str, str | None] | None:
    """Return number, reason and file of a system's refusal, also where a library has wrapped it."""
    if isinstance(error, OSError):
        if error.errno is None:
            return None
        name = error.filename
        if name is None and error.errno not in _ADVICE:
            return None
        return error.errno, error.strerror or os.strerror(error.errno), None if name is None else os.fsdecode(name)
    if isinstance(error, Exception) and (match := _CODE.search(str(error))):
        number = int(match[1])
        # The path in the message is that of a temporary file; what was to be written is named by the frames.
        return number, os.strerror(number), _file_of(error) or match[2]
    return None


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError):
        return True
    # torch is not imported for its type: a command that has not imported it cannot have raised it.
    if any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and _NO_MEMORY.search(str(error)) is not None


def _memory_line(error: BaseException, words: Sequence[str]) -> str:
    asked = _AMOUNT.search(str(error))
    amount = f" ({asked[1] or asked[2]} were asked for)" if asked else ""
    command = words[0] if words else ""
    if command == "train":
        recipe = " ".join(word for word in words[1:3] if not word.startswith("-"))
        return (
            f"out of memory{amount}: lower data.tokens_per_batch and raise training.accumulate by as much, or set "
            f"training.checkpoint_activations=true; ostinato plan {recipe} --batch-size N says what N sentences take"
        )
    return f"out of memory{amount}: smaller batches (data.eval_tokens_per_batch), beams or models take less"


def _frames(error: BaseException) -> list[FrameType]:
    """Return the frames in which an error was raised, the innermost first."""
    found, step = [], error.__traceback__
    while isinstance(step, TracebackType):
        found.append(step.tb_frame)
        step = step.tb_next
    return found[::-1]


def _is_printing(error: BaseException) -> bool:
    return any(frame.f_code.co_name in ("echo", "print_line") for frame in _frames(error)[:_N_FRAMES])


def _file_of(error: BaseException) -> str | None:
    """Return the file that the functions around an error were busy with: many errors of writing name none."""
    for frame in _frames(error)[:_N_FRAMES]:
        for name in _PATHS:
            value = frame.f_locals.get(name)
            if isinstance(value, Path) or (name == "filename" and isinstance(value, str)):
                return str(value)
    return None
