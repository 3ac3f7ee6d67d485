"""What a task is: named splits of examples, its own settings, and the protocol they are measured by."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from ostinato.config.base import Config
from ostinato.config.data import DataConfig
from ostinato.data.lines import read_lines
from ostinato.errors import ConfigError, DataError, Problem

if TYPE_CHECKING:
    from pathlib import Path

    from ostinato.data.example import Example
    from ostinato.data.registry import DataAccess, RemoteFile


class TaskConfig(Config):
    """Settings of one task; a subclass narrows `kind` to its own name."""

    kind: str

    @property
    def has_sources(self) -> bool:
        """Whether the examples are pairs; False: texts, for language models."""
        return True


class Task(ABC):
    """Examples of one benchmark under one protocol.

    The class documentation of a subclass is its protocol as `ostinato data show` prints it: splits, tokenisation,
    metric, selection rule, and where it departs from the papers. Its first line is the summary in lists.

    Args:
        config: the task's settings.
        data: files of the user's own. `data.train` takes the place of the training split of any task, so that text of
            the same kind can stand in for a published file; the other splits stay what they are.
        access: where published files come from; None: the default cache and mirror, opened on first use.
    """

    config_type: ClassVar[type[TaskConfig]]
    reads_own_files: ClassVar[bool] = False
    """Whether the task looks at `data.train`, `data.dev` and `data.test` itself."""
    config: TaskConfig
    metrics: tuple[str, ...] = ("exact_match", "token_accuracy_free")
    """Decoded metrics, by their names in `ostinato.metrics`."""
    forced: tuple[str, ...] = ()
    """Scores that need no decoding and that the task is reported by, beside or in the place of `metrics`."""
    by: tuple[str, ...] = ()
    """Metadata columns that every metric is reported by."""
    contrast: str | None = None
    """Column of a wrong target, which a language model should find less probable than the right one."""

    def __init__(self, config: TaskConfig, data: DataConfig, access: DataAccess | None = None) -> None:
        self.config = config
        self.data = data
        self._access = access

    @property
    def name(self) -> str:
        """The task's kind."""
        return self.config.kind

    @property
    def is_generated(self) -> bool:
        """True where the examples are made by rule and nothing is downloaded."""
        return not self.files()

    def files(self) -> tuple[RemoteFile, ...]:
        """Return the published files that the splits are read from; empty for generated tasks."""
        return ()

    @property
    def access(self) -> DataAccess:
        """Where published files come from."""
        if self._access is None:
            from ostinato.data.registry import DataAccess

            self._access = DataAccess.default()
        return self._access

    @abstractmethod
    def splits(self) -> tuple[str, ...]:
        """Return the names of the splits, the training split first."""

    def published_sizes(self) -> dict[str, int]:
        """Return how many examples the splits were published with, by split; those that nobody states are left out.

        A split that loses a part to `dev` here has the number it was published with.
        """
        return {}

    def examples(self, split: str) -> Iterator[Example]:
        """Return the examples of one split, always in the same order.

        Raises:
            ConfigError: the task has no such split.
            DataError: a published file cannot be had or is not what it should be.
        """
        if split not in self.splits():
            reason = self.why_missing(split) or f"the task {self.name} has the splits {', '.join(self.splits())}"
            raise ConfigError([Problem("split", split, reason)])
        if split == self.splits()[0] and self.data.train is not None and not self.reads_own_files:
            return self._stand_in(self.data.train)
        return self._examples(split)

    def _stand_in(self, paths: str | list[str]) -> Iterator[Example]:
        """Yield the user's own examples in the place of the training split."""
        from ostinato.data.sources import read_examples

        yield from read_examples(paths, self.data, "seq2seq" if self.config.has_sources else "language_model")

    def why_missing(self, split: str) -> str | None:
        """Say which setting would give a split that is not there; None where none would."""
        return None

    @abstractmethod
    def _examples(self, split: str) -> Iterator[Example]:
        """Yield the examples of a split that exists."""

    def _published(self, file: RemoteFile) -> Iterator[tuple[Path, int, str]]:
        """Yield path, number and text of every line of a published file, and check how many there are.

        Raises:
            DataError: the file cannot be had, or has another number of lines than published.
        """
        path = self.access.fetch(file)
        number = 0
        for number, line in read_lines(path):
            yield path, number, line
        if file.n_rows is not None and number != file.n_rows:
            raise DataError(f"{path}: {number} lines, but {file.repo}/{file.path} was published with {file.n_rows}")
