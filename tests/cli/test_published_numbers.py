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


def test_what_was_not_measured_is_left_empty(capsys: pytest.CaptureFixture[str]) -> None:
    absent = [row("A", value=0.75, by={"bin": 9}), row("B", value=12.5, metric="bleu")]
    lines = printed(absent, capsys)
    assert any(line[:1] == ["A"] and "0.75" in line and "0.625" not in line for line in lines)
    assert any(line[:1] == ["B"] and "12.5" in line and len(line) <= 6 for line in lines)


def test_splits_that_were_not_scored_are_not_mentioned(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed([row("A", value=0.5, split="gen")], capsys) == []
