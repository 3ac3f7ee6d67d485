"""Files and folders that a user names to be written: new and whole, and files regular.

Nothing is written to what only looks like a file (a link, a device, a FIFO): it is refused. A file that is there is
replaced only where the user asks for it. It is written under another name beside it, flushed to the disk and then given
its name, so that a reader sees the old file or the new one. Folders on the way may be links.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ostinato.data.disk import OF_A_USER, PARTIAL, make_folder, sync, sync_filled
from ostinato.errors import CheckpointError, ConfigError
from ostinato.system_errors import kind_of_mode, naming

if sys.platform != "win32":
    import fcntl

IsOurs = Callable[[Path], bool]
"""Tells a file that this library wrote from others, by its content."""

_NO_HARD_LINKS = (
    *(errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EACCES),
    errno.EINVAL,  # Windows
)


def check_output(path: Path, *, overwrite: bool = False, is_ours: IsOurs | None = None) -> None:
    """Refuse a path that `new_file` would refuse; called before long work begins, it changes nothing.

    Args:
        overwrite: a plain file that is there may be replaced. is_ours: the only files that may be; None: any.

    Raises:
        ConfigError: one line that names the path and the reason.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        pass
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error
    else:
        if not stat.S_ISREG(mode):
            raise ConfigError(f"{path}: is {kind_of_mode(mode)}: only a plain file is written; name another path")
        if not overwrite:
            raise ConfigError(_is_there(path))
        if is_ours is not None and not is_ours(path):
            raise ConfigError(f"{path}: was not written by this command, and is not replaced; name another file")
    _check_folder(path)


@contextmanager
def new_file(path: Path, *, overwrite: bool = False, is_ours: IsOurs | None = None) -> Iterator[Path]:
    """Yield an empty file to fill, with the suffix of `path`; when the block ends without an error it becomes `path`.

    An error leaves nothing behind; what a killed process left in the folder is deleted. Folders on the way are made.
    Without `overwrite` a file that another program put at `path` meanwhile is kept, and what was written is lost.

    Args:
        overwrite, is_ours: as of `check_output`.

    Raises:
        ConfigError: see `check_output`.
    """
    check_output(path, overwrite=overwrite, is_ours=is_ours)
    with _new_partial(path, lambda partial: partial.touch(exist_ok=False)) as partial, naming(path, partial):
        yield partial
        sync(partial)
        if overwrite:
            check_output(path, overwrite=True, is_ours=is_ours)
            partial.replace(path)
        else:
            try:
                name_new(partial, path)
            except FileExistsError as error:
                raise ConfigError(_is_there(path)) from error
    sync(path.parent)


def check_new_folder(path: Path) -> None:
    """Refuse a path that `new_output_folder` would refuse; called before long work begins.

    Raises:
        CheckpointError: something is there.
    """
    if os.path.lexists(path):
        raise CheckpointError(_is_no_new_folder(path))


@contextmanager
def new_output_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder to fill; when the block ends without an error it becomes `path`.

    An error leaves nothing behind; what a killed process left beside it is deleted. Folders on the way are made.

    Raises:
        CheckpointError: something is at `path` by the end, and is kept; an empty folder is replaced by one of its
            permissions.
    """
    with new_partial_folder(path) as partial:
        with suppress(OSError):
            shutil.copymode(path, partial)  # of an empty one that the user made for himself or a group
        yield partial
        sync_filled(partial)
        with suppress(OSError):
            path.rmdir()  # Windows puts no folder in the place of an empty one
        try:
            partial.rename(path)
        except OSError as error:
            if not os.path.lexists(path):
                raise
            raise CheckpointError(_is_no_new_folder(path)) from error
    sync(path.parent)


@contextmanager
def new_partial_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder beside `path`, for what is written there first; what is still in it at the end is deleted.

    Errors of the operating system name what is in it as if it was `path`.
    """
    with _new_partial(path, Path.mkdir) as partial, naming(path, partial):
        yield partial


def write_new_text(path: Path, text: str, *, overwrite: bool = False, is_ours: IsOurs | None = None) -> None:
    """Write a text file as `new_file` does."""
    with new_file(path, overwrite=overwrite, is_ours=is_ours) as partial:
        partial.write_text(text, encoding="utf-8")


@contextmanager
def _new_partial(path: Path, make: Callable[[Path], None]) -> Iterator[Path]:
    """Yield what `make` makes beside `path`, locked until this process ends, however it ends, so that it is not
    abandoned."""
    make_folder(path.parent)
    _remove_abandoned(path.parent)
    while True:
        # A name that nobody can foresee, made anew: nobody can put a link in its place.
        partial = path.with_name(f"{PARTIAL}{secrets.token_hex(8)}{path.suffix}")
        with naming(path, partial):
            make(partial)
        handle = _locked(partial, wait=True)
        if partial.exists():
            break
        if handle is not None:  # another process found it before it was locked
            os.close(handle)
    try:
        yield partial
    finally:
        _remove(partial)
        if handle is not None:
            os.close(handle)


def _remove_abandoned(folder: Path) -> None:
    """Delete what `_new_partial` made in processes that were killed: nobody holds its locks."""
    for path in folder.glob(f"{PARTIAL}*"):
        # What cannot be opened or deleted is another user's.
        with suppress(OSError):
            mode = path.lstat().st_mode
            if OF_A_USER.fullmatch(path.name) is None or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                continue
            if (handle := _locked(path, wait=False)) is not None:
                try:
                    _remove(path)
                finally:
                    os.close(handle)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _locked(path: Path, *, wait: bool) -> int | None:
    """Open and lock a file or folder until it is closed; None: another process has it, or there are no such locks."""
    if sys.platform == "win32":  # it renames nothing that is open
        return None
    try:
        handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_WRONLY)
    except OSError:  # deleted by another process, or another user's
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        os.close(handle)
        return None
    return handle


def name_new(partial: Path, path: Path) -> None:
    """Give a finished file its name.

    Raises:
        FileExistsError: something has that name by now, and keeps it.
    """
    try:
        os.link(partial, path)
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        # A file system without hard links: an empty file takes the name, if it is free, and is then replaced.
        path.touch(exist_ok=False)
        partial.replace(path)


def _check_folder(path: Path) -> None:
    """Refuse a path whose folder cannot be made, or not be written to."""
    folder = path.parent
    while not os.path.lexists(folder) and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        raise ConfigError(f"{path}: cannot be written: {folder} is no folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"{path}: cannot be written: no permission to write to {folder}")


def _is_no_new_folder(path: Path) -> str:
    return f"{path}: is there already, and nothing is overwritten: name a new folder"


def _is_there(path: Path) -> str:
    return f"{path}: is there already; --overwrite (in Python overwrite=True) replaces it"
