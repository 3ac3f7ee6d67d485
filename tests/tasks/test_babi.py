from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from archives import mirrored, write_lines

from ostinato.config.data import DataConfig
from ostinato.config.recipe import TaskRef
from ostinato.errors import ConfigError, DataError
from ostinato.evaluation.scores import count_failed
from ostinato.metrics import make_metric
from ostinato.tasks.babi import NAMES, _remote, read_questions, spaced
from ostinato.tasks.overlap import measure_overlap
from ostinato.tasks.recipes import load_recipe
from ostinato.tasks.registry import build_task

STORY = [
    "1 Mary went to the kitchen.",
    "2 John took the apple.",
    "3 Where is Mary? \tkitchen\t1",
    "4 John went to the garden.",
    "5 Where is the apple?\tgarden\t2 4",
    "1 The office is east of the hallway.",
    "2 How do you go?\ts,e\t1",
]


def questions(lines: list[str]):
    return list(read_questions(("file", number, line) for number, line in enumerate(lines, 1)))


def test_questions_have_the_facts_of_their_story_before_them_and_none_of_the_questions() -> None:
    first, second, third = questions(STORY)
    assert (first.story, first.facts, first.text, first.answer) == (
        0,
        ("Mary went to the kitchen.", "John took the apple."),
        "Where is Mary?",
        "kitchen",
    )
    assert first.supporting == (0,)
    assert second.facts[2:] == ("John went to the garden.",)
    assert second.supporting == (1, 2)
    assert (third.story, third.facts, third.answer) == (1, ("The office is east of the hallway.",), "s,e")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("Mary went to the kitchen.", "expected a number, a blank and a sentence"),
        ("9 Where is Mary?\tkitchen", "numbers of facts before it behind tabs"),
        ("9 Where is Mary?\tkitchen\t3", "numbers of facts before it behind tabs"),
    ],
)
def test_a_line_of_another_form_is_refused(line: str, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        questions([*STORY[:2], line])


@pytest.mark.parametrize("part", [pytest.param("train", marks=pytest.mark.slow), "test"])
def test_every_published_question_is_read(open_published, oracle, part: str) -> None:
    rows = oracle(f"babi/{part}")
    task = open_published("babi", dev_fraction=0, max_facts=1000)
    made = [(e.source, e.target, e.columns["task"], e.columns["n_facts"]) for e in task.examples(part)]
    wanted = []
    for row in rows:
        facts, _, question = row["source"].partition("\t")
        n_facts = facts.count("\n") + 1
        wanted.append((spaced(f"{facts} {question}"), spaced(row["target"]), row["task"], n_facts))
    assert made == wanted
    assert len(made) == 20_000


def test_supporting_facts_are_those_of_the_rows(access, oracle) -> None:
    rows = [row for row in oracle("babi/train") if row["task"] == 3]
    path = access.fetch(_remote(3, "train", "1k"))
    found = questions(path.read_text(encoding="utf-8").splitlines())
    assert [list(question.supporting) for question in found] == [row["supporting"] for row in rows]


@pytest.mark.slow
def test_facts_are_written_with_tabs_and_supporting_ones_are_numbered_as_they_are_read(open_published) -> None:
    plain = list(open_published("babi", number=3, answer_form="label").examples("test"))
    facts = list(open_published("babi", number=3, answer_form="label", form="facts").examples("test"))
    assert [e.source.replace("\t", " ") for e in facts] == [e.source for e in plain]
    assert [e.target for e in facts] == [e.target for e in plain]
    assert all(e.source.count("\t") == min(e.columns["n_facts"], 130) for e in facts)
    short = list(open_published("babi", number=3, answer_form="label", form="facts", max_facts=20).examples("test"))
    cut = 0
    for whole, last in zip(facts, short, strict=True):
        told, kept = whole.source.split("\t"), last.source.split("\t")
        named = [told[place] for place in whole.columns["supporting"]]
        left = [kept[place] for place in last.columns["supporting"]]
        assert all(place < len(kept) - 1 for place in last.columns["supporting"])
        assert left == named[len(named) - len(left) :] or set(left) <= set(named)
        cut += len(left) < len(named)
    assert cut > 0


def test_of_a_story_in_words_the_words_of_supporting_facts_are_marked(open_published) -> None:
    plain = list(open_published("babi", number=3, max_facts=20).examples("test"))
    facts = list(open_published("babi", number=3, max_facts=20, form="facts").examples("test"))
    for words, told in zip(plain, facts, strict=True):
        parts = told.source.split("\t")
        wanted = [word for place in sorted(set(told.columns["supporting"])) for word in parts[place].split()]
        assert [words.source.split()[place] for place in words.columns["supporting"]] == wanted


WITHOUT_TASK_3 = [number for number in range(1, 21) if number != 3]


def test_every_larger_file_but_that_of_task_3_has_a_hash_and_is_the_published_one(access) -> None:
    for number in WITHOUT_TASK_3:
        file = _remote(number, "train", "10k")
        assert file.sha256 is not None
        assert access.fetch(file).stat().st_size == file.n_bytes
    assert _remote(3, "train", "10k").sha256 is None


@pytest.mark.slow
def test_the_ten_thousand_questions_of_every_task_but_the_third_are_read(open_published, oracle) -> None:
    rows = oracle("babi/train_10k")
    for number in WITHOUT_TASK_3:
        wanted = [(spaced(row["source"].replace("\t", " ")), row["target"]) for row in rows if row["task"] == number]
        task = open_published("babi", number=number, size="10k", dev_fraction=0, answer_form="label", max_facts=1000)
        assert [(example.source, example.target) for example in task.examples("train")] == wanted
        assert len(wanted) == 10_000
        assert sum(1 for _ in task.examples("test")) == 1_000


@pytest.mark.slow
def test_the_larger_version_s_published_file_is_read(open_published) -> None:
    task = open_published("babi", number=1, size="10k")
    assert sum(1 for split in ("train", "dev") for _ in task.examples(split)) == 10_000


def test_several_tasks_together_have_the_examples_of_each(open_published) -> None:
    alone = [[(e.source, e.target) for e in open_published("babi", number=n).examples("dev")] for n in (1, 6)]
    together = open_published("babi", number=[6, 1, 6])
    assert [(e.source, e.target) for e in together.examples("dev")] == alone[0] + alone[1]
    assert together.published_sizes() == {"train": 2_000, "test": 2_000}
    assert {e.columns["task"] for e in together.examples("test")} == {1, 6}


@pytest.mark.parametrize("number", ["21", "[]", "[1,0]", "x"])
def test_a_number_of_no_task_is_refused_in_one_line(number: str) -> None:
    with pytest.raises(ConfigError, match=r"task\.number is .*: must be an integer in \[1, 20\], or a list") as error:
        load_recipe("babi/transformer", [f"task.number={number}"])
    assert "\n" not in str(error.value)


def test_dev_is_a_tenth_of_the_stories_and_no_story_is_divided(open_published) -> None:
    task = open_published("babi", number=1)
    sizes = {split: sum(1 for _ in task.examples(split)) for split in task.splits()}
    assert sizes["train"] + sizes["dev"] == 1000
    assert 60 < sizes["dev"] < 140
    assert sizes["test"] == 1000
    parts = [{str(e.source) for e in task.examples(split)} for split in ("train", "dev")]
    assert not any(longer.startswith(shorter.rsplit(" Where", 1)[0]) for shorter in parts[1] for longer in parts[0])


def test_short_stories_of_the_test_occur_in_training(open_published) -> None:
    found = measure_overlap(open_published("babi", number=1, dev_fraction=0), "test")
    assert 0 < found.fraction < 0.05


def test_only_the_last_facts_are_read(open_published) -> None:
    task = open_published("babi", number=2, dev_fraction=0)
    longest = max(str(example.source).count(" . ") for example in task.examples("train"))
    assert longest <= 70
    few = open_published("babi", number=2, dev_fraction=0, max_facts=3)
    assert max(str(example.source).count(" . ") for example in few.examples("train")) == 3
    three = open_published("babi", number=3, dev_fraction=0)
    assert 70 < max(str(example.source).count(" . ") for example in three.examples("test")) <= 130


def test_answers_of_several_words_are_words_or_one_label(open_published) -> None:
    words = next(iter(open_published("babi", number=19).examples("test"))).target
    label = next(iter(open_published("babi", number=19, answer_form="label").examples("test"))).target
    assert re.fullmatch(r"[nesw] , [nesw]", words)
    assert label == words.replace(" ", "")


def test_another_number_of_questions_than_published_is_refused(tmp_path: Path) -> None:
    task = build_task(
        TaskRef.model_validate({"kind": "babi", "number": 3, "size": "10k"}), DataConfig(), mirrored(tmp_path)
    )
    write_lines(tmp_path, task.files()[0], STORY)
    with pytest.raises(DataError, match="3 questions, but 10000 were published"):
        list(task.examples("train"))


@pytest.mark.slow
def test_all_twenty_tasks_are_joint_and_have_a_thousand_test_questions_each(open_published) -> None:
    counts = Counter(example.columns["task"] for example in open_published("babi").examples("test"))
    assert counts == dict.fromkeys(range(1, 21), 1000)
    assert len(NAMES) == 20


def test_a_task_fails_with_more_than_five_percent_of_errors() -> None:
    groups = {"1": {"exact_match": 0.95}, "2": {"exact_match": 0.949}, "3": {"exact_match": 1.0}}
    assert count_failed(groups) == 1
    assert count_failed({"1": {"loss": 1.0}}) is None
    assert count_failed({}) is None


def test_an_answer_is_right_with_all_its_words() -> None:
    metric = make_metric("exact_match")
    metric.update("milk , football", "milk , football")
    metric.update("football , milk", "milk , football")
    assert metric.compute() == {"exact_match": 0.5}


def test_results_are_by_task_and_by_the_number_of_supporting_facts(open_published) -> None:
    task = open_published("babi", number=2)
    assert task.by == ("task", "n_supporting")
    assert {example.columns["n_supporting"] for example in task.examples("test")} == {2}
