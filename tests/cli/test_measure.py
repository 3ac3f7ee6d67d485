from __future__ import annotations

import json
from pathlib import Path

import pytest

TINY = [
    "model.d_model=16",
    "--source-vocab",
    "20",
    "--target-vocab",
    "20",
    "--source-length",
    "3",
    "--target-length",
    "4",
]
TIMED = ["--measure", "--rounds", "2", "--threads", "1", "--device", "cpu"]


@pytest.mark.slow
def test_a_plan_is_measured_recipe_beside_recipe(run) -> None:
    outcome = run(
        "plan", "digits/transformer", "digits/universal", *TINY, *TIMED, "--batch-sizes", "2", "--beams", "1,3"
    )
    assert outcome.code == 0
    rows = [" ".join(line.split()) for line in outcome.out.splitlines()]
    assert "measured transformer universal" in rows
    kinds = ["decoding, batch 2, beam 1", "decoding, batch 2, beam 3", "forward, batch 2", "update, batch 2"]
    shown = [row.split(": ms ")[0] for row in rows if ": ms " in row]
    assert shown == kinds
    assert [line.split(":")[0] for line in outcome.err.splitlines()] == kinds
    assert sum(row.startswith("times as fast as the first ") for row in rows) == 4
    assert rows[-1].startswith("3 source and 4 target tokens a sentence; ")


@pytest.mark.slow
def test_measurements_are_in_the_json_with_their_environment(run) -> None:
    outcome = run("plan", "digits/transformer", "digits/transformer", *TINY, *TIMED, "--beams", "2", "--json")
    first, second = json.loads(outcome.out)
    for plan in (first, second):
        assert plan["measured"]["environment"]["threads"] == 1
        assert [row["workload"]["kind"] for row in plan["measured"]["workloads"]] == ["decoding", "forward", "update"]
        assert [row["n"] for row in plan["measured"]["workloads"]] == [2, 2, 2]
        assert plan["measured"]["workloads"][0]["workload"]["beam"] == 2
        assert plan["measured"]["workloads"][0]["parameters"] == plan["parameters"]["stored"]
    assert second["measured"]["workloads"][0]["speed"]["baseline"] == "digits/transformer"
    assert "measured" not in json.loads(run("plan", "digits/transformer", "--json").out)[0]


def test_decoding_is_not_timed_where_a_recipe_writes_no_text(run) -> None:
    sizes = ["masked/small", "model.d_model=16", "--source-vocab", "20", "--target-vocab", "20", "--target-length", "4"]
    outcome = run("plan", *sizes, *TIMED, "--json")
    assert outcome.code == 0, outcome.err
    assert "decoding is not timed: masked/small writes no text" in outcome.err
    (planned,) = json.loads(outcome.out)
    assert [row["workload"]["kind"] for row in planned["measured"]["workloads"]] == ["forward", "update"]
    refused = run("plan", *sizes, *TIMED, "--beams", "2")
    assert refused.code == 2
    assert "is for decoding, and masked/small writes no text" in " ".join(refused.err.split())


def test_texts_are_timed_without_a_source_up_to_their_learned_positions(run) -> None:
    sizes = ["--target-vocab", "400", "--target-length", "32"]
    kept = "model.decoder={n_steps: 1, segments: [{repeats: 3}]}", "decoding.cached_rounds=2"
    timed = ["--measure", "--rounds", "1", "--threads", "1", "--json"]
    looped = json.loads(run("plan", "lm/transformer", *sizes, *kept, "model.d_model=16", *timed).out)[0]
    caches = {row["workload"]["kind"]: row["workload"]["cached_rounds"] for row in looped["measured"]["workloads"]}
    assert caches == {"decoding": 2, "forward": None, "update": None}
    outcome = run("plan", "dense/gpt2-toy", *sizes, *timed)
    assert outcome.code == 0, outcome.err
    (planned,) = json.loads(outcome.out)
    assert {row["workload"]["source_length"] for row in planned["measured"]["workloads"]} == {0}


def test_a_vocabulary_by_one_option_is_that_of_masked_models_too(run) -> None:
    outcome = run("plan", "masked/small", "lm/transformer", "--target-vocab", "4000", "--json")
    masked, language_model = json.loads(outcome.out)
    assert masked["vocabulary"]["target"] == 4001  # a row more, for the mask
    assert language_model["vocabulary"]["target"] == 4000


def test_lists_that_are_none_are_refused(run) -> None:
    outcome = run("plan", "digits/transformer", "--measure", "--batch-sizes", "1,x")
    assert outcome.code == 2
    assert "'1,x' is no list of positive numbers such as 1,64" in " ".join(outcome.err.split())
    assert run("plan", "digits/transformer", "--measure", "--beams", "0").code == 2


def test_options_of_timing_without_timing_are_wrong_use(run) -> None:
    found = run("plan", "scan/transformer", "--rounds", "3", "--batch-sizes", "1,2")
    assert found.code == 2
    assert "add --measure" in found.err


def test_what_was_measured_is_kept_as_rows_that_a_table_shows(run, tmp_path: Path) -> None:
    lines = tmp_path / "speed.jsonl"
    assert run("plan", "digits/transformer", *TINY, *TIMED, "--beams", "1", "--jsonl", lines).code == 0
    rows = [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()]
    assert [row["workload"]["kind"] for row in rows] == ["decoding", "forward", "update"]
    assert all(row["environment"]["torch"] for row in rows)
    assert "| digits/transformer |" in run("table", lines, "--markdown").out
