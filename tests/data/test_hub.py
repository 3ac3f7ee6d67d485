"""Data sets of the library datasets, from local files: rows become the examples that JSON lines of them would."""

from __future__ import annotations

import gc
import json
import re
import warnings
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("datasets", reason="needs the extra hf")

import datasets

import ostinato
from ostinato.config.data import DataConfig, DataSetConfig
from ostinato.config.files import from_file, map_data_paths
from ostinato.config.recipe import TaskRef
from ostinato.data.hub import read_data_set, state_of
from ostinato.data.sources import read_examples
from ostinato.errors import ConfigError, DataError
from ostinato.experiments.sweep.run_key import DataHashes, run_key
from ostinato.tasks.own_files import given_splits, read_split
from ostinato.tasks.registry import build_task

ROWS = [{"source": f"a b {i}", "target": "yes" if i % 2 else "no", "n": i} for i in range(8)]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in ROWS), encoding="utf-8")
    return file


def read(hf: Path | str, split: str = "train", **settings: Any) -> list[tuple[str | None, str, dict[str, object]]]:
    given = DataSetConfig(hf=str(hf), split=split, **settings)
    return [(one.source, one.target, one.columns) for one in read_data_set(given, DataConfig())]


FORMS = ["jsonl", "parquet", "csv", "folder", "save_to_disk", "dictionary"]


def write(form: str, lines: Path) -> Path:
    """Write the rows in a form, and return where."""
    made, folder = datasets.Dataset.from_list(ROWS), lines.parent / "data"
    match form:
        case "jsonl":
            return lines
        case "parquet" | "csv":
            getattr(made, f"to_{form}")(file := lines.with_suffix(f".{form}"))
            return file
        case "folder":
            folder.mkdir()
            made.to_parquet(folder / "train-00000.parquet")
        case "save_to_disk":
            made.save_to_disk(folder)
        case _:
            datasets.DatasetDict({"train": made, "gen": made.select([0])}).save_to_disk(folder)
    return folder


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("streaming", [False, True])
def test_rows_are_those_of_the_same_json_lines(form: str, streaming: bool, lines: Path) -> None:
    expected = [(one.source, one.target, one.columns) for one in read_examples(lines, DataConfig())]
    place = write(form, lines)
    assert read(place, streaming=streaming) == expected
    if form == "dictionary":
        assert read(place, "gen") == expected[:1]


@pytest.mark.parametrize("form", FORMS)
def test_a_part_of_a_split_is_that_part(form: str, lines: Path) -> None:
    place = write(form, lines)
    whole = read(place)
    assert read(place, "train[:25%]") == whole[:2]
    assert read(place, "train[25%:]") == whole[2:]
    assert read(place, "train[:1]+train[-2:]") == [whole[0], *whole[-2:]]
    if form == "dictionary":
        assert read(place, "train[:1]+gen") == [whole[0], whole[0]]
    for wrong in ("train[:x]", "train[:1]+dev", "[:1]"):
        with pytest.raises(DataError, match=re.escape(f"cannot be loaded as a data set, split {wrong!r}: ")) as caught:
            read(place, wrong)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("split", ["train[:10%]", "train+gen"])
def test_a_part_of_a_split_is_not_streamed(split: str) -> None:
    given = f"{{hf: nowhere.jsonl, split: '{split}', streaming: true}}"
    with pytest.raises(ConfigError) as caught:
        ostinato.load_recipe("files/template", [f"data.train={given}", "data.dev=a.jsonl"])
    line = f"data.train.split is {split!r}: streaming reads one whole split: name one, or remove data.train.streaming"
    assert str(caught.value) == line


def test_labels_nested_columns_and_words_are_read_by_other_names(tmp_path: Path) -> None:
    features = datasets.Features(
        {
            "pair": {"de": datasets.Value("string"), "en": datasets.Value("string")},
            "label": datasets.ClassLabel(names=["bad", "good"]),
            "tokens": datasets.List(datasets.Value("string")),
            "tags": datasets.List(datasets.ClassLabel(names=["O", "B"])),
            "score": datasets.Value("int64"),
            "of": {"label": datasets.ClassLabel(names=["far", "near"])},
        }
    )
    row = {"pair": {"de": "ja", "en": "yes"}, "label": 1, "tokens": ["a", "b"], "tags": [0, 1], "score": 3}
    row |= {"of": {"label": 1}}
    datasets.Dataset.from_list([row], features=features).to_parquet(file := tmp_path / "rows.parquet")
    assert read(file, columns={"source": "pair.de", "target": "pair.en"}) == [("ja", "yes", {})]
    assert read(file, columns={"source": "pair.en", "target": "label", "s": "score"}) == [("yes", "good", {"s": 3})]
    assert read(file, columns={"source": "tokens", "target": "tags"}) == [("a b", "O B", {})]
    assert read(file, columns={"source": "pair.en", "target": "score"}, streaming=True) == [("yes", "3", {})]
    assert read(file, columns={"source": "pair.en", "target": "of.label"}) == [("yes", "near", {})]
    # Where nobody agreed on a label, the library has -1, as SNLI's own files have "-".
    unlabelled = datasets.Dataset.from_list([row | {"label": -1}], features=features)
    unlabelled.to_parquet(other := tmp_path / "unlabelled.parquet")
    assert read(other, columns={"source": "pair.en", "target": "label"}) == [("yes", "-", {})]


