"""A store at an address that fsspec knows, such as s3://bucket/runs, for machines that share no folder.

Such places have neither locks nor renames in one step. So every machine works in a folder of its own, where it has
both, and a run passes between machines as a copy: who goes on with it fetches it, and publishes it after every
checkpoint.

    KEY/...             the runs, as in a folder
    sweeps/NAME/...     results.jsonl and timings.jsonl
    events/...          what happens in the runs that a cluster is at work on, a file each

A copy that was cut off does no harm: a checkpoint is there before what says that it is the last one, and results.json
comes last of all.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ostinato.data.disk import new_folder
from ostinato.errors import ConfigError, OstinatoError, on_one_line
from ostinato.experiments.sweep.locks import BusyError, write_lock
from ostinato.folders import cache_folder
from ostinato.training.rundir import RunDirectory

_LAST = "checkpoints/last.json"
_POINTERS = ("recipe.yaml", _LAST, "checkpoints/best.json")
"""Files of a run that say that others are there."""
_RESULTS = "results.json"
_WEIGHTS = ".safetensors"


class RemoteError(OstinatoError):
    """The place of a remote store cannot be read or written."""


def open_place(url: str, option: str) -> tuple[Any, str]:
    """Return the file system and the root of an address.

    Raises:
        ConfigError: fsspec does not know the kind of place, or lacks the library for it.
    """
    from fsspec.core import url_to_fs

    try:
        place: tuple[Any, str] = url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise ConfigError(f"{option}: {url}: {on_one_line(error)}") from error
    return place


def working_folder(url: str) -> Path:
    """Return the folder of this machine in which the runs of a remote store are worked on."""
    name = re.sub(r"\W+", "-", url).strip("-")[-40:]
    return cache_folder() / "stores" / f"{name}-{hashlib.sha256(url.encode()).hexdigest()[:8]}"


class RemoteStore:
    """A store at an address.

    Args:
        url: of a folder, as fsspec writes it.

    Raises:
        ConfigError: fsspec does not know the kind of place, or lacks the library for it.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._files, self._root = open_place(self.url, "--store")
        self._published: dict[str, tuple[int, int]] = {}
        """Size and time of change of the files here that are those there, by their names there."""
        self._last: dict[str, bytes] = {}
        """What says which checkpoint of a run is the last one, as this object has fetched or published it."""

    def fetch(self, directory: Path, *, with_weights: bool = True) -> bool:
        """Make a run's directory what is published of it, if anything is; return whether anything is.

        Whoever calls it holds the run's lock, or is alone with the folder.

        Args:
            with_weights: whether tensors are fetched, too; rows of a sweep need none.

        Raises:
            RemoteError: it cannot be read.
        """
        with write_lock(directory.parent, f"fetch-{directory.name}"), self._named("read"):
            return self._fetch(directory, with_weights)

    def _fetch(self, directory: Path, with_weights: bool) -> bool:
        there = self._sizes(directory.name)
        if not there:
            return False
        wanted = [name for name in there if with_weights or not name.endswith(_WEIGHTS)]
        if not with_weights and all(_size(directory / name) == there[name] for name in wanted):
            return True
        with new_folder(directory) as folder:
            for name in wanted:
                target = folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                self._files.get_file(f"{self._root}/{directory.name}/{name}", str(target))
        last = directory / _LAST
        self._last[directory.name] = last.read_bytes() if last.is_file() else b""
        self._published |= {f"{directory.name}/{name}": _state(directory / name) for name in wanted}
        return True

    def fetch_finished(self, directory: Path, *, with_weights: bool) -> bool:
        """Fetch a run that is finished there and not here; return whether it is finished here now.

        Args:
            with_weights: whether it has to have tensors here, too.

        Raises:
            RemoteError: it cannot be read.
        """
        with write_lock(directory.parent, f"fetch-{directory.name}"), self._named("read"):
            has_weights = any(directory.glob(f"checkpoints/*/model{_WEIGHTS}"))
            if RunDirectory(directory).results() is not None and (has_weights or not with_weights):
                return True
            self._files.invalidate_cache()
            return self._exists(f"{directory.name}/{_RESULTS}") and self._fetch(directory, with_weights)

    def publish(self, directory: Path) -> None:
        """Copy what of a run has changed since it was published last, and delete there what is no longer here.

        Raises:
            BusyError: another process has published another checkpoint since. RemoteError: it cannot be written.
        """
        if not RunDirectory(directory).exists:
            return
        last = (directory / _LAST).read_bytes() if (directory / _LAST).is_file() else b""
        if self.read(f"{directory.name}/{_LAST}") not in (self._last.get(directory.name, b""), last):
            raise BusyError(f"{self.url}/{directory.name}: another process has taken the run over")
        files = [path for path in sorted(directory.rglob("*")) if path.is_file() and not path.name.startswith(".")]
        here = {path.relative_to(directory).as_posix(): path for path in files}
        with self._named("written"):
            for name in sorted(here, key=lambda name: (name == _RESULTS, name in _POINTERS)):
                self._put(here[name], f"{directory.name}/{name}")
            self._last[directory.name] = last
            # Only what was here: weights that were never fetched stay.
            for name in [name for name in self._published if name.startswith(f"{directory.name}/")]:
                if name.partition("/")[2] not in here:
                    self._files.rm_file(f"{self._root}/{name}")
                    del self._published[name]

    def publish_results(self, folder: Path, store: Path) -> None:
        """Copy the results of a sweep, and those of earlier sweeps of its name.

        Raises:
            RemoteError: they cannot be written.
        """
        with self._named("written"):
            for path in sorted(folder.rglob("*.jsonl")):
                self._put(path, path.relative_to(store).as_posix())

    def fetch_results(self, folder: Path, store: Path) -> None:
        """Have the results of a sweep that are there, where none are here: none of them is lost.

        Raises:
            RemoteError: they cannot be read.
        """
        place = folder.relative_to(store).as_posix()
        with self._named("read"):
            if not folder.is_dir() and (names := self._sizes(place)):
                with new_folder(folder) as inside:
                    for name in names:
                        target = inside / name
                        target.parent.mkdir(parents=True, exist_ok=True)
                        self._files.get_file(f"{self._root}/{place}/{name}", str(target))

    def read(self, name: str) -> bytes:
        """Return the content of a file, nothing where there is none.

        Raises:
            RemoteError: it cannot be read.
        """
        with self._named("read"):
            self._files.invalidate_cache()
            return bytes(self._files.cat_file(f"{self._root}/{name}")) if self._exists(name) else b""

    def write(self, name: str, content: bytes) -> None:
        """Replace the content of a file.

        Raises:
            RemoteError: it cannot be written.
        """
        with self._named("written"):
            self._make_folder(name)
            self._files.pipe_file(f"{self._root}/{name}", content)

    def remove(self, name: str) -> None:
        """Delete a file, if it is there.

        Raises:
            RemoteError: it cannot be deleted.
        """
        with self._named("written"):
            self._files.invalidate_cache()
            if self._exists(name):
                self._files.rm_file(f"{self._root}/{name}")

    def _exists(self, name: str) -> bool:
        return bool(self._files.exists(f"{self._root}/{name}"))

    def _sizes(self, folder: str) -> dict[str, int]:
        """Return the files below a folder with their sizes."""
        self._files.invalidate_cache()
        root = f"{self._root}/{folder}/"
        found = self._files.find(root, detail=True)
        return {path[len(root) :]: entry["size"] for path, entry in sorted(found.items())}

    def _make_folder(self, name: str) -> None:
        self._files.makedirs(f"{self._root}/{name}".rpartition("/")[0], exist_ok=True)

    def _put(self, path: Path, name: str) -> None:
        state = _state(path)
        if self._published.get(name) != state:
            self._make_folder(name)
            self._files.put_file(str(path), f"{self._root}/{name}")
            self._published[name] = state

    @contextmanager
    def _named(self, what: str) -> Iterator[None]:
        try:
            yield
        except OstinatoError:
            raise
        except Exception as error:  # of some library, or of the network: there is no common base
            raise RemoteError(f"--store: {self.url}: cannot be {what}: {on_one_line(error)}") from error


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None


def _state(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns
