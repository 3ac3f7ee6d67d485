"""Messages that name a page of the documentation name one that there is, and end with it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from ostinato.cli import main
from ostinato.config.base import Config
from ostinato.config.claim import ClaimConfig
from ostinato.config.decoding import DecodingConfig
from ostinato.config.space import SpaceConfig
from ostinato.config.sweep import SweepConfig

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src" / "ostinato").rglob("*.py"))


def test_every_page_that_a_message_names_is_there() -> None:
    pages = set()
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        for call in ast.walk(ast.parse(text)):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "see":
                (page,) = call.args
                if ast.unparse(page) == "self.root.page":  # of a configuration
                    continue
                assert isinstance(page, ast.Constant), f"{path}, line {call.lineno}: name the page itself"
                pages.add(f"docs/{page.value}.md")
        pages.update(re.findall(r"\bdocs/[\w/-]+\.md", text))
    pages.update(f"docs/{config.page}.md" for config in (Config, SweepConfig, ClaimConfig, SpaceConfig, DecodingConfig))
    assert {"docs/own-data.md", "docs/recipes.md", "docs/budgets.md", "docs/halting.md", "docs/onnx.md"} <= pages
    assert [page for page in sorted(pages) if not (ROOT / page).is_file()] == []


COMMANDS: dict[str, list[str]] = {
    "recipes": ["plan", "scan/transformer", "model.d_mdel=8"],
    "tasks": ["plan", "scan/transformer", "task.kind=nothing"],
    "own-data": ["train", "files/template", "data.train={folder}/bad.jsonl", "data.dev={folder}/bad.jsonl"],
    "budgets": ["solve", "scan/universal", "--target", "10", "--source-vocab", "16", "--target-vocab", "10"],
}


@pytest.mark.parametrize("page", COMMANDS)
def test_what_a_newcomer_meets_first_is_one_line_that_ends_with_its_page(
    page: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad.jsonl").write_text('{"source": "1 2", "target": "2 1"}\n{"source": "1 2"}\n', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    arguments = [one.format(folder=tmp_path) for one in COMMANDS[page]]
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.endswith(f"(docs/{page}.md)"), line
