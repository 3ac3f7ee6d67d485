from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ostinato.errors import ConfigError
from ostinato.metrics import make_metric
from ostinato.tasks.base import Task
from ostinato.tasks.funql import anonymise, clean_query, clean_question, normalise, spaced
from ostinato.tasks.overlap import measure_overlap

PUBLISHED = {
    "standard": ("standard", ("train", "test")),
    "nqg_length": ("nqg_length_1", ("train", "test")),
    "nqg_template": ("nqg_template_1", ("train", "test")),
    "nqg_tmcd": ("nqg_tmcd_1", ("train", "test")),
    **{
        name: (f"csl_{name}", ("train", "dev", "test")) for name in ("length", "template_1", "template_2", "template_3")
    },
    **{name: (f"csl_{name}", ("train", "dev", "test")) for name in ("tmcd_1", "tmcd_2", "tmcd_3")},
}


@pytest.fixture
def open_geoquery(open_published: Callable[..., Task]) -> Callable[..., Task]:
    """A function from a split and settings to a task that reads the published files."""

    def open_task(split: str, **settings: Any) -> Task:
        return open_published("geoquery", split=split, **settings)

    return open_task


@pytest.mark.parametrize(
    ("query", "normal"),
    [
        ("answer(city(loc_2(stateid(virginia))))", "answer(intersection(city,loc_2(stateid(virginia))))"),
        ("answer(count(state(all)))", "answer(count(state))"),
        ("answer(largest_one(population_1(city(all))))", "answer(largest_one(population_1,city))"),
        ("answer(most(state(next_to_2(state(all)))))", "answer(most(state,next_to_2,state))"),
        ("answer(exclude(river(all),traverse_2(stateid(texas))))", "answer(exclude(river,traverse_2(stateid(texas))))"),
        ("answer(cityid(austin,tx))", "answer(cityid(austin,tx))"),
        ("answer(higher_2(0))", "answer(higher_2(0))"),
    ],
)
def test_queries_are_normalised_by_the_rules(query: str, normal: str) -> None:
    assert normalise(query) == normal


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("answer(city(all)", "answer is not closed"),
        ("answer(city(all)))", "follows a complete query"),
        ("answer()", "expected a name before"),
        ("answer(largest_one(city))", "largest_one needs a relation"),
    ],
)
def test_what_is_no_query_is_refused(query: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        normalise(query)


def test_questions_and_queries_are_cleaned() -> None:
    assert clean_question("What 's the Capital of Texas ?") == "whats the capital of texas"
    assert clean_query("answer(capital(loc_2(cityid('austin' , 'tx'))))") == "answer(capital(loc_2(cityid(austin,tx))))"
    assert spaced("answer(intersection(city,m0))") == "answer ( intersection ( city , m0 ) )"


def test_places_become_markers_on_both_sides() -> None:
    question, query = anonymise("is austin texas bigger than seattle", "f(cityid(austin,tx),cityid(seattle,_))")
    assert (question, query) == ("is m0 bigger than m1", "f(m0,m1)")
    # Not named in the question, so it stays.
    assert anonymise("how big is it", "f(countryid(usa))") == ("how big is it", "f(countryid(usa))")


@pytest.mark.sampled
@pytest.mark.parametrize("split", sorted(PUBLISHED))
def test_every_published_row_of_every_split_is_made(open_geoquery, oracle, split: str) -> None:
    name, parts = PUBLISHED[split]
    task = open_geoquery(split, **({} if "dev" in parts else {"dev_fraction": 0}))
    assert task.splits() == parts
    for part in parts:
        rows = oracle(f"geoquery_funql/{name}_{part}")
        made = [(example.source, example.target, example.columns["id"]) for example in task.examples(part)]
        assert made == [(row["source"], row["target"], row["id"]) for row in rows]
        assert task.published_sizes()[part] == len(rows)


def test_dev_is_cut_from_train_where_there_is_none(open_geoquery) -> None:
    task = open_geoquery("standard")
    assert [sum(1 for _ in task.examples(part)) for part in task.splits()] == [540, 60, 280]
    whole = {e.columns["id"] for e in open_geoquery("standard", dev_fraction=0).examples("train")}
    cut = [{e.columns["id"] for e in task.examples(part)} for part in ("train", "dev")]
    assert cut[0] | cut[1] == whole
    assert not cut[0] & cut[1]
    with pytest.raises(ConfigError, match=r"task\.dev_fraction above 0"):
        open_geoquery("standard", dev_fraction=0).examples("dev")


def test_questions_differ_only_in_their_places_between_train_and_test(open_geoquery) -> None:
    # Anonymised questions repeat: the splits are made of questions with their places.
    assert 0 < measure_overlap(open_geoquery("standard"), "test").fraction < 0.6
    assert measure_overlap(open_geoquery("template_1"), "test").fraction == 0


def test_a_query_is_right_as_a_whole() -> None:
    metric = make_metric("exact_match")
    metric.update("answer ( state )", "answer ( state )")
    metric.update("answer ( intersection ( a , b ) )", "answer ( intersection ( b , a ) )")
    metric.update("answer (state)", "answer ( state )")
    assert metric.compute() == {"exact_match": pytest.approx(1 / 3)}
