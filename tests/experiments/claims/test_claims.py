"""Claims: their files, their outcomes, and the command."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

import ostinato
from ostinato import version
from ostinato.cli.app import main
from ostinato.config.claim import DesignConfig
from ostinato.config.files import fill_inputs, shipped_files
from ostinato.config.measures import TableSelection
from ostinato.config.sweep import SweepConfig
from ostinato.errors import ConfigError, DataError
from ostinato.experiments.claims import files as claims
from ostinato.experiments.claims.design import check_alike, first_recipe, named_by, named_part, source_sweep
from ostinato.experiments.claims.document import document
from ostinato.experiments.claims.reproduce import Resources, reproduce
from ostinato.experiments.claims.staleness import arm_fingerprints, scores_said, state, why_stale, with_scores
from ostinato.experiments.sweep.measures import select
from ostinato.tasks.recipes import load_recipe

ARMS = [
    {"name": "two", "recipe": "algorithmic/copy-universal"},
    {"name": "four", "recipe": "algorithmic/copy-universal", "overrides": ["model.encoder.n_steps=8"]},
]


def claim_file(folder: Path, band=(0.99, 1.01), **changes) -> Path:
    expect = {
        "what": "parameters",
        "unit": "times",
        "statistic": {"kind": "ratio", "of": "four/parameters", "over": "two/parameters"},
    }
    content = {
        "paper": "universal-transformer",
        "where": "section 2",
        "statement": "More steps cost no parameters.",
        "source": {"kind": "count", "vocabulary": 32, "arms": ARMS},
        "minutes": 0.1,
        "expect": [expect | {"band": list(band)}],
    }
    path = folder / "steps.yaml"
    path.write_text(yaml.safe_dump(content | changes))
    return path


def named(claim: claims.Claim) -> set[str]:
    """Return every `arm/measure` that a claim's numbers and controls are computed from."""
    return {f"{arm}/{measure}" for arm, measure in named_by([*claim.config.expect, *claim.config.controls])}


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main([*arguments])
    return int(end.value.code or 0)


def test_every_claim_of_the_library_can_be_read():
    found = claims.list_claims()
    assert len(found) == len({claim.name for claim in found}) >= 35
    assert {claim.config.paper for claim in found} == {
        "universal-transformer", "sparse-universal-transformer", "one-wide-ffn", "x-moe", "depth",
    }  # fmt: skip


@pytest.mark.parametrize("name", shipped_files("claims"))
def test_every_gpu_variant_can_be_read(name):
    claim = claims.load_claim(name)
    if claim.config.gpu is None:
        with pytest.raises(ConfigError, match="has none"):
            claims.variant(claim, "gpu")
        return
    assert claims.variant(claim, "gpu").registered != claim.registered


def test_the_command_of_a_variant_names_the_claim_and_the_variant():
    claim = claims.load_claim("depth/perplexity")
    inputs = "--input text=... --input held_out=... --input test=..."
    assert claims.command(claim) == f"ostinato reproduce depth/perplexity {inputs}"
    assert claims.command(claims.variant(claim, "gpu")).startswith(
        "ostinato reproduce depth/perplexity --variant gpu --input"
    )


def test_terms_of_counted_and_timed_claims_exist():
    for claim in claims.list_claims():
        source = claim.config.source
        if source.kind == "sweep":
            continue
        measures = ["parameters", "active", "macs"] if source.kind == "count" else [one.name for one in source.work]
        known = {f"{arm.name}/{measure}" for arm in source.arms for measure in measures}
        assert named(claim) <= known, claim.name


def test_a_claim_that_holds_is_counted_and_its_outcome_kept(tmp_path):
    claim = claims.load_claim(claim_file(tmp_path))
    outcome = reproduce(claim, Resources(tmp_path / "store"))
    assert outcome.verdict == "supported"
    assert outcome.head["numbers"][0]["value"] == 1
    claims.write_outcome(claim, outcome, tmp_path / "outcomes")
    again = claims.read_outcome(claim, [tmp_path / "empty", tmp_path / "outcomes"])
    assert again is not None
    assert again.rows == outcome.rows
    assert state(claim, again) == "supported"
    assert [row["arm"] for row in again.rows] == ["two", "four"]


