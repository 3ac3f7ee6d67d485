"""What the arms of a claim may differ in, and the files of claims that are refused."""

from __future__ import annotations

import json

import pytest
from claim_files import ALIKE, DESIGN, DIFFERENCE, TINY, claim_file, swept_claim

from ostinato.config.claim import DesignConfig, TuningConfig
from ostinato.config.sweep import SweepConfig
from ostinato.errors import ConfigError, TrainingError
from ostinato.experiments.claims import files as claims
from ostinato.experiments.claims.design import check_alike, check_tuning, source_sweep
from ostinato.experiments.claims.reproduce import Resources, reproduce
from ostinato.experiments.claims.staleness import why_stale
from ostinato.experiments.sweep.executors import InProcess, JobResult
from ostinato.tasks.recipes import load_recipe

SMALL_TEMPLATE = [
    *("model.encoder.n_steps=1", "model.decoder.n_steps=1", "model.encoder.ffn.d_ff=16", "model.decoder.ffn.d_ff=16"),
    *("data.tokenizer.kind=characters", "data.target_tokenizer=null", "evaluation.metrics=[]", "evaluation.by=[]"),
]


@pytest.mark.slow
def test_of_a_sweep_only_the_arms_and_measures_that_a_claim_names_are_run(tmp_path):
    claim = swept_claim(tmp_path, "two/loss")
    lines = []
    outcome = reproduce(claim, Resources(tmp_path / "store", on_event=lines.append))
    assert [(row["arm"], row["seed"], list(row["values"])) for row in outcome.rows] == [
        ("two", 1, ["loss"]),
        ("two", 2, ["loss"]),
    ]
    assert outcome.head["began"] == min(row["began"] for row in outcome.rows)
    assert "2 runs: 0 in the outcome, 0 in the store, 2 to train" in lines[0]


@pytest.mark.slow
def test_what_an_earlier_outcome_has_is_not_trained_again(tmp_path):
    claim = swept_claim(tmp_path, "two/loss")
    first = reproduce(claim, Resources(tmp_path / "a"))
    lines: list[str] = []
    again = reproduce(claim, Resources(tmp_path / "b", on_event=lines.append), first)
    assert (again.rows, again.head["began"], lines) == (first.rows, first.head["began"], [])
    part = claims.Outcome(first.head, first.rows[:1])
    filled = reproduce(claim, Resources(tmp_path / "b", on_event=lines.append), part)
    assert "1 in the outcome, 0 in the store, 1 to train" in lines[0]
    assert [row["values"] for row in filled.rows] == [row["values"] for row in first.rows]
    assert filled.rows[0] == first.rows[0]
    # Trials are in no row, and began before every run.
    tuning = {"key": "training.optimizer.lr", "values": [1e-3, 1e-2], "measure": "dev loss", "seeds": [101]}
    tuned = swept_claim(tmp_path, "two/loss", design=DESIGN | {"tuning": tuning}, seeds=[1])
    first = reproduce(tuned, Resources(tmp_path / "a"))
    earlier = claims.Outcome(first.head | {"began": "2020-01-01T00:00:00+00:00"}, first.rows)
    again = reproduce(tuned, Resources(tmp_path / "b"), earlier)
    assert (again.rows, again.head["began"]) == (first.rows, earlier.head["began"])


def test_arms_that_differ_in_more_than_the_design_says_are_refused_before_any_training(tmp_path):
    expect = [DIFFERENCE | {"statistic": {"kind": "difference", "of": "two/loss", "minus": "three/loss"}}]
    claim = swept_claim(tmp_path, "", expect=expect, design={"differ_in": ["model.decoder"]})
    with pytest.raises(ConfigError, match=r"model\.encoder\.n_steps.*three has 3, two.*does not name it"):
        reproduce(claim, Resources(tmp_path / "store"))
    assert not list((tmp_path / "store").glob("*/checkpoints"))


