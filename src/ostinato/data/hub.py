"""Examples of a data set of the library datasets (Hugging Face): local files and folders, its cache, or a hub.

A row is as a JSON object of a line in `ostinato.data.sources`: the keys that `DataConfig` names hold the texts, the
others become metadata columns, and a target that is a whole number is its JSON text. Class labels, which are stored as
numbers, become their names, and a list of words is a text with blanks between them.

`columns` names what is read, by the names that it has here; a dot leads into a column that holds several:

    columns: {source: translation.de, target: translation.en}

It needs the extra `hf`. Nothing is executed that comes with a data set: the library runs no code of theirs.
"""

from __future__ import annotations

import csv
import glob
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ostinato.config.files import say_once
from ostinato.data.example import Example
from ostinato.data.lines import bad_line
from ostinato.data.sources import Fields, example_of, fields_of
from ostinato.errors import DataError, on_one_line, see

if TYPE_CHECKING:
    from ostinato.config.data import DataConfig, DataSetConfig

_BUILDERS = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".txt": "text",
}
"""What reads a single file, by its ending."""


def read_data_set(
    given: DataSetConfig, data: DataConfig, model_kind: str = "seq2seq", *, keeps_words: bool = False
) -> Iterator[Example]:
    """Yield the examples of a data set, one at a time; before a hub is asked for it, a line in the log says so.

    Args:
        data: gives the names of the fields. model_kind: "language_model" reads `text_field`, others a pair.
        keeps_words: see `read_rows`.

    Raises:
        DataError: it cannot be loaded, has no such split or column, or a row cannot be read; in one line.
    """
    is_empty = True
    fields = fields_of(data, model_kind)
    for _, example in read_rows(load(given, fields), given, fields, keeps_words=keeps_words):
        is_empty = False
        yield example
    if is_empty:
        raise DataError(f"{title(given)}: no examples")


def title(given: DataSetConfig) -> str:
    """Return what a data set is called in errors."""
    return f"{given.hf}, split {given.split}"


def read_rows(
    rows: Iterable[Any],
    given: DataSetConfig,
    fields: Fields,
    *,
    where: str | None = None,
    n_before: int = 0,
    wanted: Sequence[str] | None = None,
    keeps_words: bool = False,
) -> Iterator[tuple[int, Example]]:
    """Yield the examples of rows of a data set, each with the number of its row.

    A text for a language model that is blank is no example, as a line of plain text.

    Args:
        rows: of what `load` returned. where: what the numbers count in. n_before: rows before the first.
        wanted: other columns that are needed; None: all.
        keeps_words: a text has as many words as its list: blanks inside of one become "_", and so does an empty one of
            a source; of a target it is a label that is missing.
    """
    where, names = where or title(given), [name for name, _ in fields]
    needed = None if wanted is None else {*names, *wanted}
    for number, record in enumerate(_records(rows, given.columns, where, needed, n_before), n_before + 1):
        row = {
            name: _joined(value, keeps_words, "" if name == names[-1] else "_") if name in names else value
            for name, value in record.items()
        }
        is_blank = len(fields) == 1 and isinstance(text := row.get(names[0]), str) and not text.strip()
        if not is_blank:
            yield number, example_of(row, fields, where, number, "row")


def _joined(value: object, keeps_words: bool, empty: str) -> object:
    """Return a list of words as a text, `empty` for an empty one whose place is kept; all else as it is."""
    if not (isinstance(value, list) and all(isinstance(word, str) for word in value)):
        return value
    return " ".join(["_".join(word.split()) or empty for word in value] if keeps_words else value)


def why_missing(given: DataSetConfig) -> str | None:
    """Return why there is no such data set: it is a path, and nothing is there. None: it is, or a hub may have it."""
    name, path = given.hf, Path(given.hf)
    is_path = path.suffix.lower() in _BUILDERS or name.startswith((".", "/", "~")) or name.count("/") > 1
    if path.exists() or name.startswith("hf://") or not is_path:
        return None
    return f"there is no such file or folder (looked in {path.absolute().parent})"


