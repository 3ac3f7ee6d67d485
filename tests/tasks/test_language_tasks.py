"""Classification, tagging, extraction, agreement and LAMBADA: what they read, and published data where it is there."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ostinato.config.data import DataConfig
from ostinato.config.files import say_once
from ostinato.config.recipe import TaskRef
from ostinato.data.collate import IGNORED_LABEL, LabelledRow
from ostinato.data.example import NOT_IN_PASSAGE, Example
from ostinato.data.rows import encode_rows
from ostinato.data.tokenizers import Tokenizers
from ostinato.errors import ConfigError, DataError
from ostinato.tasks.agreement import NOUNS, VERBS
from ostinato.tasks.base import Task
from ostinato.tasks.recipes import load_recipe
from ostinato.tasks.registry import build_task, task_problems

SHARED = Path(__file__).parents[2].parent / "shared" / "data"


def _lines(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def _task(kind: str, data: DataConfig | None = None, **settings: Any) -> Task:
    return build_task(TaskRef.model_validate({"kind": kind, **settings}), data or DataConfig())


def _shared(kind: str, name: str, parts: dict[str, str], **settings: Any) -> Task:
    folder = SHARED / name
    if not folder.is_dir():
        pytest.skip("no published data here")
    paths: dict[str, Any] = {split: str(folder / file) for split, file in parts.items()}
    return _task(kind, DataConfig(**paths), **settings)


# --- classification --------------------------------------------------------------------------------------------------


def test_pairs_of_columns_become_one_source_and_undecided_labels_are_left_out(tmp_path: Path) -> None:
    rows = [
        {"sentence1": "a\tb ", "sentence2": " c", "gold_label": "neutral", "id": 1},
        {"sentence1": "d", "sentence2": "e", "gold_label": "-", "id": 2},
    ]
    path = _lines(tmp_path / "snli.jsonl", rows)
    data = DataConfig(train=path, source_field="sentence1", target_field="gold_label")
    task = _task("classification", data, pair_field="sentence2")
    assert list(task.examples("train")) == [Example("a b\tc", "neutral", {"id": 1})]
    with pytest.raises(DataError, match=r"train: example 1 has no text 'x' \(task.pair_field\)"):
        list(_task("classification", data, pair_field="x").examples("train"))


def test_a_second_column_of_texts_that_is_there_twice_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("source\ttarget\tother\tother\na\tx\tb\tc\n", encoding="utf-8")
    task = _task("classification", DataConfig(train=str(tmp_path / "a.tsv")), pair_field="other")
    with pytest.raises(DataError, match=r"train: example 1 has no text 'other' \(task.pair_field\)"):
        list(task.examples("train"))


def test_how_many_examples_are_left_out_for_their_label_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    say_once.cache_clear()
    path = _lines(tmp_path / "films.jsonl", [{"source": "a", "target": label} for label in "-+-0+-"])
    task = _task("classification", DataConfig(train=path, dev=path), skipped_labels=["-", "?"])
    for _ in range(2):
        assert [example.target for example in task.examples("train")] == ["+", "0", "+"]
    assert caplog.messages == ["train: 3 of 6 examples are left out (task.skipped_labels: -)"]
    list(_task("classification", DataConfig(train=path), skipped_labels=[]).examples("train"))
    assert len(caplog.messages) == 1


def test_zero_shot_transfer_trains_and_selects_in_some_languages_and_tests_in_all(tmp_path: Path) -> None:
    rows = [{"source": language, "target": "x", "lang": language} for language in ("en", "de", "fr", "en")]
    path = _lines(tmp_path / "a.jsonl", rows)
    data = DataConfig(train=path, dev=path, test=path)
    task = _task("classification", data, language_field="lang", train_languages=["en"])
    assert task.by == ("lang",)
    found = {split: [example.source for example in task.examples(split)] for split in task.splits()}
    assert found == {"train": ["en", "en"], "dev": ["en", "en"], "test": ["en", "de", "fr", "en"]}
    other = _task("classification", data, language_field="lang", train_languages=["ko"])
    with pytest.raises(DataError, match="no example in ko; its languages are en, de, fr"):
        list(other.examples("train"))
    mixed = _task("classification", data, language_field="lang", train_languages=["en", "ko"])
    with pytest.raises(DataError, match="no example in ko"):
        list(mixed.examples("train"))
    (problem,) = task_problems({"kind": "classification", "train_languages": ["en"]})
    assert problem.key == "task.language_field"


def test_snli_has_its_published_sizes_and_three_labels() -> None:
    task = _shared("classification", "snli", {"train": "dev.jsonl.gz", "test": "test.jsonl.gz"})
    counts = {split: Counter(example.target for example in task.examples(split)) for split in task.splits()}
    assert {split: found.total() for split, found in counts.items()} == {"train": 9842, "test": 9824}
    assert all(set(found) == {"entailment", "neutral", "contradiction"} for found in counts.values())
    assert all(example.source and example.source.count("\t") == 1 for example in task.examples("test"))


def test_sst2_has_its_published_sizes() -> None:
    parts = {split: f"{split}.jsonl.gz" for split in ("train", "dev", "test")}
    task = _shared("classification", "sst2", parts)
    counts = {split: Counter(example.target for example in task.examples(split)) for split in task.splits()}
    assert {split: found.total() for split, found in counts.items()} == {"train": 6920, "dev": 872, "test": 1821}
    # The larger class of the published test set.
    assert counts["test"]["0"] == 912


def test_american_languages_are_told_apart() -> None:
    parts = {"train": "dev.jsonl.gz", "test": "test.jsonl.gz"}
    task = _shared("classification", "americas_nli", parts, language_field="lang", train_languages=["quy"])
    assert sum(1 for _ in task.examples("train")) == 743
    by_language = Counter(example.columns["lang"] for example in task.examples("test"))
    assert (len(by_language), by_language.total(), by_language["nah"]) == (10, 7483, 735)


# --- tagging ---------------------------------------------------------------------------------------------------------

CONLL = """-DOCSTART- -X- O O

