"""Every setting says what it means, below its field: `ostinato settings` prints it."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from itertools import pairwise

import pytest
from pydantic import BaseModel

from ostinato.config import (
    claim,
    common,
    data,
    decoding,
    experts,
    halting,
    loops,
    lstm,
    measures,
    model,
    norm,
    positions,
    recipe,
    stack,
    sub_layers,
    sweep,
    training,
)
from ostinato.config.schema import slots_of

MODULES = [claim, common, data, decoding, experts, halting, loops, lstm, measures, model, norm, positions, recipe]
MODULES += [stack, sub_layers, sweep, training]


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


def keys(node: type[BaseModel], path: str = "", above: tuple[type[BaseModel], ...] = ()) -> Iterator[str]:
    """Yield every setting below a configuration, of every kind of every group, by dotted path."""
    for name, slot in slots_of(node).items():
        yield f"{path}{name}"
        for inner in slot.nodes.values():
            if inner not in above:
                yield from keys(inner, f"{path}{name}.", (*above, node))


def test_settings_that_texts_name_exist() -> None:
    known = set(keys(recipe.Recipe))
    for module in MODULES:
        for named in re.findall(r"`((?:data|model|training|decoding|evaluation)\.[\w.*]+)", inspect.getsource(module)):
            pattern = re.escape(named).replace(r"\*", "[^.]+")
            assert any(re.fullmatch(pattern, key) for key in known), f"{module.__name__}: {named}"