def state_of(given: DataSetConfig) -> list[Any]:
    """Return what tells whether a local data set has changed: files, sizes and times of change; of others nothing."""
    path = Path(given.hf)
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    return [[str(file.absolute()), file.stat().st_size, file.stat().st_mtime_ns] for file in files]


def may_change(given: DataSetConfig) -> bool:
    """Return whether a hub may have other rows under this name later, which `state_of` does not tell."""
    return not Path(given.hf).exists() and _commit(given) is None


def revision_of(given: DataSetConfig) -> str:
    """Return the commit of a hub's data set, which the hub is asked for unless it is given.

    Raises:
        DataError: the hub does not answer, or knows no such data set.
    """
    return _commit(given) or str(_repository(given).sha)


def _commit(given: DataSetConfig) -> str | None:
    """Return the commit that is asked for, None where the revision is a branch or a tag, or is not given."""
    is_commit = given.revision is not None and re.fullmatch("[0-9a-f]{40}", given.revision)
    return given.revision if is_commit else None


def repository_bytes(given: DataSetConfig) -> int:
    """Return how many bytes all files of a hub's data set have.

    Raises:
        DataError: as `revision_of`.
    """
    return sum(file.size or 0 for file in _repository(given, with_sizes=True).siblings or [])


def _repository(given: DataSetConfig, *, with_sizes: bool = False) -> Any:
    try:
        import datasets
        from huggingface_hub import HfApi

        hub = HfApi(datasets.config.HF_ENDPOINT)
        return hub.dataset_info(
            given.hf.removeprefix("hf://datasets/"), revision=given.revision, files_metadata=with_sizes
        )
    except Exception as error:  # of the network, of the hub: there is no common base
        reason = on_one_line(error)[:300]
        raise DataError(f"{given.hf}: the hub does not say which commit it has: {reason}") from error


def load(given: DataSetConfig, fields: Fields) -> Any:
    """Return the rows of one split of a data set, mapped into memory, or as a stream.

    Of local CSV and TSV files, alone or in a folder, what `columns` names, or else the fields, is read as text: 046
    is not the number 46, and NA is not a missing value.

    Raises:
        DataError: it cannot be loaded, or has no such split.
    """
    path = Path(given.hf)
    with _loading(given) as datasets:
        if not path.exists():
            hub = datasets.config.HF_ENDPOINT
            say_once(f"{given.hf}: there is no such file or folder here: asking {hub} for that data set")
        if (path / "state.json").is_file() or (path / "dataset_dict.json").is_file():  # written by save_to_disk
            # Its rows may have been saved as arrays of some library, or with some columns only.
            stored = datasets.load_from_disk(str(path), keep_in_memory=False).with_format(None)
            splits = stored if isinstance(stored, datasets.DatasetDict) else {str(stored.split or "train"): stored}
            return splits[given.split] if given.split in splits else _parts(splits, given.split)
        arguments = _arguments(given)
        config = datasets.load_dataset_builder(**arguments).config if path.exists() else None
        if config is not None and hasattr(config, "keep_default_na"):  # it reads CSV or TSV
            names = [name for name, _ in fields] if given.columns is None else given.columns.values()
            # An empty cell is none, so that a number may be missing in any row.
            arguments |= {"keep_default_na": False, "na_values": [""], "converters": dict.fromkeys(names, str)}
            if "\t" in (config.sep, config.delimiter):
                arguments["quoting"] = csv.QUOTE_NONE
        return datasets.load_dataset(split=given.split, streaming=given.streaming, keep_in_memory=False, **arguments)


def files_of_stream(given: DataSetConfig) -> list[tuple[str, list[str]]]:
    """Return the files that a stream is read from: their paths or addresses, and what the library knows of their state.

    Raises:
        DataError: it cannot be loaded, or has no such split.
    """
    with _loading(given) as datasets:
        files = datasets.load_dataset_builder(**_arguments(given)).config.data_files[given.split]
        return [(str(file), list(map(str, state))) for file, state in zip(files, files.origin_metadata, strict=True)]


