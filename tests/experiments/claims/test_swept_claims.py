"""Claims whose numbers come from sweeps, analyses, comparisons and tables."""

from __future__ import annotations

import pytest
from claim_files import ALIKE, DIFFERENCE, TINY, swept_claim

from ostinato.config.claim import TuningConfig
from ostinato.config.measures import TableSelection
from ostinato.errors import ConfigError, DataError
from ostinato.experiments.claims.design import named_part, source_sweep, tuned, with_chosen
from ostinato.experiments.claims.reproduce import Resources, reproduce
from ostinato.experiments.claims.staleness import arm_fingerprints
from ostinato.experiments.sweep.files import fill_inputs, first_recipe, load_sweep
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


def test_changes_of_arms_are_added_to_what_the_arms_set_themselves(tmp_path):
    arms = [{"name": name, "set": {"model": {"encoder": {"n_steps": n}}}} for name, n in (("two", 2), ("three", 3))]
    claim = swept_claim(tmp_path, "two/loss", sweep=TINY | {"arms": arms}, overrides=["model={d_model: 24}"])
    source, both = claim.config.source, {("two", "loss"), ("three", "loss")}
    part, _ = named_part(source_sweep(source, {}), source, both, ["model.decoder={n_steps: 1}"])
    models = [first_recipe(part, arm).model for arm in part.arms]
    assert [(one.encoder.n_steps, one.decoder.n_steps, one.d_model) for one in models] == [(2, 1, 24), (3, 1, 24)]


def test_changes_win_over_a_setting_that_an_arm_has_dotted_and_nested(tmp_path):
    dotted = {"training.optimizer.lr": 1e-3, "training.n_updates": 50}
    nested = dotted | {"training": {"optimizer": {"lr": 3e-3}, "n_updates": 60}}
    arms = [{"name": "two", "set": dotted}, {"name": "three", "set": nested}]
    source = swept_claim(tmp_path, "two/loss", sweep=TINY | {"arms": arms}).config.source
    both = {("two", "loss"), ("three", "loss")}
    part, _ = named_part(source_sweep(source, {}), source, both, ["training.n_updates=0"])
    assert [first_recipe(part, arm).training.n_updates for arm in part.arms] == [0, 0]

    part, _ = named_part(source_sweep(source, {}), source, both)
    tuning = TuningConfig(key="training.optimizer.lr", values=[1e-4, 2e-4], measure="loss", seeds=[101])

    def train_none(trials):
        rates = [first_recipe(trials, arm).training.optimizer.lr for arm in trials.arms]
        return [{"arm": arm.name, "values": {"loss": rate}} for arm, rate in zip(trials.arms, rates, strict=True)]

    found = tuned(part, tuning, train_none)
    assert [one["tried"] for one in found.values()] == [{"0.0001": 1e-4, "0.0002": 2e-4}] * 2
    chosen = with_chosen(part, tuning, found)
    assert [first_recipe(chosen, arm).training.optimizer.lr for arm in chosen.arms] == [1e-4, 1e-4]


BY_LENGTH = {"name": "by", "kind": "result", "split": "test", "path": "by.length_bucket.*.loss"}


@pytest.mark.parametrize(
    ("term", "said"),
    [
        ("two/lsos", r"expect is 'two/lsos': is no measure of two; there are loss, dev loss, entropy, by\.\*, alike$"),
        ("three/entropy", "'three/entropy': is no measure of three; there are loss, dev loss"),
        ("two/by", r"'two/by': is no measure of two; there are .* by\.\*"),
        ("two/loss.3", r"'two/loss\.3': is no measure"),
        ("three/alike", "'three/alike': is no measure of three"),
    ],
)
def test_a_number_that_no_run_will_have_is_refused_before_any_training(tmp_path, term, said):
    sweep = TINY | {"measures": [*TINY["measures"], BY_LENGTH]}
    wrong = [DIFFERENCE | {"statistic": {"kind": "mean", "of": term}}]
    of_own_runs = [wrong[0] | {"overrides": ["training.n_updates=0"]}]
    for claim in (
        swept_claim(tmp_path, "", expect=wrong, sweep=sweep, compared=[ALIKE]),
        swept_claim(tmp_path, "two/loss", controls=wrong, sweep=sweep, compared=[ALIKE]),
        swept_claim(tmp_path, "two/loss", controls=of_own_runs, sweep=sweep, compared=[ALIKE]),
    ):
        with pytest.raises(ConfigError, match=said):
            reproduce(claim, Resources(tmp_path / "store"))
    assert not (tmp_path / "store").exists()


