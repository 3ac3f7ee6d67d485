"""Whether the splits of a run are still what they were when it was trained."""

from __future__ import annotations

from pathlib import Path

from ostinato.config.recipe import Recipe
from ostinato.data.disk import read_json_object, reading
from ostinato.data.example import Fingerprint
from ostinato.tasks.own_files import origin_of
from ostinato.tasks.recipes import load_recipe

_DATA = "data.json"


def change_of_data(directory: Path, recipe: Recipe, split: str, read: Fingerprint) -> str | None:
    """Return a note where a split is not what the run was trained, selected or scored on.

    None where it is the same, where that is not known (a split that the run has not read so far, or read from a pack),
    and where the recipe names other data than the run's own, which is meant.

    Args:
        directory: of the run. recipe: by which the split was read. read: of all of its examples.

    Raises:
        CheckpointError: the run's data.json cannot be read.
    """
    path = directory / _DATA
    if not path.is_file():
        return None
    with reading(path):
        known = read_json_object(path)["splits"].get(split, {})
        if known.get("packed") or known.get("sha256") in (None, read.sha256):
            return None
        n = known.get("n")
    own = load_recipe(directory)
    if own.task != recipe.task or origin_of(own.data, split) != origin_of(recipe.data, split):
        return None
    counts = (
        f"{read.n:,} examples, then {n:,}" if isinstance(n, int) and n != read.n else f"{read.n:,} examples as then"
    )
    return f"{directory}: {split} is not what it was when the run was trained: other content ({counts}; {_DATA})"
