"""Lines of text files, plain or gzip, with errors that name the file and the line."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path

from ostinato.data.disk import refetch_hint
from ostinato.errors import DataError
from ostinato.system_errors import kind_of

_BYTE_ORDER_MARK = "\ufeff"


def bad_line(path: Path | str, number: int, reason: str) -> DataError:
    """Return the error for one line; `number` counts from 1."""
    return DataError(f"{path}, line {number}: {reason}{refetch_hint(path)}")


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number (from 1) and the text of every line of a UTF-8 file, without the line end.

    Only line feeds end a line, with or without a carriage return: characters such as U+2028 belong to the text.
    A file whose name ends in ``.gz`` is decompressed.

    Raises:
        DataError: the file is missing, a folder, not readable, not UTF-8, or a damaged or truncated gzip file.
    """
    for number, text in read_lines_or_errors(path):
        if isinstance(text, DataError):
            raise text
        yield number, text


def read_lines_or_errors(path: Path) -> Iterator[tuple[int, str | DataError]]:
    """Read as `read_lines` does, but yield the error of a line that is not UTF-8 instead of raising it."""
    number = 0
    try:
        check_is_file(path)
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
            for number, text in decode_lines(stream, path):
                yield number, text
    except EOFError as error:
        hint = refetch_hint(path)
        raise DataError(
            f"{path}: the gzip file is cut off after line {number}: fetch or compress it again{hint}"
        ) from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: not a sound gzip file after line {number}: {error}{refetch_hint(path)}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def decode_lines(stream: Iterable[bytes], where: Path | str) -> Iterator[tuple[int, str | DataError]]:
    """Read as `read_lines_or_errors` does, from a stream of bytes; `where` names it in errors."""
    for number, raw in enumerate(stream, start=1):
        try:
            text = raw.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
        except UnicodeDecodeError as error:
            reason = f"not UTF-8 at byte {error.start + 1} of the line ({error.reason})"
            yield number, bad_line(where, number, reason)
            continue
        yield number, text.removeprefix(_BYTE_ORDER_MARK) if number == 1 else text


def check_is_file(path: Path) -> None:
    """Raise a DataError for a folder or device, and for a missing file with the nearest name in its folder.

    A FIFO is taken for a file: shells give programs' outputs as such.
    """
    if (kind := kind_of(path)) not in (None, "a FIFO"):
        raise DataError(f"{path}: is {kind}, not a file")
    if path.exists():
        return
    if not path.parent.is_dir():
        raise DataError(f"{path}: no such file (there is no folder {path.parent})")
    close = get_close_matches(path.name, sorted(entry.name for entry in path.parent.iterdir()), n=1)
    raise DataError(f"{path}: no such file{f'; the nearest name there is {close[0]}' if close else ''}")
