"""Making a pack: every unit of its source is tokenised once, in one process or several.

A packing that was killed goes on with the units that are not done. Neither the number of processes nor a kill changes a
byte of the result.

A pack is found by the SHA-256 of everything it depends on: what the examples are, how they are read, and the
tokenizers.
"""

from __future__ import annotations

import hashlib
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock, Timeout

from ostinato.data.disk import hash_of, make_folder, new_folder, remove_leftovers, write_json
from ostinato.data.packs.shards import PACK_FILE, PACK_VERSION, TOKENIZERS, Pack, finished
from ostinato.data.packs.source import UNIT_BYTES, PackSource, Unit
from ostinato.data.packs.unit import Work, read_unit
from ostinato.data.packs.worker import PARTS, SOURCES
from ostinato.data.tokenizers import Tokenizers
from ostinato.errors import DataError
from ostinato.folders import cache_folder


class Progress(NamedTuple):
    """Bytes of files that are done, and of all; seconds left by the speed so far; what is done to them.

    Args:
        waits: nothing is done here: another process is at it.
    """

    done: int
    total: int
    seconds_left: float
    what: str = "tokenised"
    waits: bool = False

    def __str__(self) -> str:
        if self.waits:
            return f"{self.total / 1e6:,.0f} MB are {self.what} by another process: waiting for it"
        minutes, seconds = divmod(round(self.seconds_left), 60)
        percent = 100 * self.done // max(self.total, 1)
        return f"{self.what} {percent} % of {self.total / 1e6:,.0f} MB, {minutes}:{seconds:02} left"


OnProgress = Callable[[Progress], None]


@contextmanager
def held(path: Path, source: PackSource, on_progress: OnProgress | None, what: str = "tokenised") -> Iterator[None]:
    """Hold a lock; where another process holds it, say so and wait: it makes the same."""
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        if on_progress is not None:
            on_progress(Progress(0, source.n_bytes, 0.0, what, waits=True))
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def packs_folder() -> Path:
    """Return the folder of all packs."""
    return cache_folder() / "packed"


def content_hash(source: PackSource) -> str:
    """Return the SHA-256 of what the examples are, and of how they are read."""
    return hash_of(made_of(source, {}))


def make_pack(
    source: PackSource, tokenizers: Tokenizers, *, n_processes: int | None = None, on_progress: OnProgress | None = None
) -> Pack:
    """Tokenise the examples, or go on where an earlier packing of them was killed; return the pack.

    Args:
        n_processes: None: one a CPU that this process may use, if there is that much work.

    Raises:
        DataError: an example that cannot be read or encoded; names file or data set, line or row, and reason.
    """
    before = source.states()
    digest = content_hash(source)
    # What another version lays out in another way has another name.
    layout = {"content": digest, "tokenizers": _hash_of(tokenizers), "format": PACK_VERSION, "unit_bytes": UNIT_BYTES}
    folder = packs_folder() / hash_of(layout)[:32]
    if (folder / PACK_FILE).is_file():  # written last: the folder need not be one that this process may write to
        return Pack(folder)
    make_folder(folder.parent)
    with held(folder.with_name(f"{folder.name}.lock"), source, on_progress):
        if not (folder / PACK_FILE).is_file():
            make_folder(folder)
            remove_leftovers(folder)
            with new_folder(folder / TOKENIZERS) as inside:
                tokenizers.save(inside)
            units, work = source.units(), Work(folder, source, tokenizers)
            _do(work, units, n_processes, on_progress)
            done = [read_unit(folder, number, work.dtype) for number in range(len(units))]
            whole = [one for one in done if one is not None]
            if len(whole) < len(done):
                raise DataError(f"{folder}: files of it were removed meanwhile; the same command makes them again")
            if (changed := changed_since(source, before)) is not None:
                shutil.rmtree(folder)  # it may hold ids of both
                raise DataError(f"{changed}: was changed while it was tokenised; the same command begins anew")
            content = finished(whole, digest, source.settings(), work.dtype.str) | {"published": source.published()}
            if not content["n_texts"]:
                raise DataError(f"{source.name}: no examples")
            write_json(folder / PACK_FILE, content)
    return Pack(folder)


def changed_since(source: PackSource, before: Mapping[Path, tuple[int, int]]) -> Path | None:
    """Return a file that is not what it was, by its `PackSource.states` before; None: there is none."""
    return next((path for path, state in source.states().items() if state != before.get(path)), None)


