from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import pytest
from documents import README, ROOT, blocks, links, prose, rows

from ostinato.advise.checks import LEAST_SELECTION, LEAST_TRAINING
from ostinato.advise.space import in_balance, load_space, settings_of
from ostinato.experiments.results import read_rows
from ostinato.tasks.recipes import load_recipe

DOCUMENT = ROOT / "docs" / "advise.md"
GRIDS = {
    "reversal": "digits reversed",
    "relay": "relay",
    "parity": "running parity (candidates of commit 55b6a23f)",
    "logical-inference": "logical inference",
    "cogs-vf": "COGS",
    "listops": "ListOps",
}
"""What the document calls the grids."""


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


@pytest.fixture(scope="module")
def study() -> ModuleType:
    if not (ROOT / "benchmarks").is_dir():
        pytest.skip("benchmarks are not part of this distribution")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        return importlib.import_module("advise")


@pytest.fixture(scope="module")
def grids() -> list[list[dict[str, Any]]]:
    return [read_rows(ROOT / "docs" / "results" / f"advise-{task}.jsonl") for task in GRIDS]


def rounded(regret: float) -> str:
    """Return a regret as the document has it: 0 and 1 are those of the best and the worst themselves."""
    return f"{regret:.0f}" if regret in (0.0, 1.0) else f"{regret:.3f}"


def cells(study: ModuleType, grid: Sequence[dict[str, Any]], found: dict[str, Any]) -> list[str]:
    """Return the row of the document's table for a grid and what its replay found."""
    stages = ", ".join(str(updates) for updates in dict.fromkeys(study.stages_of(grid)))
    return [
        f"{GRIDS[found['task']]}, {grid[0]['length']:,} updates, stages of {stages}",
        f"{100 * found['compute']:.0f} %",
        *(rounded(found[name]) for name in study.REGRETS),
        "yes" if found["covered"] else "no",
        f"{found['covered in last stage']} of {found['last stage']}",
    ]


def test_the_table_is_what_replays_of_the_shipped_grids_find(
    study: ModuleType, grids: list[list[dict[str, Any]]]
) -> None:
    shorter = [study.up_to(grid, 500 if grid[0]["task"] == "parity" else 300) for grid in grids]
    found = [cells(study, grid, study.replay(grid)) for grid in [*grids, *shorter]]
    written = rows(DOCUMENT)
    assert [row for row in found if row not in written] == []
    assert {grid[0]["commit"][:8] for grid in grids if grid[0]["task"] == "parity"} == {"55b6a23f"}


def test_the_goals_that_are_said_to_be_met_are_those_that_the_shipped_grids_meet(
    study: ModuleType, grids: list[list[dict[str, Any]]]
) -> None:
    found = [study.replay(grid) for grid in grids]
    assert [goal.split(":")[0] for goal in study.goals(found)] == ["met", "missed", "met", "met", "missed"]
    n_held, n_last, n_of = (
        sum(one[key] for one in found) for key in ("covered", "covered in last stage", "last stage")
    )
    medians = [f"**{median(one[name] for one in found):.3f}**" for name in study.REGRETS]
    assert ["**median of the six**", "", *medians, f"{n_held} of 6", f"{n_last} of {n_of}"] in rows(DOCUMENT)
    text = " ".join(prose(DOCUMENT).split())
    assert (
        "Of the five goals three are met: six tasks, the regret, and never clearly worse than the default Transformer. "
        f"Missed are a tenth of the compute ({100 * max(one['compute'] for one in found):.1f} % on COGS) and the "
        f"intervals, which held the final score in {n_last} of {n_of} cases, and in {n_held} of 6 of those advised."
    ) in text
