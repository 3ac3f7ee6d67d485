"""Parquet and Arrow files, folders of `datasets`, and zstd: read as JSON lines are, and named when they are damaged."""

from __future__ import annotations

import gzip
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from ostinato.config.data import DataConfig
from ostinato.data.example import Example
from ostinato.data.sources import Part, fields_of, read_examples, read_part
from ostinato.data.tables import parquet_groups, read_arrow, read_parquet
from ostinato.errors import DataError

pyarrow = pytest.importorskip("pyarrow", reason="needs pyarrow (the extra `data`)")
parquet = pytest.importorskip("pyarrow.parquet")

DATA = DataConfig()
ROWS = [{"text": f"text {n}", "n": n, "tags": [n, n]} for n in range(7)]
EXPECTED = [Example(None, row["text"], {"n": row["n"], "tags": row["tags"]}) for row in ROWS]


def texts_of(paths: str | list[str] | Path, data: DataConfig = DATA, kind: str = "language_model") -> list[Example]:
    return list(read_examples(paths if isinstance(paths, list) else str(paths), data, kind))


def error_of(paths: str | list[str] | Path, data: DataConfig = DATA, kind: str = "language_model") -> str:
    with pytest.raises(DataError) as caught:
        texts_of(paths, data, kind)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def write_parquet(path: Path, rows: list[dict[str, Any]], n: int = 3) -> Path:
    parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=n)
    return path


def write_arrow(path: Path, rows: list[dict[str, Any]], n: int = 3) -> Path:
    table = pyarrow.Table.from_pylist(rows)
    with pyarrow.OSFile(str(path), "wb") as sink, pyarrow.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table, max_chunksize=n)
    return path


def test_an_arrow_file_is_read_as_a_stream_is(tmp_path: Path) -> None:
    path, table = tmp_path / "a.arrow", pyarrow.Table.from_pylist(ROWS)
    with pyarrow.OSFile(str(path), "wb") as sink, pyarrow.ipc.new_file(sink, table.schema) as file:
        file.write_table(table, max_chunksize=3)
    assert texts_of(path) == EXPECTED
    assert list(read_arrow(path, ["n"])) == [{"n": row["n"]} for row in ROWS]
    path.write_bytes(path.read_bytes()[:-9])
    assert f"{path}: is damaged" in error_of(path)


def test_the_ending_of_a_name_may_be_in_capitals(tmp_path: Path) -> None:
    assert texts_of(write_parquet(tmp_path / "UP.PARQUET", ROWS)) == EXPECTED
    assert texts_of(write_arrow(tmp_path / "UP.ARROW", ROWS)) == EXPECTED


def test_rows_are_examples_and_other_columns_metadata(tmp_path: Path) -> None:
    assert texts_of(write_parquet(tmp_path / "a.parquet", ROWS)) == EXPECTED
    assert texts_of(write_arrow(tmp_path / "a.arrow", ROWS)) == EXPECTED
    pairs = [{"source": "a", "target": "b"}, {"source": "c", "target": "d"}]
    assert texts_of(write_parquet(tmp_path / "b.parquet", pairs), kind="seq2seq") == [
        Example("a", "b", {}),
        Example("c", "d", {}),
    ]
    labels = write_parquet(tmp_path / "c.parquet", [{"source": "a", "target": 1}])
    assert [example.target for example in texts_of(labels, kind="seq2seq")] == ["1"]