EU NNP B-NP B-ORG
rejects VBZ B-VP O

# a comment
Peter NNP B-NP B-PER
Blackburn NNP I-NP I-PER
"""
CONLLU = """# text = vamonos
1-2\tvamonos\t_\t_\t_\t_\t_\t_\t_\t_
1\tvamos\tir\tVERB\t_\t_\t_\t_\t_\t_
2\tnos\tnos\tPRON\t_\t_\t_\t_\t_\t_
2.1\tx\tx\tX\t_\t_\t_\t_\t_\t_
"""


def test_columns_become_words_and_tags(tmp_path: Path) -> None:
    (tmp_path / "en.conll").write_text(CONLL)
    data = DataConfig(train=str(tmp_path / "en.conll"))
    task = _task("tagging", data, format="columns", language_field="lang", languages={"en.conll": "en"})
    assert list(task.examples("train")) == [
        Example("EU rejects", "B-ORG O", {"lang": "en"}),
        Example("Peter Blackburn", "B-PER I-PER", {"lang": "en"}),
    ]
    parts_of_speech = _task("tagging", data, format="columns", tag_column=1)
    assert [example.target for example in parts_of_speech.examples("train")] == ["NNP VBZ", "NNP NNP"]
    (tmp_path / "bad.conll").write_text("a b c d\n")
    bad = _task("tagging", DataConfig(train=str(tmp_path / "bad.conll")), format="columns", tag_column=7)
    with pytest.raises(DataError, match=r"line 1: 4 columns, but columns 0 and 7"):
        list(bad.examples("train"))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.jsonl", "JSON lines"),
        ("a.json.gz", "JSON lines"),
        ("a.csv", "CSV"),
        ("a.parquet", "Parquet"),
        ("a.arrow", "Arrow"),
    ],
)
def test_files_with_a_sentence_a_row_are_not_read_as_columns(tmp_path: Path, name: str, kind: str) -> None:
    path = _lines(tmp_path / name, [{"source": "a b", "target": "X Y"}])
    expected = rf"{name}: is {kind}, and task\.format=columns reads a word a line: task\.format=sentences reads it$"
    for given in (path, str(tmp_path)):
        with pytest.raises(DataError, match=expected):
            list(_task("tagging", DataConfig(train=given), format="columns").examples("train"))


def test_a_word_without_a_tag_beside_it_is_refused_unless_both_are_to_be_one_column(tmp_path: Path) -> None:
    def tags(text: str, **settings: int) -> list[str]:
        (tmp_path / "a.tsv").write_text(text, encoding="utf-8")
        task = _task("tagging", DataConfig(train=str(tmp_path / "a.tsv")), format="columns", **settings)
        return [example.target for example in task.examples("train")]

    with pytest.raises(
        DataError, match=r"line 2: task\.word_column=0 and task\.tag_column=-1 name one of 1 columns: a "
    ):
        tags("a\tX\nb\n")
    with pytest.raises(
        DataError, match=r"line 1: task\.word_column=1 and task\.tag_column=-1 name one of 2 columns: a "
    ):
        tags("1\ta\n", word_column=1)
    assert tags("1\ta\tX\n", word_column=1) == ["X"]
    assert tags("a\n", tag_column=0) == ["a"]


def test_blanks_in_columns_with_tabs_are_parts_of_words(tmp_path: Path) -> None:
    lines = ["#newpar", "# text = ...", "1\thọc sinh\tNOUN", "2\t10\u00a0000\tNUM", "3\t#\tSYM", "", "1\ta\tX", ""]
    (tmp_path / "a.conll").write_text("\n".join(lines), encoding="utf-8")
    data = DataConfig(train=str(tmp_path / "*.conll"))
    task = _task("tagging", data, format="columns", word_column=1, tag_column=2)
    assert list(task.examples("train")) == [Example("học_sinh 10_000 #", "NOUN NUM SYM", {}), Example("a", "X", {})]


def test_a_table_of_sentences_is_not_read_as_columns(tmp_path: Path) -> None:
    text = "source\ttarget\nJohn lives in Paris\tB-PER O O B-LOC\n"
    (tmp_path / "a.tsv").write_text(text, encoding="utf-8")
    data = DataConfig(train=str(tmp_path / "a.tsv"))
    expected = "line 2: its tag 'B-PER_O_O_B-LOC' has several words: task.format=sentences reads a sentence a row"
    with pytest.raises(DataError, match=expected):
        list(_task("tagging", data, format="columns").examples("train"))
    (example,) = _task("tagging", data).examples("train")
    assert example.target == "B-PER O O B-LOC"
    (as_words,) = _task("tagging", data, format="columns", tag_column=0).examples("train")  # it has no tags
    assert as_words.source == as_words.target == "source John_lives_in_Paris"


def test_a_tag_of_several_words_beside_another_number_of_words_is_one_tag(tmp_path: Path) -> None:
    text = "Mona\twork of art\nLisa\twork of art\nNew York\tplace\nthe old man\tnoun phrase\n"
    (tmp_path / "a.tsv").write_text(text, encoding="utf-8")
    (example,) = _task("tagging", DataConfig(train=str(tmp_path / "a.tsv")), format="columns").examples("train")
    assert example == Example("Mona Lisa New_York the_old_man", "work_of_art work_of_art place noun_phrase", {})


def test_what_may_be_a_comment_or_the_first_word_of_a_sentence_is_refused(tmp_path: Path) -> None:
    def words(text: str) -> list[str | None]:
        (tmp_path / "a.conll").write_text(text, encoding="utf-8")
        task = _task("tagging", DataConfig(train=str(tmp_path / "a.conll")), format="columns", tag_column=1)
        return [example.source for example in task.examples("train")]

    for text in ("a X\n\n#NBA B-ORG\nwins O\n", "a X\n\n# newdoc\nwins O\n"):
        with pytest.raises(DataError, match=r"a\.conll, line 3: may be a comment or a word"):
            words(text)
    assert words("# newdoc\n\nwins O\n") == words("# of three\nwins O\n") == words("# newdoc\nwins\tO\n") == ["wins"]
    assert words("#NBA\tB-ORG\nwins\tO\n") == ["#NBA wins"]


def test_a_word_that_is_a_hash_is_no_comment_inside_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_text("a DT B-NP\n# # I-NP\n2.6 CD I-NP\n", encoding="utf-8")
    task = _task("tagging", DataConfig(train=str(tmp_path)), format="columns", tag_column=2)
    assert list(task.examples("train")) == [Example("a # 2.6", "B-NP I-NP I-NP", {})]


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_files_in_squads_form_may_be_compressed_have_a_mark_and_stand_in_a_folder(tmp_path: Path, name: str) -> None:
    question = {"question": "q", "answers": [{"text": "c", "answer_start": 2}]}
    content = json.dumps({"data": [{"paragraphs": [{"context": "b c", "qas": [question]}]}]}).encode("utf-8-sig")
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    task = _task("span_extraction", DataConfig(train=str(tmp_path)), format="squad")
    assert list(task.examples("train")) == [Example("q\tb c", "c", {"answer_start": 2})]


def test_a_question_with_an_empty_answer_is_no_traceback(tmp_path: Path) -> None:
    question = {"question": "q", "answers": [{"text": None, "answer_start": 2}]}
    content = {"data": [{"paragraphs": [{"context": "b c", "qas": [question]}]}]}
    (tmp_path / "a.json").write_text(json.dumps(content))
    task = _task("span_extraction", DataConfig(train=str(tmp_path / "a.json")), format="squad")
    with pytest.raises(DataError, match="not a file in SQuAD's form"):
        list(task.examples("train"))


def test_numbers_of_conll_u_that_are_no_words_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "es.conllu").write_text(CONLLU)
    data = DataConfig(train=str(tmp_path / "es.conllu"))
    task = _task("tagging", data, format="columns", word_column=1, tag_column=3)
    assert [(example.source, example.target) for example in task.examples("train")] == [("vamos nos", "VERB PRON")]


def test_sentences_need_a_tag_for_every_word(tmp_path: Path) -> None:
    path = _lines(tmp_path / "a.jsonl", [{"source": "a b", "target": "X"}])
    with pytest.raises(DataError, match="train: example 1 has 1 tags for 2 words"):
        list(_task("tagging", DataConfig(train=path)).examples("train"))


# --- extraction ------------------------------------------------------------------------------------------------------

SQUAD = {
    "data": [
        {
            "paragraphs": [
                {
                    "context": "Ann\nmet Bob.",
                    "qas": [
                        {
                            "id": "1",
                            "question": "Who met\tBob?",
                            "answers": [
                                {"text": "Ann", "answer_start": 0},
                                {"text": "Ann", "answer_start": 0},
                                {"text": "Ann\nmet", "answer_start": 0},
                            ],
                        }
                    ],
                }
            ]
        }
    ]
}


def test_questions_are_read_in_squads_form_with_all_their_answers(tmp_path: Path) -> None:
    (tmp_path / "en.json").write_text(json.dumps(SQUAD))
    data = DataConfig(train=str(tmp_path / "en.json"))
    settings = {"language_field": "lang", "languages": {"en.json": "en"}}
    (example,) = _task("span_extraction", data, **settings).examples("train")
    assert example.source == "Who met Bob?\tAnn met Bob."
    assert example.target == "Ann\tAnn met"
    assert example.columns == {"lang": "en", "answer_start": 0}
    SQUAD["data"][0]["paragraphs"][0]["qas"][0]["answers"].clear()  # type: ignore[index]
    (tmp_path / "en.json").write_text(json.dumps(SQUAD))
    with pytest.raises(DataError, match="the question '1' has no answer"):
        list(_task("span_extraction", data).examples("train"))
    (tmp_path / "en.json").write_text('{"data": 3}')
    with pytest.raises(DataError, match="not a file in SQuAD's form"):
        list(_task("span_extraction", data).examples("train"))


# --- agreement -------------------------------------------------------------------------------------------------------


def test_verbs_agree_with_the_first_noun_and_attractors_are_counted() -> None:
    task = _task("agreement", n_eval=20, n_train=300)
    seen = Counter[object]()
    for example in task.examples("test"):
        assert example.source is not None
        nouns = [word for word in example.source.split() if word in NOUNS or word.removesuffix("s") in NOUNS]
        is_plural = nouns[0] not in NOUNS
        attractors = sum((noun not in NOUNS) != is_plural for noun in nouns[1:])
        assert example.columns["n_attractors"] == attractors == len(nouns) - 1
        assert (example.target in VERBS) == is_plural
        assert example.columns["wrong"] == (f"{example.target}s" if is_plural else example.target[:-1])
        assert example.continues
        seen[attractors] += 1
    assert seen == dict.fromkeys(range(6), 20)
    train = list(task.examples("train"))
    assert all(example.source is None for example in train)
    assert {example.target.count(" the ") for example in train} == {0, 1, 2}
    assert train == list(_task("agreement", n_eval=1, n_train=300).examples("train"))
    for example in train:
        first, verb = example.target.split()[1], example.target.split()[-1]
        assert (first in NOUNS) != (verb in VERBS)


@pytest.mark.parametrize("mask", ["causal", "prefix"])
def test_what_is_continued_is_the_prefix_of_a_prefix_model(mask: str) -> None:
    recipe = load_recipe("agreement/transformer", [f"model.mask={mask}", "task.n_train=300", "task.n_eval=5"])
    task = build_task(recipe.task, recipe.data)
    tokenizers = Tokenizers.train(recipe.data, list(task.examples("train")), recipe.model.reads)
    examples = list(task.examples("test"))
    rows = list(encode_rows(examples, tokenizers, recipe.data, recipe.model, training=False, name="test"))
    for example, row in zip(examples, rows, strict=True):
        assert isinstance(row, LabelledRow)
        n_given = len(tokenizers.source.encode(str(example.source)))
        assert [label != IGNORED_LABEL for label in row.labels] == [False] * n_given + [True]
        assert row.n_prefix == (n_given + 1 if mask == "prefix" else None)
        assert row.size is not None


def test_masked_models_continue_no_text() -> None:
    recipe = load_recipe("masked/small", ["data.tokenizer={kind: words}"])
    example = Example("the dog", "runs", continues=True)
    tokenizers = Tokenizers.train(recipe.data, [Example(None, "the dog runs")], recipe.model.reads)
    with pytest.raises(DataError, match="texts of this task are continued, which masked models do not"):
        list(encode_rows([example], tokenizers, recipe.data, recipe.model, training=False, name="dev"))


def test_sentences_of_wikipedia_have_their_published_numbers(tmp_path: Path) -> None:
    train = _lines(tmp_path / "a.jsonl", [{"text": "a"}])
    if not SHARED.is_dir():
        pytest.skip("no published data here")
    data = DataConfig(train=train, test=str(SHARED / "agreement" / "test_linzen.jsonl.gz"))
    found = list(_task("agreement", data, origin="files").examples("test"))
    by_attractors = Counter(example.columns["n_attractors"] for example in found)
    assert by_attractors == {0: 1972, 1: 1957, 2: 1943, 3: 1287, 4: 330}
    assert all(example.continues for example in found)
    # Words that are no verbs there, which no model can get right.
    assert sum(example.target == example.columns["wrong"] for example in found) == 4
    with pytest.raises(DataError, match=r"no text 'bad' \(task.wrong_field\)"):
        list(_task("agreement", data, origin="files", wrong_field="bad").examples("test"))


def test_training_may_read_sentences_up_to_their_verbs_and_no_further(tmp_path: Path) -> None:
    rows = [
        {"source": "the keys to the door", "target": "are", "wrong": "is", "n_attractors": 1},
        {"source": "since NNP models ", "target": "VBP"},
    ]
    path = _lines(tmp_path / "a.jsonl", rows)
    dev = _lines(tmp_path / "b.jsonl", rows[:1])
    task = _task("agreement", DataConfig(train=path, dev=dev), origin="files", train_form="prefixes")
    assert list(task.examples("train")) == [
        Example(None, "the keys to the door are"),
        Example(None, "since NNP models VBP"),
    ]
    assert next(iter(task.examples("dev"))).columns["wrong"] == "is"
    with pytest.raises(ConfigError, match=r"task\.train_form is 'prefixes': is for task\.origin=files"):
        _task("agreement", DataConfig(), train_form="prefixes")


def test_the_published_prefixes_of_linzen_train_up_to_the_verbs_number() -> None:
    path = SHARED / "agreement_linzen_numpred" / "numpred_val.jsonl.gz"
    if not path.exists():
        pytest.skip("no published data here")
    task = _task("agreement", DataConfig(train=str(path)), origin="files", train_form="prefixes")
    found = [example.target for example in task.examples("train")]
    assert len(found) == 15772
    assert found[0] == "since NNP models VBP"
    assert {text.rpartition(" ")[2] for text in found} == {"VBZ", "VBP"}


# --- LAMBADA ---------------------------------------------------------------------------------------------------------


def test_last_words_go_on_from_their_passages(tmp_path: Path) -> None:
    train = tmp_path / "novel.txt"
    train.write_text("it was a dark night\nand cold\n")
    pairs = _lines(tmp_path / "dev.jsonl", [{"source": "a b\n", "target": "c"}])
    data = DataConfig(train=str(train), dev=pairs)
    task = _task("lambada", data)
    assert [example.target for example in task.examples("train")] == ["it was a dark night", "and cold"]
    assert list(task.examples("dev")) == [Example("a b\n", "c", {}, continues=True)]
    reading = _task("lambada", data, form="reading")
    assert reading.metrics == ("exact_match",)
    assert list(reading.examples("train")) == [Example("it was a dark", "night"), Example("and", "cold")]
    assert list(reading.examples("dev")) == [Example("a b\n", "c")]
    texts = _task("lambada", DataConfig(train=str(train), dev=str(train)), passages="texts")
    assert next(iter(texts.examples("dev"))) == Example("it was a dark", "night", continues=True)
    lines = _lines(tmp_path / "lines.jsonl", [{"text": "he asked.\nGabriel"}, {"text": "so it  is\u00a0good \n"}])
    broken = _task("lambada", DataConfig(train=str(train), dev=lines), passages="texts")
    assert [(one.source, one.target) for one in broken.examples("dev")] == [
        ("he asked.", "Gabriel"),
        ("so it  is", "good"),
    ]


def test_last_words_are_pointed_at_where_the_passage_names_them_last(tmp_path: Path) -> None:
    train = tmp_path / "novel.txt"
    train.write_text('Ann saw Bob. "Bob!" she said. He was Bob\nAnn left. Then came Eve\n')
    dev = _lines(
        tmp_path / "dev.jsonl", [{"source": "Bobby ran.\n\nI saw", "target": "Bob"}, {"source": "a b", "target": "a"}]
    )
    task = _task("lambada", DataConfig(train=str(train), dev=dev), form="extraction")
    assert task.metrics == ("exact_match",)
    # The second text names Eve nowhere else: nothing can be learned from it.
    (example,) = task.examples("train")
    assert example == Example('He was\tAnn saw Bob. "Bob!" she said.', "Bob", {"answer_start": 14})
    assert list(task.examples("dev")) == [
        Example("I saw\tBobby ran.", "Bob", {"answer_start": NOT_IN_PASSAGE}),
        Example("a b\ta b", "a", {"answer_start": 0}),
    ]


def test_answers_said_to_be_nowhere_are_no_questions_of_extraction(tmp_path: Path) -> None:
    path = _lines(tmp_path / "a.jsonl", [{"source": "who?\ta b", "target": "c", "answer_start": -1}])
    with pytest.raises(DataError, match="does not hold the answer 'c'"):
        list(_task("span_extraction", DataConfig(train=path), format="lines").examples("train"))


def test_passages_drawn_without_selection_are_a_split_of_their_own(tmp_path: Path) -> None:
    train = tmp_path / "novel.txt"
    train.write_text("it was a dark night\n")
    test = _lines(tmp_path / "test.jsonl", [{"source": "a b", "target": "c"}])
    control = tmp_path / "control.jsonl"
    named = {"test": test, "control": _lines(control, [{"source": "it was", "target": "dark"}])}
    data = DataConfig(train=str(train), test=named)
    for form, continues in (("language_model", True), ("reading", False)):
        task = _task("lambada", data, form=form)
        assert task.splits() == ("train", "test", "control")
        assert list(task.examples("control")) == [Example("it was", "dark", {}, continues=continues)]
    control.unlink()
    with pytest.raises(ConfigError, match=r"control.* is .*control\.jsonl': there is no such file"):
        _task("lambada", data)


def test_lambada_has_its_published_size() -> None:
    if not SHARED.is_dir():
        pytest.skip("no published data here")
    path = str(SHARED / "lambada" / "test.jsonl.gz")
    task = _task("lambada", DataConfig(train=path, test=path), form="reading", passages="pairs")
    assert sum(1 for _ in task.examples("test")) == 5153


# --- files -----------------------------------------------------------------------------------------------------------


def test_a_whole_file_can_be_one_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one line\n\nanother\n")
    (tmp_path / "b.txt").write_text("b")
    data = DataConfig(train=[str(tmp_path / "a.txt"), str(tmp_path / "b.txt")])
    task = _task("files", data, model_kind="language_model", documents="files")
    assert [example.target for example in task.examples("train")] == ["one line\n\nanother", "b"]
    with pytest.raises(ConfigError, match="documents"):
        _task("files", data, documents="files")
