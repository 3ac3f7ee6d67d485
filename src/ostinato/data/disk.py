"""Atomic writing of files and folders.

A file or folder is written under another name, flushed to the disk and then renamed, which the file system does
atomically: a reader, or a run that is resumed after a crash, sees the old state or the new one.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import Any

from ostinato.errors import CheckpointError, OstinatoError
from ostinato.system_errors import kind_of, naming

MADE_AGAIN = "; delete it, and it is made again"
"""Hint for files that keep what can be computed anew."""
PARTIAL = ".partial-"
"""Begins the name of a file or folder that is being written or deleted; after a crash it can be deleted."""
OF_A_USER = re.compile(re.escape(PARTIAL) + r"[0-9a-f]{16}(\..*)?")
"""Names of files and folders that a user named, while they are written (`ostinato.data.output_files`)."""


def sync(path: Path) -> None:
    """Force a file, or a folder's list of names, to the disk."""
    if os.name == "nt" and path.is_dir():
        return  # Windows cannot open folders; its renames are journalled
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        with naming(path):
            os.fsync(handle)
    finally:
        os.close(handle)


def give_mode(file: Path, other: Path) -> None:
    """Give a file the permissions of another file or folder that follows the umask.

    safetensors gives its files to their owner alone. File systems without permissions are left as they are.
    """
    wanted = other.stat().st_mode & 0o666
    if file.stat().st_mode & 0o777 != wanted:
        with suppress(PermissionError):
            file.chmod(wanted)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal, reading it in pieces.

    Raises:
        CheckpointError: it is a device or a FIFO, which may have no end, or a folder.
    """
    check_plain(path)
    with naming(path), Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sha256_of_all(paths: Iterable[Path]) -> str:
    """Return the SHA-256 of the hashes of several files, in their order, in hexadecimal."""
    return hash_of_hashes(map(sha256_of, paths))


def hash_of(content: object) -> str:
    """Return the SHA-256 of plain data as JSON, its keys in order; in hexadecimal."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def hash_of_hashes(hashes: Iterable[str]) -> str:
    """Return the SHA-256 of several hashes, in their order; all in hexadecimal."""
    return hashlib.sha256(b"".join(map(bytes.fromhex, hashes))).hexdigest()


def check_plain(path: Path, kind: type[OstinatoError] = CheckpointError) -> None:
    """Refuse what is there and is no plain file: a device is read without end, and a FIFO waits for who writes to it.

    Raises:
        OstinatoError: of that kind.
    """
    if (found := kind_of(path)) is not None:
        raise kind(f"{path}: is {found}, not a file")


@contextmanager
def reading(path: Path | str, kind: type[OstinatoError] = CheckpointError, hint: str = "") -> Iterator[None]:
    """Turn what a file that is missing, damaged or of another form makes Python raise into an error that names it.

    Args:
        kind: of the error. hint: ends its message.

    Raises:
        OstinatoError: of that kind. One that is raised inside passes as it is.
    """
    try:
        yield
    except OSError as error:
        raise kind(f"{path}: cannot be read: {error.strerror or error}{hint}") from error
    except RecursionError as error:
        raise kind(f"{path}: is damaged: nested too deeply{hint}") from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise kind(f"{path}: is damaged: {' '.join(repr(error).split())}{hint}") from error


def read_json_object(path: Path, kind: type[OstinatoError] = CheckpointError, hint: str = "") -> dict[str, Any]:
    """Return the object that a JSON file holds.

    Args:
        kind, hint: as of `reading`.

    Raises:
        OstinatoError: of that kind: the file is missing, cut off, nested too deeply, no JSON, or holds something else.
    """
    check_plain(path, kind)
    with reading(path, kind, hint):
        text = path.read_bytes()
    return json_object(text, path, kind, hint)


def json_object(
    text: bytes, where: Path | str, kind: type[OstinatoError] = CheckpointError, hint: str = ""
) -> dict[str, Any]:
    """Return the object that the bytes of a JSON file hold; see `read_json_object`."""
    try:
        content = json.loads(text.decode("utf-8-sig"))
    except (RecursionError, ValueError) as error:  # ValueError also: not UTF-8, a number of thousands of digits
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise kind(f"{where}: is damaged: no JSON that can be read: {reason}{hint}") from error
    if not isinstance(content, dict):
        raise kind(f"{where}: is damaged: holds a JSON {type(content).__name__}, not an object{hint}")
    return content


