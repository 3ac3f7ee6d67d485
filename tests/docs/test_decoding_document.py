from __future__ import annotations

import pytest
from documents import ROOT, rows

from ostinato.config.decoding import DecodingConfig, LengthPenaltyConfig

DOCUMENT = ROOT / "docs" / "decoding.md"


def test_the_table_of_settings_is_the_codes() -> None:
    shown = {row[0]: row[1] for row in rows(DOCUMENT) if len(row) == 4 and row[0] != "setting"}
    names = [name.strip("` ") for cell in shown for name in cell.split(",")]
    assert sorted(names) == sorted(DecodingConfig.model_fields)
    defaults = DecodingConfig()
    assert LengthPenaltyConfig(kind="gnmt", alpha=0.6) == defaults.length_penalty
    for cell, values in shown.items():
        if cell == "`length_penalty`":
            continue
        for name, value in zip(cell.split(","), values.split(","), strict=True):
            default = getattr(defaults, name.strip("` "))
            assert value.strip() == ("null" if default is None else str(default).lower().removesuffix(".0")), name


@pytest.mark.parametrize("name", ["transformer/base", "universal-transformer/base", "multi30k/universal", "sut/base"])
def test_recipes_of_translation_stop_as_the_document_says(name: str) -> None:
    from ostinato.tasks.recipes import load_recipe

    recipe = load_recipe(name, ["data.train=a"])
    assert recipe.decoding.stopping == ("bound" if name.split("/")[0].endswith("transformer") else "count")
