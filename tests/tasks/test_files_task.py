from __future__ import annotations

import json
from pathlib import Path

import pytest

from ostinato.config.data import DataConfig
from ostinato.config.recipe import TaskRef
from ostinato.errors import ConfigError
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
