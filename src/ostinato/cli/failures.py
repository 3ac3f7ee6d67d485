"""What the machine refuses (a full disk, a folder without leave to write, memory) in a line that says what to do."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Sequence

from ostinato.system_errors import is_out_of_memory, system_error

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
        if error.encoding in (sys.stdout.encoding, sys.stderr.encoding):
            return f"the output is in {error.encoding}, which has no {sign!a}: set PYTHONIOENCODING=utf-8"
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
        recipe = " ".join(word for word in words[1:3] if not word.startswith("-"))
        return (
            f"out of memory{amount}{planned}: lower data.tokens_per_batch and raise training.accumulate by as much, "
            f"or set training.checkpoint_activations=true; ostinato plan {recipe} --batch-size N says what N "
            "sentences take"
        )
    return f"out of memory{amount}{planned}: smaller batches (data.eval_tokens_per_batch), beams or models take less"
