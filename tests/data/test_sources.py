from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.config.data import DataConfig
from ostinato.data import lines
from ostinato.data.example import Example
from ostinato.data.lines import read_lines, stretches_of
from ostinato.data.sources import read_examples
from ostinato.errors import DataError

SHARED = Path(__file__).parents[3] / "shared" / "data"
DATA = DataConfig()


def error_of(paths: str | list[str], data: DataConfig = DATA, kind: str = "seq2seq") -> str:
    with pytest.raises(DataError) as caught:
        list(read_examples(paths, data, kind))
    return str(caught.value)


def write(path: Path, content: str | bytes) -> str:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.jsonl.gz"])
def test_json_lines_keep_their_other_keys_as_columns(tmp_path: Path, name: str) -> None:
    content = (
        '\ufeff{"source": "a  b", "target": "c", "k": [1, null]}\r\n{"target": "\\u00e9", "source": "\u2028x"}'.encode()
    )
    path = write(tmp_path / name, gzip.compress(content) if name.endswith("gz") else content)
    expected = [Example("a  b", "c", {"k": [1, None]}), Example("\u2028x", "é", {})]
    assert list(read_examples(path, DATA)) == expected


def test_fields_have_the_configured_names(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"q": "1", "a": "2", "source": "s", "body": "b"}')
    data = DataConfig(source_field="q", target_field="a", text_field="body")
    assert list(read_examples(path, data)) == [Example("1", "2", {"source": "s", "body": "b"})]
    language_model = list(read_examples(path, data, "language_model"))
    assert language_model == [Example(None, "b", {"q": "1", "a": "2", "source": "s"})]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"source": "a", "target": ', "not JSON: Expecting value at character 27"),
        ("", "the line is empty"),
        ("[1, 2]", "a JSON array, but every line needs an object"),
        (
            '{"source": "a", "targets": "b"}',
            "no key 'target' (data.target_field) among 'source', 'targets'; did you mean 'targ",
        ),
        ('{"source": 5, "target": "b"}', "'source' is 5, a JSON number, but has to be a string"),
        ('{"source": "a", "target": 0.5}', "'target' is 0.5, a JSON number, but has to be a string"),
        ('{"source": "a", "target": null}', "'target' is None, a JSON null, but has to be a string"),
        ('{"source": "a", "target": null}', "'target' is None, a JSON null"),
        ('{"source": "a", "target": " \\t"}', "'target' is empty"),
        ('{"source": "a", "target": "b\\ud800"}', "half of a surrogate pair at character 2"),
        ('{"source": "a", "target": "b", "n": "\\ud800"}', "a column holds half of a surrogate pair"),
        ('{"source": "a", "target": "b", "\\udfff": 1}', "a column holds half of a surrogate pair"),
        ('{"source": "a", "target": ' + "9" * 5000 + "}", "not usable JSON"),
        ("[" * 200_000, "not usable JSON"),
    ],
)
def test_a_bad_json_line_is_named_with_its_reason(tmp_path: Path, line: str, reason: str) -> None:
    path = write(tmp_path / "a.jsonl", '{"source": "a", "target": "b"}\n' + line + "\n")
    message = error_of(path)
    assert message.startswith(f"{path}, line 2: ")
    assert reason in message
    assert len(message) < 400


def test_labels_that_are_integers_or_booleans_are_their_json_text(tmp_path: Path) -> None:
    values = ["1", "true", "false", "-1", "0", "12345678901234567890"]
    lines = [f'{{"source": "a", "target": {value}, "n": 1}}\n' for value in values]
    examples = list(read_examples(write(tmp_path / "a.jsonl", "".join(lines)), DATA))
    assert [example.target for example in examples] == values
    assert examples[0].columns == {"n": 1}


