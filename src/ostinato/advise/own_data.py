"""A recipe for a file of the user's own: pairs or texts, with a part held out where no dev split is named."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from ostinato.config.files import parse_overrides
from ostinato.config.measures import as_overrides
from ostinato.data.disk import make_folder, write_text
from ostinato.data.lines import read_lines
from ostinato.data.sources import parse_object
from ostinato.errors import ConfigError, DataError, Problem

_PAIRS, _TEXTS = "files/template", "lm/transformer"
"""The recipes of pairs and of texts, with sizes for a laptop CPU."""
_JSON_LINES, _PLAIN, _TABLES = (".jsonl", ".ndjson", ".json"), (".txt",), (".tsv", ".csv")
_ENDINGS = (*_JSON_LINES, *_PLAIN, *_TABLES)
HELD_OUT = 10
"""One of so many lines is held out."""


def is_data(name: str) -> bool:
    """Return whether a name is a data file's or that of a folder with `train.*`, and no recipe's."""
    path = Path(name)
    if path.is_dir():
        return _in_folder(path, "train") is not None
    return _ends_in(path, _ENDINGS)


def recipe_of_data(name: str, overrides: Sequence[str], folder: Path) -> tuple[str, list[str]]:
    """Return the recipe for a data file, or a folder with train.*, dev.* and test.*, and overrides that name the files.

    A file without `data.dev` is split: every line whose hash says so, one of `HELD_OUT`, is held out, so that equal
    lines are on one side. Both parts are written below `folder`, each time alike, other lines to another place.

    Raises:
        ConfigError, DataError: a file that is not there, or that is of no kind that can be split.
    """
    path, given = Path(name), parse_overrides(list(overrides))
    files: dict[str, Path] = {}
    if path.is_dir():
        found = {split: _in_folder(path, split) for split in ("train", "dev", "test")}
        files = {split: file for split, file in found.items() if file is not None}
    elif not path.is_file():
        raise ConfigError([Problem("data.train", name, "there is no such file")])
    else:
        files["train"] = path
    if "dev" not in files and _named(given, "dev") is None:
        files |= dict(zip(("train", "dev"), _split(files["train"], folder), strict=True))
    base = _PAIRS if _has_pairs(files["train"], given) else _TEXTS
    return base, [*as_overrides({f"data.{split}": str(file) for split, file in files.items()}), *overrides]


def _in_folder(folder: Path, split: str) -> Path | None:
    found = sorted(path for path in folder.glob(f"{split}.*") if _ends_in(path, _ENDINGS))
    return found[0] if found else None


def _ends_in(path: Path, endings: tuple[str, ...]) -> bool:
    """Return whether a name, which may be in capitals, has one of the endings, compressed or not."""
    return path.name.lower().removesuffix(".gz").endswith(endings)


def _named(settings: dict[str, object], name: str) -> object:
    data = settings.get("data")
    return data.get(name) if isinstance(data, dict) else None


def _has_pairs(path: Path, settings: dict[str, object]) -> bool:
    """Return whether a file holds pairs: as settings name fields, else a table, or JSON lines without a text."""
    if _named(settings, "text_field") is not None:
        return False
    if any(_named(settings, f"{side}_field") is not None for side in ("source", "target")):
        return True
    if _ends_in(path, _PLAIN):
        return False
    if _ends_in(path, _TABLES):
        return True
    for number, line in read_lines(path):
        if line.strip():
            return "text" not in parse_object(line, path, number)
    raise DataError(f"{path}: no examples")


def _split(path: Path, folder: Path) -> tuple[Path, Path]:
    """Write the two parts of a file, and return their paths."""
    if path.suffix.lower() not in (*_JSON_LINES, *_PLAIN):
        raise ConfigError([Problem("data.dev", None, f"name a file to choose models by: {path} cannot be split here")])
    lines = [line for _, line in read_lines(path) if line.strip()]
    held_out = [int(hashlib.sha256(line.encode()).hexdigest(), 16) % HELD_OUT == 0 for line in lines]
    folder /= hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
    make_folder(folder)
    parts = folder / f"train{path.suffix}", folder / f"dev{path.suffix}"
    for part, wanted in zip(parts, (False, True), strict=True):
        text = "".join(f"{line}\n" for line, is_out in zip(lines, held_out, strict=True) if is_out == wanted)
        if not part.is_file() or part.read_text(encoding="utf-8") != text:
            write_text(part, text)
    return parts
