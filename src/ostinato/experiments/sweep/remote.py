"""A store at an address that fsspec knows, such as s3://bucket/runs, for machines that share no folder.

Such places have neither locks nor renames in one step. So every machine works in a folder of its own, where it has
both, and a run passes between machines as a copy: who goes on with it fetches it where it is further there, and
publishes it after every checkpoint. What is further is never replaced by what is not.

    store.json          says that this is a store; written first, so that a place that cannot be one is noticed
    KEY/...             the runs, as in a folder
    sweeps/NAME/...     results.jsonl and timings.jsonl, and those of earlier sweeps of that name
    events/...          what happens in the runs that a cluster is at work on, a file each

A copy that is cut off does no harm: a checkpoint is there before what says that it is the last one, then comes
recipe.yaml, without which nothing of the run counts, and results.json last of all; whatever is written anew is written
under another name first.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any

from ostinato.config.files import RUN_RECIPE
from ostinato.data.disk import PARTIAL, new_folder
from ostinato.errors import ConfigError, OstinatoError, on_one_line
from ostinato.experiments.sweep.locks import BusyError, write_lock
from ostinato.folders import cache_folder
from ostinato.training.rundir import RunDirectory

_LAST = "checkpoints/last.json"
_POINTERS = (RUN_RECIPE, _LAST, "checkpoints/best.json")
"""Files of a run that say that others are there."""
_CHECKPOINT = "checkpoints/update-"
_RESULTS, _STORE = "results.json", "store.json"
_WEIGHTS, _PART = ".safetensors", ".part"


class RemoteError(OstinatoError):
    """The place of a remote store cannot be read or written."""


def open_place(url: str, option: str) -> tuple[Any, str]:
    """Return the file system and the root of an address.

    Raises:
        ConfigError: it names no folder; fsspec does not know the kind of place, lacks the library for it, or cannot
            connect to it.
    """
    from fsspec.core import url_to_fs

    if not url.rpartition("://")[2].strip("/"):
        raise ConfigError(f"{option}: '{without_password(url)}' names no folder")
    try:
        place: tuple[Any, str] = url_to_fs(url)
    except Exception as error:  # of some library, or of the network: there is no common base
        raise ConfigError(f"{option}: {without_password(url)}: {on_one_line(error) or type(error).__name__}") from error
    return place


def without_password(url: str) -> str:
    """Return an address for people: without the name and password of a user."""
    return re.sub(r"//[^/@]*@", "//", url)


def working_folder(url: str) -> Path:
    """Return the folder of this machine in which the runs of a remote store are worked on."""
    url = url.rstrip("/")
    name = re.sub(r"\W+", "-", without_password(url)).strip("-")[-40:]
    return cache_folder() / "stores" / f"{name}-{hashlib.sha256(url.encode()).hexdigest()[:8]}"


class RemoteStore:
    """A store at an address.

    Args:
        url: of a folder, as fsspec writes it.

    Raises:
        ConfigError: it names no folder; or fsspec does not know the kind of place, lacks the library for it, or cannot
            connect to it.
    """

    def __init__(self, url: str) -> None:
        if not url.partition("://")[2].strip("/"):
            raise ConfigError(f"--store: {url}: names no folder")
        self.url = url.rstrip("/")
        self.name = without_password(self.url)
        self._files, self._root = open_place(self.url, "--store")
        self._published: dict[str, tuple[int, int]] = {}
        """Size and time of change of the files here that are those there, by their names there."""

    def check(self) -> None:
        """See that the place can be written and read, before anything is trained.

        Raises:
            RemoteError: it cannot.
        """
        content = json.dumps({"format": "ostinato-store", "version": 1}).encode()
        if self.read(_STORE) != content:
            self.write(_STORE, content)
            if self.read(_STORE) != content:
                raise RemoteError(f"--store: {self.name}: does not keep what is written there")

    def agree(self, directory: Path) -> None:
        """Fetch the files that rows need of a run that is finished there; publish one that is finished only here.

        Raises:
            RemoteError: it cannot be read or written, or what is here cannot be published: it has no tensors.
        """
        if _progress_here(directory) < math.inf:
            self.fetch_rows(directory)
            return
        with self._named("read"):
            if self._progress_there(directory.name) == math.inf:
                return
        if not _has_weights(directory):
            reason = f"is not there, and {directory} has no weights: delete that, and the run is trained again"
            raise RemoteError(f"--store: {self.name}/{directory.name}: {reason}")
        self.publish(directory)

    def fetch(self, directory: Path) -> None:
        """Replace a run's directory by what is published of it, where that has more updates.

        Raises:
            RemoteError: it cannot be read.
        """
        with write_lock(directory.parent, f"fetch-{directory.name}"), self._named("read"):
            here = _progress_here(directory)
            if here == math.inf and not _has_weights(directory):  # rows were all that was wanted
                here = 0
            if self._progress_there(directory.name) > here:
                names = self._names(directory.name)
                with new_folder(directory) as folder:
                    self._get(directory.name, names, folder)
                self._published |= {f"{directory.name}/{name}": _state(directory / name) for name in names}

    def fetch_rows(self, directory: Path) -> bool:
        """Fetch the files that rows need, all but tensors, of a run that is finished there; return whether it is.

        Raises:
            RemoteError: it cannot be read.
        """
        with write_lock(directory.parent, f"fetch-{directory.name}"), self._named("read"):
            if self._progress_there(directory.name) < math.inf:
                return False
            names = [name for name in self._names(directory.name) if not name.endswith(_WEIGHTS)]
            if _progress_here(directory) == math.inf:
                self._get(directory.name, names, directory)
            else:  # nothing of an earlier checkpoint may stay
                with new_folder(directory) as folder:
                    self._get(directory.name, names, folder)
        return True

    def publish(self, directory: Path) -> None:
        """Copy what of a run has changed since it was published last, and delete there what is no longer here.

        Raises:
            BusyError: it is further there: another process has taken it over. RemoteError: it cannot be written.
        """
        if not RunDirectory(directory).exists:
            return
        with self._named("read"):
            there = self._progress_there(directory.name)
        if there > (progress := _progress_here(directory)):
            raise BusyError(f"{self.name}/{directory.name}: another process has taken the run over")
        files = [path for path in sorted(directory.rglob("*")) if path.is_file() and not path.name.startswith(".")]
        here = {path.relative_to(directory).as_posix(): path for path in files}
        before = [name for name in self._published if name.startswith(f"{directory.name}/")]
        # An earlier process of this machine has published it.
        if not before and progress < math.inf and _has_weights(directory):
            with self._named("read"):
                names = self._names(directory.name)
            before = [f"{directory.name}/{name}" for name in names if name.startswith(_CHECKPOINT)]
        with self._named("written"):
            for name in sorted(here, key=lambda name: (name == _RESULTS, name in _POINTERS)):
                place = f"{directory.name}/{name}"
                if (
                    there == progress == math.inf
                    and name.endswith(_WEIGHTS)
                    and self._size(place) == _state(here[name])[0]
                ):
                    continue  # more was measured of a run that was finished before
                self._put(here[name], place)
            # Only what was here: weights that were never fetched stay.
            for name in before:
                if name.partition("/")[2] not in here:
                    self._remove(name)
                    self._published.pop(name, None)

    def publish_results(self, folder: Path, store: Path) -> None:
        """Copy the results of a sweep, and those of earlier sweeps of its name.

        Raises:
            RemoteError: they cannot be written.
        """
        with self._named("written"):
            for path in sorted(folder.rglob("*.jsonl")):
                self._put(path, path.relative_to(store).as_posix())

    def fetch_results(self, folder: Path, store: Path) -> None:
        """Have the results of a sweep that are there, and those of earlier sweeps: what comes then is kept beside them.

        Raises:
            RemoteError: they cannot be read.
        """
        place = folder.relative_to(store).as_posix()
        with self._named("read"):
            self._get(place, self._names(place), folder)

    def read(self, name: str, start: int = 0) -> bytes:
        """Return the content of a file from a byte on, nothing where there is none.

        Raises:
            RemoteError: it cannot be read.
        """
        with self._named("read"):
            return self._read(name, start)

    def write(self, name: str, content: bytes) -> None:
        """Replace the content of a file.

        Raises:
            RemoteError: it cannot be written.
        """
        with self._named("written"), self._replacing(name) as target:
            self._files.pipe_file(target, content)

    def remove(self, name: str) -> None:
        """Delete a file, if it is there.

        Raises:
            RemoteError: it cannot be deleted.
        """
        with self._named("written"):
            self._remove(name)

    def _read(self, name: str, start: int = 0) -> bytes:
        self._files.invalidate_cache()
        path = f"{self._root}/{name}"
        try:  # not `exists`, which many kinds of place answer with no where they cannot be reached
            size = self._files.info(path)["size"]
            return bytes(self._files.cat_file(path, start=start)) if size is None or size > start else b""
        except FileNotFoundError:
            return b""

    def _size(self, name: str) -> int | None:
        try:
            size: int | None = self._files.info(f"{self._root}/{name}")["size"]
        except FileNotFoundError:
            return None
        return size

    def _names(self, folder: str) -> list[str]:
        """Return the files below a folder."""
        self._files.invalidate_cache()
        root, found = f"{self._root}/{folder}", []
        try:
            for place, _, files in self._files.walk(root, on_error="raise"):
                below = place[len(root) :].strip("/")
                found += [f"{below}/{name}" if below else name for name in files]
        except FileNotFoundError:
            return []
        for name in found:
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                raise RemoteError(f"--store: {self.name}/{folder}: holds a file {name!r}, which is none of a run")
        return sorted(name for name in found if name and not name.endswith(_PART))

    def _get(self, place: str, names: Iterable[str], folder: Path) -> None:
        """Copy files into a folder, each in one step."""
        for name in names:
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            partial = target.with_name(f"{PARTIAL}{target.name}")
            self._files.get_file(f"{self._root}/{place}/{name}", str(partial))
            partial.replace(target)

    def _put(self, path: Path, name: str) -> None:
        state = _state(path)
        if self._published.get(name) == state:
            return
        if path.suffix == _WEIGHTS:  # large, and nothing says yet that it is there
            self._make_folder(name)
            self._files.put_file(str(path), f"{self._root}/{name}")
        else:
            with self._replacing(name) as target:
                self._files.put_file(str(path), target)
        self._published[name] = state

    @contextmanager
    def _replacing(self, name: str) -> Iterator[str]:
        """Yield the path of a file that gets another name when it is whole: some places show half a file."""
        path = f"{self._root}/{name}"
        self._make_folder(name)
        yield f"{path}{_PART}"
        self._files.mv(f"{path}{_PART}", path)

    def _make_folder(self, name: str) -> None:
        self._files.makedirs(f"{self._root}/{name}".rpartition("/")[0], exist_ok=True)

    def _remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._files.rm_file(f"{self._root}/{name}")

    def _progress_there(self, run: str) -> float:
        if self._read(f"{run}/{_RESULTS}"):
            return math.inf
        last = self._read(f"{run}/{_LAST}")
        # The recipe is put there after it: without it the run is not all there, and nothing could go on with it.
        return int(json.loads(last)["update"]) if last and self._read(f"{run}/{RUN_RECIPE}") else 0

    @contextmanager
    def _named(self, what: str) -> Iterator[None]:
        try:
            yield
        except OstinatoError:
            raise
        except Exception as error:  # of some library, or of the network: there is no common base
            reason = on_one_line(error) or type(error).__name__
            raise RemoteError(f"--store: {self.name}: cannot be {what}: {reason}") from error


def _progress_here(directory: Path) -> float:
    """Return the update of a run's last checkpoint, 0 where there is none, infinity where it is finished."""
    run = RunDirectory(directory)
    return run.last_update() if run.results() is None else math.inf


def _has_weights(directory: Path) -> bool:
    return any(directory.glob(f"checkpoints/*/model{_WEIGHTS}"))


def _state(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns
