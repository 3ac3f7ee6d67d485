"""What the tests of the studies share: the scripts of benchmarks, imported by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
collect_ignore_glob = [] if FOLDER.is_dir() else ["test_*.py"]  # benchmarks are not part of every distribution


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module