def test_a_number_of_a_measure_with_several_is_named_with_its_part(tmp_path):
    claim = swept_claim(tmp_path, "two/by.1-5", sweep=TINY | {"measures": [*TINY["measures"], BY_LENGTH]})
    part, _ = named_part(source_sweep(claim.config.source, {}), claim.config.source, {("two", "by.1-5")})
    assert [measure.name for measure in part.measures] == ["by"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"study": "similarty"}, r"source\.compared\.alike\.study is 'similarty': must be one of"),
        ({"study": "consistency"}, r"alike\.study is 'consistency': does not apply: no sub-layer of its model chooses"),
        ({"others": [], "over": "each"}, r"alike\.study is 'similarity': does not apply: "),
        ({"study": "attention"}, r"alike\.table is 'run': is no column; there are stack"),
        ({"split": "tset"}, r"alike\.split is 'tset': the task"),
    ],
)
def test_a_comparison_that_will_not_be_there_is_refused_before_any_training(tmp_path, changes, said):
    compared, own = [ALIKE | changes], {"overrides": ["training.n_updates=0"]}
    control = DIFFERENCE | own | {"statistic": {"kind": "mean", "of": "two/alike"}}
    for claim in (
        swept_claim(tmp_path, "two/alike", compared=compared),
        swept_claim(tmp_path, "two/loss", controls=[control], compared=compared),
    ):
        with pytest.raises(ConfigError, match=said):
            reproduce(claim, Resources(tmp_path / "store"))
    assert not (tmp_path / "store").exists()


def test_a_setting_is_not_chosen_by_a_measure_of_several_numbers(tmp_path):
    tuning = TuningConfig(key="training.optimizer.lr", values=[1e-4, 2e-4], measure="by", seeds=[101])
    with pytest.raises(ConfigError, match=r"design\.tuning\.measure is 'by': gives several values"):
        tuned(load_sweep(TINY | {"measures": [BY_LENGTH]}), tuning, lambda trials: pytest.fail("trains"))


def test_an_analysis_that_does_not_apply_says_why(tmp_path):
    source = {**TINY, "seeds": [1], "arms": TINY["arms"][:1], "measures": TINY["measures"][:1]}
    alone = ALIKE | {"others": [], "table": {"column": "CKA"}}
    claim = swept_claim(tmp_path, "two/alike", sweep=source, compared=[alone])
    with pytest.raises(DataError, match="similarity does not apply"):
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


def test_inputs_are_filled_in_in_the_overrides_of_a_sweep_and_refused_in_those_of_a_claim(tmp_path):
    file = tmp_path / "text, 1.jsonl"
    file.touch()
    overrides = ["data.train=input:text", "data={dev: ['input:text', x], test: null}", "model.d_model=", "seed=1"]
    filled = fill_inputs({"overrides": overrides, "arms": []}, {"text": str(file)})["overrides"]
    own = f'"{file}"'
    assert filled == [f"data.train={own}", f'data.dev=[{own}, "x"]', "data.test=null", "model.d_model=", "seed=1"]
    with pytest.raises(ConfigError, match=r"input\.text is None: needs a file: --input text=PATH"):
        load_sweep(TINY | {"overrides": ["data.train=input:text"]})
    with pytest.raises(
        ConfigError, match=r"source\.overrides is .*: input:NAME stands for a file in source\.sweep only"
    ):
        swept_claim(tmp_path, "two/loss", overrides=["data.train=input:text"])
    control = DIFFERENCE | {"statistic": {"kind": "mean", "of": "two/loss"}, "overrides": ["data.train=input:text"]}
    with pytest.raises(ConfigError, match=r"controls\.0\.overrides is .*: input:NAME stands for a file"):
        swept_claim(tmp_path, "two/loss", controls=[control])
    # A column may have that name.
    swept_claim(tmp_path, "two/loss", overrides=["data.train.columns={input: source, target: answer}"])


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
