"""Small archives and files of the published form, laid out as a mirror."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from ostinato.data.registry import DataAccess, RemoteFile


def write_archive(folder: Path, file: RemoteFile, members: dict[str, str]) -> None:
    """Write a tar.gz of text files where a mirror has it."""
    path = folder / file.key
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for name, text in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))


def write_lines(folder: Path, file: RemoteFile, lines: list[str]) -> None:
    """Write a text file where a mirror has it."""
    path = folder / file.key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def mirrored(folder: Path) -> DataAccess:
    """An access with a cache of its own to the mirror in a folder."""
    return DataAccess(folder / "cache", str(folder))