def test_a_part_of_a_file_has_the_numbers_of_its_rows(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", ROWS)
    fields = fields_of(DATA, "language_model")
    found = list(read_part(Part(path, groups=(1, 3)), fields, wanted=["n"]))
    assert found == [(n + 1, Example(None, f"text {n}", {"n": n})) for n in range(3, 7)]
    assert list(read_part(Part(path), fields, wanted=[])) == [(n + 1, Example(None, f"text {n}")) for n in range(7)]


def test_a_folder_that_datasets_saved_is_read_in_its_order(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="needs datasets (the extra `hf`)")
    datasets.disable_progress_bars()
    data = datasets.Dataset.from_list(ROWS).select([3, 1, 2, 0, 6, 5, 4])
    data.save_to_disk(str(tmp_path / "one"), num_shards=3)
    assert [example.columns["n"] for example in texts_of(tmp_path / "one")] == [3, 1, 2, 0, 6, 5, 4]
    datasets.DatasetDict({"train": data, "dev": data}).save_to_disk(str(tmp_path / "several"))
    assert [example.columns["n"] for example in texts_of(tmp_path / "several" / "dev")] == [3, 1, 2, 0, 6, 5, 4]
    message = error_of(tmp_path / "several")
    assert "holds several splits of a data set: name one of them" in message
    assert str(tmp_path / "several" / "dev") in message
    next((tmp_path / "one").glob("*00001*")).unlink()
    assert "data-00001-of-00003.arrow: no such file" in error_of(tmp_path / "one")


def test_a_missing_column_and_bad_values_are_named(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", ROWS)
    data = DataConfig(text_field="texts")
    assert error_of(path, data) == (
        f"{path}: no column 'texts' (data.text_field) among 'text', 'n', 'tags'; did you mean 'text'?"
    )
    nothing = write_parquet(tmp_path / "b.parquet", [{"text": "a"}, {"text": None}])
    assert error_of(nothing) == f"{nothing}, row 2: column 'text' is None, a null, but has to be a string"
    number = write_arrow(tmp_path / "b.arrow", [{"text": 1}])
    assert error_of(number) == f"{number}, row 1: column 'text' is 1, a int, but has to be a string"
    empty = write_parquet(tmp_path / "c.parquet", [{"text": " "}])
    assert error_of(empty) == f"{empty}, row 1: column 'text' is empty"


def test_a_column_that_is_read_stands_in_a_table_once(tmp_path: Path) -> None:
    table = pyarrow.Table.from_arrays(
        [pyarrow.array([one]) for one in "abcd"], names=["source", "target", "target", "n"]
    )
    parquet.write_table(table, tmp_path / "a.parquet")
    with pyarrow.OSFile(str(tmp_path / "a.arrow"), "wb") as sink, pyarrow.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    for path in (tmp_path / "a.parquet", tmp_path / "a.arrow"):
        reason = "2 columns are named 'target' (data.target_field): give each a name of its own"
        assert error_of(path, kind="seq2seq") == f"{path}: {reason}"
        (example,) = texts_of(path, DataConfig(target_field="n"), "seq2seq")
        assert (example.source, example.target) == ("a", "d")
        assert example.columns == {}, "which of two of one name is meant nobody knows"


@pytest.mark.parametrize("cut", [0, 4, 100, -9, -1])
def test_a_table_that_is_cut_off_is_named(tmp_path: Path, cut: int) -> None:
    for path in (write_parquet(tmp_path / "a.parquet", ROWS), write_arrow(tmp_path / "a.arrow", ROWS)):
        path.write_bytes(path.read_bytes()[:cut])
        message = error_of(path)
        assert message.startswith(f"{path}: is ")
        assert "damaged" in message or "cut off" in message


def test_a_stream_that_ends_between_two_batches_is_cut_off_all_the_same(tmp_path: Path) -> None:
    path = write_arrow(tmp_path / "a.arrow", ROWS)
    path.write_bytes(path.read_bytes().removesuffix(b"\xff\xff\xff\xff\0\0\0\0"))
    assert error_of(path) == f"{path}: is no whole Arrow stream: it is cut off"


def test_damage_inside_a_table_is_named(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", [{"text": f"{n} " * 50} for n in range(50)], 50)
    content = bytearray(path.read_bytes())
    content[40:80] = bytes(40)
    path.write_bytes(content)
    assert error_of(path).startswith(f"{path}: is damaged, or no .parquet file: ")


_NO_TEXT = pyarrow.array([b"a", b"b", b"c \xff"], pyarrow.binary()).view(pyarrow.string())


@pytest.mark.parametrize(
    ("name", "values", "reason"),
    [
        ("text", _NO_TEXT, "column 'text' (string) holds what cannot be read: 'utf-8' codec can't decode"),
        ("other", _NO_TEXT, "column 'other' (string) holds what cannot be read: 'utf-8' codec can't decode"),
        (
            "day",
            pyarrow.array([0, 1, 10**7], pyarrow.date32()),
            "column 'day' (date32[day]) holds what cannot be read:",
        ),
        (
            "time",
            pyarrow.array([0, 1, 2**60], pyarrow.timestamp("us")),
            "column 'time' (timestamp[us]) holds what cannot",
        ),
        (
            "time",
            pyarrow.array([None, None, 2], pyarrow.timestamp("us", "Foo/Bar")),
            "(timestamp[us, tz=Foo/Bar]) holds",
        ),
    ],
)
def test_a_value_of_a_table_that_python_cannot_hold_is_named_by_its_row(
    tmp_path: Path, name: str, values: Any, reason: str
) -> None:
    columns = {"text": pyarrow.array(["a", "b", "c"]), name: values}
    table = pyarrow.table(columns)
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    with pyarrow.OSFile(str(tmp_path / "a.arrow"), "wb") as sink, pyarrow.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table, max_chunksize=2)
    for path in (tmp_path / "a.parquet", tmp_path / "a.arrow"):
        message = error_of(path)
        assert message.startswith(f"{path}, row 3: column {name!r}")
        assert reason in message
    part = Part(tmp_path / "a.parquet", groups=(1, 2))
    with pytest.raises(DataError, match="row 3: column"):
        list(read_part(part, fields_of(DATA, "language_model")))


def test_compressed_lines_are_read_and_damage_is_named(tmp_path: Path) -> None:
    lines = "".join(f"line {n} {n * 7919 % 9973}\n" for n in range(3000)).encode()
    packed = {".gz": gzip.compress(lines), ".zst": pyarrow.compress(lines, codec="zstd", asbytes=True)}
    for ending, content in packed.items():
        path = tmp_path / f"a.txt{ending}"
        path.write_bytes(content * 2)
        assert len(texts_of(path)) == 6000
        path.write_bytes(content[: len(content) // 2])
        assert "file is cut off after line" in error_of(path) or "not a sound zstd file after line" in error_of(path)
        damaged = bytearray(content)
        damaged[-8:] = bytes(8)  # gzip: its checksum; zstd, here written without one: the end of its last block
        path.write_bytes(damaged)
        assert "not a sound" in error_of(path)
        path.write_bytes(lines)
        assert "not a sound" in error_of(path)
    (tmp_path / "b.parquet.gz").write_bytes(b"")
    assert "b.parquet.gz: .parquet files are compressed inside: unpack it" in error_of(tmp_path / "b.parquet.gz")


def test_without_pyarrow_lines_are_read_and_tables_say_what_they_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_parquet(tmp_path / "a.parquet", ROWS)
    plain, packed = tmp_path / "a.txt", tmp_path / "a.txt.zst"
    plain.write_text("one\n", encoding="utf-8")
    packed.write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert [example.target for example in texts_of(plain)] == ["one"]
    assert error_of(path) == f"{path}: reading .parquet files needs pyarrow: pip install 'ostinato[data]'"
    assert error_of(packed) == f"{packed}: reading .zst files needs pyarrow: pip install 'ostinato[data]'"


def test_a_part_of_a_table_is_in_memory_at_a_time(tmp_path: Path) -> None:
    draw = random.Random(0)
    rows = [{"text": draw.randbytes(2048).hex()} for _ in range(4096)]  # 16 MiB that do not shrink
    path = write_parquet(tmp_path / "large.parquet", rows, 256)
    del rows
    before, held = pyarrow.total_allocated_bytes(), 0
    for _ in read_parquet(path):
        held = max(held, pyarrow.total_allocated_bytes() - before)
    assert 0 < held < path.stat().st_size / 2


def test_bytes_of_row_groups_are_those_on_the_disk(tmp_path: Path) -> None:
    path = write_parquet(
        tmp_path / "alike.parquet", [{"text": "again and again " * 500 + str(n)} for n in range(400)], 100
    )
    assert sum(size for _, size in parquet_groups(path)) <= path.stat().st_size
