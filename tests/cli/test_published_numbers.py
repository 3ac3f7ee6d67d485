"""Published numbers of a recipe beside those measured."""

from __future__ import annotations

from typing import Any

import pytest

from ostinato.cli.results import print_published
from ostinato.config.recipe import ReferenceRow

RESULTS: dict[str, dict[str, Any]] = {
    "test": {"exact_match": 0.625, "by": {"bin": {"7": {"exact_match": 0.5}, "8": {"exact_match": 0.25}}}}
}


def row(source: str, **settings: Any) -> ReferenceRow:
    return ReferenceRow.model_validate({"source": source, "split": "test", "metric": "exact_match"} | settings)


def printed(rows: list[ReferenceRow], capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    print_published(rows, RESULTS)
    return [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]


def test_theirs_and_ours_stand_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    whole, part = row("A", value=0.75), row("B", value=0.875, by={"bin": 7})
    lines = printed([whole, part], capsys)
    assert ["A", "test", "all", "exact_match", "0.75", "0.625"] in lines
    assert ["B", "test", "bin", "7", "exact_match", "0.875", "0.5"] in lines


def test_the_share_of_preferred_targets_is_one_number_for_all_and_one_for_every_group(
    capsys: pytest.CaptureFixture[str],
) -> None:
    by = {"n_attractors": {"0": {"n": 2, "accuracy": 0.5}, "1": {"n": 2, "accuracy": 1.0}}}
    results = {"test": {"loss": 4.0, "ranking": {"n": 4, "accuracy": 0.75, "by": by}}}
    ranked = [row("A", metric="ranking", value=0.9)]
    ranked += [row("A", metric="ranking", value=0.8, by={"n_attractors": n}) for n in (0, 1, 2)]
    print_published(ranked, results)
    out = capsys.readouterr().out
    assert "{" not in out
    lines = [line.split() for line in out.splitlines() if line.strip()]
    assert ["A", "test", "all", "ranking", "0.9", "0.75"] in lines
    assert ["A", "test", "n_attractors", "0", "ranking", "0.8", "0.5"] in lines
    assert ["A", "test", "n_attractors", "1", "ranking", "0.8", "1"] in lines
    assert ["A", "test", "n_attractors", "2", "ranking", "0.8"] in lines


def test_what_was_not_measured_is_left_empty(capsys: pytest.CaptureFixture[str]) -> None:
    absent = [row("A", value=0.75, by={"bin": 9}), row("B", value=12.5, metric="bleu")]
    lines = printed(absent, capsys)
    assert any(line[:1] == ["A"] and "0.75" in line and "0.625" not in line for line in lines)
    assert any(line[:1] == ["B"] and "12.5" in line and len(line) <= 6 for line in lines)


def test_splits_that_were_not_scored_are_not_mentioned(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed([row("A", value=0.5, split="gen")], capsys) == []