def sweep_of(*arms: dict) -> SweepConfig:
    return SweepConfig.model_validate({"name": "s", "recipe": "digits/universal", "arms": list(arms)})


def test_an_untrained_arm_hides_no_difference_between_trained_ones():
    untrained = {"name": "untrained", "set": {"training.n_updates": 0}}
    short, long = ({"name": str(n), "set": {"training.n_updates": n}} for n in (20, 40))
    check_alike(sweep_of(untrained, short), DesignConfig(differ_in=["model.d_model"]))
    with pytest.raises(ConfigError, match=r"training\.n_updates.*40 has 40, 20 20"):
        check_alike(sweep_of(untrained, short, long), DesignConfig(differ_in=["model.d_model"]))


def test_arms_that_train_on_other_files_are_refused():
    arms = ({"name": name, "recipe": "lm/transformer", "set": {"data.train": name, "data.dev": "d"}} for name in "ab")
    with pytest.raises(ConfigError, match=r"data\.train.*b has 'b', a 'a'"):
        check_alike(sweep_of(*arms), DesignConfig(differ_in=["model"]))


def test_an_arm_from_scratch_is_not_compared_with_one_that_starts_from_a_run():
    trained, scratch = {"name": "trained", "set": {"training.init_from": "runs/before"}}, {"name": "scratch"}
    with pytest.raises(ConfigError, match=r"training\.init_from.*scratch has None, trained 'runs/before'"):
        check_alike(sweep_of(trained, scratch), DesignConfig(differ_in=["model"]))
    check_alike(sweep_of(trained, scratch), DesignConfig(differ_in=["model", "training.init_from"]))
    # What arms start from where it is another arm is compared among those.
    after = {"name": "after", "after": "trained"}
    check_alike(sweep_of(trained, after), DesignConfig(differ_in=["model"]))


@pytest.mark.slow
def test_every_arm_chooses_from_the_same_grid_on_the_tuning_seeds(tmp_path):
    tuning = {"key": "training.optimizer.lr", "values": [1e-6, 1e-2], "measure": "dev loss", "seeds": [101]}
    expect = [DIFFERENCE | {"statistic": {"kind": "difference", "of": "two/loss", "minus": "three/loss"}}]
    claim = swept_claim(tmp_path, "", expect=expect, design=DESIGN | {"tuning": tuning}, seeds=[1])
    lines = []
    outcome = reproduce(claim, Resources(tmp_path / "store", on_event=lines.append))
    assert lines == [
        "4 trials before the runs: 0 in the store, 4 to train, about 0 minutes on two cores",
        "2 runs: 0 in the outcome, 0 in the store, 2 to train, about 0 minutes on two cores",
    ]
    for arm, found in outcome.head["tuning"].items():
        assert found["chosen"] == min(tuning["values"], key=lambda lr: found["tried"][str(lr)]), arm
    chosen = {arm: found["chosen"] for arm, found in outcome.head["tuning"].items()}
    for row in outcome.rows:
        (run,) = (tmp_path / "store").glob(f"{row['key'][:16]}")
        assert load_recipe(run).training.optimizer.lr == chosen[row["arm"]]
    assert {row["seed"] for row in outcome.rows} == {1}
    # What earlier code chose by its trials makes an outcome stale, whatever trained the runs.
    trial = next(note for note in (tmp_path / "store").glob("*/versions.json") if load_recipe(note.parent).seed == 101)
    trial.write_text(json.dumps(json.loads(trial.read_text()) | {"source": "another"}))
    again = reproduce(claim, Resources(tmp_path / "store", on_event=lines.append))
    assert lines[3].startswith("1 in the store were trained by earlier code, so that the outcome will be stale")
    assert "earlier code" in why_stale(claim, again)


