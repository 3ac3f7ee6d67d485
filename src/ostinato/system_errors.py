"""What the operating system says of files and memory: errors that name the file, what to do, what is no plain file."""

from __future__ import annotations

import errno
import os
import re
import shlex
import stat
import sys
from collections.abc import Iterator, Sequence
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
    errno.EFBIG: "the limit on the size of files is reached: raise it with ulimit -f",
}
if hasattr(errno, "EDQUOT"):  # Windows has no quotas of this kind.
    _ADVICE[errno.EDQUOT] = "your quota is used up: make room there, or write to another disk"
_AMOUNT = re.compile(r"[Tt]ried to allocate ([\d.]+ ?[KMGT]iB|\d+ bytes)|allocate (\d+ bytes|[\d.]+ [KMGT]iB)")


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
        if partial is not None:
            # Of a copy that fails Python names first the file that is read.
            copy = os.fsdecode(found.filename2 or "")
            name = copy if copy.startswith(str(partial)) else name
            if name.startswith(str(partial)):
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


def describe_failure(error: BaseException, words: Sequence[str] = ()) -> str | None:
    """Return the line for an error of the operating system, of memory or of the output's encoding, else None.

    Args:
        words: the command line, from which the advice for memory is made.
    """
    if is_out_of_memory(error):
        return _memory_line(error, words)
    if isinstance(error, UnicodeEncodeError):
        sign = error.object[error.start]
        if "\ud800" <= sign <= "\udfff":  # as Python reads names of files
            around = error.object[max(error.start - 40, 0) : error.start + 40]
            return f"{around!a} is no UTF-8, and cannot be written: rename it"
        for output in (sys.stdout, sys.stderr):
            try:
                sign.encode(output.encoding or "utf-8", output.errors or "strict")
            except UnicodeEncodeError as again:
                if again.encoding == error.encoding:  # by the name of the codec, which many encodings share: charmap
                    return f"the output is in {output.encoding}, which has no {sign!a}: set PYTHONIOENCODING=utf-8"
        return None
    found = system_error(error)
    if found is None or (found.filename is None and found.errno not in _ADVICE):
        return None
    where = "a file" if found.filename is None else os.fsdecode(found.filename)
    advice = _ADVICE.get(found.errno or 0)
    return f"{where}: {found.strerror}{f'; {advice}' if advice else ''}"


def _memory_line(error: BaseException, words: Sequence[str]) -> str:
    """Return the line for memory, with what was noted on the error: what the model's plan says it takes."""
    asked = _AMOUNT.search(str(error))
    amount = f" ({asked[1] or asked[2]} were asked for)" if asked else ""
    planned = "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
    command = words[0] if words else ""
    # An evaluation of the training has a note, too, of the cache and not of gradients.
    if command == "train" and (not planned or "gradients" in planned):
        given = [word for word in words[1:] if not word.startswith("-")]
        plan = shlex.join(["ostinato", "plan", *given[:1], *(word for word in given[1:] if "=" in word)])
        return (
            f"out of memory{amount}{planned}: lower data.tokens_per_batch and raise training.accumulate by as much, "
            f"or set training.checkpoint_activations=true; {plan} --batch-size N says what N sentences take"
        )
    return f"out of memory{amount}{planned}: smaller batches (data.eval_tokens_per_batch), beams or models take less"


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
