"""The files of the user's own that `data` names, by split: which are given, whether they are there, what is in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ostinato.config.data import DataConfig, DataSetConfig
from ostinato.data.example import Example
from ostinato.data.hub import read_data_set, why_missing
from ostinato.data.pair_changes import PairChanges
from ostinato.data.paths import find_files, name_of
from ostinato.data.sources import are_parallel, fields_of, read_examples
from ostinato.errors import ConfigError, DataError, Problem, see
from ostinato.system_errors import kind_of

if TYPE_CHECKING:
    from ostinato.data.packs.source import PackSource

SPLITS = ("train", "dev", "test")
"""Splits that files may be given for; `data.test` may name others."""


def given_splits(data: DataConfig) -> tuple[str, ...]:
    """Return the splits the user gave files for: train, dev, then the test splits in their order."""
    named = tuple(data.test) if isinstance(data.test, dict) else ("test",)
    return tuple(split for split in ("train", "dev", *named) if _given(data, split))


def read_split(
    data: DataConfig, split: str, model_kind: str = "seq2seq", *, keeps_words: bool = False
) -> Iterator[Example]:
    """Yield the examples of a split, of files (`read_examples`) or of a data set (`read_data_set`)."""
    given = data_set_of(data, split)
    if given is not None:
        return read_data_set(given, data, model_kind, keeps_words=keeps_words)
    return read_examples(paths_of(data, split), data, model_kind)


def own_source(
    data: DataConfig,
    split: str,
    model_kind: str = "seq2seq",
    *,
    is_whole: bool = False,
    origin_column: str | None = None,
    changes: PairChanges | None = None,
) -> PackSource | None:
    """Return the files of a split, or its data set, to be read from a pack.

    None: a stream of a bucket (`hf://buckets/`), which has no commits by which a pack could be found again.

    Args:
        is_whole: a whole file is one text. origin_column: gets the name of the file, folder or data set.
        changes: to pairs.

    Raises:
        DataError: plain text where pairs are wanted, other than two files.
    """
    from ostinato.data.packs.data_sets import DataSetSource
    from ostinato.data.packs.files import FileSource

    fields, column = fields_of(data, model_kind), None if data.mixture is None else data.mixture.column
    if (given := data_set_of(data, split)) is not None:
        if given.streaming and given.hf.startswith("hf://buckets/"):
            return None
        return DataSetSource(given, fields, origin_column, column, data.unknown, changes)
    paths = paths_of(data, split)
    read_together = [paths] if origin_column is None else [[path] for path in paths]
    for together in () if is_whole else read_together:
        found = find_files(together)
        try:
            are_parallel(found, fields, is_listed=found == [Path(path) for path in together])
        except DataError as error:
            raise DataError(f"{error}{see('own-data')}") from error
    files = tuple((name_of(path), file) for path in paths for file in find_files(path))
    return FileSource(files, fields, is_whole, origin_column, column, data.unknown, changes)


def paths_of(data: DataConfig, split: str) -> list[str]:
    """Return the files of a split, none where the user gave none, or a data set."""
    given = _given(data, split)
    if given is None or isinstance(given, DataSetConfig):
        return []
    return [given] if isinstance(given, str) else list(given)


def data_set_of(data: DataConfig, split: str) -> DataSetConfig | None:
    """Return the data set of Hugging Face that a split is; None: it is files, or not given."""
    given = _given(data, split)
    return given if isinstance(given, DataSetConfig) else None


def check_no_data_set(data: DataConfig, split: str, why: str) -> None:
    """Refuse a data set where a format of files is read.

    Raises:
        ConfigError: the split is one.
    """
    if (given := data_set_of(data, split)) is not None:
        raise ConfigError([Problem(f"data.{split}.hf", given.hf, f"must be a file: {why}")])


def _given(data: DataConfig, split: str) -> str | list[str] | DataSetConfig | None:
    test = data.test if isinstance(data.test, dict) else {"test": data.test}
    return {"train": data.train, "dev": data.dev, **test}.get(split)


def origin_of(data: DataConfig, split: str) -> tuple[object, ...]:
    """Return what decides the examples of a split of given files: which these are, and which fields are read."""
    fields = [name for name in type(data).model_fields if name.endswith("_field")]
    return (_given(data, split), *(getattr(data, name) for name in fields))


def check_paths(data: DataConfig, splits: Iterable[str] | None = None) -> None:
    """Check that the user's files are there, and data sets that are named by a path.

    Args:
        splits: that are to be read, those among them that are given are checked; None: all, as training does.

    Raises:
        ConfigError: with every one that is missing; for training also where data.train is not given.
    """
    problems = []
    if splits is None and not data.train:
        problems.append(Problem("data.train", data.train, "name a file to train on: data.train=my.jsonl"))
    for split in given_splits(data) if splits is None else splits:
        key = f"data.test.{split}" if isinstance(data.test, dict) and split in data.test else f"data.{split}"
        problems += [Problem(key, path, why) for path in paths_of(data, split) if (why := _why_no_files(path))]
        if (named := data_set_of(data, split)) is not None and (why := why_missing(named)):
            problems.append(Problem(f"{key}.hf", named.hf, why))
    if problems:
        raise ConfigError(problems)


def _why_no_files(given: str) -> str | None:
    """Return why there are no files behind what a setting names; None where there are."""
    path = Path(given)
    try:
        if all(file.is_file() for file in find_files(given)):
            return None
    except DataError as error:
        return str(error).removeprefix(f"{given}: ")
    kind = kind_of(path)
    if kind is None or kind == "a folder":
        return f"there is no such file (looked in {path.absolute().parent})"
    return f"is {kind}, not a file"
