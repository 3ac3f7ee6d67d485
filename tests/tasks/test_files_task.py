from __future__ import annotations

import json
from pathlib import Path

import pytest

from ostinato.config.data import DataConfig
from ostinato.config.recipe import TaskRef
from ostinato.errors import ConfigError, DataError
from ostinato.tasks.registry import build_task


@pytest.fixture
def pairs(tmp_path: Path) -> str:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"source": "a b", "target": "b a", "kind": "short"}) + "\n")
    return str(path)


def test_pairs_are_read_with_their_columns(pairs):
    task = build_task(TaskRef(), DataConfig(train=pairs, test=pairs))
    assert task.splits() == ("train", "test")
    assert task.config.has_sources
    (example,) = task.examples("test")
    assert (example.source, example.target, example.columns) == ("a b", "b a", {"kind": "short"})
    assert not task.is_generated


def test_texts_are_for_language_models_and_decode_nothing(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one line\nanother\n")
    ref = TaskRef.model_validate({"kind": "files", "model_kind": "language_model"})
    task = build_task(ref, DataConfig(train=str(path)))
    assert not task.config.has_sources
    assert task.metrics == ()
    assert [(example.source, example.target) for example in task.examples("train")] == [
        (None, "one line"),
        (None, "another"),
    ]


def test_a_missing_training_file_names_the_setting():
    with pytest.raises(ConfigError, match=r"data\.train is None: name a file to train on"):
        build_task(TaskRef(), DataConfig())


def test_every_path_that_is_not_there_is_named(pairs, tmp_path):
    data = DataConfig(train=[pairs, str(tmp_path / "b.jsonl")], dev=str(tmp_path / "c.jsonl"))
    with pytest.raises(ConfigError) as caught:
        build_task(TaskRef(), data)
    assert [problem.key for problem in caught.value.problems] == ["data.train", "data.dev"]
    assert str(tmp_path / "c.jsonl") in str(caught.value)


def test_a_split_without_files_names_the_setting(pairs):
    task = build_task(TaskRef(), DataConfig(train=pairs))
    with pytest.raises(ConfigError, match=r"split is 'dev': data\.dev names no file"):
        task.examples("dev")


OWN: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "agreement": ({"origin": "files"}, {"text": "a b c", "source": "a b", "target": "c", "wrong": "d"}),
    "classification": ({}, {"source": "a b", "target": "x"}),
    "files": ({}, {"source": "a b", "target": "b a"}),
    "lambada": ({}, {"text": "a b c", "source": "a b", "target": "c"}),
    "span_extraction": ({"format": "lines"}, {"source": "who?\ta b", "target": "b"}),
    "tagging": ({}, {"source": "a b", "target": "O B-x"}),
    "translation": ({"corpus": "files"}, {"source": "a b", "target": "b a"}),
}
"""Settings of every task on own files, and a row of its."""


@pytest.mark.parametrize("kind", OWN)
def test_test_files_have_names_in_every_task_on_own_files(kind: str, tmp_path: Path) -> None:
    settings, row = OWN[kind]
    paths = {}
    for n, name in enumerate(("train", "dev", "iid", "gen"), 1):
        (tmp_path / f"{name}.jsonl").write_text((json.dumps(row) + "\n") * n, encoding="utf-8")
        paths[name] = str(tmp_path / f"{name}.jsonl")
    named = {"test": paths["iid"], "gen": [paths["gen"], paths["iid"]]}
    task = build_task(
        TaskRef.model_validate({"kind": kind, **settings}),
        DataConfig(train=paths["train"], dev=paths["dev"], test=named),
    )
    assert task.splits() == ("train", "dev", "test", "gen")
    assert [sum(1 for _ in task.examples(split)) for split in task.splits()] == [1, 2, 3, 7]


@pytest.mark.parametrize("names", [{"train": "a"}, {"dev": "a"}, {}])
def test_names_of_test_files_are_new_names(names: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"test is .*: (name one file or more|is the name of data\.)"):
        DataConfig(train="t.jsonl", test=names)


def test_a_missing_file_of_a_named_split_is_named(pairs: str) -> None:
    with pytest.raises(ConfigError, match=r"data\.test\.gen is 'gone.jsonl': there is no such file"):
        build_task(TaskRef(), DataConfig(train=pairs, test={"gen": "gone.jsonl"}))


def test_zero_shot_transfer_keeps_all_languages_in_every_named_split(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [{"source": "a", "target": "x", "lang": language} for language in ("en", "de")]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    ref = {"kind": "classification", "language_field": "lang", "train_languages": ["en"]}
    data = DataConfig(train=str(path), dev=str(path), test={"far": str(path)})
    task = build_task(TaskRef.model_validate(ref), data)
    assert [sum(1 for _ in task.examples(split)) for split in task.splits()] == [1, 1, 2]


def test_a_file_in_the_place_of_a_training_split_is_scored_by_the_columns_that_it_has(pairs: str) -> None:
    path = Path(pairs)
    path.write_text(json.dumps({"source": "a", "target": "b", "task": 3}) + "\n", encoding="utf-8")
    task = build_task(TaskRef(kind="babi"), DataConfig(train=pairs))
    assert list(task.by_of("train", None)) == ["task"]
    assert list(task.by_of("test", None)) == ["task", "n_supporting"]
    assert list(task.by_of("train", ["n_supporting"])) == ["n_supporting"]
    assert list(build_task(TaskRef(kind="parity"), DataConfig()).by_of("train", None)) == ["length"]


def test_two_data_sets_of_one_name_are_refused(tmp_path: Path) -> None:
    for name in ("wiki.en.txt", "wiki.de.txt"):
        (tmp_path / name).write_text("a b\n")
    ref = TaskRef.model_validate({"kind": "files", "model_kind": "language_model", "origin_column": "set"})
    paths = [str(tmp_path / name) for name in ("wiki.en.txt", "wiki.de.txt")]
    task = build_task(ref, DataConfig(train=paths))
    with pytest.raises(DataError, match=r"wiki\.en\.txt and .*wiki\.de\.txt are both named 'wiki'"):
        list(task.examples("train"))
    assert len(list(build_task(ref, DataConfig(train=paths[:1])).examples("train"))) == 1


def test_whole_files_are_no_data_set(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n", encoding="utf-8")
    ref = TaskRef.model_validate({"kind": "files", "model_kind": "language_model", "documents": "files"})
    data = DataConfig.model_validate({"train": {"hf": str(tmp_path), "split": "train"}})
    task = build_task(ref, data)
    for read in (lambda: list(task.examples("train")), lambda: task.pack_source("train")):
        with pytest.raises(ConfigError, match=r"data\.train\.hf is .*: must be a file: task\.documents=lines reads"):
            read()
