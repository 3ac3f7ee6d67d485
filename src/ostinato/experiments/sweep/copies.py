"""Copies of a sweep's results elsewhere: any place that fsspec can write to, such as s3://bucket/folder.

A store itself must be a folder: runs go on because files are renamed in one step and flushed, and are each trained by
one process because files can be locked. Object stores promise neither, so they get copies of what is finished.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ostinato.config.sweep import SweepConfig
from ostinato.errors import ConfigError, on_one_line
from ostinato.experiments.sweep.measures import MEASURES
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
        from fsspec.core import url_to_fs

        self.url = url
        try:
            place: tuple[Any, str] = url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise ConfigError(f"--copy-to: {url}: {on_one_line(error)}") from error
        self._files, self._root = place

    def write(self, sweep: SweepConfig, runs: Sequence[PlannedRun], store: Path) -> int:
        """Copy every finished run that is not there yet, then results.jsonl and timings.jsonl; return how many runs.

        A run's results.json is copied last: a copy that has it is whole, but for what is measured of the run later.

        Raises:
            ConfigError: it cannot be written.
        """
        done = {run.directory for run in runs if run.is_finished}
        n_copied = 0
        try:
            for directory in sorted(done):
                is_there = self._files.exists(f"{self._root}/{directory.name}/results.json")
                files = [path for path in sorted(directory.rglob("*")) if path.is_file()]
                for path in sorted(files, key=lambda path: path == directory / "results.json"):
                    name = f"{directory.name}/{path.relative_to(directory).as_posix()}"
                    is_late = path.parent == directory / MEASURES and not self._files.exists(f"{self._root}/{name}")
                    if is_late or not is_there:
                        self._put(path, name)
                n_copied += not is_there
            folder = results_folder(sweep, store)
            for path in (folder / TIMINGS, folder / RESULTS):
                if path.is_file():
                    self._put(path, f"sweeps/{folder.name}/{path.name}")
        except (OSError, ImportError, ValueError) as error:
            raise ConfigError(f"--copy-to: {self.url}: cannot be written: {on_one_line(error)}") from error
        return n_copied

    def _put(self, path: Path, name: str) -> None:
        target = f"{self._root}/{name}"
        self._files.makedirs(target.rpartition("/")[0], exist_ok=True)
        self._files.put_file(str(path), target)