def test_tsv_finds_its_columns_by_name(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", 'id\ttarget\tsource\n7\tx "y\ta b\n')
    assert list(read_examples(path, DATA)) == [Example("a b", 'x "y', {"id": "7"})]


def test_tsv_finds_its_columns_by_number(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "a b\tkind\tx\nc\tother\ty\n")
    data = DataConfig(source_field="0", target_field="2")
    expected = [Example("a b", "x", {"1": "kind"}), Example("c", "y", {"1": "other"})]
    assert list(read_examples(path, data)) == expected


def test_a_column_that_is_read_stands_in_a_header_once(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("source\ttarget\ttarget\tn\t\t\na\tb\tc\td\t\t\n", encoding="utf-8")
    with pytest.raises(DataError) as error:
        list(read_examples(path, DataConfig()))
    reason = "2 columns are named 'target' (data.target_field): give each a name of its own"
    assert str(error.value) == f"{path}, line 1: {reason}"
    (example,) = read_examples(path, DataConfig(target_field="n"))
    assert (example.source, example.target) == ("a", "d")
    assert example.columns == {}, "which of two of one name is meant nobody knows"


def test_bad_tsv_lines_are_named_with_their_reason(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "source\ttarget\na\tb\na\tb\tc\n")
    assert error_of(path) == f"{path}, line 3: 3 columns, but the header has 2"
    write(tmp_path / "a.tsv", "source\ttarget\na\t \n")
    assert error_of(path) == f"{path}, line 2: column 'target' is empty"
    write(tmp_path / "a.tsv", "sources\ttarget\na\tb\n")
    assert "line 1: no column 'source' (data.source_field)" in error_of(path)
    assert "did you mean 'sources'?" in error_of(path)
    assert "0-based column numbers" in error_of(path)
    numbers = DataConfig(source_field="0", target_field="2")
    assert "no column '2' (data.target_field) among '0', '1'" in error_of(path, numbers)
    write(tmp_path / "a.tsv", "a\tb\tc\nd\te\n")
    assert error_of(path, numbers) == f"{path}, line 2: 2 columns, but line 1 has 3"


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_csv_is_read_as_rfc_4180_says(tmp_path: Path, name: str) -> None:
    content = '\ufeffid,target,source\r\n7,"x, ""y""",a b\r\n8,"two\nlines",c\r\n'.encode()
    path = write(tmp_path / name, gzip.compress(content) if name.endswith("gz") else content)
    expected = [Example("a b", 'x, "y"', {"id": "7"}), Example("c", "two\nlines", {"id": "8"})]
    assert list(read_examples(path, DATA)) == expected
    assert list(read_examples([path, path], DATA)) == expected * 2
    numbers = DataConfig(source_field="0", target_field="2")
    assert next(iter(read_examples(path, numbers))) == Example("id", "source", {"1": "target"})


def test_a_cell_of_csv_may_be_a_whole_book(tmp_path: Path) -> None:
    text = "a line, and another\n" * 20_000
    path = write(tmp_path / "a.csv", f'source,target\na,"{text}"\n')
    assert next(iter(read_examples(path, DATA))).target == text


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("a,b,c", "3 columns, but the header has 2"),
        ("", "0 columns, but the header has 2"),
        ('a," "', "column 'target' is empty"),
        ('a,"b" c', "not CSV: ',' expected after '\"'"),
        ('a,"b', "not CSV: unexpected end of data"),
    ],
)
def test_bad_rows_of_csv_are_named_by_their_first_line(tmp_path: Path, row: str, reason: str) -> None:
    path = write(tmp_path / "a.csv", f'source,target\n"a\nb",c\n{row}\n')
    assert error_of(path) == f"{path}, line 4: {reason}"


def test_parallel_text_pairs_the_lines_of_two_files(tmp_path: Path) -> None:
    files = [write(tmp_path / "a.en", "one man\ntwo\n"), write(tmp_path / "a.de", "ein  Mann\nzwei")]
    assert list(read_examples(files, DATA)) == [Example("one man", "ein  Mann", {}), Example("two", "zwei", {})]


def test_parallel_text_of_unequal_length_names_both_numbers(tmp_path: Path) -> None:
    files = [write(tmp_path / "a.en", "one\ntwo\nthree\n"), write(tmp_path / "a.de", "ein\n")]
    for order in (files, files[::-1]):
        message = error_of(order)
        assert message.startswith(f"{files[1]}, line 2: missing: the file has 1 lines but {files[0]} has 3")


def test_an_empty_line_of_parallel_text_is_named(tmp_path: Path) -> None:
    files = [write(tmp_path / "a.en", "one\ntwo\n"), write(tmp_path / "a.de", "ein\n\n")]
    assert error_of(files) == f"{files[1]}, line 2: the line is empty"


def test_plain_text_is_for_language_models(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "= Title =\n\n the  text \n")
    expected = [Example(None, "= Title =", {}), Example(None, " the  text ", {})]
    assert list(read_examples(path, DATA, "language_model")) == expected
    assert list(read_examples([path, path], DATA, "language_model")) == expected * 2
    assert "plain text has no targets" in error_of(path)


