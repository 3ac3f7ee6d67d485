"""The README: short, its Python has no deep imports, its blocks run as `test_blocks` runs those of all pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from documents import README, blocks
from given import own_files
from page_runs import Reader


def test_the_readme_is_short_and_its_blocks_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 150
    reader = Reader(tmp_path, monkeypatch, capsys)
    own_files(reader)
    ran = reader.follow(README)
    assert [one.arguments[0] for one in ran] == ["train", "plan", "solve", "evaluate", "analyze"]
    assert all(one.printed.strip() for one in ran)
    assert "left out" not in ran[-1].printed, "every analysis that is named applies to the run"
    results, run = reader.names["results"], reader.names["run"]
    assert results["splits"]["long"]["n"] == run.evaluate("long")["n"]


def test_the_python_examples_are_short_and_need_no_deep_import() -> None:
    code, of_tensors = blocks(README, "python")
    assert sum(1 for line in code.splitlines() if line) <= 10
    assert all("from ostinato" not in example for example in (code, of_tensors))


def test_its_results_are_those_of_the_pages_that_are_written_from_rows() -> None:
    pages = " ".join(page.read_text(encoding="utf-8") for page in (README.parent / "docs" / "results").glob("*.md"))
    said = " ".join(README.read_text(encoding="utf-8").split())
    results = re.findall(r"\d+\.\d+ ± \d+\.\d+|-?\d+\.\d+ \[[^]]*\]", said)
    assert len(results) > 10
    known = " ".join(pages.split())
    assert [one for one in results if one not in known] == []
