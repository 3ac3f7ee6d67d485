from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
import torch
import yaml
from documents import ROOT, blocks, rows

from ostinato.config.measures import AnyMeasure, FigureName
from ostinato.config.schema import kind_of
from ostinato.experiments.sweep.files import first_recipe, load_sweep
from ostinato.experiments.sweep.runs import PlannedRun, arm_budgets, check_equal
from ostinato.models import build_model
from ostinato.training.initial import _taken

DOCUMENT = ROOT / "docs" / "sweeps.md"


def test_the_example_is_a_sound_sweep(tmp_path: Path) -> None:
    text, exits = blocks(DOCUMENT, "yaml")
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "exits.yaml").write_text(exits, encoding="utf-8")
    assert len(load_sweep(tmp_path / "exits.yaml").measures) == 3
    sweep = load_sweep(tmp_path / "mine.yaml")
    assert sweep.arms[1].overrides() == [
        *('model.encoder.ffn.share="all"', "model.encoder.ffn.d_ff=1024"),
    ]
    assert yaml.safe_load(text)["arms"][3]["after"] == sweep.arms[3].after == "universal"
    recipes = {arm.name: first_recipe(sweep, arm) for arm in sweep.arms}
    runs = [PlannedRun(name, 1, "", recipe, tmp_path) for name, recipe in recipes.items()]  # of data nothing is read
    check_equal(sweep, arm_budgets(sweep, runs))
    with torch.device("meta"):  # names and shapes decide
        trained, own = (build_model(recipes[name].model) for name in ("universal", "universal, on"))
    taken, _ = _taken(trained, own, recipes["universal, on"].training)
    assert taken.keys() == own.state_dict().keys()


def test_every_kind_of_measure_is_described() -> None:
    described = [
        line[0].strip("`")
        for line in rows(DOCUMENT)
        if line[0].strip("`") in ("result", "budget", "evaluate", "analysis")
    ]
    union, _ = get_args(AnyMeasure)
    assert described == [kind_of(node) for node in get_args(union)]


@pytest.mark.parametrize("figure", [name for part in get_args(FigureName) for name in (get_args(part) or (part,))])
def test_every_figure_is_named(figure: str) -> None:
    (line,) = [line for line in rows(DOCUMENT) if line[0] == "`budget`"]
    assert figure in line[2]
