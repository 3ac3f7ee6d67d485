from __future__ import annotations

import ast
import importlib

import pytest
from documents import ROOT, blocks

SCALE, CLUSTERS = ROOT / "docs" / "scale.md", ROOT / "docs" / "clusters.md"


@pytest.mark.skipif(not (ROOT / "benchmarks").is_dir(), reason="benchmarks are not part of this distribution")
@pytest.mark.slow
def test_the_tables_of_scale_are_what_their_command_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    scale = importlib.import_module("scale")
    page = SCALE.read_text(encoding="utf-8")
    for table in scale.tables():
        assert table in page, table


def test_what_the_example_imports_is_there() -> None:
    (example,) = blocks(CLUSTERS, "python")
    for node in ast.walk(ast.parse(example)):
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(str(node.module))
            assert all(hasattr(module, name.name) for name in node.names)
