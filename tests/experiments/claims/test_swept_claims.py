"""Claims whose numbers come from sweeps, analyses, comparisons and tables."""

from __future__ import annotations

import pytest
from claim_files import ALIKE, DIFFERENCE, TINY, swept_claim

from ostinato.config.files import fill_inputs
from ostinato.config.measures import TableSelection
from ostinato.errors import ConfigError, DataError
from ostinato.experiments.claims.design import named_part, source_sweep
from ostinato.experiments.claims.reproduce import Resources, reproduce
from ostinato.experiments.claims.staleness import arm_fingerprints
from ostinato.experiments.sweep.files import first_recipe
from ostinato.experiments.sweep.measures import select
from ostinato.tasks.recipes import load_recipe
from ostinato.training import train


@pytest.mark.slow
def test_a_sweep_is_run_and_measured_by_seed_by_analysis_and_by_comparison(tmp_path):
    both = [{"what": "entropy", "unit": "nats", "statistic": {"kind": "mean", "of": "two/entropy"}, "band": [0, None]}]
    claim = swept_claim(tmp_path, "two/alike", both, compared=[ALIKE])
    outcome = reproduce(claim, Resources(tmp_path / "store"))
    assert [(row["arm"], row["seed"], sorted(row["values"])) for row in outcome.rows] == [
        ("two", 1, ["alike", "entropy"]),
        ("two", 2, ["entropy"]),
        ("three", 1, []),
    ]
    assert 0 <= outcome.rows[0]["values"]["alike"] <= 1
    assert outcome.rows[0]["values"]["entropy"] > 0
    again = reproduce(claim, Resources(tmp_path / "store"))
    assert [row["values"] for row in again.rows] == [row["values"] for row in outcome.rows]


@pytest.mark.slow
def test_a_comparison_of_each_seed_gives_every_row_its_own_number(tmp_path):
    entropy = {"column": "entropy, nats", "where": {"stack": "encoder"}, "take": "first"}
    one = ALIKE | {
        "name": "again",
        "study": "attention",
        "others": [],
        "over": "each",
        "max_examples": 8,
        "table": entropy,
    }
    both = [{"what": "entropy", "unit": "nats", "statistic": {"kind": "mean", "of": "two/entropy"}, "band": [0, None]}]
    outcome = reproduce(swept_claim(tmp_path, "two/again", both, compared=[one]), Resources(tmp_path / "store"))
    assert len(outcome.rows) == 2
    for row in outcome.rows:
        assert row["values"]["again"] == pytest.approx(row["values"]["entropy"])


@pytest.mark.slow
def test_runs_are_taken_by_whichever_part_of_a_claim_they_are_of(tmp_path):
    expect = [DIFFERENCE | {"statistic": {"kind": "mean", "of": "two/loss"}}]
    untrained = [expect[0] | {"what": "untrained", "overrides": ["training.n_updates=0"]}]
    claim, first = swept_claim(tmp_path, "", expect=expect, controls=untrained, seeds=[1]), tmp_path / "first"
    before = reproduce(claim, Resources(first))
    runs = [first / row["key"][:16] for row in before.rows]
    assert len(runs) == 2
    train(load_recipe("digits/universal", [*TINY["overrides"], "seed=9"]), tmp_path / "other")
    lines = []
    after = reproduce(claim, Resources(tmp_path / "store", take=[*runs, tmp_path / "other"], on_event=lines.append))
    assert [row["values"] for row in after.rows] == [row["values"] for row in before.rows]
    assert lines.count("taken: two, seed 1") == 2
    # What is taken is there before it is said what will be trained.
    assert [line.rpartition(": ")[2] for line in lines if " to train" in line] == [
        "0 in the outcome, 1 in the store, 0 to train, about 0 minutes on two cores",
        "0 in the outcome, 1 in the store, 0 to train",
    ]
    # Each is looked for among the runs of the claim, and among those of its control.
    not_taken = [line for line in lines if line.startswith("not taken here: ")]
    assert len(not_taken) == 4
    assert sum("seed is 9 there" in line for line in not_taken) == 2


