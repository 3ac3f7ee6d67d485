from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return runs with their exported folders, each made once."""
    pytest.importorskip("transformers", reason="needs the extra hf")
    import runs

    from ostinato.hf.export import export_run

    found: dict[str, tuple[Any, Path]] = {}

    def get(name: str) -> tuple[LoadedRun, Path]:
        if name not in found:
            folder = tmp_path_factory.mktemp(name)
            run = runs.make_run(name, folder / "run")
            found[name] = run, export_run(run, folder / "out")
        return found[name]

    return get
