from __future__ import annotations

import pytest

from ostinato.config.data import DataConfig
from ostinato.config.recipe import TaskRef
from ostinato.errors import ConfigError
from ostinato.tasks.registry import build_task


@pytest.mark.parametrize(
    ("split", "name", "n"),
    [
        ("train", "train", 29000),
        ("dev", "val", 1014),
        ("test", "test_2016_flickr", 1000),
        ("test_2017", "test_2017_flickr", 1000),
        ("test_2018", "test_2018_flickr", 1071),
    ],
)
def test_multi30k_equals_the_published_rows(open_published, oracle, split, name, n):
    made = [(example.source, example.target) for example in open_published("translation").examples(split)]
    assert len(made) == n
    assert made == [(row["source"], row["target"]) for row in oracle(f"multi30k_en_de/{name}")]


def test_sides_can_be_swapped(open_published):
    forth = next(open_published("translation").examples("dev"))
    back = next(open_published("translation", swap_sides=True).examples("dev"))
    assert (back.source, back.target) == (forth.target, forth.source)


def test_own_parallel_text_is_scored_by_bleu_and_chrf(tmp_path):
    for name, text in (("a.en", "one\ntwo\n"), ("a.de", "eins\nzwei\n")):
        (tmp_path / name).write_text(text)
    ref = TaskRef.model_validate({"kind": "translation", "corpus": "files"})
    task = build_task(ref, DataConfig(train=[str(tmp_path / "a.en"), str(tmp_path / "a.de")]))
    assert task.metrics == ("bleu", "chrf")
    assert task.files() == ()
    assert [(example.source, example.target) for example in task.examples("train")] == [
        ("one", "eins"),
        ("two", "zwei"),
    ]


def test_own_text_needs_files():
    ref = TaskRef.model_validate({"kind": "translation", "corpus": "files"})
    with pytest.raises(ConfigError, match=r"data\.train"):
        build_task(ref, DataConfig())