@pytest.mark.slow
def test_a_setting_with_which_an_arm_diverges_is_the_worst_and_an_error_where_there_is_no_other(tmp_path):
    tuning = {"key": "training.optimizer.lr", "values": [1e-2, 1e38], "measure": "dev loss", "seeds": [101]}
    claim = swept_claim(tmp_path, "two/loss", design=DESIGN | {"tuning": tuning}, seeds=[1])
    lines = []
    outcome = reproduce(claim, Resources(tmp_path / "store", on_event=lines.append))
    found = outcome.head["tuning"]["two"]
    assert (found["chosen"], found["tried"]["1e+38"]) == (1e-2, None)
    assert lines[1] == "two, 1e+38, seed 101: its loss is not finite, which counts as the worst"
    worse = swept_claim(tmp_path, "two/loss", design=DESIGN | {"tuning": tuning | {"values": [1e37, 1e38]}}, seeds=[1])
    with pytest.raises(TrainingError, match=r"^two: with no value of training\.optimizer\.lr all trials have a finite"):
        reproduce(worse, Resources(tmp_path / "store"))


@pytest.mark.slow
def test_a_trial_that_fails_otherwise_is_an_error(tmp_path):
    tuning = {"key": "training.optimizer.lr", "values": [1e-2, 1e-3], "measure": "dev loss", "seeds": [101]}
    claim = swept_claim(tmp_path, "two/loss", design=DESIGN | {"tuning": tuning}, seeds=[1])

    class OnFullDisk(InProcess):
        def collect(self, on_event, timeout=None):
            return JobResult(self._waiting.popleft(), "failed", "the disk is full")

    with pytest.raises(TrainingError, match="the disk is full"):
        reproduce(claim, Resources(tmp_path / "store", executor=OnFullDisk()))


@pytest.mark.parametrize("source", [{"seeds": [1]}, {}], ids=["the claim's", "the sweep's"])
@pytest.mark.parametrize("chosen", ["pilot_seeds", "tuning"])
def test_seeds_that_settings_were_chosen_on_are_refused_before_any_training(tmp_path, source, chosen):
    tuning = {"key": "training.optimizer.lr", "values": [1e-6, 1e-2], "measure": "dev loss", "seeds": [1, 7]}
    design = DESIGN | {chosen: [1, 7] if chosen == "pilot_seeds" else tuning}
    claim = swept_claim(tmp_path, "two/loss", design=design, **source)
    with pytest.raises(ConfigError, match=r"source\.seeds is \[1\]: settings were chosen on them"):
        reproduce(claim, Resources(tmp_path / "store"))
    assert not list((tmp_path / "store").glob("*/checkpoints"))


def test_a_setting_that_is_chosen_on_the_split_of_a_number_is_refused_before_any_training(tmp_path):
    tuning = {"key": "training.optimizer.lr", "values": [1e-6, 1e-2], "measure": "loss", "seeds": [101]}
    # Without a split a comparison is of the first that is scored.
    alike = [[ALIKE | split] for split in ({"split": "test"}, {})]
    for term, own in (("two/loss", {}), *(("two/alike", {"compared": compared}) for compared in alike)):
        claim = swept_claim(tmp_path, term, design=DESIGN | {"tuning": tuning}, seeds=[1], **own)
        with pytest.raises(ConfigError, match=r"tuning\.measure is 'loss': is of the split test, which the claim"):
            reproduce(claim, Resources(tmp_path / "store"))
    assert not list((tmp_path / "store").glob("*/checkpoints"))
    # A control's number is not tested.
    sweep, source = source_sweep(claim.config.source, {}), claim.config.source
    check_tuning(sweep, source, TuningConfig(**tuning | {"measure": "dev loss"}), claim.config.expect)
    check_tuning(sweep, source, TuningConfig(**tuning), [])


def test_no_claim_of_the_library_reports_the_split_it_is_tuned_on():
    for claim in claims.with_variants(claims.list_claims()):
        source, design = claim.config.source, claim.config.design
        if design is not None and design.tuning is not None:
            check_tuning(source_sweep(source, None), source, design.tuning, claim.config.expect)


