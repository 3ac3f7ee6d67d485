"""The directory of a run: what is in it, and when it may be written to.

    recipe.yaml      the recipe with every default and vocabulary size: training it again repeats the run
    versions.json    ostinato, Python and libraries, platform, commit of the source where there is one; when it began
    data.json        SHA-256 and number of examples per split, SHA-256 of the files they come from
    tokenizers/      built on the training split
    metrics.jsonl, timings.jsonl, checkpoints/, results.json
    changes.jsonl    where the recipe was changed when the run was resumed: at which update, from what, to what
    results-1.json   what a finished run had found before such a change, by the number of the change
    .lock            held by the process that trains the run; .lock.json says which one that is or was

recipe.yaml is written last of what a run starts with. A directory with a recipe.yaml is a run; one without is not yet.
Its first line is the SHA-256 of the others, so that a resumed run is the one that was begun.

One process at a time writes to a run: it holds the lock from its first write, or from the moment it resumes, until it
ends, however it ends (the system releases the locks of a killed process). Commands that only read need no lock, nor do
those that import or convert: they write the run beside its place and rename it when it is whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ostinato.config.data import DataConfig, DataSetConfig
from ostinato.config.files import RUN_RECIPE, RUN_VERSIONS, map_texts
from ostinato.config.load import recipe_text
from ostinato.config.recipe import Recipe
from ostinato.config.training import TrainingConfig
from ostinato.data.disk import (
    check_plain,
    json_object,
    make_folder,
    read_json_object,
    reading,
    remove_leftovers,
    write_json,
    write_text,
)
from ostinato.data.example import Example, fingerprint
from ostinato.data.file_hashes import file_hash
from ostinato.data.paths import find_files
from ostinato.data.tokenizers import tokenizer_files
from ostinato.errors import CheckpointError, DataError
from ostinato.system_errors import kind_of, kind_of_mode
from ostinato.tasks.base import Task
from ostinato.tasks.own_files import given_splits, paths_of
from ostinato.tasks.recipes import load_recipe
from ostinato.training.changes import Changes, Done, changes_between
from ostinato.training.checkpoint import Checkpoints
from ostinato.training.records import METRICS, TIMINGS, Records
from ostinato.version import LEARNING, __version__, source_commit, source_hash

_RESULTS, _DATA = "results.json", "data.json"
_CHANGES, _LOCK, _HOLDER = "changes.jsonl", ".lock", ".lock.json"
_SEAL = "# sha256 "
_TOKENIZERS, _CHECKPOINTS = "tokenizers", "checkpoints"
_BEFORE_RECIPE = (_TOKENIZERS, RUN_VERSIONS, _DATA)
"""What a run has already when it is killed before it has a recipe."""
_AFTER_RECIPE = (_CHECKPOINTS, METRICS, TIMINGS, _RESULTS, _CHANGES)
_LIBRARIES = ("torch", "numpy", "tokenizers", "safetensors", "pydantic", "sacrebleu")


class RunDirectory:
    """Paths and files of one run; `close` gives its lock back."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._lock: FileLock | None = None
        self.tokenizers = self.path / _TOKENIZERS
        self.checkpoints = self.path / _CHECKPOINTS

    @property
    def exists(self) -> bool:
        """True where a run has been started here."""
        return (self.path / RUN_RECIPE).is_file()

    def open(self, resume: bool) -> bool:
        """Check that the directory may be written to; return True where it holds a run to resume.

        With `resume` and no run yet, a new one begins: a job can always be restarted with the same command. A directory
        that is not there is made when there is something to write: what fails before leaves none.

        A run that is there is locked. A new one is locked by `claim`, when there is something to write.

        Raises:
            CheckpointError: there is a run already and `resume` is False, or it was never trained; it is no directory,
                or another process is at work on it; a file that is gone on with is a link, or no plain file; there is
                no run, but something that a new one would replace or take for its own.
        """
        self._check_directory()
        self._check_replaced()
        if self.exists:
            self._check_new(resume)
            if not self.data_hashes():
                reason = "was converted or imported and has no training state: begin a new run with"
                raise CheckpointError(f"{self.path}: {reason} training.init_from={self.path}")
            for log in (self.path / METRICS, self.path / TIMINGS):  # cut and appended to, through a link elsewhere
                if log.is_symlink() or kind_of(log) is not None:
                    found = kind_of_mode(log.lstat().st_mode)
                    raise CheckpointError(f"{log}: is {found}: put the file itself there to go on with the run")
            self._acquire()
            remove_leftovers(self.path)
        return self.exists

    def check_empty(self) -> None:
        """Refuse a place where anything is: an imported or converted run replaces nothing (`new_output_folder`).

        Raises:
            CheckpointError: it is a file, a directory that holds something, or one that cannot be replaced.
        """
        self._check_directory()
        if not self.path.is_dir():
            return
        if any(self.path.iterdir()):
            reason = "holds something already, and nothing is overwritten: name another folder"
            raise CheckpointError(f"{self.path}: {reason}")
        there = self.path.resolve()
        if there.is_mount() or there == Path.cwd() or not os.access(there.parent, os.W_OK):
            reason = "is a mount point, the current folder, or in a folder that may not be written"
            raise CheckpointError(
                f"{self.path}: {reason}, and cannot be replaced by the run's: name a new folder in it"
            )

    def _check_directory(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise CheckpointError(f"{self.path} is a file, but a run needs a directory")

    def _check_replaced(self) -> None:
        """Refuse a new run where something lies under the names of its files.

        What a run has left that was killed before it had a recipe is replaced: the note of its lock says that it began.
        """
        if self.exists:
            return
        names = _AFTER_RECIPE if (self.path / _HOLDER).is_file() else (*_AFTER_RECIPE, *_BEFORE_RECIPE)
        if found := [name for name in names if os.path.lexists(self.path / name)]:
            reason = f"holds {', '.join(found)} and no {RUN_RECIPE}, and nothing is overwritten: name another folder"
            raise CheckpointError(f"{self.path}: {reason}")

    def claim(self) -> None:
        """Make the directory of a new run this process's own.

        Raises:
            CheckpointError: another process has begun a run here, or put here what would be replaced.
        """
        make_folder(self.path)
        self._check_replaced()
        self._acquire()
        self._check_new(resume=False)  # one that began and ended meanwhile
        remove_leftovers(self.path)

    def close(self) -> None:
        """Give the lock back."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _check_new(self, resume: bool) -> None:
        if self.exists and not resume:
            raise CheckpointError(f"{self.path} already holds a run: go on with --resume (resume=True) or name another")

    def _acquire(self) -> None:
        if self._lock is not None:
            return
        lock = FileLock(self.path / _LOCK, timeout=0)
        try:
            lock.acquire()
        except Timeout as error:
            raise CheckpointError(f"{self.path}: {self._holder()} is at work on this run") from error
        self._lock = lock
        began = datetime.now(UTC).isoformat(timespec="seconds")
        write_json(self.path / _HOLDER, {"process": os.getpid(), "host": platform.node(), "since": began})

    def _holder(self) -> str:
        """Return who holds the lock, as far as that is known: it is noted a moment after the lock is taken."""
        try:
            found = read_json_object(self.path / _HOLDER)
            return f"process {found['process']} on {found['host']} (since {found['since']})"
        except (CheckpointError, KeyError):
            return "another process"

    def last_update(self) -> int:
        """Return the update of the last checkpoint, 0 where there is none."""
        return Checkpoints(self.checkpoints, keep_last=1).last_update() or 0

    def changes_to(self, recipe: Recipe) -> Changes:
        """Return what resuming the run with a recipe changes in its own one; see `ostinato.training.changes`.

        Raises:
            CheckpointError: naming every setting that may not change, with both values; or the file was edited.
        """
        first, _, others = (self.path / RUN_RECIPE).read_text(encoding="utf-8").partition("\n")
        # Runs of earlier versions have no hash.
        if first.startswith(_SEAL) and first != _seal(others):
            raise CheckpointError(
                f"{self.path / RUN_RECIPE} was edited after the run began: put back what it was. What may change when "
                "a run is resumed is changed by options (KEY=VALUE) and recorded"
            )
        # Earlier versions kept the folder of a data set as it was given.
        own = with_absolute_paths(load_recipe(self.path / RUN_RECIPE))
        return changes_between(own, recipe, self._done, self.path)

    def _done(self) -> Done:
        checkpoints, records = Checkpoints(self.checkpoints, keep_last=1), Records(self.path)
        progress = checkpoints.progress()
        records.check(progress.metrics_bytes, progress.metrics_sha256)
        evaluated = records.last_evaluation(progress.metrics_bytes)  # what came after it is cut off, and done again
        return Done(progress.update, evaluated, checkpoints.n_kept(), len(progress.ranking))

    def change(self, recipe: Recipe, changes: Changes, new_splits: dict[str, Any]) -> None:
        """Go on with a changed recipe: record what changes at the update of the last checkpoint.

        A crash in between leaves the old recipe, with which the changes are found again; the line is written once.

        Args:
            new_splits: what data.json gets of the splits that the run did not read before.
        """
        line = {
            "update": self.last_update(),
            "changes": {key: {"from": old, "to": new} for key, (old, new) in changes.items()},
            "ostinato": __version__,
        }
        before = self.recorded_changes()
        if not before or before[-1] != line:
            before.append(line)
        if (self.path / _RESULTS).is_file():  # They are of the run as it was; until it ends again it has none.
            (self.path / _RESULTS).replace(self.path / f"results-{len(before)}.json")
        text = "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in before)
        write_text(self.path / _CHANGES, text)
        if new_splits:
            data = self._data()
            write_json(self.path / _DATA, data | {"splits": data["splits"] | new_splits})
        self._write_recipe(recipe)

    def keep(self, training: TrainingConfig) -> bool:
        """Go on with other numbers of checkpoints that stay (keep_last, keep_best); return whether they are others.

        They change no results, and are not recorded as changes. A finished run stays as it is.
        """
        own = load_recipe(self.path / RUN_RECIPE)
        kept = {"keep_last": training.keep_last, "keep_best": training.keep_best}
        other = own.model_copy(update={"training": own.training.model_copy(update=kept)})
        if other == own:
            return False
        if self.results() is None:
            self._write_recipe(other)
        return True

    def recorded_changes(self) -> list[dict[str, Any]]:
        """Return the lines of changes.jsonl; none where the recipe was never changed.

        Raises:
            CheckpointError: it cannot be read.
        """
        path = self.path / _CHANGES
        if not path.exists():
            return []
        check_plain(path)
        with reading(path):
            lines = path.read_bytes().splitlines()
        return [json_object(line, f"{path}, line {number}") for number, line in enumerate(lines, 1)]

    def describe(self, recipe: Recipe, data: dict[str, Any]) -> None:
        """Write versions.json, data.json and, last, recipe.yaml."""
        began = datetime.now(UTC).isoformat(timespec="seconds")
        write_json(self.path / RUN_VERSIONS, {**versions(), "began": began})
        write_json(self.path / _DATA, data)
        self._write_recipe(recipe)

    def _write_recipe(self, recipe: Recipe) -> None:
        text = recipe_text(recipe)
        write_text(self.path / RUN_RECIPE, f"{_seal(text)}\n{text}")

    def check_data(self, split: str, digest: str) -> None:
        """Refuse to resume with other examples than the run was started with.

        Raises:
            CheckpointError: naming the split and both hashes.
        """
        expected = self.data_hashes().get(split)
        if digest != expected:
            raise CheckpointError(
                f"{self.path}: the examples of {split!r} are not those the run was started with "
                f"(SHA-256 {digest}, {_DATA} says {expected})"
            )

    def is_packed(self, split: str) -> bool:
        """Return whether a split is read from a pack; False: its examples are held in memory."""
        return bool(self._data()["splits"].get(split, {}).get("packed"))

    def data_hashes(self) -> dict[str, str]:
        """Return the SHA-256 of the examples of every split, as data.json has them.

        Raises:
            CheckpointError: data.json cannot be read.
        """
        return {split: str(found["sha256"]) for split, found in self._data()["splits"].items()}

    def file_hashes(self) -> dict[str, str]:
        """Return the SHA-256 of the user's own files that the run began with, by path, as data.json has them.

        Raises:
            CheckpointError: data.json cannot be read.
        """
        with reading(self.path / _DATA):
            files = self._data().get("files", [])
            return {str(file["path"]): str(file["sha256"]) for file in files if "repo" not in file}

    def _data(self) -> dict[str, Any]:
        path = self.path / _DATA
        with reading(path):
            content = read_json_object(path)
            if all("sha256" in found for found in content["splits"].values()):
                return content
        raise CheckpointError(f"{path}: cannot be read: a split has no sha256")

    def results(self) -> dict[str, Any] | None:
        """Return what a finished run wrote, None where it has not finished."""
        path = self.path / _RESULTS
        return read_json_object(path) if path.is_file() else None

    def finish(self, results: dict[str, Any]) -> None:
        """Write results.json."""
        write_json(self.path / _RESULTS, results)


def _seal(text: str) -> str:
    """Return the first line of a run's recipe.yaml, above this text."""
    return f"{_SEAL}{hashlib.sha256(text.encode()).hexdigest()}"


@cache
def versions() -> Mapping[str, Any]:
    """Return the versions of everything that decides a run's numbers; `source` is a hash of the code itself.

    They are found once in a process, which goes on with the code that it has when files are changed meanwhile.
    """
    found: dict[str, Any] = {"ostinato": __version__, "python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found | {"platform": platform.platform(), "commit": source_commit(), "source": source_hash(LEARNING)}


def describe_data(task: Task, data: DataConfig, splits: Iterable[str]) -> dict[str, Any]:
    """Return the content of data.json; every split is read once, as a stream.

    Raises:
        ConfigError: the task has no such split. DataError: a split that cannot be read, or is empty.
    """
    files: list[dict[str, Any]] = [
        {"repo": file.repo, "commit": file.commit, "path": file.path, "sha256": task.access.known_hash(file)}
        for file in task.files()
    ]
    own = [path for split in given_splits(data) for path in paths_of(data, split)]
    tokenizers = [tokenizer for tokenizer in (data.tokenizer, data.target_tokenizer) if tokenizer]
    own += [str(file) for tokenizer in tokenizers for file in tokenizer_files(tokenizer)]
    files += [{"path": str(path), "sha256": file_hash(path)} for path in find_files(own) if path.is_file()]
    return {
        "task": task.config.model_dump(mode="json"),
        "splits": {split: describe_split(split, task.examples(split)) for split in dict.fromkeys(splits)},
        "files": files,
    }


def describe_split(split: str, examples: Iterable[Example]) -> dict[str, Any]:
    """Return SHA-256 and number of a split's examples.

    Raises:
        DataError: there are none.
    """
    digest, n_examples = fingerprint(examples)
    if not n_examples:
        raise DataError(f"the split {split!r} holds no examples")
    return {"n": n_examples, "sha256": digest}


def with_absolute_paths(recipe: Recipe) -> Recipe:
    """Return the recipe with the user's files by absolute paths, so that it works from any directory."""
    data = recipe.data
    update: dict[str, object] = {name: _absolute_files(getattr(data, name)) for name in ("train", "dev", "test")}
    for name in ("tokenizer", "target_tokenizer"):
        tokenizer = getattr(data, name)
        if tokenizer is not None:
            update[name] = tokenizer.model_copy(update={"path": map_texts(tokenizer.path, _absolute)})
    training = recipe.training.model_copy(update={"init_from": map_texts(recipe.training.init_from, _absolute)})
    return recipe.model_copy(update={"data": data.model_copy(update=update), "training": training})


def _absolute_files(given: Any) -> Any:
    """Return what a split names by absolute paths; the name of a data set of a hub, which is not there, stays."""
    if isinstance(given, dict):
        return {name: _absolute_files(one) for name, one in given.items()}
    if isinstance(given, DataSetConfig):
        return given.model_copy(update={"hf": _absolute(given.hf)}) if Path(given.hf).exists() else given
    return map_texts(given, _absolute)


def _absolute(path: str) -> str:
    return str(Path(path).absolute())
