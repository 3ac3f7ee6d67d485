"""Claims: their files, their outcomes, and the command."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import scipy
from claim_files import SLOWER, TIMING, claim_file, named, run, swept_claim

from ostinato.config.files import shipped_files
from ostinato.errors import ConfigError
from ostinato.evaluation.timing import Lap
from ostinato.experiments.claims import files as claims
from ostinato.experiments.claims.design import named_by, named_part, source_sweep
from ostinato.experiments.claims.document import document
from ostinato.experiments.claims.reproduce import _SAMPLING, Resources, reproduce
from ostinato.experiments.claims.staleness import state
from ostinato.experiments.claims.statistics import claim_verdict, find
from ostinato.experiments.inference import ALPHA, judge
from ostinato.experiments.timing.latency import Measurement, Timer


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


def test_a_variant_has_its_own_limits_or_none():
    claim = claims.load_claim("one-wide-ffn/sharing-order")
    assert claim.config.limits
    assert claims.variant(claim, "gpu").config.limits == ""
    own = claim.config.model_copy(update={"gpu": {**claim.config.gpu, "limits": "One hour."}})
    assert claims.variant(claims.Claim(own, claim.path), "gpu").config.limits == "One hour."


def test_the_command_of_a_variant_names_the_claim_and_the_variant():
    claim = claims.load_claim("depth/perplexity")
    inputs = "--input text=... --input held_out=... --input test=..."
    assert claims.command(claim) == f"ostinato reproduce depth/perplexity {inputs}"
    assert claims.command(claims.variant(claim, "gpu")).startswith(
        "ostinato reproduce depth/perplexity --variant gpu --input"
    )


def test_the_command_of_a_file_of_ones_own_names_the_file(tmp_path):
    path = claim_file(tmp_path)
    assert claims.command(claims.load_claim(path)) == f"ostinato reproduce {path}"


def test_a_file_with_the_name_of_a_claim_of_the_library_is_refused(tmp_path):
    shipped = shipped_files("claims")["one-wide-ffn/parameters"]
    assert claims.load_claim(shipped).name == "one-wide-ffn/parameters"
    copy = shutil.copy(shipped, tmp_path / "parameters.yaml")
    with pytest.raises(ConfigError, match=r"is a claim of the library, whose outcome .* would replace: give yours a"):
        claims.load_claim(copy)
    assert claims.load_claim(shutil.copy(shipped, tmp_path / "mine.yaml")).name == "one-wide-ffn/mine"


def test_what_the_outcomes_of_the_library_say_is_what_their_rows_say_today():
    for claim in claims.list_claims():
        outcome = claims.read_outcome(claim, [claims.claims_directory()])
        if outcome is None:
            continue
        rows = [row for row in outcome.rows if "control" not in row]
        numbers = find(claim.config.expect, rows, _SAMPLING[claim.config.source.kind])
        for number, said in zip(numbers, outcome.head["numbers"], strict=True):
            for key, value in number.as_dict().items():
                assert said[key] == pytest.approx(value), (claim.name, said["what"], key)
        is_void = not all(control["is_so"] for control in outcome.head["controls"])
        assert outcome.verdict == ("void" if is_void else claim_verdict(numbers))


def test_options_of_runs_are_refused_for_claims_that_train_none(tmp_path, capsys):
    assert run("reproduce", str(claim_file(tmp_path)), "--workers", "2", "--input", "a=b") == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert "--input --workers: universal-transformer/steps trains no runs (source: count)" in shown


def test_terms_of_counted_and_timed_claims_exist():
    for claim in claims.list_claims():
        source = claim.config.source
        if source.kind == "sweep":
            continue
        measures = ["parameters", "active", "macs"] if source.kind == "count" else [one.name for one in source.work]
        known = {f"{arm.name}/{measure}" for arm in source.arms for measure in measures}
        assert named(claim) <= known, claim.name


@pytest.mark.parametrize(
    ("statistic", "band", "why"),
    [
        ({"kind": "ratio", "of": "a/s", "over": "b/s"}, [0.0, None], "limits of a ratio must be positive"),
        ({"kind": "spread", "along": ["a/s", "b/s"]}, [0.5, None], "a spread is at least 0: name its highest value"),
        ({"kind": "spread", "along": ["a/s", "b/s"]}, [None, 0.0], "a spread is at least 0: name its highest value"),
        ({"kind": "best_at", "along": ["a/s", "b/s"], "at": [1.0, 2.0]}, [3.0, None], "must hold some of the places"),
        ({"kind": "best_at", "along": ["a/s", "b/s"], "at": [1.0, 2.0]}, [1.0, 2.0], "must hold some of the places"),
        ({"kind": "line", "along": ["a/s", "b/s", "c/s"], "at": [1, 2, 2]}, [1.0, None], "must be different numbers"),
    ],
)
def test_bands_that_no_number_could_be_judged_by_are_refused_before_anything_is_trained(tmp_path, statistic, band, why):
    expect = {"what": "it", "unit": "times", "statistic": statistic, "band": band}
    with pytest.raises(ConfigError, match=why):
        claims.load_claim(claim_file(tmp_path, expect=[expect]))


def test_a_control_may_ask_for_a_spread(tmp_path):
    spread = {"kind": "spread", "along": ["two/parameters", "four/parameters"]}
    control = {"what": "the arms differ", "unit": "parameters", "statistic": spread, "band": [0.1, None]}
    assert claims.load_claim(claim_file(tmp_path, controls=[control])).config.controls


@pytest.mark.parametrize("along", [["two/macs", "four/macs"], ["four/macs", "two/macs"]])
@pytest.mark.parametrize(("band", "verdict"), [([0.1, None], "supported"), ([None, 0.1], "void")])
def test_a_control_that_is_a_spread_does_not_depend_on_which_arm_is_named_first(tmp_path, along, band, verdict):
    control = {"what": "arms differ", "unit": "MACs", "statistic": {"kind": "spread", "along": along}, "band": band}
    outcome = reproduce(claims.load_claim(claim_file(tmp_path, controls=[control])), Resources(tmp_path / "store"))
    assert outcome.verdict == verdict
    assert outcome.head["controls"][0]["value"] > 0


def test_an_outcome_of_the_first_edition_does_not_count_and_is_replaced(tmp_path):
    claim = claims.load_claim("one-wide-ffn/parameters")
    path = claims.outcome_path(claim, tmp_path)
    path.parent.mkdir(parents=True)
    path.write_text('{"claim": "parameters", "holds": true, "expectations": []}\n', encoding="utf-8")
    assert claims.read_outcome(claim, [tmp_path]) is None
    shipped = claims.read_outcome(claim, [tmp_path, claims.claims_directory()])
    assert shipped is not None
    claims.write_outcome(claim, shipped, tmp_path)
    assert claims.read_outcome(claim, [tmp_path]) == shipped


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


@pytest.mark.slow
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
    assert head["versions"]["scipy"] == scipy.__version__


def test_a_claim_is_run_on_where_nobody_hears_its_lines(tmp_path, monkeypatch):
    def closed(line):
        raise BrokenPipeError

    def counted(claim, resources, earlier):
        resources.on_event("a line")
        return reproduce(claim, resources, earlier)

    monkeypatch.setattr("ostinato.cli.claims.print_stderr", closed)
    monkeypatch.setattr("ostinato.experiments.claims.reproduce.reproduce", counted)
    assert run("reproduce", str(claim_file(tmp_path)), "--outcomes", str(tmp_path / "o"), "--json") == 0


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


def test_rounds_of_a_timing_are_its_seeds(tmp_path, monkeypatch):
    def measure(self, models, works, effort, on_event):
        """Say what a clock might: the second model takes about three times as long, and rounds differ."""
        for work in works:
            for model, pace in zip(models, (1.0, 3.0), strict=True):
                laps = tuple(Lap(pace * (1 + 0.01 * pace * i)) for i in range(effort.rounds))
                yield Measurement(model.name, work, laps)

    monkeypatch.setattr(Timer, "measure", measure)
    claim = claims.load_claim(claim_file(tmp_path, source=TIMING, expect=[SLOWER]))
    outcome = reproduce(claim, Resources(tmp_path))
    assert [row["seed"] for row in outcome.rows] == [1, 2, 3, 4, 5, 6] * 2
    assert outcome.verdict == "supported", outcome.head


@pytest.mark.slow
def test_the_document_of_results_is_what_the_command_prints():
    path = Path(__file__).parents[3] / "docs/results/claims.md"
    assert path.read_text(encoding="utf-8") == document(), "ostinato claims --markdown > docs/results/claims.md"


def test_rounds_of_a_timing_are_enough_for_either_verdict_although_one_deviates():
    for claim in claims.list_claims():
        if claim.config.source.kind != "timing":
            continue
        rounds, n_numbers = claim.config.source.rounds, len(claim.config.expect)
        for expected in claim.config.expect:
            low, high = expected.band
            inside = (low + high) / 2 if low is not None and high is not None else low + 1 if high is None else high - 1
            outside = high + 1 if high is not None else low - 1
            for most, one in ((inside, outside), (outside, inside)):
                sample = [one, *(most + 1e-6 * i for i in range(rounds - 1))]
                judged = judge(sample, expected.band, "rounds")
                p = judged.p_supported if most == inside else judged.p_contradicted
                assert p * n_numbers <= ALPHA, (claim.name, expected.what)


def test_claims_of_trained_models_have_enough_seeds():
    for claim in claims.with_variants(claims.list_claims()):
        source, design = claim.config.source, claim.config.design
        if source.kind != "sweep":
            continue
        assert design is not None
        sweep = source_sweep(source, None)
        names = {arm for arm, _ in named_by([*claim.config.expect, *claim.config.controls])}
        n_seeds = min(len(sweep.seeds_of(arm)) for arm in sweep.arms if arm.name in names)
        n_runs = sum(len(sweep.seeds_of(arm)) for arm in sweep.arms if arm.name in names)
        n_trials = 0 if design.tuning is None else len(names) * len(design.tuning.values) * len(design.tuning.seeds)
        # Five where a run takes less than a quarter of an hour of one core, three elsewhere; minutes are of two cores.
        is_cheap = claim.variant is None and 2 * claim.config.minutes / (n_runs + n_trials) < 15
        assert n_seeds >= (5 if is_cheap else 3), claim.name
        tuning_seeds = [] if design.tuning is None else design.tuning.seeds
        chosen_on = {*design.pilot_seeds, *tuning_seeds}
        assert not chosen_on & {seed for arm in sweep.arms for seed in sweep.seeds_of(arm)}, claim.name