def made_of(source: PackSource, others: dict[str, Any]) -> dict[str, Any]:
    """Return what the examples are, how they are read, and whatever else something made of them depends on."""
    return {**others, **source.settings(), **source.content()}


def _hash_of(tokenizers: Tokenizers) -> str:
    """Return the SHA-256 of what tokenizers are saved as."""
    digest = hashlib.sha256()
    with tempfile.TemporaryDirectory() as folder:
        tokenizers.save(Path(folder))
        for file in sorted(Path(folder).iterdir()):
            digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()


def n_usable() -> int:
    """Return how many CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _do(work: Work, units: Sequence[Unit], n_processes: int | None, on_progress: OnProgress | None) -> None:
    """Do the units that are not done, in this process or in several."""
    todo = [number for number in range(len(units)) if read_unit(work.folder, number, work.dtype) is None]
    meter = Meter(sum(unit.n_bytes for unit in units), on_progress)
    meter.skip(meter.total - sum(units[number].n_bytes for number in todo))
    n_processes = min(n_usable() if n_processes is None else n_processes, len(todo))
    if n_processes <= 1:
        for number in todo:
            work.do(number, units[number])
            meter.add(units[number].n_bytes)
        return
    left: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in todo:
        left.put(number)
    workers: list[subprocess.Popen[str]] = []
    with ThreadPoolExecutor(n_processes) as threads:
        try:
            driven = [threads.submit(_drive, work, units, left, meter, workers) for _ in range(n_processes)]
            for one in as_completed(driven):
                one.result()
        except BaseException:  # Ctrl-C too: what is half done is done again next time
            with suppress(queue.Empty):
                while True:
                    left.get_nowait()
            for worker in workers:
                worker.kill()
            raise


class Meter:
    """Tells how far a packing, or a reading before it, is; called by several threads."""

    def __init__(self, total: int, on_progress: OnProgress | None, what: str = "tokenised") -> None:
        self.total, self._on_progress, self._what = total, on_progress, what
        self._done = self._skipped = 0
        self._began, self._lock = time.monotonic(), threading.Lock()

    def skip(self, n_bytes: int) -> None:
        """Count what was done before."""
        self._done = self._skipped = n_bytes

    def add(self, n_bytes: int) -> None:
        """Count what is done, and tell."""
        with self._lock:
            self._done = min(self.total, self._done + n_bytes)
            seconds = (time.monotonic() - self._began) / max(self._done - self._skipped, 1)
            if self._on_progress is not None:
                self._on_progress(Progress(self._done, self.total, seconds * (self.total - self._done), self._what))


def _drive(
    work: Work,
    units: Sequence[Unit],
    left: queue.SimpleQueue[int],
    meter: Meter,
    workers: list[subprocess.Popen[str]],
) -> None:
    """Have a process of its own do one unit after the other; see `ostinato.data.packs.worker`."""
    command = [sys.executable, "-P", "-m", "ostinato.data.packs.worker"]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    # It imports what this process can, and nothing else that lies in the current folder.
    pipes["env"] = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    # In a session of its own it gets no Ctrl-C: the process that started it ends it.
    with subprocess.Popen(command, **pipes, start_new_session=True) as worker:
        workers.append(worker)
        given, answers = worker.stdin, worker.stdout
        assert given is not None  # both are pipes
        assert answers is not None
        try:
            _send(
                given, {"folder": str(work.folder), "source": SOURCES.dump_python(work.source.to_send(), mode="json")}
            )
            with suppress(queue.Empty):
                while True:
                    number = left.get_nowait()
                    _send(given, {"number": number, "parts": PARTS.dump_python(units[number].parts, mode="json")})
                    answer = answers.readline()
                    if not answer:
                        raise BrokenPipeError
                    failed = json.loads(answer)
                    if "error" in failed:
                        raise DataError(failed["error"])
                    if failed:
                        raise OSError(failed["errno"], failed["strerror"], failed["filename"])
                    meter.add(units[number].n_bytes)
        except BrokenPipeError as error:
            raise DataError(
                f"{work.folder}: a process that tokenises has ended (out of memory? fewer take less); the same command "
                "goes on where it stopped"
            ) from error
        finally:
            with suppress(BrokenPipeError):
                given.close()


def _send(stream: Any, content: dict[str, Any]) -> None:
    stream.write(json.dumps(content) + "\n")
    stream.flush()
