"""What the document says of claims whose verdicts are known, and where a forest plot draws their numbers."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from ostinato.config.claim import ExpectationConfig
from ostinato.experiments.claims import forest
from ostinato.experiments.claims.document import conclusion, document
from ostinato.experiments.claims.files import Outcome, claims_directory, load_claim, read_outcome
from ostinato.experiments.claims.forest import agreeing, draw_forest, drawn, scaled
from ostinato.experiments.claims.reproduce import Resources, reproduce

COUNTED = "one-wide-ffn/parameters"
RATIO = {"kind": "ratio", "of": "a/x", "over": "b/x"}
DIFFERENCE = {"kind": "difference", "of": "a/x", "minus": "b/x"}
SPREAD = {"kind": "spread", "along": ["a/x", "b/x"]}


def expectation(statistic: dict, band: tuple) -> ExpectationConfig:
    return ExpectationConfig.model_validate({"what": "it", "unit": "points", "statistic": statistic, "band": band})


@pytest.mark.parametrize(
    ("statistic", "band", "value", "place", "agrees"),
    [
        (DIFFERENCE, (0.02, None), 0.06, 3.0, True),
        (DIFFERENCE, (0.02, None), 0.01, 0.5, False),
        (DIFFERENCE, (0.02, None), -0.02, -1.0, False),
        (DIFFERENCE, (None, -0.02), -0.06, 3.0, True),  # a fall: more of it is further right
        (DIFFERENCE, (None, -0.02), 0.02, -1.0, False),
        (DIFFERENCE, (None, 0.02), 0.01, 0.5, True),  # no loss above 0.02
        (DIFFERENCE, (None, 0.02), 0.04, 2.0, False),
        (DIFFERENCE, (-0.02, None), -0.04, 2.0, False),
        (DIFFERENCE, (-0.02, 0.02), 0.0, 0.0, True),
        (DIFFERENCE, (-0.02, 0.02), 0.04, 2.0, False),
        (SPREAD, (None, 0.02), 0.01, 0.5, True),
        (SPREAD, (None, 0.02), -0.01, -0.5, True),  # the end of an interval of a difference
        (SPREAD, (None, 0.02), 0.04, 2.0, False),
        (SPREAD, (None, 0.02), -0.04, -2.0, False),
        (SPREAD, (0.0, 0.02), -0.01, -0.5, True),
        (SPREAD, (0.0, 0.02), 0.04, 2.0, False),
        (RATIO, (2.0, None), 4.0, 2.0, True),
        (RATIO, (None, 0.5), 0.25, 2.0, True),
        (RATIO, (0.5, 2.0), 1.0, 0.0, True),
    ],
)
def test_a_number_stands_in_the_shaded_part_where_it_agrees(statistic, band, value, place, agrees):
    it = expectation(statistic, band)
    assert scaled(value, it) == pytest.approx(place)
    left, right = agreeing(it)
    assert (left <= scaled(value, it) <= right) is agrees
    # The limit itself is where the shade ends.
    assert math.isclose(min(abs(scaled(limit, it) - end) for limit in band if limit for end in (left, right)), 0)


def found(verdict: str) -> Outcome:
    claim = load_claim(COUNTED)
    numbers = [
        {"what": one.what, "band": list(one.band), "value": 3.0, "low": 2.0, "high": 4.0, "by_seed": {"1": 3.0},
         "verdict": verdict, "seeds_needed": 12}
        for one in claim.config.expect
    ]  # fmt: skip
    return Outcome({"registered": claim.registered, "verdict": verdict, "numbers": numbers}, [])


@pytest.mark.slow
def test_the_same_numbers_give_the_same_plot_and_none_without_an_interval(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(forest, "state", lambda claim, outcome: outcome.verdict)
    claim = load_claim(COUNTED)
    first = draw_forest([(claim, found("supported"))], tmp_path / "claims-x.svg")
    assert first is not None
    text = first.read_text()
    assert claim.config.name in text or text.startswith("<?xml")
    assert draw_forest([(claim, found("supported"))], first).read_text() == text
    assert draw_forest([(claim, None)], tmp_path / "none.svg") is None
    older = found("supported")
    older.head["registered"] = "of another band"
    assert draw_forest([(claim, older)], tmp_path / "none.svg") is None
    assert [path.name for path in tmp_path.iterdir()] == ["claims-x.svg"]


@pytest.mark.parametrize(("said", "counts"), [("supported", True), ("void", False), ("stale", False)])
def test_numbers_that_do_not_count_any_more_are_hollow(tmp_path, monkeypatch, said, counts):
    pytest.importorskip("matplotlib")
    pair = load_claim(COUNTED), found("supported")
    monkeypatch.setattr(forest, "state", lambda claim, outcome: said)
    assert {one.counts for one in drawn([pair])} == {counts}
    text = draw_forest([pair], tmp_path / "claims-x.svg").read_text()
    assert (forest._HOLLOW in text) is not counts


def test_the_conclusion_is_written_from_the_verdicts():
    claim = load_claim(COUNTED)
    other = replace(claim, config=claim.config.model_copy(update={"name": "other", "minutes": 90.0}))
    text = conclusion([(claim, found("supported")), (other, None)], ["supported", "not run"])
    assert "2 claims are registered, 1 of them run. Of 1 other we know nothing yet; they would take 1.5 hours" in text
    statement = " ".join(claim.config.statement.split())
    assert (
        f"\n- **supported**: [parameters](#one-wide-ffnparameters). The paper ({claim.config.where}): {statement}"
        in text
    )
    assert "We counted: 42 numbers, which are in the table." in text
    assert "other]" not in text
    pairs = [(claim, found("inconclusive")), (other, found("void"))]
    text = conclusion(pairs, ["inconclusive", "void"])
    assert text.index("**inconclusive**: [parameters]") < text.index("**void**: [other]")
    stale = conclusion(pairs[:1], ["stale"])
    assert "**stale**" in stale
    assert "We " not in stale


def ran(name: str, *others: str) -> str:
    """Return what is said of a claim with the outcome that comes with the library, beside claims that are not run."""
    claim = load_claim(name)
    outcome = read_outcome(claim, [claims_directory()])
    assert outcome is not None
    pairs = [(claim, outcome), *((load_claim(other), None) for other in others)]
    return conclusion(pairs, [outcome.verdict, *(["not run"] * len(others))])


def test_the_numbers_of_a_paper_are_its_own_and_ours_say_what_was_trained():
    text = ran("sparse-universal-transformer/act-loss")
    papers, _, ours = text.partition(" We trained ")
    assert "The paper (section 2.5 and table 2 (without the ACT loss)): A price" in papers
    assert "BLEU 29.0 against 29.2)." in papers
    assert "BLEU" not in ours
    assert ours.startswith("(task relay, 0.023 to 0.024 M parameters, 300 updates, 8 seeds): rounds a token runs, ")
    assert "with it: 1.819 [1.341, 2.298] (rounds of 8; band: at least 0.8); accuracy" in ours
    assert "grid" not in ours


def test_a_verdict_of_a_number_is_said_where_the_claim_has_another():
    text = ran("one-wide-ffn/attention-sharing")
    assert "1.013 [0.9942, 1.032] (ratio of losses in nats a token; band: at least 1.085); " in text
    assert "0.9957 [0.9774, 1.014] (ratio of losses in nats a token; band: 0.975 to 1.025; inconclusive)." in text


def test_large_counts_are_read_by_the_million():
    text = ran("sparse-universal-transformer/macs-against-dense")
    assert "(1998 M): 1926 M (multiply-accumulates; band: 1898 M to 2098 M)" in text
    assert "e+" not in text


def test_arms_that_chose_an_end_of_their_grid_are_named_with_the_claim_of_a_wider_one():
    text = ran("universal-transformer/copy-length", "universal-transformer/copy-length-wide-grid")
    assert "Every arm chose an end of the grid (training.optimizer.lr 0.009 of 0.001, 0.003, 0.009), so that" in text
    assert text.endswith(" copy-length-wide-grid has a wider grid: not run.\n")
    # There every arm chose the middle of three.
    assert "grid" not in ran("one-wide-ffn/dropping-order")
    claim = load_claim("universal-transformer/copy-length")
    outcome = read_outcome(claim, [claims_directory()])
    outcome.head["tuning"]["copy-transformer"]["chosen"] = 0.003
    text = conclusion([(claim, outcome)], ["contradicted"])
    assert " copy-universal chose an end of the grid (training.optimizer.lr 0.009 of" in text


@pytest.mark.slow
def test_a_claim_that_counts_says_the_same_when_it_is_run_again(tmp_path: Path):
    claim = load_claim(COUNTED)
    assert reproduce(claim, Resources(tmp_path)).verdict == "supported"


@pytest.mark.slow
def test_claims_that_were_not_run_are_in_the_tables_and_have_no_section():
    text = document("universal-transformer")
    assert "\n| [copy-length](#universal-transformercopy-length) |" in text
    assert "\n### universal-transformer/copy-length\n" in text
    assert "\n| copy-length-wide-grid |" in text
    assert "### universal-transformer/copy-length-wide-grid" not in text
