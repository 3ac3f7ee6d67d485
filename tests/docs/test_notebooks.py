"""The notebooks run from top to bottom."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from documents import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_notebook_runs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    for cell in cells:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [], "outputs are not committed"
            exec(compile("".join(cell["source"]), f"{path.name}, {cell['id']}", "exec"), names)
    assert capsys.readouterr().out.strip()


def test_there_are_three_notebooks_that_say_what_a_reader_can_do_after_them() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["budgets", "halting", "start"]
    for path in NOTEBOOKS:
        first = json.loads(path.read_text(encoding="utf-8"))["cells"][0]
        assert "After this notebook you" in "".join(first["source"])
