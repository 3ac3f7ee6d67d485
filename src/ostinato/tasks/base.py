"""The base of all tasks: named splits of examples, settings of their own, and the protocol of their evaluation."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple, TypeVar, get_type_hints

from pydantic import Field

from ostinato.config.base import Config, inert
from ostinato.config.data import DataConfig
from ostinato.data.disk import refetch_hint
from ostinato.data.lines import read_lines
from ostinato.data.pair_changes import PairChanges
from ostinato.errors import ConfigError, DataError, Problem
from ostinato.tasks.own_files import SPLITS, check_paths, given_splits, own_source, read_split

if TYPE_CHECKING:
    from pathlib import Path

    from ostinato.data.example import Example
    from ostinato.data.packs.source import PackSource
    from ostinato.data.registry import DataAccess, RemoteFile


_Key = TypeVar("_Key", str, int)
Share = Annotated[float, Field(ge=0, lt=1)]


PAIR_FIELDS = frozenset({"source_field", "target_field"})
TEXT_FIELD = frozenset({"text_field"})
"""Settings of `data` that name the fields of the user's files: of pairs, and of texts."""


class Only(NamedTuple):
    """Settings of a task that have an effect only where another one has one of `values`, or none of `but`."""

    settings: tuple[str, ...]
    other: str
    values: tuple[object, ...] = ()
    but: tuple[object, ...] = ()

    def reason(self, config: TaskConfig, path: str) -> str | None:
        """Return why the settings have no effect; None where they have one."""
        value = getattr(config, self.other)
        if self.values and value not in self.values:
            return f"is for {path}{self.other}={' or '.join(map(str, self.values))}: remove it"
        if value in self.but:
            return f"has no effect with {path}{self.other}={'null' if value is None else value}: remove it"
        return None


class TaskConfig(Config):
    """Settings of one task; a subclass narrows `kind` to its own name."""

    only: ClassVar[tuple[Only, ...]] = ()
    """Which settings have an effect with some values of others only."""
    kind: str

    @property
    def has_sources(self) -> bool:
        """Whether the examples are pairs; False: texts, for language models."""
        return True

    @property
    def reads_own_files(self) -> bool:
        """Whether the splits are the files that `data` names; of other tasks `data.train` may replace one."""
        return False

    @property
    def input_field(self) -> str:
        """Setting of `data` that names what `ostinato generate` reads of JSON lines."""
        return "source_field" if self.has_sources else "text_field"

    @property
    def pair_changes(self) -> PairChanges:
        """What is changed of pairs of files, and of inputs of `ostinato generate`, before they are tokenised."""
        return PairChanges()

    @property
    def fields(self) -> frozenset[str]:
        """Settings of `data` that name what is read of the user's files."""
        return PAIR_FIELDS if self.has_sources else TEXT_FIELD

    @property
    def of_train(self) -> tuple[str, ...]:
        """Settings that only the training split depends on, and that have no effect where `data.train` replaces it."""
        return ("n_train",) if "n_train" in type(self).model_fields else ()

    def problems(self, path: str = "") -> Iterator[Problem]:
        """Settings that another one makes useless."""
        for rule in self.only:
            if (reason := rule.reason(self, path)) is not None:
                yield from _useless(self, path, rule.settings, reason)

    def data_problems(self, data: DataConfig) -> Iterator[Problem]:
        """Yield the settings of the user's files that this task does not read, and its own that these replace."""
        task = f"the task {self.kind} with these settings"
        read = self.fields if self.reads_own_files or data.train is not None else frozenset()
        read |= {self.input_field}
        named = " and ".join(f"data.{name}" for name in sorted(read))
        reason = f"has no effect: {task} reads {named}; remove it"
        yield from _useless(data, "data.", (PAIR_FIELDS | TEXT_FIELD) - read, reason)
        if not self.has_sources:
            reason = f"has no effect: {task} has texts without a source; remove it"
            yield from _useless(data, "data.", ("max_source_length",), reason)
        if not self.reads_own_files:
            reason = f"has no effect: {task} has its own; remove it"
            yield from _useless(data, "data.", ("dev", "test"), reason)
            if data.train is not None:
                reason = "has no effect, because data.train replaces the training split: remove it"
                yield from _useless(self, "task.", self.of_train, reason)


