from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import pytest

from ostinato.data.inputs import Input, InputReader
from ostinato.errors import DataError

READER = InputReader("source", "data.source_field")


def test_lines_of_text_are_inputs_with_their_place_and_an_empty_one_too(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("do re\n\nmi\u2028fa", encoding="utf-8")
    found = list(READER.read([tmp_path / "a.txt"]))
    assert [one.text for one in found] == ["do re", "", "mi\u2028fa"]
    assert found[2] == Input("mi\u2028fa", "", f"{tmp_path / 'a.txt'}, line 3", {"source": "mi\u2028fa"})


def test_json_lines_carry_their_other_fields(tmp_path: Path) -> None:
    records = [{"id": 7, "source": "do", "tags": ["x", None]}, {"source": "re", "begun": "RE"}]
    text = "".join(json.dumps(record) + "\n" for record in records)
    (tmp_path / "a.jsonl").write_text(text, encoding="utf-8")
    with gzip.open(tmp_path / "b.json.gz", "wt", encoding="utf-8") as file:
        file.write(text)
    reader = InputReader("source", "data.source_field", prefix_field="begun")
    found = list(reader.read([tmp_path / "a.jsonl", tmp_path / "b.json.gz"]))
    assert [one.fields for one in found] == records * 2
    assert [(one.text, one.prefix) for one in found] == [("do", ""), ("re", "RE")] * 2
    assert found[3].where == f"{tmp_path / 'b.json.gz'}, line 2"
    shared = InputReader("source", "data.source_field", prefix_field="begun", prefix="LA")
    assert [one.prefix for one in shared.read([tmp_path / "a.jsonl"])] == ["LA", "RE"]
    (tmp_path / "c.txt").write_text("do\n", encoding="utf-8")
    with pytest.raises(
        DataError, match=r"c\.txt: lines of text have no 'begun': it is a key of JSON lines, or a column"
    ):
        list(shared.read([tmp_path / "c.txt"]))
    assert not list(shared.read([], io.BytesIO(b"")))


def test_standard_input_and_text_files_are_json_lines_where_the_first_line_is_an_object_with_the_text(
    tmp_path: Path,
) -> None:
    lines = b'{"source": "do", "id": 7}\nre\n'
    (tmp_path / "a.txt").write_bytes(lines)
    for found, where in (
        (READER.read([], io.BytesIO(lines)), "standard input"),
        (READER.read([tmp_path / "a.txt"]), tmp_path / "a.txt"),
    ):
        first, second = found
        assert (first.text, first.where, first.fields) == ("do", f"{where}, line 1", {"source": "do", "id": 7})
        assert str(second.error).startswith(f"{where}, line 2: not JSON")
    as_text = InputReader("source", "data.source_field", format="text")
    assert [one.text for one in as_text.read([], io.BytesIO(lines))] == ['{"source": "do", "id": 7}', "re"]


@pytest.mark.parametrize("first", ['{"src": "do"}', '["source"]', '{"source": ', "do", ""])
def test_other_first_lines_are_text(first: str) -> None:
    lines = f'{first}\n{{"source": "re"}}\n'.encode()
    assert [one.text for one in READER.read([], io.BytesIO(lines))] == [first, '{"source": "re"}']
    assert not list(READER.read([], io.BytesIO(b"")))


def test_standard_input_that_is_said_to_be_json_is() -> None:
    reader = InputReader("source", "data.source_field", format="json")
    (one,) = reader.read([], io.BytesIO(b'{"src": "do"}\n'))
    assert "no key 'source'" in str(one.error)


@pytest.mark.parametrize(("name", "between"), [("a.tsv", "\t"), ("a.csv", ",")])
def test_files_of_columns_are_read_as_in_training(tmp_path: Path, name: str, between: str) -> None:
    rows = [["id", "source", "target"], ["7", "old cat", "alte Katze"], ["8", "sea"], ["9", "", "x"]]
    path = tmp_path / name
    path.write_text("".join(f"{between.join(row)}\n" for row in rows), encoding="utf-8")
    first, second, third = READER.read([path])
    assert (first.text, first.where) == ("old cat", f"{path}, line 2")
    assert first.fields == {"source": "old cat", "id": "7", "target": "alte Katze"}
    assert str(second.error) == f"{path}, line 3: 2 columns, but the header has 3"
    assert str(third.error) == f"{path}, line 4: column 'source' is empty"
    begun = InputReader("source", "data.source_field", prefix_field="target")
    assert next(begun.read([path])).prefix == "alte Katze"
    unknown = InputReader("source", "data.source_field", prefix_field="targt")
    with pytest.raises(DataError, match=r"no column 'targt' \(--prefix-field\) among .*; did you mean 'target'\?"):
        next(unknown.read([path]))
    by_number = InputReader("1", "data.source_field", has_header=False)
    assert next(by_number.read([path])).fields == {"1": "source", "0": "id", "2": "target"}
    other = InputReader("sources", "data.source_field")
    with pytest.raises(DataError, match=r"line 1: no column 'sources' \(data.source_field\)"):
        next(other.read([path]))


def test_a_row_of_csv_that_is_no_text_keeps_its_place(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'source,n\ndo,1\nd\xff,2\n"two\nlines",3\n"a\xff\nb",4\n"c\nd\xff",5\nre,6\n')
    found = list(READER.read([path]))
    assert [one.error is None for one in found] == [True, False, True, False, False, True]
    bad = [str(one.error) for one in found if one.error is not None]
    assert all(line.startswith(f"{path}, line {n}: not UTF-8") for line, n in zip(bad, (3, 6, 9), strict=True))
    assert [one.text for one in found if one.error is None] == ["do", "two\nlines", "re"]


def test_tables_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    for name in ("a.txt", "a.parquet"):
        (tmp_path / name).write_bytes(b"do\n")
    with pytest.raises(DataError, match=r"a\.parquet: tables are not read here"):
        next(READER.read([tmp_path / "a.txt", tmp_path / "a.parquet"]))


def test_a_format_that_is_given_holds_whatever_the_file_is_called(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"source": "do"}\n', encoding="utf-8")
    (one,) = InputReader("source", "", format="text").read([tmp_path / "a.jsonl"])
    assert one.text == '{"source": "do"}'


BAD_LINES = [
    (b"{", "not JSON"),
    (b"[1]", "a JSON array, but every line needs an object"),
    (b"", "the line is empty; every line needs a JSON object"),
    (b'{"src": "do"}', "no key 'source' (data.source_field) among 'src'"),
    (b'{"source": 3}', "'source' is 3, a JSON number, but has to be a string"),
    (b'{"source": " "}', "'source' is empty"),
    (b'{"source": "do", "begun": 3}', "'begun' is 3, a JSON number"),
    (b'{"source": "\xff"}', "not UTF-8 at byte 13"),
]


def test_lines_that_cannot_be_read_keep_their_place_and_name_the_reason(tmp_path: Path) -> None:
    good = b'{"source": "do"}'
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join([part for bad, _ in BAD_LINES for part in (bad, good)]) + b"\n")
    found = list(InputReader("source", "data.source_field", prefix_field="begun").read([path]))
    assert len(found) == 2 * len(BAD_LINES)
    for place, (_, reason) in enumerate(BAD_LINES):
        error = found[2 * place].error
        assert isinstance(error, DataError)
        assert str(error).startswith(f"{path}, line {2 * place + 1}: ")
        assert reason in str(error)
        assert found[2 * place + 1].error is None
    assert found[6].fields == {"src": "do"}, "what could be read is carried through"


def test_a_missing_file_is_an_error_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("do\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"gone\.txt: no such file"):
        next(READER.read([tmp_path / "a.txt", tmp_path / "gone.txt"]))
