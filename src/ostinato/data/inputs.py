"""Inputs of generation: lines of text, or JSON lines whose other fields are copied to the output.

A line that cannot be read does not end the reading. It becomes an input with an error, so that every line of input has
a line of output.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal

from ostinato.data.disk import reading
from ostinato.data.lines import bad_line, check_is_file, decode_lines, read_lines_or_errors
from ostinato.data.sources import checked_text, is_json_lines, missing, parse_object
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
        text_field: key of the text in JSON lines.
        setting: the setting that gives this key, for errors.
        prefix_field: key of the forced prefix in JSON lines; a line without it has `prefix`.
        prefix: forced beginning of every output.
        format: auto: JSON lines in files whose names say so (.jsonl, .json, .ndjson, also with .gz or .zst), else
            text.
    """

    text_field: str
    setting: str
    prefix_field: str | None = None
    prefix: str = ""
    format: InputFormat = "auto"

    def read(self, paths: Sequence[Path], stdin: BinaryIO | None = None) -> Iterator[Input]:
        """Yield the inputs of the files in turn, or of `stdin` where there are none.

        Raises:
            DataError: a file that does not exist (before anything is read), a damaged gzip file, or a standard
                input that cannot be read.
        """
        for path in paths:
            check_is_file(path)
        if not paths and stdin is not None:
            with reading(STANDARD_INPUT, DataError):
                yield from self._inputs(decode_lines(stdin, STANDARD_INPUT), STANDARD_INPUT, self.format == "json")
        for path in paths:
            is_json = is_json_lines(path) if self.format == "auto" else self.format == "json"
            yield from self._inputs(read_lines_or_errors(path), path, is_json)

    def _inputs(
        self, lines: Iterable[tuple[int, str | DataError]], where: Path | str, is_json: bool
    ) -> Iterator[Input]:
        for number, line in lines:
            name = f"{where}, line {number}"
            if isinstance(line, DataError):
                yield Input("", where=name, error=line)
            elif is_json:
                yield self._from_object(line, where, number, name)
            else:
                yield Input(line, self.prefix, name, {self.text_field: line})

    def _from_object(self, line: str, where: Path | str, number: int, name: str) -> Input:
        fields: dict[str, object] = {}
        try:
            fields = parse_object(line, where, number)
            if self.text_field not in fields:
                raise bad_line(where, number, missing("key", self.text_field, self.setting, list(fields)))
            text = checked_text(fields[self.text_field], repr(self.text_field), where, number)
            prefix = self.prefix
            if self.prefix_field is not None and fields.get(self.prefix_field) not in (None, ""):
                prefix = checked_text(fields[self.prefix_field], repr(self.prefix_field), where, number)
        except DataError as error:
            return Input("", where=name, fields=fields, error=error)
        return Input(text, prefix, name, fields)
