"""Every block of every page is run, or says in its first line why not."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import given
import pytest
from documents import DOCUMENTS, README, ROOT, page_blocks
from page_runs import Reader

GIVEN: dict[str, given.Given] = {
    "docs/analysis.md": given.of_analysis,
    "docs/budgets.md": given.of_budgets,
    "docs/claims.md": given.own_files,
    "docs/commands.md": given.of_large_data,
    "docs/decoding.md": given.of_decoding,
    "docs/extending.md": given.of_extending,
    "docs/halting.md": given.of_halting,
    "docs/hugging-face.md": given.of_hugging_face,
    "docs/language.md": given.of_language,
    "docs/large-data.md": given.of_large_data,
    "docs/lm-eval.md": given.of_lm_eval,
    "docs/looping.md": given.own_files,
    "docs/onnx.md": given.of_onnx,
    "docs/own-data.md": given.of_own_data,
    "docs/recipes.md": given.of_own_data,
    "docs/sweeps.md": given.of_sweeps,
    "docs/tasks.md": given.own_files,
    "docs/view.md": given.of_view,
}
"""What pages take as given; `test_readme` reads the README."""
QUICK = ("CONTRIBUTING.md", "docs/advise.md", "docs/families.md")
"""Pages that take a second or two; the program of python.md has a test of its own."""
LANGUAGES = {"sh", "python", "yaml", "text"}


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def to_run(page: Path) -> bool:
    return any(block.language in ("sh", "python") and block.why_not_run is None for block in page_blocks(page))


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=name_of(page), marks=[] if name_of(page) in QUICK else pytest.mark.slow)
        for page in DOCUMENTS
        if to_run(page) and page != README
    ],
)
def test_every_block_of_the_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reader = Reader(tmp_path, monkeypatch, capsys)
    prepared = GIVEN[name_of(page)](reader) if name_of(page) in GIVEN else None
    with prepared if isinstance(prepared, AbstractContextManager) else nullcontext():
        for ran in reader.follow(page):
            assert ran.printed or "--predictions" in ran.arguments, ran.arguments


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.name)
def test_every_block_says_what_it_is_and_one_that_is_not_run_says_why(page: Path) -> None:
    for block in page_blocks(page):
        assert block.language in LANGUAGES, block
        assert "not run by the tests" not in block.body or len(str(block.why_not_run)) > 10, block
