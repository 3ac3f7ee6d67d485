"""Files of the user's own as a task, and the base of tasks that read such files, also in several languages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from ostinato.config.data import FieldName
from ostinato.data.example import Example
from ostinato.data.lines import read_lines
from ostinato.data.paths import find_files, name_of
from ostinato.data.sources import read_examples
from ostinato.errors import DataError, Problem, see
from ostinato.tasks.base import Only, Task, TaskConfig
from ostinato.tasks.own_files import check_no_data_set, data_set_of, own_source, paths_of, read_split

if TYPE_CHECKING:
    from ostinato.data.packs.source import PackSource


class OwnFilesConfig(TaskConfig):
    """Base of settings of tasks whose splits are the files that `data` names."""

    @property
    def reads_own_files(self) -> bool:
        """True."""
        return True


class LanguagesConfig(OwnFilesConfig):
    """Settings of a task whose examples may be in several languages: train in some, measure in all."""

    language_field: FieldName | None = None
    """Column that names each example's language, for scores by language and their mean."""
    train_languages: list[FieldName] | None = None
    """Languages of train and dev; test keeps all: zero-shot transfer, as XTREME has it. None: all."""

    def problems(self, path: str = "") -> Iterator[Problem]:
        """The languages of training need a column with each example's language."""
        yield from super().problems(path)
        if self.train_languages is not None and self.language_field is None:
            yield Problem(f"{path}language_field", None, f"is needed with {path}train_languages")

    @property
    def by(self) -> tuple[str, ...]:
        """Columns that scores are reported by."""
        return () if self.language_field is None else (self.language_field,)

    def language_column(self, language: str | None) -> dict[str, object]:
        """Return the metadata column of a file's language; empty where either is not given."""
        if language is None or self.language_field is None:
            return {}
        return {self.language_field: language}

    def select(self, examples: Iterable[Example], split: str) -> Iterator[Example]:
        """Yield the examples of a split that are in its languages: `train_languages`, and beside train and dev all.

        Raises:
            DataError: an example without a language, or none in the languages of training.
        """
        wanted, column = self.train_languages, self.language_field
        if wanted is None or column is None or split not in ("train", "dev"):
            yield from examples
            return
        seen = dict[str, None]()
        for number, example in enumerate(examples, 1):
            if column not in example.columns:
                raise DataError(f"{split}: example {number} has no column {column!r} (task.language_field)")
            language = str(example.columns[column])
            seen.setdefault(language)
            if language in wanted:
                yield example
        missing = [language for language in wanted if language not in seen]
        # A split to choose by may have some of them only.
        if missing and (split == "train" or len(missing) == len(wanted)):
            raise DataError(f"{split}: no example in {', '.join(missing)}; its languages are {', '.join(seen)}")


class LanguagesTask(Task):
    """Base of tasks on the user's own files that are reported by language."""

    config: LanguagesConfig

    def _configure(self) -> None:
        self.by = self.config.by


class FilesConfig(OwnFilesConfig):
    """Settings of files of the user's own; the files themselves are named under `data`."""

    only: ClassVar[tuple[Only, ...]] = (Only(("documents",), "model_kind", ("language_model",)),)
    kind: Literal["files"] = "files"
    model_kind: Literal["seq2seq", "language_model"] = "seq2seq"
    """seq2seq: pairs of source and target, for any model. language_model: texts, also for a masked head."""
    documents: Literal["lines", "files"] = "lines"
    """What one text is, for model_kind=language_model: a line (JSON lines: a row), or a whole file, line breaks in it.
    data.block_length packs either into blocks."""

    origin_column: FieldName | None = None
    """Column that gets the name of the file each example is from, without folder and endings, of a folder or a pattern
    that of the folder: for scores by file (evaluation.by), and for data.mixture. Each is read by itself then."""

    @property
    def has_sources(self) -> bool:
        """Whether the files hold pairs."""
        return self.model_kind == "seq2seq"

    @property
    def fields(self) -> frozenset[str]:
        """Those of pairs or texts, none of whole files."""
        return super().fields if self.documents == "lines" else frozenset()


class FilesTask(Task):
    """Your own files: data.train, data.dev and data.test, pairs of texts or, with model_kind=language_model, texts.

    Splits: train, and dev and test where they are given; data.test may name several test splits (data.test={test: ..,
    gen: ..}). With documents=files every file is one text. Nothing is split off, so without data.dev no checkpoint can
    be selected by held-out loss.
    Tokens: as data.tokenizer says.
    Metric: exact match and free-running token accuracy for pairs, nothing decoded for texts (loss, perplexity and
    token accuracy are always there, and for causal models word_perplexity and bits_per_byte); evaluation.metrics
    chooses others, evaluation.by any column of the files.
    Selection: as training.selection says.
    Departures: none, the protocol is yours.
    """

    config: FilesConfig

    def _configure(self) -> None:
        if not self.config.has_sources:
            self.forced = ("perplexity", "word_perplexity", "bits_per_byte")

    def _examples(self, split: str) -> Iterator[Example]:
        paths, column = paths_of(self.data, split), self.config.origin_column
        self._check_whole(split)
        if (given := data_set_of(self.data, split)) is not None:
            named = {} if column is None else {column: Path(given.hf).name}
            for example in read_split(self.data, split, self.config.model_kind):
                yield replace(example, columns=example.columns | named)
            return
        if column is None:
            yield from self._read(paths)
            return
        for name, path in self._named(paths):
            for example in self._read([path]):
                yield replace(example, columns=example.columns | {column: name})

    def _check_whole(self, split: str) -> None:
        if self.config.documents == "files":
            check_no_data_set(self.data, split, "task.documents=lines reads data sets")

    def _named(self, paths: list[str]) -> list[tuple[str, str]]:
        """Return files, folders and patterns with the names that `origin_column` gives their examples.

        Raises:
            DataError: two have one name.
        """
        named: dict[str, str] = {}
        for path in paths:
            name = name_of(path)
            if self.config.origin_column is not None and name in named:
                raise DataError(f"{named[name]} and {path} are both named {name!r} by task.origin_column: rename one")
            named[name] = path
        return [(name_of(path), path) for path in paths]

    def pack_source(self, split: str) -> PackSource | None:
        """Return the files of a split, or its data set; see `Task`."""
        if (type(self)._examples, type(self)._read) != (FilesTask._examples, FilesTask._read):
            return None  # of a class of the user's own, whose code a pack would pass by
        self._check_whole(split)
        self._named(paths_of(self.data, split))  # refuses two of one name
        config, is_whole = self.config, self.config.documents == "files"
        return own_source(self.data, split, config.model_kind, is_whole=is_whole, origin_column=config.origin_column)

    def _read(self, paths: list[str]) -> Iterator[Example]:
        if self.config.documents == "lines":
            try:
                yield from read_examples(paths, self.data, self.config.model_kind)
            except DataError as error:
                raise DataError(f"{error}{see('own-data')}") from error
            return
        for path in find_files(paths):
            text = "\n".join(line for _, line in read_lines(path))
            if not text.strip():
                raise DataError(f"{path}: no text")
            yield Example(None, text, {})
