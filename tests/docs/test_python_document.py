from __future__ import annotations

from pathlib import Path

import pytest
from documents import README, ROOT, blocks, links

DOCUMENT = ROOT / "docs" / "python.md"


@pytest.mark.slow
def test_the_program_builds_trains_saves_loads_and_generates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = blocks(DOCUMENT, "python")
    assert sum(1 for line in code.splitlines() if line) <= 40
    assert "from ostinato" not in code, "no deep import is needed"
    exec(compile(code, str(DOCUMENT), "exec"), {})
    assert float(capsys.readouterr().out) > 0.5
    assert sorted(path.name for path in (tmp_path / "reverse").iterdir()) == ["model.json", "model.safetensors"]


def test_the_readme_leads_there() -> None:
    assert "docs/python.md" in links(README)
