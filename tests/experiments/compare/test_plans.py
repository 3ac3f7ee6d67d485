from __future__ import annotations

from dataclasses import replace

import pytest

from ostinato.budget import Assumptions, count_budget
from ostinato.errors import ConfigError
from ostinato.experiments.compare.plans import as_dicts, budget_matches, plan_recipes, shared_banks, short_names


def test_names_lose_the_folders_they_have_in_common() -> None:
    assert short_names(["a/b/c", "a/b/d"]) == ["c", "d"]
    assert short_names(["a/b/c", "a/d"]) == ["b/c", "d"]
    assert short_names(["a/b", "c"]) == ["a/b", "c"]
    assert short_names(["a/b", "a/b"]) == ["b", "b"]
    assert short_names(["one-wide-ffn/big/baseline"]) == ["one-wide-ffn/big/baseline"]


def test_recipes_are_counted_for_what_is_assumed_and_overrides_hold_for_all() -> None:
    names = ["one-wide-ffn/base/baseline", "one-wide-ffn/base/no-dec", "one-wide-ffn/base/baseline"]
    assumed = Assumptions(source_length=5, target_length=6, batch_size=3)
    planned = plan_recipes(names, ["model.d_model=256"], assumptions=assumed, source_vocab=100, target_vocab=100)
    assert [one.name for one in planned] == [*names[:2], f"{names[0]} (2)"]
    assert {one.model.d_model for one in planned} == {256}
    in_bfloat16 = replace(assumed, precision="bfloat16")  # as the recipes train
    assert planned[0].budget == count_budget(planned[0].model, in_bfloat16) == planned[2].budget
    matches = budget_matches(planned, 0.01)
    assert [match.is_within for match in matches["parameters"].values()] == [True, False, True]
    assert matches["bytes"][names[1]].difference < 0
    last = as_dicts(planned, 0.01)[2]["matches"]
    assert last["reference"] == names[0]
    assert last["macs"] == {"figure": planned[0].budget.macs.total, "difference": 0.0, "is_within": True}


def test_a_recipe_alone_is_matched_with_nothing() -> None:
    (alone,) = as_dicts(plan_recipes(["one-wide-ffn/decoder-only/baseline"]), 0.01)
    assert "matches" not in alone
    assert [step["round"] for step in alone["plans"]["decoder"]] == list(range(12))


def test_a_bank_that_two_stacks_use_is_named() -> None:
    (planned,) = plan_recipes(["one-wide-ffn/base/shared-enc-dec"])
    assert shared_banks(planned.model) == [("ffn", "both", ["encoder", "decoder"])]
    (planned,) = plan_recipes(["one-wide-ffn/base/shared-enc"])
    assert shared_banks(planned.model) == []


def test_a_vocabulary_that_is_not_known_is_asked_for() -> None:
    with pytest.raises(ConfigError, match=r"model\.target_vocab_size is None"):
        plan_recipes(["files/template"], ["data.tokenizer.kind=words"])
