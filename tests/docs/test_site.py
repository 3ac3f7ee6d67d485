"""The documentation as a site: what is made from the code, and that it is built without a warning."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from documents import ROOT


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_holds_what_the_code_says(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="the site needs the extra docs")
    pytest.importorskip("mkdocstrings", reason="the site needs the extra docs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    found = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr
    assert "WARNING" not in found.stderr
    reference = tmp_path / "site" / "reference"
    assert "training.optimizer.lr" in (reference / "settings" / "index.html").read_text(encoding="utf-8")
    assert "--halting-threshold" in (reference / "commands" / "index.html").read_text(encoding="utf-8")
    assert "passivization" in (reference / "tasks" / "index.html").read_text(encoding="utf-8")
    assert "build_model" in (reference / "python" / "index.html").read_text(encoding="utf-8")


def test_every_page_of_the_menu_is_there_and_every_page_is_in_the_menu() -> None:
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("nav:")[2]
    named = {line.rpartition(": ")[2] for line in menu.splitlines() if line.endswith(".md")}
    made = {"index.md", "reference/settings.md", "reference/commands.md", "reference/python.md", "reference/tasks.md"}
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert {name for name in named - made if not (ROOT / "docs" / name).is_file()} == set()
    assert pages - named == set()
