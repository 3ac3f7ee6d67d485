from __future__ import annotations

from typing import Any

import pytest

from ostinato.config.files import parse_overrides
from ostinato.config.load import check_settings
from ostinato.config.measures import EvaluateMeasure, as_overrides
from ostinato.config.sweep import SweepConfig
from ostinato.errors import ConfigError


def check(**settings: Any) -> SweepConfig:
    return check_settings({"name": "x", "recipe": "r", "arms": [{"name": "a"}], **settings}, SweepConfig)


def problems(**settings: Any) -> list[str]:
    with pytest.raises(ConfigError) as error:
        check(**settings)
    return str(error.value).splitlines()


def test_settings_of_an_arm_are_dotted_or_nested_and_of_any_type() -> None:
    settings = {"a.b": 1e-05, "c": {"d": {"e": None}, "f": [1, "x"]}, "g": {}, "h": "${seed} and 'é'", "i": True}
    assert as_overrides(settings) == [
        *("a.b=1e-05", "c.d.e=null", 'c.f=[1, "x"]', "g={}", "h=\"${seed} and 'é'\"", "i=true")
    ]


def test_names_of_the_users_own_keep_the_dots_that_are_in_them() -> None:
    mixture = {"column": "set", "weights": {"wiki.en": 2, "books.en": 1}}
    settings = {"data": {"mixture": mixture, "test": {"wmt.14": "t.jsonl"}, "train": "a"}, "data.test": {"gen": "g"}}
    found = as_overrides(settings)
    assert found == [
        'data.mixture.column="set"',
        'data.mixture.weights={"wiki.en": 2, "books.en": 1}',
        *('data.test={"wmt.14": "t.jsonl"}', 'data.train="a"', 'data.test.gen="g"'),
    ]
    names = {"mixture": mixture, "test": {"wmt.14": "t.jsonl", "gen": "g"}, "train": "a"}
    assert parse_overrides(found) == {"data": names}
    assert as_overrides({"data.mixture": {"weights": {"a.b": 1}}}) == ['data.mixture.weights={"a.b": 1}']


def test_everything_wrong_in_the_types_of_a_sweep_is_reported_at_once_also_inside_of_lists() -> None:
    found = problems(
        arms=[{"name": "a", "sed": 3}, {"nam": "b"}],
        seeds=["x"],
        measures=[
            {"name": "m", "kind": "resul", "path": "p"},
            {"name": "k"},
            {"name": "z", "kind": "budget", "figure": 1},
        ],
    )
    assert [line.partition(": ")[0] for line in found] == [
        "arms.0.sed is 3",
        "arms.1.name is None",
        "arms.1.nam is 'b'",
        "seeds is ['x']",
        "measures.0.kind is 'resul'",
        "measures.1.kind is None",
        "measures.2.figure is 1",
    ]
    assert found[0].endswith("did you mean seeds? (docs/sweeps.md)")
    assert found[4].endswith("must be one of result, budget, evaluate, analysis; did you mean result?")


def test_everything_impossible_in_a_sweep_is_reported_at_once() -> None:
    found = problems(
        recipe=None,
        seeds=[1, 2, 2],
        arms=[
            {"name": "a", "recipe": "r"},
            {"name": "a"},
            {"name": "b", "recipe": "r", "after": "b", "seeds": []},
            {"name": "c", "recipe": "r", "after": "a", "seeds": [3], "set": {"training": {"init_from": "runs/x"}}},
        ],
        measures=[{"name": "m", "kind": "evaluate", "path": "p", "set": {"model.d_model": 4}}],
    )
    assert [line.partition(": ")[0] for line in found] == [
        "arms is 'a'",
        "seeds is 2",
        "arms.1.recipe is None",
        "arms.2.seeds is []",
        "arms.2.after is 'b'",
        "arms.3.after is 'a'",
        "arms.3.after is 'a'",
        "measures.0.set.model.d_model is '4'",
    ]
    assert found[5].endswith("cannot go with training.init_from, which it sets")
    assert found[6].endswith("has no run of seed 3 to start from")


@pytest.mark.parametrize(
    ("given", "key", "value"),
    [
        ({"data.tokenizer.min_count": 2}, "data.tokenizer.min_count", "2"),
        ({"data": {"target_tokenizer": {"kind": "words"}}}, "data.target_tokenizer.kind", '"words"'),
    ],
)
def test_a_measure_that_would_change_the_tokenizers_of_a_run_is_refused(
    given: dict[str, Any], key: str, value: str
) -> None:
    measure = {"name": "m", "kind": "evaluate", "path": "loss", "set": given | {"data.tokens_per_batch": 9}}
    reason = "a run keeps the tokenizers that it was trained with: leave it out"
    assert problems(measures=[measure]) == [f"measures.0.set.{key} is {value!r}: {reason}"]


def test_arms_cannot_start_from_each_other() -> None:
    arms = [{"name": "a", "after": "c"}, {"name": "b", "after": "a"}, {"name": "c", "after": "b"}]
    assert problems(arms=arms)[0] == "arms.0.after is 'c': is a circle: a after c after b after a"


def test_a_run_starts_from_the_same_seed_or_from_the_only_one_of_the_other_arm() -> None:
    sweep = check(seeds=[1, 2], arms=[{"name": "a"}, {"name": "one", "seeds": [7]}, {"name": "b", "after": "a"}])
    assert sweep.start_seed(sweep.arm("b"), 2) == 2
    assert sweep.start_seed(sweep.arm("b").model_copy(update={"after": "one"}), 2) == 7


def test_times_are_told_from_what_is_the_same_every_time() -> None:
    paths = ["training_seconds", "seconds", "decoding_seconds", "by.seconds.exact_match", "tokens_per_second", "loss"]
    sweep = check(measures=[{"name": path, "kind": "result", "path": path} for path in paths])
    assert [measure.is_timing for measure in sweep.measures] == [True, True, True, False, True, False]
    columns = ["ms an example", "parameters", "items"]
    analyses = [{"name": c, "kind": "analysis", "study": "budget", "table": {"column": c}} for c in columns]
    assert [measure.is_timing for measure in check(measures=analyses).measures] == [True, False, False]


def test_evaluations_that_differ_in_name_and_path_only_have_the_same_settings() -> None:
    one = EvaluateMeasure(name="a", kind="evaluate", path="exact_match", n_steps=3)
    other = EvaluateMeasure(name="b", kind="evaluate", path="loss", n_steps=3)
    assert one.settings() == other.settings() != other.model_copy(update={"n_steps": 4}).settings()


@pytest.mark.parametrize("name", [".", ".."])
def test_the_name_of_a_sweep_names_a_folder(name: str) -> None:
    assert problems(name=name) == [f"name is {name!r}: is no name of a folder"]
