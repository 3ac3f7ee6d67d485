"""The table of groups that come in kinds is that of the configuration's types."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import get_args

import pytest
from documents import ROOT, rows
from pydantic import BaseModel

from ostinato.config.recipe import Recipe
from ostinato.config.schema import slots_of
from ostinato.tasks.registry import TASKS

PAGE = ROOT / "docs" / "recipes.md"


def groups(node: type[BaseModel], path: str = "", above: tuple[type[BaseModel], ...] = ()) -> Iterator[tuple[str, str]]:
    """Yield every group below a configuration that comes in kinds, by dotted path, with each of its kinds."""
    for name, slot in slots_of(node).items():
        for inner in slot.nodes.values():
            if inner not in above:
                kind = inner.model_fields.get("kind")
                yield from ((f"{path}{name}", one) for one in get_args(kind and kind.annotation))
                yield from groups(inner, f"{path}{name}.", (*above, node))


def kinds_of_types() -> dict[str, set[str]]:
    """Return the kinds of every group by path."""
    found: dict[str, set[str]] = {"task": set(TASKS)}
    for path, kind in groups(Recipe):
        found.setdefault(path, set()).add(kind)
    return found


def kinds_of_page() -> list[tuple[re.Pattern[str], set[str]]]:
    """Return the rows of the table: the groups that they are of, as patterns, and the kinds that they name."""
    all_rows = rows(PAGE)
    first = all_rows.index(["group", "kinds"])
    found = []
    for groups_named, kinds, *_ in all_rows[first + 1 :]:
        patterns = re.findall(r"`((?:task|model|data|training|decoding)[\w.*]*)`", groups_named)
        if not patterns:
            break
        named = re.sub(r"\(.*\)", "", re.sub(r"\]\([^)]*\)", "]", kinds)).strip()
        alternatives = "|".join(re.escape(one).replace(r"\*", r"[^.]+") for one in patterns)
        found.append((re.compile(alternatives), set(named.split(", "))))
    return found


@pytest.mark.parametrize("path", kinds_of_types())
def test_the_page_names_all_kinds_of_a_group_and_no_others(path: str) -> None:
    (named,) = (kinds for pattern, kinds in kinds_of_page() if pattern.fullmatch(path))
    assert named == kinds_of_types()[path]


def test_every_row_of_the_page_is_of_some_group() -> None:
    paths = kinds_of_types()
    assert all(any(pattern.fullmatch(path) for path in paths) for pattern, _ in kinds_of_page())
