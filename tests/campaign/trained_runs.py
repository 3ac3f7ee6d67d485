"""A run of a part of a second that writes every kind of file a run has, and what two equal runs have in common."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch._dynamo  # noqa: F401  every optimiser imports it: once here instead of in every fork

from ostinato.config.recipe import Recipe
from ostinato.training import rundir

sys.path.append(str(Path(__file__).parents[1] / "training"))
from tiny_runs import tiny_recipe

OF_SESSIONS = ("timings.jsonl", ".lock", ".lock.json")
"""What a run says of its own sessions."""


def small_recipe(folder: Path, **training: Any) -> Recipe:
    """Return the recipe of a run that keeps two checkpoints, deletes others, and is scored by the mean of two."""
    settings = {"log_every": 2, "evaluate_every": 2, "save_every": 3, "keep_last": 1, "keep_best": 2}
    recipe = tiny_recipe(folder, **(settings | {"accumulate": 1} | training))
    return recipe.model_copy(update={"evaluation": recipe.evaluation.model_copy(update={"checkpoint": "best:2"})})


def with_known_source() -> None:
    """Hash the sources once and ask git for no commit: that is slow, and they may change meanwhile."""
    found = rundir.source_hash(rundir.LEARNING)
    rundir.source_commit = lambda: None
    rundir.source_hash = lambda parts: found


def content(run: Path) -> dict[str, str | bytes]:
    """Return what every file of a run holds, times apart; two equal runs have the same."""
    found = {path.relative_to(run).as_posix(): path for path in run.rglob("*") if path.name not in OF_SESSIONS}
    return {name: _content(path) for name, path in sorted(found.items())}


def _content(path: Path) -> str | bytes:
    if path.is_dir():
        return "folder"
    written = path.read_bytes()
    try:
        return json.dumps(_without_times(json.loads(written))) if path.suffix == ".json" else written
    except ValueError:  # the half of a file
        return written


def _without_times(found: Any) -> Any:
    """Leave out times (when a run began, how long it took), and the hash of what they are a part of."""
    if isinstance(found, dict):
        times = ("began", "content_sha256")
        return {k: _without_times(v) for k, v in found.items() if "seconds" not in k and k not in times}
    return [_without_times(one) for one in found] if isinstance(found, list) else found
