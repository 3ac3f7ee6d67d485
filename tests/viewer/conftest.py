"""Small runs of every kind of model behind the application, opened once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from starlette.testclient import TestClient

    from ostinato.viewer.opened import OpenRun


@pytest.fixture(scope="session")
def run_folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Copies of runs whose texts are found from any folder."""
    from opened_runs import KINDS, OLD_RUNS

    root = tmp_path_factory.mktemp("view")
    found = []
    for name in KINDS:
        copy = Path(shutil.copytree(OLD_RUNS / "trained" / name, root / name))
        recipe = copy / "recipe.yaml"
        text = recipe.read_text(encoding="utf-8")
        recipe.write_text(text.replace(": texts/", f": {OLD_RUNS}/texts/"), encoding="utf-8")
        found.append(copy)
    return found


@pytest.fixture(scope="session")
def opened(run_folders: list[Path]) -> Iterator[dict[str, OpenRun]]:
    from ostinato.evaluation.loading import load
    from ostinato.viewer.opened import open_runs
    from ostinato.viewer.schema import Limits

    found = open_runs(
        {path.name: load(path, device="cpu") for path in run_folders}, Limits(examples=20, known=20, tokens=64)
    )
    yield found
    for one in found.values():
        one.close()


@pytest.fixture(scope="session")
def client(opened: dict[str, OpenRun]) -> Iterator[TestClient]:
    from starlette.testclient import TestClient

    from ostinato.viewer.server import view_app

    app = view_app(opened, next(iter(opened.values())).limits)
    with TestClient(app, base_url="http://127.0.0.1:8765", raise_server_exceptions=False) as made:
        yield made
