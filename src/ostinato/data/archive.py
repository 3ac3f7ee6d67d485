"""Reading single files out of a tar archive, without unpacking it."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ostinato.errors import DataError


@contextmanager
def open_member(archive: Path, name: str) -> Iterator[IO[bytes]]:
    """Open the first file of a tar archive, compressed or not, whose path ends with `name`, as a stream of bytes.

    Raises:
        DataError: no sound archive, or no such file in it; names those that are there.
    """
    try:
        with tarfile.open(archive) as tar:
            members = [member for member in tar.getmembers() if member.isfile()]
            found = next((member for member in members if f"/{member.name}".endswith(f"/{name}")), None)
            stream = tar.extractfile(found) if found is not None else None
            if stream is None:
                there = ", ".join(member.name for member in members[:20]) or "nothing"
                raise DataError(f"{archive}: holds no file {name}; there is {there}")
            yield stream
    except (tarfile.TarError, EOFError) as error:
        raise DataError(f"{archive}: not a sound tar archive: {error}") from error
