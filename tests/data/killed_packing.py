"""Pack the same files again and again, killed by SIGKILL at every operation on a file in turn, then to the end.

Run as a program, without torch, so that a fork takes no time: ``killed_packing.py FOLDER [STEP] [power]``. With "power"
files lose what was not flushed to the disk, as when the machine stops. Prints one JSON object: the operations, and
those after whose kill the second run ended with other bytes than an undisturbed one.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ostinato.data.packs import make, source, unit
from ostinato.data.packs.files import FileSource
from ostinato.data.symbols import SymbolTokenizer
from ostinato.data.tokenizers import Tokenizers

WORDS = SymbolTokenizer("words", list("abcdefgh"))


class Killer:
    """Ends this process before its n-th operation on a file, a write in its middle; 0: never.

    Args:
        loses: cut files to what was flushed of them.
    """

    def __init__(self, at: int, loses: bool) -> None:
        self.at, self.loses, self.trace = at, loses, list[str]()
        self.flushed: dict[Path, int] = {}
        """Bytes that are on the disk of every file that was written since."""

    def step(self, what: str) -> bool:
        self.trace.append(what)
        return len(self.trace) == self.at

    def die(self) -> None:
        for path, n_bytes in self.flushed.items() if self.loses else ():
            if path.exists():
                os.truncate(path, n_bytes)
        os.kill(os.getpid(), signal.SIGKILL)

    def install(self) -> None:
        for name in ("replace", "rename", "unlink", "mkdir", "rmdir", "fsync"):
            self._wrap(name)
        opened = io.open

        def open_(file: Any, mode: str = "r", *others: Any, **named: Any) -> Any:
            if not set(mode) & set("wax+"):
                return opened(file, mode, *others, **named)
            if self.step(f"open {mode} {Path(file).name}"):
                self.die()
            path = Path(file).absolute()
            there = path.stat().st_size if "w" not in mode and path.exists() else 0
            stream = opened(file, mode, *others, **named)
            self.flushed.setdefault(path, there)
            return _Written(stream, self)

        io.open = open_  # type: ignore[assignment]

    def _wrap(self, name: str) -> None:
        real: Callable[..., Any] = getattr(os, name)

        def operation(first: Any, *others: Any, **named: Any) -> Any:
            if self.step(f"{name} {first if isinstance(first, int) else Path(first).name}"):
                self.die()
            result = real(first, *others, **named)
            if name == "fsync":
                self.flushed.pop(Path(f"/proc/self/fd/{first}").readlink(), None)
            elif name in ("replace", "rename"):
                old, new = Path(first).absolute(), Path(others[0]).absolute()
                moved = [path for path in self.flushed if path.is_relative_to(old)]
                self.flushed |= {new / path.relative_to(old): self.flushed.pop(path) for path in moved}
            return result

        setattr(os, name, operation)


class _Written:
    """A file whose writes are cut in their middle."""

    def __init__(self, stream: Any, killer: Killer) -> None:
        self._stream, self._killer = stream, killer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __enter__(self) -> _Written:
        self._stream.__enter__()
        return self

    def __exit__(self, *given: Any) -> Any:
        return self._stream.__exit__(*given)

    def write(self, content: Any) -> Any:
        if self._killer.step(f"write {len(content)}"):
            self._stream.write(content[: len(content) // 2])
            self._stream.flush()
            self._killer.die()
        return self._stream.write(content)


def pack(folder: Path, cache: Path, at: int, trace: Path | None = None, *, loses: bool = False) -> int:
    """Pack in a forked process; return its exit code, -9 where it was killed."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 1
    try:
        os.environ["OSTINATO_CACHE"] = str(cache)
        source.UNIT_BYTES = make.UNIT_BYTES = 60
        unit._HELD_TOKENS = 10
        killer = Killer(at, loses)
        killer.install()
        given = FileSource((("a", folder / "a.txt"), ("b", folder / "b.txt")), (("text", "data.text_field"),))
        make.make_pack(given, Tokenizers(WORDS, WORDS), n_processes=1)
        if trace is not None:
            trace.write_text("\n".join(killer.trace), encoding="utf-8")
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def tree(cache: Path) -> dict[str, bytes]:
    """Return everything that is in a cache; locks are empty."""
    return {str(path.relative_to(cache)): path.read_bytes() for path in sorted(cache.rglob("*")) if path.is_file()}


def main() -> None:
    folder, step, loses = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1, "power" in sys.argv
    (folder / "a.txt").write_text("".join(f"{'abcdefgh'[n % 8]} b\n" for n in range(30)), encoding="utf-8")
    (folder / "b.txt").write_text("c d e\n" * 10, encoding="utf-8")
    assert pack(folder, folder / "whole", 0, folder / "trace.txt") == 0
    expected, trace = tree(folder / "whole"), (folder / "trace.txt").read_text(encoding="utf-8").splitlines()
    wrong = []
    points = range(1, len(trace) + 1, step)
    for at in points:
        cache = folder / "killed"
        shutil.rmtree(cache, ignore_errors=True)
        codes = pack(folder, cache, at, loses=loses), pack(folder, cache, 0)
        if codes != (-9, 0) or tree(cache) != expected:
            wrong.append([at, trace[at - 1], codes])
    print(json.dumps({"n_points": len(trace), "n_killed": len(points), "wrong": wrong}))


if __name__ == "__main__":
    main()