def _arguments(given: DataSetConfig) -> dict[str, Any]:
    """Return what the library is given beside the split."""
    path = Path(given.hf)
    if not path.is_file():
        return {"path": given.hf, "name": given.subset, "revision": given.revision}
    suffix = path.suffix.lower()
    if suffix not in _BUILDERS:
        raise DataError(f"{path}: is no file that is read as a data set: {', '.join(_BUILDERS)} are")
    name = re.split(r"[\[+]", given.split)[0]  # "train" of "train[:10%]": the file is that split
    columns = {"delimiter": "\t"} if suffix == ".tsv" else {}
    return {"path": _BUILDERS[suffix], "data_files": {name: glob.escape(str(path))}, **columns}


@contextmanager
def _loading(given: DataSetConfig) -> Iterator[Any]:
    """Yield the library; what goes wrong with it is an error of one line."""
    if why := why_missing(given):
        raise DataError(f"{given.hf}: {why}")
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            f"data sets of Hugging Face need datasets ({error}): pip install 'ostinato[hf]'{see('own-data')}"
        ) from error
    datasets.disable_progress_bars()
    try:
        yield datasets
    except DataError:
        raise
    except Exception as error:  # of its own, of the network, of file formats: there is no common base
        # What generates rows says only that it cannot; the cause says why.
        reasons = [on_one_line(one)[:300] for one in (error, error.__cause__) if one is not None]
        reason = ": ".join(filter(None, reasons)) or type(error).__name__
        raise DataError(f"{given.hf}: cannot be loaded as a data set, split {given.split!r}: {reason}") from error


def _parts(splits: Mapping[str, Any], wanted: str) -> Any:
    """Return parts of splits as `load_dataset` would: train[:10%], train[:5]+gen."""
    from datasets import ReadInstruction, concatenate_datasets

    parts = ReadInstruction.from_spec(wanted).to_absolute({name: len(rows) for name, rows in splits.items()})
    return concatenate_datasets([splits[part.splitname].select(range(part.from_, part.to)) for part in parts])


def _records(
    rows: Any, columns: Mapping[str, str] | None, where: str, needed: set[str] | None, n_before: int
) -> Iterator[dict[str, object]]:
    """Yield every row under the names that columns have here, class labels as their names."""
    features = getattr(rows, "features", None) or {}
    # Where something is missing all columns are read, so that the error names them.
    if columns is not None:
        for theirs in columns.values():
            if features and theirs.partition(".")[0] not in features:
                raise DataError(f"{where}: no column {theirs!r} (columns): it has {', '.join(features)}")
        if needed is not None and needed <= columns.keys():
            columns = {ours: theirs for ours, theirs in columns.items() if ours in needed}
        rows = rows.select_columns(sorted({name.partition(".")[0] for name in columns.values()}))
    elif needed is not None and needed <= features.keys():
        rows = rows.select_columns(sorted(needed))
    for number, row in enumerate(_read(rows, where), n_before + 1):
        named = {name: _named(value, features.get(name)) for name, value in row.items()}
        if columns is None:
            yield named
            continue
        try:
            yield {ours: _at(named, theirs.split(".")) for ours, theirs in columns.items()}
        except (KeyError, TypeError) as error:
            reason = f"no column {error.args[0]!r} (columns) among {', '.join(named)}"
            raise bad_line(where, number, reason, "row") from error


def _read(rows: Iterable[Any], where: str) -> Iterator[Any]:
    """Yield the rows; what fails below, of the network or of a file, is an error of one line."""
    try:
        yield from rows
    except MemoryError:
        raise
    except Exception as error:  # there is no common base
        raise DataError(f"{where}: cannot be read: {on_one_line(error)[:300]}") from error


def _named(value: Any, feature: Any) -> Any:
    """Return the names of class labels, "-" for -1 (no label: SNLI's own files write so); any other value as it is."""
    if isinstance(value, list) and hasattr(feature, "feature"):
        return [_named(item, feature.feature) for item in value]
    if isinstance(value, dict) and isinstance(feature, dict):
        return {name: _named(item, feature.get(name)) for name, item in value.items()}
    if hasattr(feature, "int2str") and isinstance(value, int):
        return feature.int2str(value) if value >= 0 else "-"
    return value


def _at(record: Any, path: list[str]) -> Any:
    for name in path:
        record = record[name]
    return record
