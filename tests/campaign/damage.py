"""Ways in which a file may be damaged, each with a name: the same ones in every run."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

DEEP = b"[" * 100_000
OTHER_CONTENTS: dict[str, bytes] = {
    "emptied": b"",
    "blank": b"\n \n\t\n",
    "a list": b"[1, 2]\n",
    "a number": b"3\n",
    "null": b"null\n",
    "an object": b'{"a": {"b": [null]}}\n',
    "nested": DEEP,
    "closed": b"[" * 50_000 + b"]" * 50_000 + b"\n",
    "digits": b"9" * 5_000 + b"\n",
    "infinite": b'{"n": Infinity, "m": NaN, "o": 1e999}\n',
    "surrogate": b'{"a": "\\ud800", "\\udfff": 1}\n',
    "binary": random.Random(0).randbytes(3_000),
    "zeros": bytes(3_000),
    "UTF-16": '{"a": "b"}\n'.encode("utf-16"),
    "a web page": b"<!doctype html><html><body>log in first</body></html>\n",
}
"""What may stand in the place of a file."""


def truncations(content: bytes, n: int) -> Iterator[tuple[str, bytes]]:
    """Cut a file off at so many points, the last byte among them."""
    ends = {len(content) * i // n for i in range(1, n)} | {len(content) - 1}
    for end in sorted(end for end in ends if 0 < end < len(content)):
        yield f"cut off at {end}", content[:end]


def flips(content: bytes, n: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """Change one bit, at so many places."""
    draw = random.Random(seed)
    for place in sorted(draw.sample(range(len(content)), min(n, len(content)))):
        bit = 1 << draw.randrange(8)
        yield f"bit {bit} of byte {place}", content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :]


def put(path: Path, content: bytes | None) -> None:
    """Put a new file in the place of what is there, so that who has mapped the old one keeps it; None: put none."""
    remove(path)
    if content is not None:
        path.write_bytes(content)


def put_no_file(path: Path, what: str) -> None:
    """Put a folder, a FIFO, a device or a link that leads nowhere in the place of what is there."""
    remove(path)
    if what == "a folder":
        path.mkdir()
    elif what == "a FIFO":
        os.mkfifo(path)
    elif what == "a device":
        path.symlink_to("/dev/zero")
    else:
        path.symlink_to(path.with_name("nowhere" if what == "a dangling link" else path.name))


NO_FILES = ("a folder", "a dangling link", "a link to itself")
ENDLESS = ("a FIFO", "a device")
"""What is named where it stands in the place of a file of a run; of a FIFO data may come."""


def remove(path: Path) -> None:
    """Remove a file, a folder or a link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def snapshot(path: Path) -> dict[str, bytes | str]:
    """Return what a file or folder holds, by relative path: bytes of files, and what links and folders are."""

    def held(one: Path) -> bytes | str:
        if one.is_symlink():
            return f"link to {one.readlink()}"
        if not one.is_file():
            return "folder" if one.is_dir() else "FIFO"
        return one.read_bytes()

    found = {".": held(path)}
    if path.is_dir():
        found |= {one.relative_to(path).as_posix(): held(one) for one in path.rglob("*")}
    return found
