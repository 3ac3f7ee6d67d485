from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from ostinato.config.data import DataConfig
from ostinato.config.recipe import TaskRef
from ostinato.data.example import Example
from ostinato.data.tokenizers import Tokenizers
from ostinato.errors import ConfigError, DataError
from ostinato.tasks.baselines import baseline_scores_by, trivial_scores
from ostinato.tasks.packing import pack_source, training_tokenizers
from ostinato.tasks.recipes import load_recipe
from ostinato.tasks.registry import build_task


def test_trivial_answers_are_scored_like_those_of_a_model(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("source\ttarget\na b\tx y\nc d\tx y\ne\tz\n", encoding="utf-8")
    (tmp_path / "test.tsv").write_text("source\ttarget\nx y\tx y\nq\tq\nr\tz\nx\tx z\n", encoding="utf-8")
    data = DataConfig(train=str(tmp_path / "train.tsv"), test=str(tmp_path / "test.tsv"))
    found = trivial_scores(build_task(TaskRef(kind="files"), data), "test")
    assert found["majority"]["exact_match"] == 1 / 4
    assert found["copy"]["exact_match"] == 2 / 4
    # Tokens and ends: 3 of 3, 2 of 2, 1 of 2 (the end), 1 of 3.
    assert found["copy"]["token_accuracy_free"] == pytest.approx(7 / 10)
    assert set(trivial_scores(build_task(TaskRef(kind="files"), data), "test", ["second_word"])["copy"]) == {
        "second_word"
    }


def test_words_are_tagged_as_most_often_in_training(tmp_path: Path) -> None:
    (tmp_path / "train.conll").write_text("a B-x\nb O\nc O\n\na B-x\nb B-y\nb B-y\nc O\n", encoding="utf-8")
    (tmp_path / "test.conll").write_text("a B-x\nb O\nnew O\n\nc B-x\n", encoding="utf-8")
    data = DataConfig(train=str(tmp_path / "train.conll"), test=str(tmp_path / "test.conll"))
    task = build_task(TaskRef.model_validate({"kind": "tagging", "format": "columns"}), data)
    found = trivial_scores(task, "test")
    # O for every word: 2 of 4. By word: B-x B-y O, and O: 2 of 4; one span of three and two right.
    assert found["majority"] == {"tag_accuracy": 2 / 4, "span_f1": 0}
    assert found["by_word"] == {"tag_accuracy": 2 / 4, "span_f1": pytest.approx(2 * 1 / (2 + 2))}


def test_the_last_answer_that_a_passage_names_is_a_baseline_of_extraction(tmp_path: Path) -> None:
    def write(name: str, rows: list[tuple[str, str]]) -> str:
        lines = [json.dumps({"source": f"where?\t{passage}", "target": answer}) + "\n" for passage, answer in rows]
        (tmp_path / name).write_text("".join(lines), encoding="utf-8")
        return str(tmp_path / name)

    train = write(
        "train.jsonl", [("to the hall", "hall"), ("a hall", "hall"), ("big hall", "big hall"), ("pond", "pond")]
    )
    test = write(
        "test.jsonl", [("pond, then hall", "hall"), ("hall, pond", "hall"), ("big hall", "big hall"), ("-", "-")]
    )
    task = build_task(
        TaskRef.model_validate({"kind": "span_extraction", "format": "lines"}), DataConfig(train=train, test=test)
    )
    found = trivial_scores(task, "test")
    assert found["majority"]["answer_em"] == 2 / 4
    # hall, pond, hall (it begins last), and hall where nothing is named.
    assert found["last"]["answer_em"] == 1 / 4


def test_frequencies_of_training_say_how_probable_last_words_are(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("a b a\na c\n", encoding="utf-8")
    (tmp_path / "test.jsonl").write_text(
        '{"source": "b c", "target": "a"}\n{"source": "a a", "target": "c"}\n', encoding="utf-8"
    )
    recipe = load_recipe(
        "lambada/transformer",
        [
            f"data.train={tmp_path / 'train.txt'}",
            f"data.test={tmp_path / 'test.jsonl'}",
            "data.tokenizer={kind: words}",
            "evaluation.splits=[test]",
        ],
    )
    found = baseline_scores_by(recipe, build_task(recipe.task, recipe.data), "test", None)[""]
    # Of seven tokens, two ends among them, a is three and c one; four special symbols and a, b, c are the vocabulary.
    expected = math.exp(-(math.log(4 / 14) + math.log(2 / 14)) / 2)
    assert found["unigram"] == pytest.approx({"perplexity": expected, "word_perplexity": expected})
    assert found["majority"] == {"token_accuracy": 0.5, "sequence_accuracy_forced": 0.5}
    with (tmp_path / "test.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"source": "a", "target": "new"}\n')
    recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update={"unknown": "replace"})})
    found = baseline_scores_by(recipe, build_task(recipe.task, recipe.data), "test", None)[""]
    assert found["unigram"].keys() == {"perplexity"}


