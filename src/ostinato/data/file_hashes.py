"""SHA-256 of files; those of large ones are remembered, and not read again while size and time of change are the same.

What is remembered is trusted only where the file had not been changed for a while when it was read: on coarse clocks a
later change could have the same time.
"""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import suppress
from pathlib import Path

from filelock import FileLock

from ostinato.data.disk import make_folder, read_json_object, sha256_of, write_json
from ostinato.errors import DataError
from ostinato.folders import cache_folder

_SETTLED_NS = 2_000_000_000
LARGE_BYTES = 1 << 24


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal.

    Raises:
        OSError: the file cannot be read.
    """
    now = path.stat()
    if now.st_size < LARGE_BYTES:
        return sha256_of(path)
    name = str(path.absolute())
    seen = {"path": name, "size": now.st_size, "mtime_ns": now.st_mtime_ns, "inode": now.st_ino}
    note = cache_folder() / "hashes" / f"{hashlib.sha256(os.fsencode(name)).hexdigest()[:32]}.json"
    if (known := _noted(note, seen)) is not None:
        return known
    is_settled = now.st_mtime_ns < time.time_ns() - _SETTLED_NS
    digest = sha256_of(path)
    if is_settled:
        with suppress(OSError):  # of a cache that only others may write to
            make_folder(note.parent)
            with FileLock(note.with_suffix(".lock")):  # who reads the same file at the same time writes the same note
                write_json(note, seen | {"sha256": digest})
    return digest


def _noted(note: Path, seen: dict[str, object]) -> str | None:
    """Return the hash that was noted of a file as it is now; None where there is none, or a damaged note."""
    try:
        known = read_json_object(note, DataError)
    except DataError:
        return None
    is_same = seen == {key: known.get(key) for key in seen}
    return str(known["sha256"]) if is_same and isinstance(known.get("sha256"), str) else None
