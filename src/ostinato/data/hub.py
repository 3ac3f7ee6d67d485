"""Examples of a data set of the library datasets (Hugging Face): local files and folders, its cache, or a hub.

A row is as a JSON object of a line in `ostinato.data.sources`: the keys that `DataConfig` names hold the texts, the
others become metadata columns, and a target that is a whole number is its JSON text. Class labels, which are stored as
numbers, become their names, and a list of words is a text with blanks between them.

`columns` names what is read, by the names that it has here; a dot leads into a column that holds several:

    columns: {source: translation.de, target: translation.en}

It needs the extra `hf`. Nothing is executed that comes with a data set: the library runs no code of theirs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ostinato.config.files import say_once
from ostinato.data.example import Example
from ostinato.data.lines import bad_line
from ostinato.data.sources import checked_text, missing
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


def read_data_set(given: DataSetConfig, data: DataConfig, model_kind: str = "seq2seq") -> Iterator[Example]:
    """Yield the examples of a data set, one at a time; the log hears of a hub before it is asked.

    Args:
        data: gives the names of the fields. model_kind: "language_model" reads `text_field`, others a pair.

    Raises:
        DataError: it cannot be loaded, has no such split or column, or a row cannot be read; in one line.
    """
    wanted = ("text_field",) if model_kind == "language_model" else ("source_field", "target_field")
    fields = [(getattr(data, setting), f"data.{setting}") for setting in wanted]
    where, number = f"{given.hf}, split {given.split}", 0
    rows = _loaded(given)
    for number, record in enumerate(_records(rows, given.columns, where), 1):
        texts, names = [], [name for name, _ in fields]
        for name, setting in fields:
            if name not in record:
                raise bad_line(where, number, missing("column", name, setting, list(record)), "row")
            value = record[name]
            if isinstance(value, list) and all(isinstance(word, str) for word in value):
                value = " ".join(value)
            if setting == "data.target_field" and isinstance(value, int):
                value = json.dumps(value)
            texts.append(checked_text(value, repr(name), where, number, "row"))
        columns = {key: value for key, value in record.items() if key not in names}
        yield Example(None if len(texts) == 1 else texts[0], texts[-1], columns)
    if not number:
        raise DataError(f"{where}: no examples")


def why_missing(given: DataSetConfig) -> str | None:
    """Return why there is no such data set: it is a path, and nothing is there. None: it is, or a hub may have it."""
    name, path = given.hf, Path(given.hf)
    is_path = path.suffix in _BUILDERS or name.startswith((".", "/", "~")) or name.count("/") > 1
    if path.exists() or name.startswith("hf://") or not is_path:
        return None
    return f"there is no such file or folder (looked in {path.absolute().parent})"


def state_of(given: DataSetConfig) -> list[Any]:
    """Return what tells whether a local data set has changed: files, sizes and times of change; of others nothing."""
    path = Path(given.hf)
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    return [[str(file.absolute()), file.stat().st_size, file.stat().st_mtime_ns] for file in files]


def _loaded(given: DataSetConfig) -> Any:
    """Return one split of a data set, in memory map or as a stream."""
    path = Path(given.hf)
    if why := why_missing(given):
        raise DataError(f"{given.hf}: {why}")
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            f"data sets of Hugging Face need datasets ({error}): pip install 'ostinato[hf]'{see('own-data')}"
        ) from error
    datasets.disable_progress_bars()
    if not path.exists():
        hub = datasets.config.HF_ENDPOINT
        say_once(f"{given.hf}: there is no such file or folder here: asking {hub} for that data set")
    try:
        if (path / "state.json").is_file() or (path / "dataset_dict.json").is_file():  # written by save_to_disk
            # Its rows may have been saved as arrays of some library, or with some columns only.
            stored = datasets.load_from_disk(str(path)).with_format(None)
            splits = stored if isinstance(stored, datasets.DatasetDict) else {str(stored.split or "train"): stored}
            return splits[given.split] if given.split in splits else _parts(splits, given.split)
        how: dict[str, Any] = {"path": given.hf, "name": given.subset, "revision": given.revision}
        if path.is_file():
            if path.suffix not in _BUILDERS:
                raise DataError(f"{path}: is no file that is read as a data set: {', '.join(_BUILDERS)} are")
            name = re.split(r"[\[+]", given.split)[0]  # without the part that is wanted of it
            how = {"path": _BUILDERS[path.suffix], "data_files": {name: str(path)}}
            how |= {"delimiter": "\t"} if path.suffix == ".tsv" else {}
        return datasets.load_dataset(split=given.split, streaming=given.streaming, **how)
    except DataError:
        raise
    except Exception as error:  # of its own, of the network, of file formats: there is no common base
        reason = on_one_line(error)[:300]
        raise DataError(f"{given.hf}: cannot be loaded as a data set, split {given.split!r}: {reason}") from error


def _parts(splits: Mapping[str, Any], wanted: str) -> Any:
    """Return parts of splits as `load_dataset` would: train[:10%], train[:5]+gen."""
    from datasets import ReadInstruction, concatenate_datasets

    parts = ReadInstruction.from_spec(wanted).to_absolute({name: len(rows) for name, rows in splits.items()})
    return concatenate_datasets([splits[part.splitname].select(range(part.from_, part.to)) for part in parts])


def _records(rows: Iterable[Any], columns: Mapping[str, str] | None, where: str) -> Iterator[dict[str, object]]:
    """Yield every row under the names that columns have here, class labels as their names."""
    features = getattr(rows, "features", None) or {}
    if columns is not None:
        for theirs in columns.values():
            if features and theirs.partition(".")[0] not in features:
                raise DataError(f"{where}: no column {theirs!r} (columns): it has {', '.join(features)}")
        rows = rows.select_columns(sorted({name.partition(".")[0] for name in columns.values()}))  # type: ignore[attr-defined]
    for number, row in enumerate(rows, 1):
        named = {name: _named(value, features.get(name)) for name, value in row.items()}
        if columns is None:
            yield named
            continue
        try:
            yield {ours: _at(named, theirs.split(".")) for ours, theirs in columns.items()}
        except (KeyError, TypeError) as error:
            reason = f"no column {error.args[0]!r} (columns) among {', '.join(named)}"
            raise bad_line(where, number, reason, "row") from error


def _named(value: Any, feature: Any) -> Any:
    """Return the names of class labels, -1 (no label) as it is; any other value as it is."""
    if isinstance(value, list) and hasattr(feature, "feature"):
        return [_named(item, feature.feature) for item in value]
    if hasattr(feature, "int2str") and isinstance(value, int) and value >= 0:
        return feature.int2str(value)
    return value


def _at(record: Any, path: list[str]) -> Any:
    for name in path:
        record = record[name]
    return record
