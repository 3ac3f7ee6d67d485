"""When the outcome of a claim no longer says what its code, recipes and bands do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml
from claim_files import ARMS, SLOWER, TIMING, claim_file, run, swept_claim

import ostinato
from ostinato import version
from ostinato.experiments.claims import files as claims
from ostinato.experiments.claims.reproduce import Resources, reproduce
from ostinato.experiments.claims.staleness import scores_said, state, why_stale, with_scores


def test_no_claim_of_the_library_has_changed_since_its_outcome():
    for claim in claims.list_claims():
        outcome = claims.read_outcome(claim, [claims.claims_directory()])
        assert outcome is None or outcome.head["registered"] == claim.registered, claim.name


@pytest.mark.slow
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


@pytest.mark.slow
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


def test_scores_of_a_variant_are_recorded_where_it_has_an_outcome(tmp_path, capsys, monkeypatch):
    swept_claim(tmp_path, "two/loss", seeds=[1])
    content = yaml.safe_load((tmp_path / "steps.yaml").read_text()) | {"gpu": {"source.seeds": [2]}}
    (tmp_path / "steps.yaml").write_text(yaml.safe_dump(content))
    claim = claims.load_claim(tmp_path / "steps.yaml")
    larger = claims.variant(claim, "gpu")
    outcome = reproduce(larger, Resources(tmp_path / "store"))
    del outcome.head["scores"]
    claims.write_outcome(larger, outcome, tmp_path / "outcomes")
    monkeypatch.setattr(claims, "list_claims", lambda: [claim])
    assert run("claims", "--record-scores", "--outcomes", str(tmp_path / "outcomes")) == 0
    assert "steps-gpu.jsonl" in capsys.readouterr().out
    assert run("claims", "--json", "--outcomes", str(tmp_path / "outcomes")) == 0
    found = {one["claim"].rpartition("/")[2]: one["outcome"] for one in json.loads(capsys.readouterr().out)}
    assert found == {"steps": "not run", "steps-gpu": "inconclusive"}
    # One that was not run is not listed.
    (tmp_path / "outcomes/universal-transformer/steps-gpu.jsonl").unlink()
    assert run("claims", "--json", "--outcomes", str(tmp_path / "outcomes")) == 0
    assert len(json.loads(capsys.readouterr().out)) == 1


@pytest.mark.slow
def test_an_outcome_of_runs_that_earlier_code_trained_is_stale_which_is_said_before_and_after(tmp_path, capsys):
    claim = swept_claim(tmp_path, "two/loss", seeds=[1])
    store = tmp_path / "store"
    assert state(claim, reproduce(claim, Resources(store))) == "inconclusive"
    (note, *_) = sorted(store.glob("*/versions.json"))
    note.write_text(json.dumps(json.loads(note.read_text()) | {"source": "another"}))
    lines = []
    outcome = reproduce(claim, Resources(store, on_event=lines.append))
    why = "some of its runs were trained by earlier code (another --store has them trained anew)"
    assert why_stale(claim, outcome) == why
    assert lines[1].startswith(
        "1 in the store were trained by earlier code, so that the outcome will be stale (another"
    )
    assert run("reproduce", str(claim.path), "--store", str(store), "--outcomes", str(tmp_path / "outcomes")) == 1
    assert f"inconclusive\nstale, {why}" in capsys.readouterr().out