@pytest.mark.parametrize(("band", "verdict"), [((0.9, 1.1), "supported"), ((1.5, None), "void")])
def test_a_claim_whose_control_is_not_as_it_must_be_is_void(tmp_path, band, verdict):
    control = {
        "what": "steps cost MACs",
        "unit": "times",
        "statistic": {"kind": "ratio", "of": "four/macs", "over": "two/macs"},
    }
    claim = claims.load_claim(claim_file(tmp_path, controls=[control | {"band": [1.1, None]}]))
    (found,) = reproduce(claim, Resources(tmp_path / "store")).head["controls"]
    assert found["value"] > 1.1
    same = control | {"statistic": {"kind": "ratio", "of": "four/parameters", "over": "two/parameters"}}
    claim = claims.load_claim(claim_file(tmp_path, controls=[same | {"band": list(band)}]))
    assert reproduce(claim, Resources(tmp_path / "store")).verdict == verdict


def test_a_control_may_have_runs_of_its_own(tmp_path):
    statistic = {"kind": "mean", "of": "two/loss"}
    untrained = ["training.n_updates=0"]
    control = {"what": "untrained", "unit": "nats", "statistic": statistic, "band": [0, None], "overrides": untrained}
    claim = swept_claim(tmp_path, "two/loss", controls=[control])
    head = reproduce(claim, Resources(tmp_path / "store")).head
    assert head["controls"][0]["value"] > head["numbers"][0]["value"]


def test_the_command_exits_with_1_outside_the_band_and_says_so(tmp_path, capsys):
    path = claim_file(tmp_path, band=(2.0, 3.0))
    outcomes = str(tmp_path / "outcomes")
    assert run("reproduce", str(path), "--outcomes", outcomes) == 1
    shown = capsys.readouterr().out
    assert "2 to 3" in shown
    assert "contradicted" in shown
    head = json.loads((tmp_path / "outcomes/universal-transformer/steps.jsonl").read_text().splitlines()[0])
    assert head["verdict"] == "contradicted"
    assert head["date"]
    assert head["versions"]["torch"]


def test_the_command_exits_with_0_inside_the_band(tmp_path, capsys):
    assert run("reproduce", str(claim_file(tmp_path)), "--outcomes", str(tmp_path / "o"), "--json") == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "supported"


@pytest.mark.slow
def test_claims_are_listed_with_what_came_of_them(tmp_path, capsys):
    # Of one paper: the document's test looks at all of them.
    assert run("claims", "--json", "--paper", "one-wide-ffn", "--outcomes", str(tmp_path)) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {one["claim"] for one in listed} == {name for name in shipped_files("claims") if name.startswith("one-wide")}
    assert {one["outcome"] for one in listed} <= set(claims.STATES)
    for one in listed:
        assert (one["why_stale"] is not None) == (one["outcome"] == "stale")
        if one["outcome"] not in ("not run", "stale"):
            said = {number["verdict"] for number in one["numbers"]}
            is_so = all(control["is_so"] for control in one["controls"])
            assert (one["verdict"] == "supported") == (said == {"supported"} and is_so)
            assert one["made_with"].startswith("0.")
    claim = claims.load_claim("one-wide-ffn/parameters")
    outcome = claims.read_outcome(claim, [claims.claims_directory()])
    assert outcome is not None
    old = {"verdict": "contradicted", "versions": {"ostinato": "0.0.9", "commit": "0123456789abcdef-dirty"}}
    head = {key: value for key, value in outcome.head.items() if key != "registered"} | old
    claims.write_outcome(claim, claims.Outcome(head, outcome.rows), tmp_path)
    assert run("claims", "--paper", "one-wide-ffn", "--outcomes", str(tmp_path)) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "stale (contradicted)" in shown
    assert "0.0.9, 0123456-dirty" in shown
    assert "stale, the claim has changed since: one-wide-ffn/parameters" in shown


def test_no_claim_of_the_library_has_changed_since_its_outcome():
    for claim in claims.list_claims():
        outcome = claims.read_outcome(claim, [claims.claims_directory()])
        assert outcome is None or outcome.head["registered"] == claim.registered, claim.name