def test_a_perplexity_beyond_any_float_is_infinite(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("abcdefgh\n", encoding="utf-8")
    (tmp_path / "dev.txt").write_text("abcdefgh" * 50 + "\n", encoding="utf-8")
    data = [f"data.{part}={tmp_path / part}.txt" for part in ("train", "dev")]
    recipe = load_recipe("lm/transformer", [*data, "data.tokenizer={kind: characters}"])
    found = baseline_scores_by(recipe, build_task(recipe.task, recipe.data), "dev", None)[""]
    # 2 of 9 + 12: eight characters and the end once, four special symbols. 401 labels are two words, 471 nats each.
    assert found["unigram"]["perplexity"] == pytest.approx(21 / 2)
    assert math.isfinite(found["unigram"]["word_perplexity"])
    (tmp_path / "dev.txt").write_text("abcdefgh" * 100 + "\n", encoding="utf-8")
    recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update={"max_target_length": 1000})})
    found = baseline_scores_by(recipe, build_task(recipe.task, recipe.data), "dev", None)[""]
    assert found["unigram"]["word_perplexity"] == math.inf


def test_the_end_of_a_text_that_is_cut_is_not_counted(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("a a b\n", encoding="utf-8")
    data = [f"data.{part}={tmp_path / 'train.txt'}" for part in ("train", "dev")]
    recipe = load_recipe("lm/transformer", [*data, "data.tokenizer={kind: words}", "data.max_target_length=2"])
    found = baseline_scores_by(recipe, build_task(recipe.task, recipe.data), "dev", None)[""]
    # Both labels are a, which is two of four tokens, the end among them; six symbols are the vocabulary.
    assert found["unigram"] == pytest.approx({"perplexity": (4 + 6) / 3})
    assert found["majority"] == {"token_accuracy": 1.0, "sequence_accuracy_forced": 1.0}


def test_frequencies_are_of_the_tokens_that_a_training_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.txt").write_text("a b\n", encoding="utf-8")
    data = [f"data.{part}={tmp_path / 'train.txt'}" for part in ("train", "dev")]
    (tmp_path / "run" / "tokenizers").mkdir(parents=True)
    recipe = load_recipe("lm/transformer", [*data, "data.tokenizer={kind: words}"])
    (tmp_path / "run" / "recipe.yaml").write_text("data: {tokenizer: {kind: words}}\n", encoding="utf-8")
    Tokenizers.train(recipe.data, [Example(None, "a b c d e")]).save(tmp_path / "run" / "tokenizers")
    recipe = load_recipe(
        "lm/transformer", [*data, "data.tokenizer={kind: words}", f"training.init_from={tmp_path / 'run'}"]
    )
    found = baseline_scores_by(recipe, build_task(recipe.task, recipe.data), "dev", None)[""]
    # a, b and the end once each; the run has three more words.
    assert found["unigram"]["perplexity"] == pytest.approx((3 + 9) / 2)
    # What is packed has a tokenizer of a sample.
    monkeypatch.setattr("ostinato.tasks.packing.sample", lambda source: [Example(None, "a b c c c c")])
    monkeypatch.setenv("OSTINATO_CACHE", str(tmp_path / "cache"))
    recipe = load_recipe("lm/transformer", [*data, "data.tokenizer={kind: bpe, vocab_size: 300}", "data.packed=always"])
    task = build_task(recipe.task, recipe.data)
    found = baseline_scores_by(recipe, task, "dev", None)[""]
    n_kinds = training_tokenizers(recipe, pack_source(recipe, task), ()).target.vocab_size
    assert n_kinds != Tokenizers.train(recipe.data, task.examples("train")).target.vocab_size
    assert found["unigram"]["perplexity"] == pytest.approx((3 + n_kinds) / 2)


def test_words_of_the_passage_are_the_baselines_of_lambadas_pairs(tmp_path: Path) -> None:
    def write(name: str, rows: list[tuple[str, str]]) -> str:
        lines = [json.dumps({"source": source, "target": word}) + "\n" for source, word in rows]
        (tmp_path / name).write_text("".join(lines), encoding="utf-8")
        return str(tmp_path / name)

    (tmp_path / "train.txt").write_text("so it was over\nand over\n", encoding="utf-8")
    test = write(
        "test.jsonl", [("No Ann, the the Ann. The men, I see, saw", "Ann"), ("x x", "x"), ("the end is", "over")]
    )
    data = DataConfig(train=str(tmp_path / "train.txt"), test=test)
    found = trivial_scores(build_task(TaskRef.model_validate({"kind": "lambada", "form": "reading"}), data), "test")
    assert found["majority"] == {"exact_match": 1 / 3}
    # Ann and the are there twice, Ann first; x.
    assert found["frequent"] == {"exact_match": 2 / 3}
    # Names: Ann (not No, The or I), and twice none, so the majority.
    assert found["name"] == {"exact_match": 2 / 3}
    assert found["random"]["exact_match"] in {1 / 3, 2 / 3}


def test_the_baselines_of_a_recipe_are_on_the_examples_that_it_is_scored_on(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("source\ttarget\nq\tx\n", encoding="utf-8")
    (tmp_path / "test.tsv").write_text("source\ttarget\na\tx\nb\tb\nc\tx\nd\td\n", encoding="utf-8")
    recipe = load_recipe(
        "files/template",
        [f"data.{part}={tmp_path / f'{part}.tsv'}" for part in ("train", "test")]
        + [f"data.dev={tmp_path / 'test.tsv'}", "evaluation.max_examples=2"],
    )
    found = baseline_scores_by(recipe, build_task(recipe.task, recipe.data), "test", None)[""]
    assert found == {
        "majority": {"exact_match": 1.0, "token_accuracy_free": 1.0},
        "copy": {"exact_match": 0.0, "token_accuracy_free": 0.5},  # the end is right
    }


@pytest.mark.parametrize("settings", [[], ["evaluation.metrics=[]"]])
def test_a_split_whose_examples_are_all_left_out_has_no_baselines(tmp_path: Path, settings: list[str]) -> None:
    (tmp_path / "some.tsv").write_text("source\ttarget\na\tx\nb\t-\n", encoding="utf-8")
    (tmp_path / "none.tsv").write_text("source\ttarget\na\t-\n", encoding="utf-8")
    for train, test, empty in (("some", "none", "test"), ("none", "some", "train")):
        files = [f"data.train={tmp_path / train}.tsv", f"data.test={tmp_path / test}.tsv"]
        recipe = load_recipe("classification/small", [*files, *settings])
        with pytest.raises(DataError, match=f"^{empty}: there are no examples$"):
            baseline_scores_by(recipe, build_task(recipe.task, recipe.data), "test", None)[""]


def test_baselines_by_a_column_are_those_of_its_values_alone(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("source\ttarget\tn\nq\tx\t1\nq\tx\t2\nr\ty\t2\n", encoding="utf-8")
    (tmp_path / "test.tsv").write_text("source\ttarget\tn\na\ty\t2\nb\tb\t1\nc\tx\t2\n", encoding="utf-8")
    data = DataConfig(train=str(tmp_path / "train.tsv"), test=str(tmp_path / "test.tsv"))
    recipe = load_recipe("files/template", [f"data.{part}={getattr(data, part)}" for part in ("train", "test")])
    task = build_task(recipe.task, recipe.data)
    found = baseline_scores_by(recipe, task, "test", "n")
    of_metric = {value: {name: score["exact_match"] for name, score in of.items()} for value, of in found.items()}
    assert of_metric == {"2": {"majority": 1 / 2, "copy": 0}, "1": {"majority": 0, "copy": 1}}
    with pytest.raises(DataError, match="test: example 1 has no column 'm'; its columns are: n"):
        baseline_scores_by(recipe, task, "test", "m")
    texts = load_recipe("lm/transformer", [f"data.{part}={getattr(data, part)}" for part in ("train", "test")])
    with pytest.raises(ConfigError, match="--by is 'n': frequencies"):
        baseline_scores_by(texts, build_task(texts.task, texts.data), "test", "n")
