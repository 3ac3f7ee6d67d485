"""Claims: their files, their outcomes, and the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from ostinato.cli.app import main
from ostinato.errors import ConfigError
from ostinato.experiments import claims
from ostinato.experiments.reproduce import Means, reproduce
from ostinato.experiments.statistics import terms_of

ARMS = [
    {"name": "two", "recipe": "algorithmic/copy-universal"},
    {"name": "four", "recipe": "algorithmic/copy-universal", "overrides": ["model.encoder.n_steps=8"]},
]


def claim_file(folder: Path, band=(1.0, 1.0), **changes) -> Path:
    expect = {"what": "parameters", "statistic": {"kind": "ratio", "of": "four/parameters", "over": "two/parameters"}}
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


@pytest.mark.parametrize("claim", [c for c in claims.list_claims() if c.config.gpu], ids=lambda claim: claim.name)
def test_every_gpu_variant_can_be_read(claim):
    assert claims.variant(claim, "gpu").address != claim.address


def test_terms_of_counted_and_timed_claims_exist():
    for claim in claims.list_claims():
        source = claim.config.source
        if source.kind == "sweep":
            continue
        measures = ["parameters", "active", "macs"] if source.kind == "count" else [one.name for one in source.work]
        known = {f"{arm.name}/{measure}" for arm in source.arms for measure in measures}
        assert {term for e in claim.config.expect for term in terms_of(e.statistic)} <= known, claim.name


def test_a_claim_that_holds_is_counted_and_its_outcome_kept(tmp_path):
    claim = claims.load_claim(claim_file(tmp_path))
    outcome = reproduce(claim, Means(tmp_path / "store"))
    assert outcome.head["holds"]
    assert outcome.head["expectations"][0]["value"] == 1
    claims.write_outcome(claim, outcome, tmp_path / "outcomes")
    again = claims.read_outcome(claim, [tmp_path / "empty", tmp_path / "outcomes"])
    assert again is not None
    assert again.rows == outcome.rows
    assert again.verdict(claim) == "holds"
    assert [row["arm"] for row in again.rows] == ["two", "four"]


def test_an_outcome_is_stale_once_the_band_has_changed_but_not_once_it_is_reworded(tmp_path):
    claim = claims.load_claim(claim_file(tmp_path))
    outcome = reproduce(claim, Means(tmp_path / "store"))
    assert outcome.verdict(claims.load_claim(claim_file(tmp_path, statement="Depth is free."))) == "holds"
    assert outcome.verdict(claims.load_claim(claim_file(tmp_path, band=(0.5, 1.5)))) == "stale"


def test_the_command_exits_with_1_outside_the_band_and_says_so(tmp_path, capsys):
    path = claim_file(tmp_path, band=(2.0, 3.0))
    outcomes = str(tmp_path / "outcomes")
    assert run("reproduce", str(path), "--outcomes", outcomes) == 1
    shown = capsys.readouterr().out
    assert "2 to 3" in shown
    assert "fails" in shown
    head = json.loads((tmp_path / "outcomes/universal-transformer/steps.jsonl").read_text().splitlines()[0])
    assert head["holds"] is False
    assert head["date"]
    assert head["versions"]["torch"]


def test_the_command_exits_with_0_inside_the_band(tmp_path, capsys):
    assert run("reproduce", str(claim_file(tmp_path)), "--outcomes", str(tmp_path / "o"), "--json") == 0
    assert json.loads(capsys.readouterr().out)["holds"] is True


def test_claims_are_listed_with_what_came_of_them(tmp_path, capsys):
    assert run("claims", "--json", "--outcomes", str(tmp_path)) == 0
    listed = json.loads(capsys.readouterr().out)
    assert len(listed) == len(claims.list_claims())
    assert {one["outcome"] for one in listed} <= {"holds", "fails", "not run"}


def test_no_outcome_of_the_library_is_stale():
    for claim in claims.list_claims():
        outcome = claims.read_outcome(claim, [claims.claims_directory()])
        assert outcome is None or outcome.verdict(claim) != "stale", claim.name


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


def test_an_unknown_name_gets_the_nearest_ones():
    with pytest.raises(ConfigError, match="did you mean depth/latency"):
        claims.load_claim("depth/latencies")


def test_inputs_are_asked_for_checked_and_filled_in(tmp_path):
    arms = [{**ARMS[0], "overrides": ["data.train=x"]}, {"name": "own", "recipe": "input:recipe"}]
    path = claim_file(tmp_path, inputs={"recipe": "a recipe"}, source={"kind": "count", "arms": arms})
    claim = claims.load_claim(path)
    with pytest.raises(ConfigError, match=r"input\.recipe is None: needs a file: a recipe"):
        claims.with_inputs(claim, {})
    with pytest.raises(ConfigError, match=r"input.other is .*it has recipe"):
        claims.with_inputs(claim, {"recipe": str(path), "other": "x"})
    with pytest.raises(ConfigError, match="there is no such file"):
        claims.with_inputs(claim, {"recipe": str(tmp_path / "none.yaml")})
    filled = claims.with_inputs(claim, {"recipe": str(path)})
    assert filled["arms"][1]["recipe"] == str(path.resolve())
    assert filled["arms"][0]["overrides"] == ["data.train=x"]


def test_rounds_of_a_timing_are_its_seeds(tmp_path):
    arms = [
        {"name": n, "recipe": "demo/universal", "overrides": [f"model.decoder.n_steps={k}"]}
        for n, k in (("a", 1), ("b", 6))
    ]
    work = [{"name": "pass", "kind": "forward", "batch_size": 1, "source_length": 4, "target_length": 4}]
    source = {
        "kind": "timing",
        "vocabulary": 16,
        "rounds": 6,
        "n_threads": 1,
        "device": "cpu",
        "arms": arms,
        "work": work,
    }
    expect = [{"what": "slower", "statistic": {"kind": "ratio", "of": "b/pass", "over": "a/pass"}, "band": [1.2, None]}]
    claim = claims.load_claim(claim_file(tmp_path, source=source, expect=expect))
    outcome = reproduce(claim, Means(tmp_path))
    assert [row["seed"] for row in outcome.rows] == [1, 2, 3, 4, 5, 6] * 2
    assert outcome.head["holds"], outcome.head