@pytest.mark.slow
def test_what_arms_chose_on_other_files_is_chosen_anew(tmp_path, monkeypatch):
    tried = []

    def tuned(sweep, tuning, run):
        tried.append(sweep.name)
        return {arm.name: {"chosen": 1e-3, "tried": {"0.001": 1.0}} for arm in sweep.arms}

    monkeypatch.setattr("ostinato.experiments.claims.reproduce.tuned", tuned)
    for name in ("old", "new"):
        (tmp_path / f"{name}.jsonl").write_text(f'{{"source": "{name}", "target": "it"}}\n' * 8, encoding="utf-8")
    data = dict.fromkeys(("data.train", "data.dev", "data.test"), "input:pairs")
    arms = [arm | {"set": arm.get("set", {}) | data} for arm in TINY["arms"]]
    tiny = TINY | {"recipe": "files/template", "arms": arms, "overrides": [*TINY["overrides"][2:], *SMALL_TEMPLATE]}
    tuning = {"key": "training.optimizer.lr", "values": [1e-3, 1e-2], "measure": "dev loss", "seeds": [101]}
    expect = [DIFFERENCE | {"statistic": {"kind": "difference", "of": "two/loss", "minus": "three/loss"}}]
    design = DESIGN | {"tuning": tuning}
    claim = swept_claim(tmp_path, "", expect=expect, design=design, sweep=tiny, inputs={"pairs": "texts"}, seeds=[1])

    def outcome(name, earlier=None):
        resources = Resources(tmp_path / "store", inputs={"pairs": str(tmp_path / f"{name}.jsonl")})
        return reproduce(claim, resources, earlier)

    first = outcome("old")
    assert outcome("old", first).rows == first.rows
    assert len(tried) == 1
    outcome("new", first)
    assert len(tried) == 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"paper": "bert"}, "paper is 'bert'"),
        ({"expect": []}, "expect is"),
        ({"minute": 3}, "minute is 3"),
    ],
)
def test_a_file_that_is_no_claim_is_refused_by_key(tmp_path, changes, said):
    with pytest.raises(ConfigError, match=said):
        claims.load_claim(claim_file(tmp_path, **changes))


def test_a_band_that_holds_everything_or_nothing_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"expect\.0\.band.*limit on one side"):
        claims.load_claim(claim_file(tmp_path, band=(None, None)))
    with pytest.raises(ConfigError, match=r"expect\.0\.band.*must not be above"):
        claims.load_claim(claim_file(tmp_path, band=(2.0, 1.0)))


@pytest.mark.parametrize(("statistic", "none"), [("difference", 0.0), ("ratio", 1.0)])
def test_no_limit_of_a_band_is_no_effect(tmp_path, statistic, none):
    other = "over" if statistic == "ratio" else "minus"
    terms = {"kind": statistic, "of": "four/parameters", other: "two/parameters"}
    expect = [{"what": "it", "unit": "times", "statistic": terms, "band": [none, None]}]
    with pytest.raises(ConfigError, match=r"expect\.0\.band.*is no effect: name the smallest of interest"):
        claims.load_claim(claim_file(tmp_path, expect=expect))


@pytest.mark.parametrize(
    ("left_out", "said"), [("design", "must say what the arms differ in"), ("controls", "needs one")]
)
def test_trained_models_need_a_design_and_a_control(tmp_path, left_out, said):
    expect = [DIFFERENCE | {"statistic": {"kind": "difference", "of": "two/loss", "minus": "three/loss"}}]
    changes = {"expect": expect, "controls": expect, "design": DESIGN, "source": {"kind": "sweep", "sweep": TINY}}
    del changes[left_out]
    with pytest.raises(ConfigError, match=said):
        claims.load_claim(claim_file(tmp_path, **changes))


def test_an_unknown_name_gets_the_nearest_ones():
    with pytest.raises(ConfigError, match="did you mean depth/latency"):
        claims.load_claim("depth/latencies")
