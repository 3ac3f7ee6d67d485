from __future__ import annotations

import ast
import re

import pytest
from documents import README, ROOT, links, rows

DOCUMENT = ROOT / "docs" / "trust.md"
PROMISES = [row for row in rows(DOCUMENT) if row[0] != "promise"]


@pytest.mark.parametrize("row", PROMISES, ids=lambda row: row[0][:40])
def test_every_promise_names_a_test_that_there_is(row: list[str]) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row[1])
    assert named or row[1] == "the first line of this table"
    for file, name in named:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, name


def test_it_is_found_and_says_where_to_report() -> None:
    assert "docs/trust.md" in links(README)
    assert "../SECURITY.md" in links(DOCUMENT)
    assert "docs/trust.md" in links(ROOT / "SECURITY.md")