def test_a_list_of_words_has_a_tag_for_each_also_with_blanks_in_words_and_without_letters(tmp_path: Path) -> None:
    words, tags = ["Il", "y", "a", "20\u00a0000", "", "gens"], ["O", "O", "O", "work of", "B", "O"]
    datasets.Dataset.from_list([{"source": words, "target": tags}]).save_to_disk(tmp_path / "data")
    given = DataConfig.model_validate({"train": {"hf": str(tmp_path / "data"), "split": "train"}})
    task = build_task(TaskRef.model_validate({"kind": "tagging"}), given)
    assert [(one.source, one.target) for one in task.examples("train")] == [
        ("Il y a 20_000 _ gens", "O O O work_of B O")
    ]
    # Other tasks read the text as it is: an item may be a sentence.
    assert read(tmp_path / "data") == [(" ".join(words), " ".join(tags), {})]


def test_an_empty_tag_is_missing_and_no_label(tmp_path: Path) -> None:
    rows = [{"source": ["He", "saw", "it"], "target": tags} for tags in (["O", "V", "O"], ["O", "", "O"])]
    datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "data")
    given = DataConfig.model_validate({"train": {"hf": str(tmp_path / "data"), "split": "train"}})
    with pytest.raises(DataError) as error:
        list(build_task(TaskRef.model_validate({"kind": "tagging"}), given).examples("train"))
    assert str(error.value) == "train: example 2 has 2 tags for 3 words"


@pytest.mark.parametrize("value", [datetime(2020, 1, 1), b"a", 0.5, [1, 2]])
def test_a_target_of_another_type_is_named_by_its_row(value: object, tmp_path: Path) -> None:
    rows = datasets.Dataset.from_dict({"source": ["a", "b"], "target": ["c", "d"]})
    rows.add_column("other", [value, value]).save_to_disk(tmp_path / "data")
    with pytest.raises(DataError) as caught:
        read(tmp_path / "data", columns={"source": "source", "target": "other"})
    assert "split train, row 1: column 'target' is " in str(caught.value)
    assert str(caught.value).endswith(f", a {type(value).__name__}, but has to be a string")


@pytest.mark.parametrize("form", ["numpy", "torch"])
def test_the_form_that_a_data_set_was_saved_with_changes_nothing(form: str, tmp_path: Path) -> None:
    labels = datasets.ClassLabel(names=["no", "yes"])
    rows = datasets.Dataset.from_list(ROWS).cast_column("target", labels)
    rows.with_format(form).save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": rows.with_format(form, columns=["source"])}).save_to_disk(tmp_path / "several")
    expected = [(row["source"], row["target"], {"n": row["n"]}) for row in ROWS]
    assert read(tmp_path / "one") == read(tmp_path / "several") == expected
    assert read(tmp_path / "one", "train[:2]") == expected[:2]


@pytest.mark.parametrize("streaming", [False, True])
def test_quotes_in_a_tsv_file_are_text(streaming: bool, tmp_path: Path) -> None:
    file = tmp_path / "talk.tsv"
    file.write_text('source\ttarget\n"Go on\tva\nhello\tsalut\n"stop" he said\tarrete\n', encoding="utf-8")
    expected = [(one.source, one.target, one.columns) for one in read_examples(file, DataConfig())]
    assert [source for source, _, _ in expected] == ['"Go on', "hello", '"stop" he said']
    assert read(file, streaming=streaming) == expected
    (tmp_path / "talks").mkdir()
    file.rename(tmp_path / "talks" / "train.tsv")
    assert read(tmp_path / "talks", streaming=streaming) == expected


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("name", ["rows.csv", "rows.tsv", "UP.CSV", "data/train.csv"])
def test_texts_of_columns_are_those_that_stand_in_the_file(name: str, streaming: bool, tmp_path: Path) -> None:
    cells = [("source", "target", "lang", "n"), ("NA", "046", "NA", "1"), ("+5", "1.50", "null", "2")]
    cells.append(("2020-01-01", "True", "en", "3"))
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    mark = "\t" if name.endswith("tsv") else ","
    file.write_text("".join(f"{mark.join(row)}\n" for row in cells), encoding="utf-8")
    place = file if file.parent == tmp_path else file.parent
    found = read(place, streaming=streaming)
    assert found == [(source, target, {"lang": lang, "n": int(n)}) for source, target, lang, n in cells[1:]]
    texts = [(one.source, one.target) for one in read_examples(file, DataConfig())]
    assert [(source, target) for source, target, _ in found] == texts
    # What `columns` names is a text, too, under whatever name.
    named = read(place, streaming=streaming, columns={"source": "target", "target": "n"})
    assert named == [(target, n, {}) for _, target, _, n in cells[1:]]


