"""The runs that tests of the viewer open, by kind of model; to be imported before what serves the page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ostinato.viewer.opened import OpenRun

for _name in ("starlette", "uvicorn"):
    pytest.importorskip(_name, reason="the page needs the extra [view]: pip install 'ostinato[view]'")

OLD_RUNS = Path(__file__).parents[1] / "old_runs"
KINDS = sorted(path.name for path in (OLD_RUNS / "trained").iterdir())
TEXTS = {
    "language-model": "the cat",
    "lstm-language-model": "the cat",
    "masked": "the cat sat on the mat",
}
PLAIN = {"run": "dense", "text": "1 2 3", "max_length": 4}
"""A request that is answered."""


def example_of(opened: OpenRun, index: int = 0) -> dict[str, Any]:
    """Return a request for an example of the run's first split."""
    return {"run": opened.name, "example": {"split": opened.splits[0], "index": index}}
