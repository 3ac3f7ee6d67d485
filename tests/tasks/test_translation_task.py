from __future__ import annotations

import json
from pathlib import Path

import pytest

from ostinato.config.data import DataConfig, DataSetConfig
from ostinato.config.recipe import TaskRef
from ostinato.data.packs.make import content_hash, make_pack
from ostinato.data.packs.source import all_examples
from ostinato.data.tokenizers import Tokenizers
from ostinato.errors import ConfigError, DataError
from ostinato.tasks.registry import build_task, task_config, task_problems


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
    with pytest.raises(DataError, match=r"train: example 1 has no language in column 'lang' \(task.target_tag\)"):
        list(build_task(TaskRef.model_validate(settings | {"target_tag": "lang"}), data).examples("train"))


@pytest.mark.parametrize(
    ("settings", "field", "text"),
    [
        ({"corpus": "files", "target_tag": "to"}, "source_field", "<2ro> \u015f"),
        ({"corpus": "files", "normalise": "romanian"}, "source_field", "\u015f"),
        ({"corpus": "files", "normalise": "romanian", "swap_sides": True}, "target_field", "\u0219"),
        ({"swap_sides": True}, "source_field", "\u015f"),
    ],
)
def test_an_input_is_read_and_changed_as_the_sources_of_training(settings, field, text):
    config = task_config(TaskRef.model_validate({"kind": "translation", **settings}))
    assert config.input_field == field
    assert config.pair_changes.of_source("\u015f", {"to": "ro"}) == text
    assert config.pair_changes.of_source("b", {}) == config.pair_changes.of_source("b", {"to": None}) == "b"
    assert config.pair_changes.of_source(text, {"to": "ro"}) == text  # it is written already
    has_letters = "normalise" in settings and "swap_sides" not in settings
    assert config.pair_changes.of_prefix("\u015f") == ("\u0219" if has_letters else "\u015f")


@pytest.mark.parametrize(
    ("form", "settings"),
    [
        ("lines", {"target_tag": "to"}),
        ("lines", {"normalise": "romanian", "swap_sides": True}),
        ("two files", {"normalise": "romanian", "swap_sides": True}),
        ("data set", {"target_tag": "to", "normalise": "romanian"}),
    ],
)
def test_a_pack_has_the_pairs_of_the_task(tmp_path, monkeypatch, form, settings):
    monkeypatch.setenv("OSTINATO_CACHE", str(tmp_path / "cache"))
    rows = [{"source": f"a{n} \u015e", "target": f"\u015f b{n}", "to": "ro"} for n in range(9)]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    train: object = str(path)
    if form == "two files":
        train = [str(tmp_path / "a.en"), str(tmp_path / "a.ro")]
        for name, side in zip(train, ("source", "target"), strict=True):
            Path(name).write_text("".join(f"{row[side]}\n" for row in rows), encoding="utf-8")
    elif form == "data set":
        pytest.importorskip("datasets", reason="needs the extra hf")
        monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
        train = DataSetConfig(hf=str(path), split="train")
    task = build_task(
        TaskRef.model_validate({"kind": "translation", "corpus": "files", **settings}), DataConfig(train=train)
    )
    files, examples = task.pack_source("train"), list(task.examples("train"))
    assert [(one.source, one.target) for one in all_examples(files)] == [(one.source, one.target) for one in examples]
    tokenizers = Tokenizers.train(task.data, examples)
    pack = make_pack(files, tokenizers, n_processes=1)
    for side in ("source", "target"):
        tokenizer, stream = getattr(tokenizers, side), pack.stream("", side)
        ids = [n for one in examples for n in [*tokenizer.encode(getattr(one, side)), tokenizer.special_ids.eos]]
        assert stream.take(0, stream.n_tokens) == ids
    plain = build_task(TaskRef.model_validate({"kind": "translation", "corpus": "files"}), DataConfig(train=train))
    assert content_hash(plain.pack_source("train")) != content_hash(files)
    assert files.settings()["changes"].keys() == {"tag", "letters", "is_swapped"}, "packs of 0.2.0 keep their names"


def test_a_pair_without_a_tag_is_named_by_its_line(tmp_path, monkeypatch):
    monkeypatch.setenv("OSTINATO_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "a.jsonl"
    path.write_text('{"source": "a", "target": "b", "to": "c"}\n{"source": "a", "target": "b"}\n', encoding="utf-8")
    settings = {"kind": "translation", "corpus": "files", "target_tag": "to"}
    task = build_task(TaskRef.model_validate(settings), DataConfig(train=str(path)))
    with pytest.raises(DataError, match=rf"{path}, line 2: has no language in column 'to' \(task.target_tag\)"):
        list(all_examples(task.pack_source("train")))


def test_text_of_ones_own_in_the_place_of_a_published_training_split_has_a_pack(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"source": "a", "target": "b"}\n', encoding="utf-8")
    published = TaskRef.model_validate({"kind": "translation"})
    task = build_task(published, DataConfig(train=str(path)))
    assert [one.source for one in all_examples(task.pack_source("train"))] == ["a"]
    assert task.pack_source("dev") is None
    assert build_task(published, DataConfig()).pack_source("train") is None


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