@pytest.mark.parametrize("streaming", [False, True])
def test_a_number_of_a_column_that_is_no_text_may_be_missing_in_any_row(streaming: bool, tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("source,target,n\n" + "a,b,1\n" * 10_001 + "c,d,\n", encoding="utf-8")
    assert read(file, streaming=streaming)[-1] == ("c", "d", {"n": None})


def test_why_rows_cannot_be_generated_is_said(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("source,target,n\n" + "a,b,1\n" * 10_001 + "c,d,NA\n", encoding="utf-8")
    with pytest.raises(DataError, match="generating the dataset: Failed to parse string: 'NA' as a scalar of type int"):
        read(file)
    with warnings.catch_warnings():  # the library leaves the file open
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.mark.parametrize("streaming", [False, True])
def test_blank_lines_of_plain_text_are_skipped_as_without_the_library(streaming: bool, tmp_path: Path) -> None:
    file = tmp_path / "t.txt"
    file.write_text("a b\n\n  \nc\n", encoding="utf-8")
    given = DataSetConfig(hf=str(file), split="train", streaming=streaming)
    found = list(read_data_set(given, DataConfig(), "language_model"))
    assert found == list(read_examples(file, DataConfig(), "language_model"))
    assert [one.target for one in found] == ["a b", "c"]


@pytest.mark.parametrize("streaming", [False, True])
def test_brackets_in_the_path_of_a_file_are_no_pattern(streaming: bool, lines: Path) -> None:
    file = lines.parent / "lr[0.1]" / "rows[1].jsonl"
    file.parent.mkdir()
    file.write_bytes(lines.read_bytes())
    assert read(file, streaming=streaming) == read(lines)


def test_a_column_may_be_source_and_target(lines: Path) -> None:
    data = DataConfig(target_field="source")
    expected = list(read_examples(lines, data))
    found = list(read_data_set(DataSetConfig(hf=str(lines), split="train"), data))
    assert found == expected
    assert (found[0].source, found[0].target, found[0].columns) == ("a b 0", "a b 0", {"target": "no", "n": 0})
    with pytest.raises(DataError, match=r"no column 'target' \(data\.target_field\) among 'source'$"):
        read(lines, columns={"source": "source"})


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"hf": "nowhere/at-all"}, "nowhere/at-all: cannot be loaded as a data set, split 'train': "),
        ({"split": "gen"}, "cannot be loaded as a data set, split 'gen'"),
        ({"columns": {"source": "text"}}, "no column 'text' (columns): it has source, target, n"),
        ({"columns": {"source": "source.de"}}, "row 1: no column"),
        (
            {"columns": {"source": "source", "out": "target"}},
            "no column 'target' (data.target_field) among 'source', 'out'",
        ),
        (
            {"columns": {"source": "n", "target": "target"}},
            "row 1: column 'source' is 0, a int, but has to be a string",
        ),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(
    settings: dict[str, Any], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    (tmp_path / "data").mkdir()
    datasets.Dataset.from_list(ROWS).to_parquet(tmp_path / "data" / "train.parquet")
    given = DataSetConfig.model_validate({"hf": str(tmp_path / "data"), "split": "train", **settings})
    with pytest.raises(DataError) as caught:
        list(read_data_set(given, DataConfig()))
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
    (tmp_path / "rows.pkl").write_bytes(b"x")
    with pytest.raises(DataError, match="is no file that is read as a data set"):
        read(tmp_path / "rows.pkl")


@pytest.mark.parametrize(
    "name", ["data/typo.jsonl", "typo.parquet", "./data", "../typo", "/no/where", "~/data", "my/own/data"]
)
def test_a_path_that_is_not_there_is_said_and_no_hub_is_asked_for_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets, "load_dataset", lambda **_: pytest.fail("a hub is asked"))
    monkeypatch.chdir(tmp_path)
    why = "there is no such file or folder (looked in "
    with pytest.raises(DataError, match=re.escape(f"{name}: {why}")):
        read(name)
    recipe = ostinato.load_recipe("files/template", [f"data.train={{hf: {name}, split: train}}", "data.dev=a.jsonl"])
    with pytest.raises(ConfigError, match=re.escape(f"data.train.hf is {name!r}: {why}")):
        build_task(recipe.task, recipe.data)


