"""YAML files that come with the library, by name: recipes, sweeps and claims, each in a folder of the package."""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path


def shipped_directory(kind: str) -> Path:
    """Return the folder of the files of a kind: "recipes", "sweeps" or "claims"."""
    return Path(str(files("ostinato"))) / kind


@cache
def shipped_files(kind: str) -> dict[str, Path]:
    """Return the files of a kind by name, their path in the folder without its ending, in alphabetical order."""
    root = shipped_directory(kind)
    return {path.relative_to(root).with_suffix("").as_posix(): path for path in sorted(root.rglob("*.yaml"))}


def did_you_mean(kind: str, name: str) -> str:
    """Return "; did you mean a or b?" with those below a folder of that name, else the nearest names; "" for none."""
    known = list(shipped_files(kind))
    beginning = [other for other in known if other.startswith(f"{name.rstrip('/')}/")]
    near = beginning or get_close_matches(name, known, n=3)
    return f"; did you mean {' or '.join(near)}?" if near else ""
