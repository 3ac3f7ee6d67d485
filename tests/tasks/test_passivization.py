from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from ostinato.config.data import DataConfig
from ostinato.config.recipe import TaskRef
from ostinato.data.registry import DataAccess
from ostinato.errors import DataError
from ostinato.metrics import make_metric
from ostinato.tasks.overlap import measure_overlap
from ostinato.tasks.passivization import PLURALS, transform
from ostinato.tasks.registry import build_task


def generated(**settings: object):
    small = {"kind": "passivization", "origin": "generated", "n_train": 3000}
    return build_task(TaskRef.model_validate({**small, **settings}), DataConfig())


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("your quails amused some vulture . passiv", "some vulture was amused by your quails ."),
        ("your quails amused some vulture . decl", "your quails amused some vulture ."),
        (
            "your tyrannosauruses by the yaks confused your zebras around my salamander . passiv",
            "your zebras around my salamander were confused by your tyrannosauruses by the yaks .",
        ),
        ("her zebra amused the vulture near my yaks . passiv", "the vulture near my yaks was amused by her zebra ."),
    ],
)
def test_sentences_are_transformed_by_the_rule(source: str, target: str) -> None:
    assert transform(source) == target


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("the yak amused my newt .", "does not end with"),
        ("the yak amused my newt passiv", "does not end with"),
        ("yak amused my newt . decl", "word 1: expected a determiner and a noun, not 'yak amused'"),
        ("the yak saw my newt . decl", "word 3: 'saw' is no verb"),
        ("the yak . decl", "word 3: '' is no verb"),
        ("the yak amused my newt my newt . decl", "words follow the object"),
        ("the yak by amused my newt . decl", "word 4: expected a determiner"),
    ],
)
def test_what_is_outside_the_grammar_is_refused(source: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        transform(source)


def test_plurals_are_the_published_ones() -> None:
    assert {"newts", "walruses", "tyrannosauruses", "zebras"} <= set(PLURALS)


@pytest.mark.parametrize("split", ["dev", "test", "gen"])
def test_every_published_line_parses_and_transforms_right(open_published, oracle, split: str) -> None:
    made = [(e.source, e.target, e.columns["transformation"]) for e in open_published("passivization").examples(split)]
    rows = oracle(f"passivization_en/{split}")
    assert made == [(row["source"], row["target"], row["category"]) for row in rows]
    assert len(made) == {"dev": 1000, "test": 10_000, "gen": 10_000}[split]
    assert all(transform(source) == target for source, target, _ in made)


@pytest.mark.slow
def test_the_drawn_stand_in_for_the_training_file_follows_the_rule(oracle) -> None:
    rows = oracle("passivization_en/train_resampled")
    assert all(transform(row["source"]) == row["target"] for row in rows[::10])


def test_published_test_sets_do_not_overlap(open_published) -> None:
    task = open_published("passivization")
    assert measure_overlap(task, "gen", "test").n_seen_pairs == 0


def test_a_training_file_with_a_wrong_target_is_refused(tmp_path: Path) -> None:
    task = build_task(TaskRef(kind="passivization"), DataConfig(), DataAccess(tmp_path / "cache", str(tmp_path)))
    path = tmp_path / task.files()[0].key
    path.parent.mkdir(parents=True)
    path.write_text("the yak amused my newt . passiv\tmy newt were amused by the yak .\n", encoding="ascii")
    with pytest.raises(DataError, match=r"line 1: expected a source, a tab and 'my newt was amused"):
        list(task.examples("train"))


@pytest.mark.slow
def test_the_noun_that_comes_second_in_the_target_is_marked() -> None:
    task = generated(n_train=10)
    for split in ("dev", "gen"):
        for example in task.examples(split):
            (place,) = example.columns["supporting"]
            assert str(example.source).split()[place] == example.target.split()[1]
            if example.columns["transformation"] == "passiv":
                assert place > 3


@pytest.mark.slow
def test_generated_splits_have_their_kinds_and_no_sentence_twice() -> None:
    task = generated()
    rows = {split: list(task.examples(split)) for split in task.splits()}
    assert {split: len(found) for split, found in rows.items()} == {
        "train": 3000,
        "dev": 1000,
        "test": 10_000,
        "gen": 10_000,
    }
    sentences = [str(e.source).rsplit(" ", 1)[0] for found in rows.values() for e in found]
    assert len(set(sentences)) == len(sentences)
    assert {e.columns["transformation"] for e in rows["gen"]} == {"passiv"}
    # A passive's subject has three words or five: in gen always five or more.
    assert all(len(e.target.split(" by ", 1)[1].split()) > 3 for e in rows["gen"])
    passives = [e for e in rows["test"] if e.columns["transformation"] == "passiv"]
    assert 0.31 < len(passives) / 10_000 < 0.355
    assert all(str(e.source).split()[2] not in ("by", "near", "with") for e in passives)


@pytest.mark.slow
def test_generated_sentences_are_as_long_as_published(oracle) -> None:
    published = Counter(len(row["source"].split()) for row in oracle("passivization_en/test"))
    drawn = Counter(len(str(e.source).split()) for e in generated().examples("test"))
    assert set(drawn) == set(published)
    assert all(abs(drawn[length] - published[length]) < 250 for length in published)


@pytest.mark.slow
def test_held_out_sentences_do_not_depend_on_the_training_size() -> None:
    assert list(generated(n_train=5).examples("gen")) == list(generated().examples("gen"))
    assert list(generated(seed=1).examples("gen")) != list(generated().examples("gen"))


def test_a_linear_heuristic_is_caught_by_the_second_word() -> None:
    right = "the zebra was amused by my yak near her newt ."
    moved_the_nearest_noun = "her newt was amused by my yak near the zebra ."
    for name, expected in (("second_word", 0.5), ("exact_match", 0.5)):
        metric = make_metric(name)
        metric.update(right, right)
        metric.update(moved_the_nearest_noun, right)
        assert metric.compute() == {name: expected}