@pytest.mark.parametrize("name", ["nowhere", "owner/nowhere", "hf://datasets/owner/nowhere"])
def test_a_hub_is_asked_for_any_other_name_and_one_line_says_so_first(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    said: list[list[str]] = []

    def load_dataset(**given: Any) -> Any:
        assert given["path"] == name
        said.append(list(caplog.messages))
        return datasets.Dataset.from_list(ROWS)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert len(read(name)) == len(read(name)) == len(ROWS)
    line = f"{name}: there is no such file or folder here: asking {datasets.config.HF_ENDPOINT} for that data set"
    assert said == [[line], [line]], "once"


def test_a_run_trains_on_data_sets_beside_files(lines: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    datasets.Dataset.from_list(ROWS).to_parquet(tmp_path / "data" / "train.parquet")
    split = f"hf: {tmp_path / 'data'}, columns: {{source: source, target: target, parity: n}}"
    sizes = ["model.d_model=16", "model.encoder.n_steps=1", "model.decoder.n_steps=1"]
    for stack in ("encoder", "decoder"):
        sizes += [f"model.{stack}.self_attention.n_heads=2", f"model.{stack}.ffn.d_ff=16"]
    sizes += ["model.decoder.cross_attention.n_heads=2"]
    sizes += [
        "training.n_updates=2",
        "training.schedule.warmup=1",
        "training.evaluate_every=2",
        "data.tokenizer.kind=words",
    ]
    recipe = ostinato.load_recipe(
        "files/template",
        [
            *sizes,
            f"data.train={{{split}, split: train}}",
            f"data.dev={lines}",
            f"data.test={{{split}, split: 'train[:3]'}}",
        ],
    )
    assert given_splits(recipe.data) == ("train", "dev", "test")
    assert [one.columns for one in read_split(recipe.data, "test")] == [{"parity": 0}, {"parity": 1}, {"parity": 2}]
    ostinato.train(recipe, tmp_path / "run")
    assert ostinato.load(tmp_path / "run").evaluate("test", by=["parity"])["n"] == 3
    described = json.loads((tmp_path / "run" / "data.json").read_text())["splits"]
    assert described["train"]["n"] == 8
    # The address of a run is made of its examples, not of where they are.
    one = run_key(*DataHashes().resolve(recipe))
    moved = tmp_path / "moved"
    (tmp_path / "data").rename(moved)
    place = {"hf": str(moved)}
    data = recipe.data.model_copy(update={"train": recipe.data.train.model_copy(update=place),  # type: ignore[union-attr]
                                          "test": {"test": recipe.data.test["test"].model_copy(update=place)}})  # type: ignore[index,union-attr]  # fmt: skip
    assert run_key(*DataHashes().resolve(recipe.model_copy(update={"data": data}))) == one
    assert (
        state_of(DataSetConfig(hf=str(moved), split="train")) != state_of(DataSetConfig(hf="glue", split="train")) == []
    )


def test_paths_in_a_recipe_are_relative_to_it_and_names_of_a_hub_are_not(tmp_path: Path) -> None:
    (tmp_path / "sets").mkdir()
    given = {"data": {"train": {"hf": "sets", "split": "train"}, "dev": {"hf": "glue", "split": "train"},
                      "test": {"gen": {"hf": "sets", "split": "x"}, "test": "a.jsonl"}}}  # fmt: skip
    found = map_data_paths(given, from_file(tmp_path / "recipe.yaml"))["data"]
    assert found["train"] == {"hf": str(tmp_path / "sets"), "split": "train"}
    assert found["dev"] == given["data"]["dev"]
    assert found["test"] == {"gen": {"hf": str(tmp_path / "sets"), "split": "x"}, "test": str(tmp_path / "a.jsonl")}
    dotted = map_data_paths({"data.dev.hf": "sets", "data.dev.split": "sets"}, from_file(tmp_path / "recipe.yaml"))
    assert dotted == {"data.dev.hf": str(tmp_path / "sets"), "data.dev.split": "sets"}


def test_settings_of_a_data_set_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"data\.train\.split is None: is required"):
        ostinato.load_recipe("files/template", ["data.train={hf: glue}"])
    with pytest.raises(ConfigError, match=r"data\.train\.colums is .*did you mean columns"):
        ostinato.load_recipe("files/template", ["data.train={hf: glue, split: train, colums: {}}"])
    with pytest.raises(ConfigError, match=r"data\.dev\.columns is \{\}: name one column or more"):
        ostinato.load_recipe("files/template", ["data.train=a.jsonl", "data.dev={hf: glue, split: train, columns: {}}"])
