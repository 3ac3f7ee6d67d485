from __future__ import annotations

import json

import pytest

from ostinato.config.data import DataConfig
from ostinato.config.recipe import TaskRef
from ostinato.errors import ConfigError, DataError
from ostinato.tasks.registry import build_task, task_problems


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


def test_romanian_letters_with_cedilla_get_commas_and_keep_their_diacritics(tmp_path):
    (tmp_path / "a.en").write_text("a\u015e\n", encoding="utf-8")
    (tmp_path / "a.ro").write_text(
        "\u015ei \u015fi \u0162ara \u0163ar\u0103 \u00e2\u00ce \u0219\u021b\n", encoding="utf-8"
    )
    data = DataConfig(train=[str(tmp_path / "a.en"), str(tmp_path / "a.ro")])
    settings = {"kind": "translation", "corpus": "files", "normalise": "romanian"}
    (example,) = build_task(TaskRef.model_validate(settings), data).examples("train")
    expected = "\u0218i \u0219i \u021aara \u021bar\u0103 \u00e2\u00ce \u0219\u021b"
    assert (example.source, example.target) == ("a\u015e", expected)
    (back,) = build_task(TaskRef.model_validate(settings | {"swap_sides": True}), data).examples("train")
    assert (back.source, back.target) == (expected, "a\u015e")


def test_the_language_to_translate_to_is_written_before_the_source(tmp_path):
    rows = [("guten Tag", "hello", "en"), ("hello", "bonjour", "fr"), ("hello", "guten Tag", "de")]
    lines = [json.dumps({"source": s, "target": t, "to": language}) + "\n" for s, t, language in rows]
    (tmp_path / "a.jsonl").write_text("".join(lines), encoding="utf-8")
    data = DataConfig(train=str(tmp_path / "a.jsonl"))
    settings = {"kind": "translation", "corpus": "files", "target_tag": "to"}
    task = build_task(TaskRef.model_validate(settings), data)
    assert [e.source for e in task.examples("train")] == ["<2en> guten Tag", "<2fr> hello", "<2de> hello"]
    assert [e.target for e in task.examples("train")] == ["hello", "bonjour", "guten Tag"]
    assert task.by == ("to",)
    with pytest.raises(DataError, match=r"train: example 1 has no column 'lang' \(task.target_tag\)"):
        list(build_task(TaskRef.model_validate(settings | {"target_tag": "lang"}), data).examples("train"))


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"target_tag": "to"}, "task.target_tag"),
        ({"corpus": "files", "target_tag": "to", "swap_sides": True}, "task.target_tag"),
        ({"normalise": "romanian"}, "task.normalise"),
    ],
)
def test_tags_and_romanian_are_for_files_of_your_own(settings, key):
    (problem,) = task_problems({"kind": "translation", **settings})
    assert problem.key == key
