"""Names of classes as CONTRIBUTING.md wants them: a reader who searches for one finds it."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "ostinato"


def nodes() -> Iterator[tuple[Path, ast.AST]]:
    """Yield what stands in every file of the package."""
    for path in sorted(PACKAGE.rglob("*.py")):
        yield from ((path, node) for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def test_no_folder_defines_a_class_name_twice() -> None:
    found = Counter((path.parent, node.name) for path, node in nodes() if isinstance(node, ast.ClassDef))
    assert len(found) > 500
    assert [name for name, n in found.items() if n > 1] == []


def test_no_class_of_ours_is_imported_under_another_name() -> None:
    renamed = [
        f"{path.name}: {alias.name} as {alias.asname}"
        for path, node in nodes()
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ostinato")
        for alias in node.names
        if alias.asname is not None and alias.name.lstrip("_")[0].isupper() and not alias.name.isupper()
    ]
    assert renamed == []
