from __future__ import annotations

from collections import Counter

import pytest

from ostinato.tasks.cogs import LEXICAL, STRUCTURAL, case_type
from ostinato.tasks.variable_free import variable_free

SIZES = {"train": 24155, "train_100": 39500, "dev": 3000, "test": 3000, "gen": 21000}


@pytest.mark.parametrize(
    ("logical", "expected"),
    [
        ("float . theme ( x _ 2 , x _ 1 ) AND cat ( x _ 1 )", "float ( theme = cat )"),
        (
            "* girl ( x _ 1 ) ; need . agent ( x _ 2 , x _ 1 ) AND need . xcomp ( x _ 2 , x _ 4 ) "
            "AND cook . agent ( x _ 4 , x _ 1 )",
            "need ( agent = * girl , xcomp = cook ( agent = * girl ) )",
        ),
        (
            "* dog ( x _ 1 ) ; * bag ( x _ 7 ) ; dog . nmod . in ( x _ 1 , x _ 4 ) AND bakery ( x _ 4 ) "
            "AND bakery . nmod . in ( x _ 4 , x _ 7 ) AND sneeze . agent ( x _ 8 , x _ 1 )",
            "sneeze ( agent = * dog ( nmod . in = bakery ( nmod . in = * bag ) ) )",
        ),
        ("smile . agent ( x _ 1 , Emma )", "smile ( agent = Emma )"),
    ],
)
def test_forms_are_converted_by_the_rules(logical, expected):
    assert variable_free(logical) == expected


@pytest.mark.parametrize(
    ("logical", "reason"),
    [
        ("cat ( x _ 1 ) AND dog ( x _ 1 )", "already is 'cat'"),
        ("cat ( x _ 1 ) AND dog ( x _ 2 )", "2 nodes that no edge points to"),
        ("see . agent ( x _ 1 , x _ 2 ) AND see . theme ( x _ 2 , x _ 1 )", "0 nodes that no edge points to"),
        ("run . agent ( x _ 1 , x _ 3 )", "no term says what it is"),
        (
            "go . agent ( x _ 1 , x _ 2 ) AND a . b ( x _ 2 , x _ 3 ) AND c . d ( x _ 3 , x _ 2 )",
            "hangs below itself",
        ),
        ("cat", "is no term"),
        ("cat ( x _ 1 , x _ 2 )", "does not fit its label"),
        ("LAMBDA a . touch . agent ( e , b )", "is no term"),
    ],
)
def test_forms_that_are_no_trees_are_refused(logical, reason):
    with pytest.raises(ValueError, match=reason):
        variable_free(logical)


@pytest.mark.sampled
@pytest.mark.parametrize("split", ["dev", "test", "gen", "train", "train_100"])
@pytest.mark.parametrize(("form", "folder"), [("logical", "cogs"), ("variable_free", "cogs_vf")])
def test_every_published_row_is_read_and_converted(open_published, oracle, split, form, folder):
    task = open_published("cogs", target_form=form)
    made = [(e.source, e.target, e.columns["category"]) for e in task.examples(split)]
    assert len(made) == SIZES[split]
    assert made == [(row["source"], row["target"], row["category"]) for row in oracle(f"{folder}/{split}")]


def test_gen_has_21_categories_of_1000_rows(open_published):
    columns = [example.columns for example in open_published("cogs").examples("gen")]
    assert Counter(column["category"] for column in columns) == dict.fromkeys(LEXICAL + STRUCTURAL, 1000)
    assert Counter(column["case_type"] for column in columns) == {"lexical": 18000, "structural": 3000}


def test_training_rows_say_what_they_are_for(open_published):
    types = Counter(example.columns["case_type"] for example in open_published("cogs").examples("train"))
    assert types == {"in_distribution": 24000, "primitive": 143, "exposure": 12}


@pytest.mark.slow
def test_train_100_can_stand_for_train(open_published):
    task = open_published("cogs", train_file="train_100")
    assert list(task.examples("train")) == list(task.examples("train_100"))


def test_case_types_cover_all_categories():
    assert {case_type(name) for name in LEXICAL} == {"lexical"}
    assert {case_type(name) for name in STRUCTURAL} == {"structural"}
    assert case_type("exposure_example_passive") == "exposure"
    assert len(LEXICAL) == 18
