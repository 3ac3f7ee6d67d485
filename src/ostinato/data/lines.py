"""Lines of text files, plain or compressed by gzip or zstd, with errors that name the file and the line."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import BinaryIO, cast

from ostinato.data.disk import refetch_hint
from ostinato.data.tables import open_zstd
from ostinato.errors import DataError
from ostinato.system_errors import kind_of

_BYTE_ORDER_MARK = "\ufeff"


def bad_line(path: Path | str, number: int, reason: str, unit: str = "line") -> DataError:
    """Return the error for one line, or row of a table; `number` counts from 1."""
    return DataError(f"{path}, {unit} {number}: {reason}{refetch_hint(path)}")


class NotUtf8Error(DataError):
    """A line that is no text.

    Attributes:
        raw: its bytes, with the line end.
    """

    def __init__(self, reason: str, raw: bytes) -> None:
        super().__init__(reason)
        self.raw = raw


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a plain file, whole lines of it.

    Args:
        start, end: in bytes from the beginning of the file; end None: its end. n_before: lines before it.
    """

    start: int = 0
    end: int | None = None
    n_before: int = 0


WHOLE = Stretch()
_AT_ONCE = 1 << 22
"""Bytes that are read at a time."""


def stretches_of(path: Path, n_bytes: int) -> list[Stretch]:
    """Return a plain file cut into stretches of about so many bytes, each of whole lines."""
    cuts = [Stretch()]
    n_lines = position = 0
    with path.open("rb") as stream:
        while block := stream.read(_AT_ONCE):
            # The first line that begins where a stretch may end; a block that holds none is only counted.
            while (place := block.find(b"\n", max(0, cuts[-1].start + n_bytes - 1 - position))) >= 0:
                cuts.append(Stretch(position + place + 1, None, n_lines + block.count(b"\n", 0, place + 1)))
            n_lines += block.count(b"\n")
            position += len(block)
    if len(cuts) > 1 and cuts[-1].start == position:
        del cuts[-1]
    ends = [cut.start for cut in cuts[1:]]
    return [replace(cut, end=end) for cut, end in zip(cuts, [*ends, None], strict=True)]


def stretches_beside(path: Path, stretches: list[Stretch]) -> list[Stretch] | None:
    """Return a plain file cut where another one is: at the same lines; None where it has too few.

    Args:
        stretches: of the other file, all of it.
    """
    starts, n_lines, position = [0], 0, 0
    with path.open("rb") as stream:
        while len(starts) < len(stretches) and (block := stream.read(_AT_ONCE)):
            n_here, place = block.count(b"\n"), -1
            while len(starts) < len(stretches) and stretches[len(starts)].n_before <= n_lines + n_here:
                for _ in range(stretches[len(starts)].n_before - n_lines - block.count(b"\n", 0, place + 1)):
                    place = block.find(b"\n", place + 1)
                starts.append(position + place + 1)
            n_lines += n_here
            position += len(block)
    if len(starts) < len(stretches):
        return None
    ends = [*starts[1:], None]
    return [Stretch(start, end, one.n_before) for start, end, one in zip(starts, ends, stretches, strict=True)]


def read_lines(path: Path, stretch: Stretch = WHOLE) -> Iterator[tuple[int, str]]:
    """Yield the number (from 1) and the text of every line of a UTF-8 file, without the line end.

    Only line feeds end a line, with or without a carriage return: characters such as U+2028 belong to the text.
    A file whose name ends in ``.gz`` or ``.zst`` is decompressed.

    Args:
        stretch: what to read of a plain file.

    Raises:
        DataError: the file is missing, a folder, not readable, not UTF-8, or compressed and damaged or truncated.
    """
    for number, text in read_lines_or_errors(path, stretch):
        if isinstance(text, DataError):
            raise text
        yield number, text


def read_lines_or_errors(path: Path, stretch: Stretch = WHOLE) -> Iterator[tuple[int, str | DataError]]:
    """Read as `read_lines` does, but yield the error of a line that is not UTF-8 instead of raising it."""
    number = stretch.n_before
    try:
        check_is_file(path)
        with _open(path) as stream:
            raw: Iterable[bytes] = stream
            if stretch.start or stretch.end is not None:
                stream.seek(stretch.start)
                raw = _lines_until(stream, stretch)
            for number, text in decode_lines(raw, path, stretch.n_before):
                yield number, text
    except EOFError as error:
        hint = refetch_hint(path)
        raise DataError(
            f"{path}: the gzip file is cut off after line {number}: fetch or compress it again{hint}"
        ) from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: not a sound gzip file after line {number}: {error}{refetch_hint(path)}") from error
    except OSError as error:
        if path.suffix.lower() == ".zst" and error.errno is None:
            reason = f"not a sound zstd file after line {number}: {error}{refetch_hint(path)}"
            raise DataError(f"{path}: {reason}") from error
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def _open(path: Path) -> BinaryIO:
    suffix = path.suffix.lower()
    if suffix not in (".gz", ".zst"):
        return path.open("rb")
    stream = open_zstd(path) if suffix == ".zst" else cast(BinaryIO, gzip.GzipFile(path, "rb"))
    if kind_of(path) is None and not path.stat().st_size:
        stream.close()
        raise DataError(f"{path}: is cut off, it has no bytes: fetch or compress it again{refetch_hint(path)}")
    return stream


def _lines_until(stream: BinaryIO, stretch: Stretch) -> Iterator[bytes]:
    position = stretch.start
    for line in stream:
        yield line
        position += len(line)
        if position == stretch.end:
            return


def decode_lines(
    stream: Iterable[bytes], where: Path | str, n_before: int = 0
) -> Iterator[tuple[int, str | DataError]]:
    """Read as `read_lines_or_errors` does, from a stream of bytes; `where` names it in errors."""
    for number, raw in enumerate(stream, start=n_before + 1):
        try:
            text = raw.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
        except UnicodeDecodeError as error:
            reason = f"not UTF-8 at byte {error.start + 1} of the line ({error.reason})"
            yield number, NotUtf8Error(str(bad_line(where, number, reason)), raw)
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
