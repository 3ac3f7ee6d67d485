"""Published data to compare with, where this checkout has it beside it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ostinato.config.data import DataConfig
from ostinato.config.recipe import TaskRef
from ostinato.data.registry import DataAccess
from ostinato.tasks.base import Task
from ostinato.tasks.registry import build_task

SHARED = Path(__file__).parents[2].parent / "shared" / "data"


@pytest.fixture(scope="session")
def access(tmp_path_factory: pytest.TempPathFactory) -> DataAccess:
    """Published files, from a folder laid out like their addresses."""
    if not (SHARED / "upstream").is_dir():
        pytest.skip("no published files here")
    return DataAccess(tmp_path_factory.mktemp("cache"), str(SHARED / "upstream"))


@pytest.fixture(scope="session")
def open_published(access: DataAccess) -> Callable[..., Task]:
    """A function from settings to a task that reads the published files."""

    def open_task(kind: str, **settings: Any) -> Task:
        return build_task(TaskRef.model_validate({"kind": kind, **settings}), DataConfig(), access)

    return open_task


@pytest.fixture(scope="session")
def oracle() -> Callable[[str], list[dict[str, Any]]]:
    """A function from a name such as "scan/length_test" to rows checked by others."""

    def read(name: str) -> list[dict[str, Any]]:
        path = SHARED / f"{name}.jsonl.gz"
        if not path.exists():
            pytest.skip(f"no {name} here")
        return list(_records(path))

    return read


def _records(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)
