"""Inputs of generation: lines of text, or JSON lines and rows of columns whose other fields are copied to the output.

A line that cannot be read does not end the reading. It becomes an input with an error, so that every line of input has
a line of output.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO, Literal

from ostinato.data.disk import reading
from ostinato.data.lines import bad_line, check_is_file, decode_lines, read_lines_or_errors
from ostinato.data.sources import checked_text, kind_of_file, missing, parse_object, read_columns
from ostinato.errors import DataError

InputFormat = Literal["auto", "text", "json"]
STANDARD_INPUT = "standard input"


@dataclass(frozen=True, slots=True)
class Input:
    """One source, or one prompt of a language model.

    Args:
        text: the source or prompt.
        prefix: forced beginning of its output.
        where: its name in errors, for example "a.txt, line 3".
        fields: fields of its line, which are copied to the output.
        error: why it could not be read; it then has no output.
    """

    text: str
    prefix: str = ""
    where: str = ""
    fields: dict[str, object] = field(default_factory=dict)
    error: DataError | None = None


@dataclass(frozen=True, slots=True)
class InputReader:
    """Reads inputs.

    Args:
        text_field: key of the text in JSON lines, or its column.
        setting: the setting that gives this key, for errors.
        prefix_field: key, or column, of the forced prefix; a line without it has `prefix`.
        prefix: forced beginning of every output.
        format: auto: what a file's name says, JSON lines (.jsonl, .json, .ndjson) or columns (.tsv, .csv), also with
            .gz or .zst; of other files and standard input, JSON lines where the first line is an object with the key of
            the text, else text.
        has_header: the first line of a file of columns names them.
    """

    text_field: str
    setting: str
    prefix_field: str | None = None
    prefix: str = ""
    format: InputFormat = "auto"
    has_header: bool = True

    def read(self, paths: Sequence[Path], stdin: BinaryIO | None = None) -> Iterator[Input]:
        """Yield the inputs of the files in turn, or of `stdin` where there are none.

        Raises:
            DataError: a file that does not exist, or a table (before anything is read), a damaged gzip file, a file of
                columns without that of the text or of `prefix_field`, lines of text where `prefix_field` names a key,
                or a standard input that cannot be read.
        """
        kinds: list[str] = []
        for path in paths:
            check_is_file(path)
            kinds.append(kind := kind_of_file(path) if self.format == "auto" else self.format)
            if kind in ("parquet", "arrow"):
                raise DataError(f"{path}: tables are not read here: give JSON lines, .tsv, .csv or text")
        if not paths and stdin is not None:
            with reading(STANDARD_INPUT, DataError):
                lines = decode_lines(stdin, STANDARD_INPUT)
                yield from self._from_lines(lines, STANDARD_INPUT, "text" if self.format == "auto" else self.format)
        for path, kind in zip(paths, kinds, strict=True):
            if kind in ("tsv", "csv"):
                yield from self._from_columns(path)
            else:
                yield from self._from_lines(read_lines_or_errors(path), path, kind)

    def _from_columns(self, path: Path) -> Iterator[Input]:
        fields = [(self.text_field, self.setting)]
        is_known = self.prefix_field in (None, self.text_field)
        for number, row in read_columns(path, fields, has_header=self.has_header):
            name = f"{path}, line {number}"
            if isinstance(row, DataError):
                yield Input("", where=name, error=row)
                continue
            (text,), columns = row
            if not is_known and self.prefix_field not in columns:
                names = [self.text_field, *columns]
                raise DataError(f"{path}: {missing('column', str(self.prefix_field), '--prefix-field', names)}")
            is_known = True
            yield self._from_fields({self.text_field: text, **columns}, path, number, name)

    def _from_lines(
        self, lines: Iterator[tuple[int, str | DataError]], where: Path | str, kind: str
    ) -> Iterator[Input]:
        first = list(islice(lines, 1))
        is_json = kind == "json" or (self.format == "auto" and self._is_object_with_text(first))
        if first and not is_json and self.prefix_field is not None:
            reason = f"lines of text have no '{self.prefix_field}': it is a key of JSON lines, or a column"
            raise DataError(f"{where}: {reason}")
        for number, line in chain(first, lines):
            name = f"{where}, line {number}"
            if isinstance(line, DataError):
                yield Input("", where=name, error=line)
            elif is_json:
                yield self._from_object(line, where, number, name)
            else:
                yield Input(line, self.prefix, name, {self.text_field: line})

    def _is_object_with_text(self, lines: Sequence[tuple[int, str | DataError]]) -> bool:
        try:
            return any(self.text_field in parse_object(line, "", 1) for _, line in lines if isinstance(line, str))
        except DataError:
            return False

    def _from_object(self, line: str, where: Path | str, number: int, name: str) -> Input:
        try:
            fields = parse_object(line, where, number)
        except DataError as error:
            return Input("", where=name, error=error)
        return self._from_fields(fields, where, number, name)

    def _from_fields(self, fields: dict[str, object], where: Path | str, number: int, name: str) -> Input:
        try:
            if self.text_field not in fields:
                raise bad_line(where, number, missing("key", self.text_field, self.setting, list(fields)))
            text = checked_text(fields[self.text_field], repr(self.text_field), where, number)
            prefix = self.prefix
            if self.prefix_field is not None and fields.get(self.prefix_field) not in (None, ""):
                prefix = checked_text(fields[self.prefix_field], repr(self.prefix_field), where, number)
        except DataError as error:
            return Input("", where=name, fields=fields, error=error)
        return Input(text, prefix, name, fields)
