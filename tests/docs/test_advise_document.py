from __future__ import annotations

from pathlib import Path

import pytest
from documents import README, ROOT, blocks, links, prose, rows

from ostinato.advise.checks import LEAST_SELECTION, LEAST_TRAINING
from ostinato.advise.space import in_balance, load_space, settings_of
from ostinato.tasks.recipes import load_recipe

DOCUMENT = ROOT / "docs" / "advise.md"


def test_the_space_of_the_document_gives_sound_recipes(tmp_path: Path) -> None:
    (text,) = blocks(DOCUMENT, "yaml")
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    space = load_space(str(tmp_path / "mine.yaml"))
    settings = load_recipe("digits/transformer").model_dump(mode="json")
    combinations = list(in_balance(space))
    assert len(combinations) == 8
    assert all(settings_of(space, one, settings) for one in combinations)


def test_the_axes_of_the_default_space_are_the_documents() -> None:
    space = load_space("default")
    described = {line[0]: line[1].split(", ") for line in rows(DOCUMENT)}
    for axis in space.axes:
        assert described[axis.name] == [level.name for level in axis.levels]
    n = len(list(in_balance(space)))
    assert f"Of the {n} combinations {space.n_candidates} are tried" in prose(DOCUMENT)


def test_the_limits_that_are_named_are_the_codes() -> None:
    assert f"fewer than {LEAST_TRAINING} training examples, or {LEAST_SELECTION} to choose by" in prose(DOCUMENT)


def test_the_example_makes_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (program,) = blocks(DOCUMENT, "python")
    exec(compile(program, str(DOCUMENT), "exec"), {})
    lines = (tmp_path / "dates.jsonl").read_text("utf-8").splitlines()
    assert len(lines) == 4000
    assert lines[0] == '{"source": "1924-02-10", "target": "Sunday 10 February 1924"}'


def test_the_readme_leads_there() -> None:
    assert "docs/advise.md" in links(README)