def test_a_claims_own_seeds_and_changes_come_last(tmp_path):
    claim = swept_claim(tmp_path, "two/loss", seeds=[5], overrides=["model.encoder.n_steps=1"])
    source = claim.config.source
    sweep, _ = named_part(source_sweep(source, {}), source, {("two", "loss")}, ["training.n_updates=0"])
    (arm,) = sweep.arms
    assert sweep.seeds_of(arm) == [5]
    assert arm.overrides()[-2:] == ["model.encoder.n_steps=1", "training.n_updates=0"]


def test_a_claims_changes_make_no_untrained_arm_a_trained_one(tmp_path):
    arms = [*TINY["arms"], {"name": "untrained", "set": {"training": {"n_updates": 0}}}]
    expect = [DIFFERENCE | {"statistic": {"kind": "difference", "of": "two/loss", "minus": "untrained/loss"}}]
    source = {"sweep": TINY | {"arms": arms}, "overrides": ["training.n_updates=2"]}
    claim = swept_claim(tmp_path, "", expect=expect, **source)
    said = r"source\.overrides is 'training\.n_updates=2': two sets nothing there itself, untrained \{'training"
    with pytest.raises(ConfigError, match=said):
        reproduce(claim, Resources(tmp_path / "store"))
    with pytest.raises(ConfigError, match=said):
        arm_fingerprints(claim)
    # An arm that no number names changes nothing; a control's own runs are what it says they are.
    untrained = ["training.n_updates=0"]
    named_part(source_sweep(claim.config.source, {}), claim.config.source, {("two", "loss")}, untrained)
    other = swept_claim(tmp_path, "", expect=expect, sweep=TINY | {"arms": arms}).config.source
    part, _ = named_part(source_sweep(other, {}), other, {("two", "loss"), ("untrained", "loss")}, untrained)
    assert {first_recipe(part, arm).training.n_updates for arm in part.arms} == {0}


def test_an_analysis_that_does_not_apply_says_why(tmp_path):
    source = {**TINY, "seeds": [1], "arms": TINY["arms"][:1], "measures": TINY["measures"][:1]}
    experts = ALIKE | {"name": "IC", "study": "consistency", "others": [], "table": {"column": "IC"}}
    claim = swept_claim(tmp_path, "two/IC", sweep=source, compared=[experts])
    with pytest.raises(DataError, match="consistency does not apply"):
        reproduce(claim, Resources(tmp_path / "store"))


@pytest.mark.parametrize(
    ("selection", "said"),
    [
        ({"column": "CKA"}, "no column 'CKA'; there are router, IC"),
        ({"where": {"router": "c"}, "column": "IC"}, "of router c: no such row"),
        ({"where": {"router": "b"}, "column": "IC"}, r"of router b: \[None\]"),
    ],
)
def test_a_number_that_a_table_lacks_is_named(selection, said):
    table = (("router", "IC"), [["a", 0.5], ["b", None]])
    with pytest.raises(DataError, match=said):
        select(table, TableSelection.model_validate(selection), "it")


def test_numbers_of_a_table_are_taken_as_asked():
    table = (("step", "x"), [[0, 3.0], [1, 1.0], [2, 5.0]])
    found = {
        take: select(table, TableSelection(column="x", take=take), "it") for take in ("mean", "first", "last", "min")
    }
    assert found == {"mean": 3.0, "first": 3.0, "last": 5.0, "min": 1.0}


def test_inputs_are_asked_for_checked_and_filled_in(tmp_path):
    file = tmp_path / "text.jsonl"
    settings = {"arms": [{"set": {"data.train": "input:text", "other": ["input:text", 3]}}]}
    with pytest.raises(ConfigError, match=r"input\.text is None: needs a file: --input text=PATH"):
        fill_inputs(settings, {})
    with pytest.raises(ConfigError, match="there is no such file"):
        fill_inputs(settings, {"text": str(file)})
    file.touch()
    with pytest.raises(ConfigError, match=r"no such input: it has text"):
        fill_inputs(settings, {"text": str(file), "labels": str(file)})
    assert fill_inputs(settings, {"text": str(file)})["arms"][0]["set"] == {
        "data.train": str(file),
        "other": [str(file), 3],
    }
