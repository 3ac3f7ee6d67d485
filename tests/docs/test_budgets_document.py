"""The counts in the document of budgets are those of the recipes."""

from __future__ import annotations

import pytest
from documents import ROOT, rows

from ostinato.budget import count_parameters
from ostinato.tasks.recipes import load_recipe
from ostinato.tasks.vocabulary import size_model

TABLE = rows(ROOT / "docs" / "budgets.md")
(HEAD,) = [row for row in TABLE if row[:3] == ["variant", "big", "the paper"]]
SIZES = [name for name in HEAD[1:] if name != "the paper"]


@pytest.mark.parametrize("size", SIZES)
def test_the_table_of_one_wide_ffn_has_the_parameters_of_its_recipes(size: str) -> None:
    place = TABLE.index(HEAD)
    printed = {row[0].strip("`"): row[HEAD.index(size)] for row in TABLE[place + 1 : place + 14]}
    assert len(printed) == 13
    for variant, millions in printed.items():
        if millions:
            stored = count_parameters(size_model(load_recipe(f"one-wide-ffn/{size}/{variant}")).model).stored
            assert f"{stored / 1e6:.1f}" == millions, variant
