"""Every setting says what it means, below its field: `ostinato settings` prints it."""

from __future__ import annotations

import ast
import inspect
from itertools import pairwise

import pytest

from ostinato.config import (
    claim,
    common,
    data,
    decoding,
    experts,
    halting,
    lstm,
    measures,
    model,
    positions,
    recipe,
    stack,
    sub_layers,
    sweep,
    training,
)

MODULES = [claim, common, data, decoding, experts, halting, lstm, measures, model, positions, recipe, stack]
MODULES += [sub_layers, sweep, training]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_setting_has_a_text_below_its_field(module: object) -> None:
    silent = []
    for node in ast.parse(inspect.getsource(module)).body:
        if not isinstance(node, ast.ClassDef) or node.decorator_list:  # what is decorated is a dataclass
            continue
        for field, text in pairwise([*node.body, None]):
            if isinstance(field, ast.AnnAssign) and not isinstance(text, ast.Expr):
                silent.append(f"{node.name}.{ast.unparse(field.target)}")
    # The meaning of a kind is that of its group.
    assert [name for name in silent if not name.endswith(".kind")] == []