def _useless(config: Config, path: str, names: Iterable[str], reason: str) -> Iterator[Problem]:
    """Give one reason against some settings of a group that are not at their defaults."""
    yield from inert(config, path, reason, but=type(config).model_fields.keys() - set(names))


class Task(ABC):
    """Examples of one benchmark under one protocol.

    The class documentation of a subclass is its protocol as `ostinato data show` prints it: splits, tokenisation,
    metric, selection rule, and where it departs from the papers. Its first line is the summary in lists.

    Args:
        config: the task's settings.
        data: files of the user's own. `data.train` replaces the training split of any task, for a published file that
            cannot be downloaded; the other splits do not change.
        access: where published files come from; None: the default cache and mirror, opened on first use.
    """

    config_type: ClassVar[type[TaskConfig]]
    """Class of the settings: the annotation of `config`."""
    config: TaskConfig
    metrics: tuple[str, ...] = ("exact_match", "token_accuracy_free")
    """Metrics of generated outputs, by their names in `ostinato.metrics`; of texts without sources none."""
    forced: tuple[str, ...] = ()
    """Teacher-forced scores that the task is reported by, beside `metrics` or instead of them."""
    by: tuple[str, ...] = ()
    """Metadata columns that every metric is reported by."""
    fixed_splits: ClassVar[tuple[str, ...]] = ("train", "dev", "test")
    """Splits of tasks that have the same ones with all settings."""
    missing: ClassVar[tuple[str, str]] = ("", "")
    """A split that only some settings give, and which ones do."""
    contrast: str | None = None
    """Column of a wrong target, which a language model should give a lower probability than the right one."""
    answers: ClassVar[Literal["text", "tags", "span", "last_word"]] = "text"
    """What a target is, by which baselines without a model (`ostinato data baselines`) answer."""

    def __init_subclass__(cls) -> None:
        if "config_type" not in vars(cls):
            cls.config_type = get_type_hints(cls)["config"]

    def __init__(self, config: TaskConfig, data: DataConfig, access: DataAccess | None = None) -> None:
        self.config = config
        self.data = data
        self._access = access
        if not config.has_sources:  # and nothing to write an output of
            self.metrics = ()
        self._configure()

    def _configure(self) -> None:  # noqa: B027, most tasks have nothing to set
        """Set the attributes that depend on the settings."""

    @property
    def name(self) -> str:
        """The task's kind."""
        return self.config.kind

    @property
    def is_generated(self) -> bool:
        """Whether the examples are generated by rule, so that nothing is downloaded."""
        return not self.config.reads_own_files and not self.files()

    def files(self) -> tuple[RemoteFile, ...]:
        """Return the published files that the splits are read from; empty for generated tasks."""
        return ()

    @property
    def access(self) -> DataAccess:
        """Where published files come from; its messages name the task as `ostinato data fetch` is told to."""
        from ostinato.data.registry import DataAccess

        chosen = self.config.model_dump(mode="json", exclude={"kind"}, exclude_defaults=True)
        words = [f"{key}={value}" for key, value in chosen.items() if isinstance(value, str | int | float)]
        return replace(self._access or DataAccess.default(), task=" ".join([self.name, *words]))

    def splits(self) -> tuple[str, ...]:
        """Return the names of the splits, the training split first; of the user's files those that are given."""
        return given_splits(self.data) if self.config.reads_own_files else self.fixed_splits

    @property
    def train_split(self) -> str:
        """The split to train on, whether or not it is given: a trained model is scored without it."""
        return SPLITS[0] if self.config.reads_own_files else self.splits()[0]

    def check_files(self, splits: Iterable[str] | None = None) -> None:
        """Check that the files of the user's own are there which these splits are read from; None: all, to train on.

        Raises:
            ConfigError: with every one that is missing; for training also where there is none to train on.
        """
        if self.config.reads_own_files:
            check_paths(self.data, splits)

    def published_sizes(self) -> dict[str, int]:
        """Return the published number of examples of every split for which one is stated.

        It counts the examples that are taken out of a split to be `dev` here.
        """
        return {}

    def examples(self, split: str) -> Iterator[Example]:
        """Return the examples of one split, always in the same order.

        Raises:
            ConfigError: the task has no such split, or a file of the user's own that it is read from is not there.
            DataError: a published file cannot be downloaded, or differs from the published one.
        """
        if split not in self.splits():
            raise ConfigError([Problem("split", split, self.why_no_split(split))])
        self.check_files([split])
        if self._is_replaced(split):
            return read_split(self.data, "train", self._model_kind)
        return self._examples(split)

    @property
    def _model_kind(self) -> str:
        return "seq2seq" if self.config.has_sources else "language_model"

    def _is_replaced(self, split: str) -> bool:
        """Return whether data.train stands in the place of a published training split."""
        return split == self.train_split and self.data.train is not None and not self.config.reads_own_files

    def pack_source(self, split: str) -> PackSource | None:
        """Return the files of a split, or its data set, where its examples are theirs; None: they are made otherwise.

        Training reads large ones from packs (`ostinato.data.packs`).
        """
        return own_source(self.data, "train", self._model_kind) if self._is_replaced(split) else None

    def why_missing(self, split: str) -> str | None:
        """Return which setting would give a split that does not exist; None where none would."""
        if self.config.reads_own_files:
            return f"data.{split} names no file" if split in SPLITS else None
        name, reason = self.missing
        return reason if split == name else None

    def why_no_split(self, split: str) -> str:
        """Return what would give a split that does not exist, or else which ones there are."""
        return self.why_missing(split) or f"the task {self.name} has the splits {', '.join(self.splits())}"

    def by_of(self, split: str, asked: Sequence[str] | None) -> Sequence[str]:
        """Return the columns that scores of a split are reported by.

        Args:
            asked: None: the task's own, of the training split, which may lack some, those that its first example has.
        """
        if asked is not None or not self.by or split != self.train_split:
            return self.by if asked is None else asked
        first = next(iter(self.examples(split)), None)
        return [column for column in self.by if first is None or column in first.columns]

    def contrast_of(self, split: str) -> str | None:
        """Return the column of wrong targets in a split; the training split has none."""
        return None if split == self.train_split else self.contrast

    def rules(self, source: str) -> dict[str, str]:
        """Return what rules without a model answer to a source, by their names, for `ostinato data baselines`."""
        return {}

    @abstractmethod
    def _examples(self, split: str) -> Iterator[Example]:
        """Yield the examples of a split that exists.

        Those that are made are drawn by `Random(text)`: a text seeds by its SHA-512 hash, which is the same in every
        process and on every machine.
        """

    def _published(self, file: RemoteFile) -> Iterator[tuple[Path, int, str]]:
        """Yield path, number and text of every line of a published file, and check the number of lines.

        Raises:
            DataError: the file cannot be downloaded, or has another number of lines than published.
        """
        path = self.access.fetch(file)
        number = 0
        for number, line in read_lines(path):
            yield path, number, line
        if file.n_rows is not None and number != file.n_rows:
            raise DataError(
                f"{path}: {number} lines, but {file.repo}/{file.path} was published with {file.n_rows}"
                f"{refetch_hint(path)}"
            )


def first_hashed(items: Iterable[_Key], fraction: float, seed: int) -> set[_Key]:
    """Return a share of some items, at least one unless it is 0: those whose seeded hashes come first.

    So neither their order nor a random generator matters.
    """

    def draw(item: _Key) -> bytes:
        return hashlib.sha256(f"{seed}:{item}".encode()).digest()

    ordered = sorted(items, key=draw)
    return set(ordered[: max(1, round(fraction * len(ordered)))]) if fraction else set()


def split_of(key: str) -> Literal["train", "dev", "test"]:
    """Return the split that everything with this key belongs to, a third of all keys each, by its hash.

    Splits that are drawn apart, each from its own keys, have no key in common, whatever their sizes and seeds.
    """
    splits: tuple[Literal["train"], Literal["dev"], Literal["test"]] = ("train", "dev", "test")
    return splits[int.from_bytes(hashlib.sha256(key.encode()).digest()) % 3]


def bucket_of(size: int, width: int, *, digits: int) -> str:
    """Return the name of a size's bucket of sizes, such as 009-016; with leading zeros, so that names sort as text."""
    low = (size - 1) // width * width + 1
    return f"{low:0{digits}d}-{low + width - 1:0{digits}d}"
