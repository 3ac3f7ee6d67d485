"""Copies of a sweep's results elsewhere: any place that fsspec can write to, such as s3://bucket/folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ostinato.config.sweep import SweepConfig
from ostinato.errors import ConfigError, OstinatoError, on_one_line
from ostinato.experiments.sweep.remote import open_place, without_password
from ostinato.experiments.sweep.rows import RESULTS, TIMINGS, results_folder
from ostinato.experiments.sweep.runs import PlannedRun


class Copies:
    """A place for copies.

    Args:
        url: of a folder, as fsspec writes it.

    Raises:
        ConfigError: fsspec does not know the kind of place, or lacks the library for it.
    """

    def __init__(self, url: str) -> None:
        self.name = without_password(url)
        self._files, self._root = open_place(url, "--copy-to")

    def write(self, sweep: SweepConfig, runs: Sequence[PlannedRun], store: Path) -> int:
        """Copy what of finished runs is not there yet, then results.jsonl and timings.jsonl; return how many runs.

        A file is there where the copy has its size: one that was cut off is copied again. A run's versions.json, which
        says when it began, is copied first, its results.json last, and the run counts where that was. Where one of them
        is another one there, the run has been trained again: all of it is copied, and nothing of the other training
        stays.

        Raises:
            ConfigError: it cannot be written.
        """
        done = {run.directory for run in runs if run.is_finished}
        n_copied = 0
        try:
            for directory in sorted(done):
                place, results = f"{self._root}/{directory.name}", directory / "results.json"
                there = self._files.find(place, detail=True)
                files = {path.relative_to(directory).as_posix(): path for path in sorted(directory.rglob("*"))}
                files = {name: path for name, path in files.items() if path.is_file()}
                marks = [path for name, path in files.items() if name in ("versions.json", results.name)]
                is_same = all(
                    self._files.cat_file(f"{place}/{mark.name}") == mark.read_bytes()
                    for mark in marks
                    if f"{place}/{mark.name}" in there
                )
                if not is_same:
                    for path in there:
                        self._files.rm_file(path)
                    there = {}
                for name, path in sorted(files.items(), key=lambda item: (item[1] == results, item[1] not in marks)):
                    if there.get(f"{place}/{name}", {}).get("size") != path.stat().st_size:
                        self._put(path, f"{directory.name}/{name}")
                        n_copied += path == results
            folder = results_folder(sweep, store)
            for name in (TIMINGS, RESULTS):
                for path in folder.rglob(name):  # also those of earlier sweeps of this name
                    self._put(path, path.relative_to(store).as_posix())
        except OstinatoError:
            raise
        except Exception as error:  # of some library, or of the network: there is no common base
            reason = on_one_line(error) or type(error).__name__
            raise ConfigError(f"--copy-to: {self.name}: cannot be written: {reason}") from error
        return n_copied

    def _put(self, path: Path, name: str) -> None:
        target = f"{self._root}/{name}"
        self._files.makedirs(target.rpartition("/")[0], exist_ok=True)
        self._files.put_file(str(path), target)