def write_text(path: Path, text: str) -> None:
    """Write or replace a text file atomically."""
    partial = path.with_name(f"{PARTIAL}{path.name}")
    with naming(path, partial):
        partial.unlink(missing_ok=True)  # it may be a link, which somebody put there to be written through
        with partial.open("x", encoding="utf-8") as file:
            file.write(text)
        sync(partial)
        partial.replace(path)
    sync(path.parent)


def write_json(path: Path, content: Any) -> None:
    """Write or replace a JSON file atomically; infinities and NaN become null."""
    write_text(path, as_json(content, indent=1) + "\n")


def as_json(content: Any, indent: int | None = None) -> str:
    """Return JSON, in which infinities and NaN are null; all in ASCII where it holds half of a surrogate pair, which is
    no text, as names of files have that are not UTF-8."""
    try:
        text = json.dumps(content, indent=indent, ensure_ascii=False, allow_nan=False)
    except ValueError:
        content = finite(content)
        text = json.dumps(content, indent=indent, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(content, indent=indent)
    return text


def finite(value: Any) -> Any:
    """Return the value with infinities and NaN as None, for JSON has no such numbers."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def make_folder(path: Path, *, exist_ok: bool = True) -> None:
    """Make a folder and those above it that are missing, and force their names to the disk.

    Raises:
        FileExistsError: it is there, where it must not be.
    """
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=exist_ok)
    for folder in missing:
        sync(folder.parent)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a folder to fill; when the block ends without an error, it is renamed to `path`.

    A folder that exists at `path` is replaced. An error leaves nothing behind.
    """
    partial = path.with_name(f"{PARTIAL}{path.name}")
    with naming(path, partial):
        remove_folder(partial)
        make_folder(partial.parent)
        partial.mkdir()
        try:
            yield partial
            sync_filled(partial)
            remove_folder(path)
            partial.replace(path)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    sync(path.parent)


def sync_filled(folder: Path) -> None:
    """Force a new folder and all that is in it to the disk, its files with the permissions of any other."""
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            give_mode(file, folder)
        sync(file)
    sync(folder)


def remove_folder(path: Path) -> None:
    """Delete a folder, which is renamed first: a folder of its own name is never half-deleted.

    What cannot be deleted of a renamed one, as files on a network's disk that a reader has open, waits for the next
    `remove_leftovers`. Of a link, as to a checkpoint on another disk, the link alone is deleted.
    """
    if path.is_symlink():
        path.unlink()
        return
    if not path.exists():
        return
    if not path.name.startswith(PARTIAL):
        doomed = path.with_name(f"{PARTIAL}deleting-{path.name}")
        shutil.rmtree(doomed, ignore_errors=True)
        if doomed.exists():  # an earlier one of its name still waits
            doomed = doomed.with_name(f"{doomed.name}-{token_hex(8)}")
        shutil.rmtree(path.rename(doomed), ignore_errors=True)
        return
    with suppress(FileNotFoundError):  # `remove_leftovers` of another process is at it, too
        shutil.rmtree(path)


def remove_leftovers(directory: Path, *, but: str = "") -> None:
    """Delete what interrupted writes or deletions left in a folder whose only writer this process is.

    What a user named to be written there stays, for another process may be at work on it (`new_file` and
    `new_output_folder`, which delete that of killed ones); and so does what somebody else writes, whose name begins
    with `but`.
    """
    for path in directory.glob(f"{PARTIAL}*"):
        if OF_A_USER.fullmatch(path.name):
            continue
        if but and path.name.startswith(f"{PARTIAL}{but}"):
            continue
        if path.is_dir():
            with suppress(OSError):  # what a reader has open waits on
                remove_folder(path)
        else:
            path.unlink()


def stored_hash_path(path: Path) -> Path:
    """Return the file that stores the hash of a cached file without a published one."""
    return path.with_name(f"{path.name}.sha256")


def stored_hash(path: Path) -> str | None:
    """Return the hash that is stored of a cached file; None where there is none, or what stands there is no hash.

    A list that `sha256sum` writes also names the file, so that it is not taken for a stored hash.
    """
    stored = stored_hash_path(path)
    found = stored.read_bytes() if stored.is_file() else b""
    return found.decode("ascii").strip() if re.fullmatch(rb"[0-9a-f]{64}\r?\n", found) else None


def refetch_hint(path: Path | str) -> str:
    """Return what to do about a cached file that cannot be read, where its hash is that of its first copy, or ''."""
    path = Path(path)
    if not path.name or stored_hash(path) is None:
        return ""
    return f"; its hash is only that of the first copy: delete it and {stored_hash_path(path).name} to fetch it again"