def test_a_timing_is_stale_once_the_source_of_what_it_timed_has_changed(tmp_path, monkeypatch):
    claim = claims.load_claim(claim_file(tmp_path, source=TIMING, expect=[SLOWER]))
    outcome = reproduce(claim, Resources(tmp_path / "store"))
    assert why_stale(claim, outcome) is None
    for part, why in (("budget", None), ("kernels", "what it times has changed since")):
        with monkeypatch.context() as patch:
            copy = tmp_path / part
            shutil.copytree(Path(ostinato.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
            (copy / part / "more.py").write_text("")
            patch.setattr(version, "PACKAGE", copy)
            assert why_stale(claim, outcome) == why


def test_a_count_is_stale_once_its_models_count_otherwise(tmp_path):
    claim = claims.load_claim(claim_file(tmp_path))
    outcome = reproduce(claim, Resources(tmp_path / "store"))
    assert state(claim, outcome) == "supported"
    outcome.rows[0]["values"]["macs"] += 1
    assert why_stale(claim, outcome) == "its models count otherwise now"


def test_an_outcome_is_stale_once_a_recipe_it_measures_has_changed_but_not_its_description(tmp_path):
    recipe = tmp_path / "own.yaml"
    recipe.write_text("base: algorithmic/copy-universal\n")
    arms = [{"name": "two", "recipe": str(recipe)}, ARMS[1]]
    source = {"kind": "count", "vocabulary": 32, "arms": arms}
    claim = claims.load_claim(claim_file(tmp_path, source=source))
    outcome = reproduce(claim, Resources(tmp_path / "store"))
    assert state(claim, outcome) == "supported"
    recipe.write_text("base: algorithmic/copy-universal\ndescription: another\n")
    assert state(claim, outcome) == "supported"
    recipe.write_text("base: algorithmic/copy-universal\nmodel:\n  d_model: 32\n")
    assert why_stale(claim, outcome) == "the settings of its arms have changed since"


def test_rewording_a_claim_changes_nothing_and_a_band_makes_its_outcome_stale(tmp_path):
    claim = claims.load_claim(claim_file(tmp_path))
    outcome = reproduce(claim, Resources(tmp_path / "store"))
    assert why_stale(claims.load_claim(claim_file(tmp_path, statement="Other words.", minutes=3)), outcome) is None
    wider = claims.load_claim(claim_file(tmp_path, band=(0.9, 1.1)))
    assert why_stale(wider, outcome) == "the claim has changed since"


def test_an_outcome_is_stale_once_an_arm_computes_otherwise_and_not_by_changed_source_alone(tmp_path, monkeypatch):
    claim = swept_claim(tmp_path, "two/loss", seeds=[1])
    outcome = reproduce(claim, Resources(tmp_path / "store"))
    outcome.head["versions"]["source"] = "another"
    assert why_stale(claim, outcome) is None
    numbers = outcome.head["fingerprints"]["two"]
    numbers[0] *= 1.001
    assert why_stale(claim, outcome) is None  # rounding
    numbers[0] *= 1.01
    assert why_stale(claim, outcome) == "two compute otherwise now"


def test_scores_that_an_outcome_lacks_may_be_recorded_later_and_are_compared_then(tmp_path):
    claim = swept_claim(tmp_path, "two/loss", seeds=[1])
    outcome = reproduce(claim, Resources(tmp_path / "store"))
    assert scores_said(claim, outcome) == "recorded with its runs"
    assert with_scores(claim, outcome) is outcome
    old = claims.Outcome({key: value for key, value in outcome.head.items() if key != "scores"}, outcome.rows)
    assert (why_stale(claim, old), scores_said(claim, old)) == (None, "not recorded")
    later = with_scores(claim, old)
    assert later.head["scores"] == outcome.head["scores"]
    assert later.head["scores_recorded"]["commit"] == later.head["versions"]["commit"]
    assert scores_said(claim, later).startswith("recorded later (")
    # Running it again keeps what it was run with, and adds what it lacks.
    again = reproduce(claim, Resources(tmp_path / "store"), old)
    assert (again.head["fingerprints"], again.head["scores"]) == (old.head["fingerprints"], later.head["scores"])
    assert again.head["scores_recorded"] == later.head["scores_recorded"]
    later.head["versions"] = later.head["versions"] | {"source": "another"}
    assert why_stale(claim, later) is None
    later.head["scores"]["two"]["loss"] *= 1.01
    assert why_stale(claim, later) == "two (loss) score otherwise now"
    # Where the losses have moved, today's scores are not those of the runs.
    old.head["fingerprints"]["two"][0] *= 1.01
    old.head["versions"] = old.head["versions"] | {"source": "another"}
    assert with_scores(claim, old) is old


def test_the_command_records_scores_in_outcomes_that_lack_them(tmp_path, capsys, monkeypatch):
    claim = swept_claim(tmp_path, "two/loss", seeds=[1])
    outcome = reproduce(claim, Resources(tmp_path / "store"))
    del outcome.head["scores"]
    claims.write_outcome(claim, outcome, tmp_path / "outcomes")
    monkeypatch.setattr(claims, "list_claims", lambda: [claim])
    assert run("claims", "--record-scores", "--outcomes", str(tmp_path / "outcomes")) == 0
    assert "steps.jsonl" in capsys.readouterr().out
    written = claims.read_outcome(claim, [tmp_path / "outcomes"])
    assert scores_said(claim, written).startswith("recorded later (")
    assert run("claims", "--record-scores", "--outcomes", str(tmp_path / "outcomes")) == 0
    assert capsys.readouterr().out == ""


def test_an_outcome_of_runs_that_earlier_code_trained_is_stale(tmp_path):
    claim = swept_claim(tmp_path, "two/loss", seeds=[1])
    store = tmp_path / "store"
    assert state(claim, reproduce(claim, Resources(store))) == "inconclusive"
    (note, *_) = sorted(store.glob("*/versions.json"))
    note.write_text(json.dumps(json.loads(note.read_text()) | {"source": "another"}))
    outcome = reproduce(claim, Resources(store))
    assert why_stale(claim, outcome) == "some of its runs were trained by earlier code"


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


def test_every_arm_chooses_from_the_same_grid_on_the_tuning_seeds(tmp_path):
    tuning = {"key": "training.optimizer.lr", "values": [1e-6, 1e-2], "measure": "loss", "seeds": [101]}
    expect = [DIFFERENCE | {"statistic": {"kind": "difference", "of": "two/loss", "minus": "three/loss"}}]
    claim = swept_claim(tmp_path, "", expect=expect, design=DESIGN | {"tuning": tuning}, seeds=[1])
    outcome = reproduce(claim, Resources(tmp_path / "store"))
    for arm, found in outcome.head["tuning"].items():
        assert found["chosen"] == min(tuning["values"], key=lambda lr: found["tried"][str(lr)]), arm
    chosen = {arm: found["chosen"] for arm, found in outcome.head["tuning"].items()}
    for row in outcome.rows:
        (run,) = (tmp_path / "store").glob(f"{row['key'][:16]}")
        assert load_recipe(run).training.optimizer.lr == chosen[row["arm"]]
    assert {row["seed"] for row in outcome.rows} == {1}
    with pytest.raises(ConfigError, match=r"source\.seeds is \[1\]: settings were chosen on them"):
        swept_claim(tmp_path, "two/loss", design=DESIGN | {"pilot_seeds": [1, 7]}, seeds=[1])


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


TINY = {
    "name": "tiny",
    "recipe": "digits/universal",
    "overrides": [
        "task.n_train=60", "task.n_eval=24", "training.n_updates=4", "training.evaluate_every=4", "model.d_model=16",
        "training.save_every=4", "evaluation.splits=[test]", "training.selection.max_examples=8",
    ],
    "seeds": [1, 2],
    "arms": [{"name": "two"}, {"name": "three", "seeds": [1], "set": {"model.encoder.n_steps": 3}}],
    "measures": [
        {"name": "loss", "kind": "result", "split": "test", "path": "loss"},
        {
            "name": "entropy",
            "kind": "analysis",
            "study": "attention",
            "max_examples": 8,
            "table": {"where": {"stack": "encoder"}, "column": "entropy, nats", "take": "first"},
            "arms": ["two"],
        },
    ],
}  # fmt: skip
ALIKE = {
    "name": "alike",
    "study": "similarity",
    "arm": "two",
    "others": ["three"],
    "over": "all",
    "max_examples": 24,
    "table": {"where": {"run": "three", "stack": "encoder"}, "column": "CKA"},
}


DESIGN = {"differ_in": ["model.encoder.n_steps"]}
DIFFERENCE = {"what": "it", "unit": "nats a label", "band": [-9.0, 9.0]}


def swept_claim(folder: Path, term: str, controls=None, expect=None, design=None, **source) -> claims.Claim:
    mean = {"what": "it", "unit": "nats a label", "statistic": {"kind": "mean", "of": term}, "band": [0.0, None]}
    swept = {"kind": "sweep", "sweep": TINY} | source
    expect = expect or [mean]
    controls = controls or [one | {"what": "as it is"} for one in expect]
    changes = {"expect": expect, "controls": controls, "design": design or DESIGN}
    return claims.load_claim(claim_file(folder, source=swept, **changes))


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


@pytest.mark.slow
def test_terms_and_inputs_of_swept_claims_exist():
    swept = [claim for claim in claims.list_claims() if claim.config.source.kind == "sweep"]
    sweeps = {}
    for claim in swept:
        source = claim.config.source
        if source.sweep not in sweeps:  # reading all of its arms' recipes takes a while
            inputs = dict.fromkeys(claim.config.inputs, __file__)
            sweeps[source.sweep] = source_sweep(source, inputs)
            source_sweep(claims.variant(claim, "gpu").config.source, inputs)
        for config in (claim.config, claims.variant(claim, "gpu").config):
            named_part(sweeps[source.sweep], config.source, named_by([*config.expect, *config.controls]))
        sweep = sweeps[source.sweep]
        known = {f"{arm.name}/{measure.name}" for arm in sweep.arms for measure in sweep.measures_of(arm.name)}
        known |= {f"{one.arm}/{one.name}" for one in source.compared}
        # A measure may have parts, NAME.PART.
        lacking = [term for term in named(claim) if term not in known and term.rpartition(".")[0] not in known]
        assert lacking == [], claim.name
        assert claim.config.gpu is not None


TIMING = {
    "kind": "timing",
    "vocabulary": 16,
    "rounds": 6,
    "n_threads": 1,
    "device": "cpu",
    "arms": [
        {"name": name, "recipe": "digits/universal", "overrides": [f"model.decoder.n_steps={n_steps}"]}
        for name, n_steps in (("a", 1), ("b", 24))
    ],
    "work": [{"name": "pass", "kind": "forward", "batch_size": 1, "source_length": 4, "target_length": 4}],
}
SLOWER = {
    "what": "slower",
    "unit": "times",
    "statistic": {"kind": "ratio", "of": "b/pass", "over": "a/pass"},
    "band": [1.2, None],
}


def test_rounds_of_a_timing_are_its_seeds(tmp_path):
    claim = claims.load_claim(claim_file(tmp_path, source=TIMING, expect=[SLOWER]))
    outcome = reproduce(claim, Resources(tmp_path))
    assert [row["seed"] for row in outcome.rows] == [1, 2, 3, 4, 5, 6] * 2
    assert outcome.verdict == "supported", outcome.head


@pytest.mark.slow
def test_the_document_of_results_is_what_the_command_prints():
    path = Path(__file__).parents[3] / "docs/results/claims.md"
    assert path.read_text(encoding="utf-8") == document(), "ostinato claims --markdown > docs/results/claims.md"


def test_claims_of_trained_models_have_enough_seeds():
    for claim in claims.list_claims():
        source, design = claim.config.source, claim.config.design
        if source.kind != "sweep":
            continue
        assert design is not None
        sweep = source_sweep(source, None)
        names = {arm for arm, _ in named_by([*claim.config.expect, *claim.config.controls])}
        n_seeds = min(len(sweep.seeds_of(arm)) for arm in sweep.arms if arm.name in names)
        n_runs = sum(len(sweep.seeds_of(arm)) for arm in sweep.arms if arm.name in names)
        # Five where an arm's run takes less than a quarter of an hour, three elsewhere.
        assert n_seeds >= (5 if claim.config.minutes / n_runs < 15 else 3), claim.name
        tuning_seeds = [] if design.tuning is None else design.tuning.seeds
        chosen_on = {*design.pilot_seeds, *tuning_seeds}
        assert not chosen_on & {seed for arm in sweep.arms for seed in sweep.seeds_of(arm)}, claim.name
