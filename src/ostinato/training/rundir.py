"""The directory of a run: what is in it, and when it may be written to.

    recipe.yaml      the recipe with every default and vocabulary size: training it again repeats the run
    versions.json    ostinato, Python and libraries, platform, commit of the source where there is one
    data.json        SHA-256 and number of examples per split, SHA-256 of the files they come from
    tokenizers/      built on the training split
    metrics.jsonl, timings.jsonl, checkpoints/, results.json

recipe.yaml is written last of what a run starts with. A directory with a recipe.yaml is a run; one without is not yet.
"""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ostinato.config.data import DataConfig
from ostinato.config.load import dump_recipe
from ostinato.config.operational import FREE_TO_CHANGE
from ostinato.config.recipe import Recipe
from ostinato.data.disk import PARTIAL, remove_leftovers, sha256_of, sync, write_json
from ostinato.data.example import Example, fingerprint
from ostinato.errors import CheckpointError, DataError
from ostinato.tasks.base import Task
from ostinato.tasks.files import given_splits, paths_of
from ostinato.tasks.recipes import load_recipe
from ostinato.version import LEARNING, __version__, source_hash

_RESULTS, _RECIPE, _DATA, _VERSIONS = "results.json", "recipe.yaml", "data.json", "versions.json"
_LIBRARIES = ("torch", "numpy", "tokenizers", "safetensors", "pydantic", "sacrebleu")


class RunDirectory:
    """Paths and files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.tokenizers = self.path / "tokenizers"
        self.checkpoints = self.path / "checkpoints"

    @property
    def exists(self) -> bool:
        """True where a run has been started here."""
        return (self.path / _RECIPE).is_file()

    def open(self, resume: bool) -> bool:
        """Make the directory ready to write to; return True where it holds a run to resume.

        With `resume` and no run yet, a new one begins: a job can always be restarted with the same command.

        Raises:
            CheckpointError: there is a run already and `resume` is False, or it is no directory.
        """
        if self.exists and not resume:
            raise CheckpointError(f"{self.path} already holds a run: go on with --resume (resume=True) or name another")
        if self.path.exists() and not self.path.is_dir():
            raise CheckpointError(f"{self.path} is a file, but a run needs a directory")
        self.path.mkdir(parents=True, exist_ok=True)
        remove_leftovers(self.path)
        return self.exists

    def check_same(self, recipe: Recipe) -> None:
        """Refuse to resume with another recipe than the run was started with.

        Settings that describe a run, place it on a machine, or say how many checkpoints stay may change.

        Raises:
            CheckpointError: naming every setting that differs, with both values.
        """
        old, new = deciding_settings(load_recipe(self.path / _RECIPE)), deciding_settings(recipe)
        differing = [key for key in old | new if (key in old, old.get(key)) != (key in new, new.get(key))]
        if differing:
            lines = [f"  {key}: {_shown(old, key)} in the run, {_shown(new, key)} now" for key in differing]
            raise CheckpointError(
                f"{self.path} was started with another recipe; --resume needs the same one\n" + "\n".join(lines)
            )

    def describe(self, recipe: Recipe, data: dict[str, Any]) -> None:
        """Write versions.json, data.json and, last, recipe.yaml."""
        write_json(self.path / _VERSIONS, versions())
        write_json(self.path / _DATA, data)
        partial = self.path / f"{PARTIAL}{_RECIPE}"
        dump_recipe(recipe, partial)
        sync(partial)
        partial.replace(self.path / _RECIPE)
        sync(self.path)

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

    def data_hashes(self) -> dict[str, str]:
        """Return the SHA-256 of the examples of every split, as data.json has them.

        Raises:
            CheckpointError: data.json cannot be read.
        """
        path = self.path / _DATA
        try:
            splits = json.loads(path.read_text(encoding="utf-8"))["splits"]
            return {split: str(found["sha256"]) for split, found in splits.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path}: cannot be read: {error!r}") from error

    def results(self) -> dict[str, Any] | None:
        """Return what a finished run wrote, None where it has not finished."""
        path = self.path / _RESULTS
        if not path.is_file():
            return None
        try:
            content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path}: cannot be read: {error}") from error
        return content

    def finish(self, results: dict[str, Any]) -> None:
        """Write results.json."""
        write_json(self.path / _RESULTS, results)


def deciding_settings(recipe: Recipe) -> dict[str, Any]:
    """Return by dotted path the settings that decide the results of a run: all but those that may change."""

    def walk(value: Any, path: str) -> Iterator[tuple[str, Any]]:
        if isinstance(value, dict) and value:
            for key, inner in value.items():
                yield from walk(inner, f"{path}.{key}" if path else key)
        else:
            yield path, value

    settings = walk(recipe.model_dump(mode="json"), "")
    return {key: value for key, value in settings if not may_change(key)}


def may_change(key: str) -> bool:
    """Return True for a setting, by its dotted path, that does not change the results of a run."""
    return key.startswith(FREE_TO_CHANGE)


def _shown(settings: dict[str, Any], key: str) -> str:
    return repr(settings[key]) if key in settings else "absent"


def versions() -> dict[str, Any]:
    """Return the versions of everything that decides a run's numbers; `source` is a hash of the code itself."""
    found: dict[str, Any] = {"ostinato": __version__, "python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found | {"platform": platform.platform(), "commit": _commit(), "source": source_hash(LEARNING)}


def _commit() -> str | None:
    """Return the commit of the source tree that runs, "-dirty" where it was changed since; None without one."""
    here = Path(__file__).parents[1]
    command = ["git", "-C", str(here), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        is_tracked = subprocess.run([*command[:3], "ls-files", "--error-unmatch", "__init__.py"], capture_output=True)
        if is_tracked.returncode:  # installed somewhere inside another project's repository
            return None
        found = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None if found.returncode == 0 else None


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
    own += [tokenizer.path for tokenizer in (data.tokenizer, data.target_tokenizer) if tokenizer and tokenizer.path]
    files += [{"path": path, "sha256": sha256_of(Path(path))} for path in own if Path(path).is_file()]
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
