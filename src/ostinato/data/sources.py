"""Examples from files of the user's own.

`ostinato.data.paths` says what may be named beside files. The name of a file tells its format (without a final ``.gz``
or ``.zst``, in capitals or not):

- ``.jsonl``, ``.json``, ``.ndjson``: JSON lines. One object per line; the keys named by `DataConfig` hold the texts,
  all other keys become metadata columns. A target that is an integer or a boolean is its JSON text: 1, true.
- ``.tsv``: columns separated by tabs, without quotes. With column names the first line is a header; where all columns
  are given as 0-based numbers there is no header, and the other columns are named by their numbers.
- ``.csv``: the same, separated by commas, with quotes where a cell needs them (RFC 4180); a row may have several lines.
- ``.parquet``, ``.arrow`` (as `datasets` saves them): a row is an example; columns are what keys are in JSON lines.
- a list of two other files: parallel text, a sentence per line; the first file is the source.
- any other file: plain text for a language model, an example per line. Blank lines are no examples.

Several files of one kind, but for parallel text, are read file after file. Of columns of one name none is a metadata
column: which one is meant nobody knows.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import zip_longest
from pathlib import Path
from reprlib import repr as shorten
from typing import TYPE_CHECKING, Literal

from ostinato.data.example import Example
from ostinato.data.lines import WHOLE, NotUtf8Error, Stretch, bad_line, check_is_file, read_lines, read_lines_or_errors
from ostinato.data.paths import find_files
from ostinato.data.tables import columns_of, parquet_groups, read_arrow, read_parquet
from ostinato.errors import DataError

if TYPE_CHECKING:
    from ostinato.config.data import DataConfig

ModelKind = Literal["seq2seq", "language_model"]
_JSON_LINES = (".jsonl", ".json", ".ndjson")
_OF_COLUMNS = ("tsv", "csv")


def read_examples(
    paths: str | Path | Sequence[str | Path], data: DataConfig, model_kind: ModelKind | str = "seq2seq"
) -> Iterator[Example]:
    """Yield the examples of one split, one at a time.

    Args:
        paths: a file, a folder, a pattern, or a list of them as described above; usually ``data.train``.
        data: gives the names of the fields. Its other settings are not used here.
        model_kind: "seq2seq" reads ``source_field`` and ``target_field``, "language_model" reads ``text_field``.

    Raises:
        DataError: names the file, the line and the reason; also where there is no example at all.
    """
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    files = find_files(given)
    n_examples = 0
    for example in _read(files, fields_of(data, model_kind), is_listed=files == [Path(one) for one in given]):
        n_examples += 1
        yield example
    if n_examples == 0:
        raise DataError(f"{', '.join(map(str, files)) or 'an empty list of files'}: no examples")


Fields = Sequence[tuple[str, str]]
"""Keys or columns, each with the setting that names it: of a text, or of a source and a target."""


def fields_of(data: DataConfig, model_kind: ModelKind | str) -> Fields:
    """Return what is read of a row."""
    wanted = ("text_field",) if model_kind == "language_model" else ("source_field", "target_field")
    return [(getattr(data, setting), f"data.{setting}") for setting in wanted]


def _example(texts: Sequence[str], columns: dict[str, object]) -> Example:
    return Example(None if len(texts) == 1 else texts[0], texts[-1], columns)


def _read(files: Sequence[Path], fields: Fields, *, is_listed: bool) -> Iterator[Example]:
    """Yield the examples of files; `is_listed`: the user named each of them."""
    if are_parallel(files, fields, is_listed=is_listed):
        parts = [Part(files[1], sources=Part(files[0]))]
    else:
        parts = [Part(path) for path in files]
    for part in parts:
        yield from (example for _, example in read_part(part, fields))


def are_parallel(files: Sequence[Path], fields: Fields, *, is_listed: bool = True) -> bool:
    """Return whether files are parallel text: the sources, and their targets.

    Args:
        is_listed: the user named each of them.

    Raises:
        DataError: they are of several kinds, or plain text of another number where pairs are wanted.
    """
    if kind_of_files(files) != "text" or len(fields) != 2:
        return False
    if len(files) != 2 or not is_listed:
        raise DataError(
            f"{_named(files)}: plain text has no targets: give JSON lines (.jsonl), columns (.tsv, .csv), "
            f"or a list of two text files, sources and targets"
        )
    return True


def kind_of_files(files: Sequence[Path]) -> str | None:
    """Return what the files hold, None where there are none.

    Raises:
        DataError: one is not there, or they are of several kinds.
    """
    kinds: dict[str, Path] = {}
    for path in files:
        check_is_file(path)
        kinds.setdefault(kind_of_file(path), path)
    if len(kinds) > 1:
        found = ", ".join(f"{path.name} ({kind})" for kind, path in sorted(kinds.items()))
        raise DataError(
            f"{_named(files)}: a list of files needs files of one kind, not {sorted(kinds)}: {found}; name those to "
            "read, or a pattern such as folder/*.jsonl"
        )
    return next(iter(kinds), None)


def _named(files: Sequence[Path]) -> str:
    shown = ", ".join(map(str, files[:5]))
    return shown if len(files) <= 5 else f"{shown}, ... ({len(files)} files)"


def kind_of_file(path: Path) -> str:
    """Return what a file holds, by its name: json, tsv, csv, text, parquet or arrow."""
    suffix = _suffix(path)
    if suffix in (".parquet", ".arrow"):
        if path.suffix.lower() != suffix:
            raise DataError(f"{path}: {suffix} files are compressed inside: unpack it")
        return suffix[1:]
    return "json" if suffix in _JSON_LINES else suffix[1:] if suffix[1:] in _OF_COLUMNS else "text"


def _suffix(path: Path) -> str:
    """Return what a name ends in, in lower case: UP.CSV is no plain text."""
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix in (".gz", ".zst") else suffix


@dataclass(frozen=True, slots=True)
class Part:
    """A file, or a part of one.

    Args:
        stretch: of a plain file of lines. groups: of rows of a Parquet file, the first and the one after the last;
            None: all. sources: of parallel text, whose targets are in `path`.
    """

    path: Path
    stretch: Stretch = WHOLE
    groups: tuple[int, int] | None = None
    sources: Part | None = None


def read_part(part: Part, fields: Fields, wanted: Sequence[str] | None = None) -> Iterator[tuple[int, Example]]:
    """Yield every example of a part with the number of its line, or row, in the file.

    Args:
        wanted: other columns to read of tables (Parquet, Arrow); None: all.
    """
    if part.sources is not None:
        return _read_parallel(part.sources, part)
    kind = kind_of_file(part.path)
    if kind in ("parquet", "arrow"):
        return _read_table(part, fields, wanted)
    readers = {"json": _read_json_lines, "tsv": _read_columns, "csv": _read_columns, "text": _read_plain}
    return readers[kind](part, fields)


def _read_table(part: Part, fields: Fields, wanted: Sequence[str] | None) -> Iterator[tuple[int, Example]]:
    path, names, there = part.path, [name for name, _ in fields], columns_of(part.path)
    for name, setting in fields:
        if name not in there:
            raise DataError(f"{path}: {missing('column', name, setting, there)}")
        if there.count(name) > 1:
            raise DataError(f"{path}: {_repeated(name, setting, there)}")
    # Of two columns of one name nobody knows which is meant.
    kept = [name for name in there if there.count(name) == 1 and (wanted is None or name in (*names, *wanted))]
    n_before = 0 if part.groups is None else sum(n for n, _ in parquet_groups(path)[: part.groups[0]])
    groups = None if part.groups is None else range(*part.groups)
    rows = read_arrow(path, kept) if kind_of_file(path) == "arrow" else read_parquet(path, kept, groups)
    for number, row in enumerate(rows, n_before + 1):
        yield number, example_of(row, fields, path, number, "row")


def example_of(
    row: Mapping[str, object], fields: Fields, where: Path | str, number: int, unit: Literal["line", "row"]
) -> Example:
    """Return the example that the object of a line, or a row of a table, holds.

    A target that is an integer or a boolean, a label, is its JSON text.

    Raises:
        DataError: a field that is not there, or no text.
    """
    kind, texts, names = {"line": "key", "row": "column"}[unit], [], [name for name, _ in fields]
    for name, setting in fields:
        if name not in row:
            raise bad_line(where, number, missing(kind, name, setting, list(row)), unit)
        value = row[name]
        if setting == "data.target_field" and isinstance(value, int):
            value = json.dumps(value)
        shown = repr(name) if unit == "line" else f"column {name!r}"
        texts.append(checked_text(value, shown, where, number, unit))
    return _example(texts, {key: value for key, value in row.items() if key not in names})


def _read_json_lines(part: Part, fields: Fields) -> Iterator[tuple[int, Example]]:
    path = part.path
    for number, line in read_lines(path, part.stretch):
        record = parse_object(line, path, number)
        example = example_of(record, fields, path, number, "line")
        if "\\u" in line:  # only an escape can be half of a surrogate pair: the line itself was UTF-8
            checked_text(json.dumps(example.columns, ensure_ascii=False), "a column", path, number)
        yield number, example


def parse_object(line: str, where: Path | str, number: int) -> dict[str, object]:
    """Return the JSON object that a line holds.

    Raises:
        DataError: it holds none; names the file, the line and the reason.
    """
    if not line.strip():
        raise bad_line(where, number, "the line is empty; every line needs a JSON object")
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise bad_line(where, number, f"not JSON: {error.msg} at character {error.pos + 1}") from error
    except (RecursionError, ValueError) as error:  # nested too deeply, or a number of thousands of digits
        raise bad_line(where, number, f"not usable JSON: {error}") from error
    if not isinstance(record, dict):
        raise bad_line(where, number, f"a JSON {_json_type(record)}, but every line needs an object {{...}}")
    return record


def _read_columns(part: Part, fields: Fields) -> Iterator[tuple[int, Example]]:
    for number, row in read_columns(part.path, fields, has_header=has_header(fields)):
        if isinstance(row, DataError):
            raise row
        yield number, _example(*row)


def has_header(fields: Fields) -> bool:
    """Return whether the first line of files of columns names them: not where all that is read has a number."""
    return not all(name.isdecimal() for name, _ in fields)


Columns = tuple[list[str], dict[str, object]]
"""A row of a file of columns: the texts that are read, and the other columns by name."""


def read_columns(path: Path, fields: Fields, *, has_header: bool) -> Iterator[tuple[int, Columns | DataError]]:
    """Yield the rows of a .tsv or .csv file, each with the number of its first line, or the error of a bad row.

    Raises:
        DataError: the file or its header cannot be read, or rows after a line of .csv cannot be told apart.
    """
    header: list[str] | None = None
    places: list[int] = []
    others: list[int] = []
    for number, cells in _csv_cells(path) if kind_of_file(path) == "csv" else _tsv_cells(path):
        if header is None:
            if isinstance(cells, DataError):
                raise cells
            header = cells if has_header else [str(i) for i in range(len(cells))]
            places = [_column_of(path, header, *field) for field in fields]
            # Of two columns of one name nobody knows which is meant.
            others = [i for i, name in enumerate(header) if i not in places and header.count(name) == 1]
            if has_header:
                continue
        if isinstance(cells, DataError):
            yield number, cells
            continue
        try:
            if len(cells) != len(header):
                origin = "the header" if has_header else "line 1"
                raise bad_line(path, number, f"{len(cells)} columns, but {origin} has {len(header)}")
            texts = [checked_text(cells[i], f"column {header[i]!r}", path, number) for i in places]
        except DataError as error:
            yield number, error
            continue
        yield number, (texts, {header[i]: cells[i] for i in others})


def _tsv_cells(path: Path) -> Iterator[tuple[int, list[str] | DataError]]:
    for number, line in read_lines_or_errors(path):
        yield number, line if isinstance(line, DataError) else line.split("\t")


def _csv_cells(path: Path) -> Iterator[tuple[int, list[str] | DataError]]:
    errors: dict[int, DataError] = {}

    def lines() -> Iterator[str]:
        for number, line in read_lines_or_errors(path):
            if isinstance(line, DataError):
                errors[number] = line
                # Its commas and quotes say where cells end all the same.
                line = line.raw.decode(errors="replace").rstrip("\r\n") if isinstance(line, NotUtf8Error) else ""
            yield f"{line}\n"

    csv.field_size_limit(2**31 - 1)  # of the whole process; the library's own is 131,072 characters
    rows = csv.reader(lines(), strict=True)
    first = 1
    try:
        for cells in rows:
            own = [errors.pop(number) for number in range(first, rows.line_num + 1) if number in errors]
            yield first, own[0] if own else cells
            first = rows.line_num + 1
    except csv.Error as error:
        raise bad_line(path, first, f"not CSV: {error}") from error


def _column_of(path: Path, header: list[str], name: str, setting: str) -> int:
    if header.count(name) > 1:
        raise bad_line(path, 1, _repeated(name, setting, header))
    if name in header:
        return header.index(name)
    if name.isdecimal() and int(name) < len(header):
        return int(name)
    reason = missing("column", name, setting, header)
    raise bad_line(path, 1, f"{reason}; a file without a header needs 0-based column numbers")


def _read_parallel(sources: Part, targets: Part) -> Iterator[tuple[int, Example]]:
    n_lines = [sources.stretch.n_before, targets.stretch.n_before]
    lines = (read_lines(part.path, part.stretch) for part in (sources, targets))
    for source, target in zip_longest(*lines):
        n_lines[0] += source is not None
        n_lines[1] += target is not None
        if source is not None and target is not None:
            texts = [
                checked_text(line, "the line", part.path, number)
                for part, (number, line) in ((sources, source), (targets, target))
            ]
            yield target[0], Example(texts[0], texts[1], {})
    if n_lines[0] != n_lines[1]:
        short, long = sorted(zip(n_lines, (sources.path, targets.path), strict=True))
        raise DataError(
            f"{short[1]}, line {short[0] + 1}: missing: the file has {short[0]} lines but {long[1]} has {long[0]}, and "
            f"parallel text needs the same number in both"
        )


def _read_plain(part: Part, fields: Fields) -> Iterator[tuple[int, Example]]:
    for number, line in read_lines(part.path, part.stretch):
        if line.strip():
            yield number, _example([checked_text(line, "the line", part.path, number)], {})


def checked_text(value: object, what: str, path: Path | str, number: int, unit: str = "line") -> str:
    """Return a value of a file as a text; `unit`: what is counted in it, lines or rows.

    Raises:
        DataError: it is no text, empty, or cannot be encoded; names the file, the line and the reason.
    """
    if not isinstance(value, str):
        reason = f"{what} is {shorten(value)}, a {_type_of(value, unit)}, but has to be a string"
        raise bad_line(path, number, reason, unit)
    if not value.strip():
        raise bad_line(path, number, f"{what} is empty", unit)
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        reason = f"{what} holds half of a surrogate pair at character {error.start + 1}, which is no text"
        raise bad_line(path, number, reason, unit) from error
    return value


def missing(what: str, name: str, setting: str, present: list[str]) -> str:
    """Return the reason of the error for a file without the key or column that a setting names."""
    close = get_close_matches(name, present, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"no {what} {name!r} ({setting}) among {', '.join(map(repr, present)) or 'none'}{hint}"


def _repeated(name: str, setting: str, present: list[str]) -> str:
    """Return the reason of the error for a file with several columns of the name that a setting gives."""
    return f"{present.count(name)} columns are named {name!r} ({setting}): give each a name of its own"


def _type_of(value: object, unit: str) -> str:
    """Return the type of a value: of a line in JSON's words, of a row of a table in Python's."""
    return f"JSON {_json_type(value)}" if unit == "line" else "null" if value is None else type(value).__name__


def _json_type(value: object) -> str:
    names = {bool: "boolean", int: "number", float: "number", str: "string", list: "array", dict: "object"}
    return "null" if value is None else names[type(value)]