def test_several_files_of_one_kind_are_read_one_after_the_other(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{name}.jsonl", f'{{"source": "{name}", "target": "x"}}') for name in "ab"]
    assert [example.source for example in read_examples(files, DATA)] == ["a", "b"]
    mixed = [files[0], write(tmp_path / "c.tsv", "source\ttarget\n")]
    assert "files of one kind, not ['json', 'tsv']" in error_of(mixed)


def test_a_missing_file_is_named_with_the_nearest_name(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", "")
    missing = str(tmp_path / "trian.jsonl")
    assert error_of(missing) == f"{missing}: no such file; the nearest name there is train.jsonl"
    assert f"there is no folder {tmp_path / 'no'}" in error_of(str(tmp_path / "no" / "a.jsonl"))
    assert error_of(str(tmp_path)) == f"{tmp_path / 'train.jsonl'}: no examples"


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_a_file_without_examples_is_an_error(tmp_path: Path, content: str) -> None:
    path = write(tmp_path / "a.txt", content)
    assert error_of(path, kind="language_model") == f"{path}: no examples"
    assert "an empty list of files: no examples" in error_of([])


def test_bytes_that_are_not_utf8_are_named_by_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", b'{"source": "a", "target": "b"}\n{"source": "caf\xe9"}\n')
    assert error_of(path).startswith(f"{path}, line 2: not UTF-8 at byte 16 of the line")


def test_damaged_gzip_files_are_named(tmp_path: Path) -> None:
    whole = gzip.compress(b'{"source": "a", "target": "b"}\n' * 5000)
    path = write(tmp_path / "a.jsonl.gz", whole[:-40])
    assert error_of(path).startswith(f"{path}: the gzip file is cut off after line ")
    for name in ("a.jsonl.gz", "a.jsonl.zst"):  # the disk was full
        assert f"{name}: is cut off, it has no bytes: fetch or compress it again" in error_of(
            write(tmp_path / name, b"")
        )
    write(tmp_path / "a.jsonl.gz", b'{"source": "a"}')
    assert "not a sound gzip file after line 0" in error_of(path)
    broken = bytearray(whole)
    broken[-6] ^= 0xFF
    write(tmp_path / "a.jsonl.gz", bytes(broken))
    assert "not a sound gzip file after line" in error_of(path)


@given(st.lists(st.text(st.characters(exclude_characters="\n\r", exclude_categories=["Cs"])), min_size=1))
def test_every_line_comes_back_whatever_characters_it_holds(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str]
) -> None:
    lines = [lines[0].removeprefix("\ufeff"), *lines[1:]]
    path = tmp_path_factory.mktemp("lines") / "a.txt"
    path.write_bytes("".join(line + "\n" for line in lines).encode())
    assert list(read_lines(path)) == list(enumerate(lines, start=1))


@pytest.mark.skipif(not SHARED.exists(), reason="the published data are not here")
def test_the_original_cogs_file_gives_the_uniform_rows() -> None:
    original = next((SHARED / "upstream" / "najoungkim" / "COGS").glob("*/data/gen.tsv"))
    data = DataConfig(source_field="0", target_field="1")
    uniform = list(read_examples(str(SHARED / "cogs" / "gen.jsonl.gz"), DATA))
    assert len(uniform) == 21_000
    for example, row in zip(read_examples(str(original), data), uniform, strict=True):
        assert (example.source, example.target) == (row.source, row.target)
        assert example.columns["2"] == row.columns["category"]


@given(
    st.lists(st.sampled_from(["", "a", "bb", "ccc\r", "\u2028", "dddddddd"]), max_size=30),
    st.booleans(),
    st.integers(1, 20),
    st.sampled_from([1, 2, 3, 7, 100]),
)
def test_stretches_of_a_file_hold_every_line_once_under_its_number(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], ends: bool, n_bytes: int, at_once: int
) -> None:
    path = tmp_path_factory.mktemp("lines") / "a.txt"
    write(path, "\n".join(texts) + ("\n" if ends and texts else ""))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "_AT_ONCE", at_once)
        cut = stretches_of(path, n_bytes)
    assert [line for one in cut for line in read_lines(path, one)] == list(read_lines(path))
    assert all(one.end is None or one.end - one.start >= n_bytes for one in cut)
    assert len(cut) == 1 or all(list(read_lines(path, one)) for one in cut)


@pytest.mark.parametrize("name", ["UP.CSV", "UP.CSV.GZ", "Up.Tsv", "UP.JSONL.gz"])
def test_the_ending_of_a_name_may_be_in_capitals(tmp_path: Path, name: str) -> None:
    kind = name.lower().partition(".")[2].removesuffix(".gz")
    texts = {
        "csv": "source,target\na,b\n",
        "tsv": "source\ttarget\na\tb\n",
        "jsonl": '{"source": "a", "target": "b"}\n',
    }
    content = texts[kind].encode()
    path = write(tmp_path / name, gzip.compress(content) if name.lower().endswith("gz") else content)
    assert list(read_examples(path, DATA)) == [Example("a", "b", {})]
