"""What settings such as `data.train` name: a file, a folder, or a pattern, and the files behind it.

- a file: itself.
- a folder that `datasets` saved (``save_to_disk``): its Arrow files, in its own order.
- any other folder: all files in it and in folders below, by path. Names that begin with a dot are left out.
- a pattern (``*``, ``?``, ``[...]``; ``**`` for folders at any depth that are no links), where no file has that name:
  all files that match, by path.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from ostinato.data.disk import read_json_object
from ostinato.errors import DataError

_WILD = re.compile(r"[*?\[]")
_STATE, _SPLITS = "state.json", "dataset_dict.json"
"""Files of a folder that `datasets` saved: which Arrow files a data set has, and which splits there are."""


def find_files(given: str | Path | Sequence[str | Path]) -> list[Path]:
    """Return the files behind what a setting names; one that is not there is returned as it is.

    Raises:
        DataError: a folder without files, a pattern that no file matches, a damaged folder of `datasets`, or what is
            found and cannot be reached: a folder that may not be read, a link to nothing.
    """
    if not isinstance(given, str | Path):
        return [file for one in given for file in find_files(one)]
    path = Path(given)
    if path.is_dir():
        return _files_in(path)
    first = _first_wild(path)
    if first is None:
        return [path]
    # From there on: pathlib takes no absolute patterns.
    pattern = str(Path(*path.parts[first:]))
    root = Path(*path.parts[:first])
    # As in a shell, `*` stands for no name that begins with a dot.
    names_hidden = _is_hidden(Path(pattern))
    found = sorted(
        one for one in root.glob(pattern) if (names_hidden or not _is_hidden(one.relative_to(root))) and _is_file(one)
    )
    if not found:
        raise DataError(f"{given}: no file matches this pattern")
    return found


def name_of(given: str | Path) -> str:
    """Return a short name for what a setting names: of a file without its endings, of a pattern that of its folder."""
    path = Path(given).absolute()  # a run keeps absolute paths, and its names must not change with them
    if path.is_dir():
        return path.name
    if (first := _first_wild(path)) is not None:
        fixed = [part for number, part in enumerate(path.parts) if number < first or not _WILD.search(part)]
        return Path(*fixed).name
    return path.name.partition(".")[0]


def _first_wild(path: Path) -> int | None:
    """Return the number of the first part of a path that is a pattern, and not the name of what is there; or None."""
    wild = (number for number, part in enumerate(path.parts) if _WILD.search(part))
    return next((number for number in wild if not Path(*path.parts[: number + 1]).exists()), None)


def _files_in(folder: Path) -> list[Path]:
    if (folder / _STATE).is_file():
        state = read_json_object(folder / _STATE, DataError)
        try:
            return [folder / str(one["filename"]) for one in state["_data_files"]]
        except (KeyError, TypeError) as error:
            raise DataError(f"{folder / _STATE}: is damaged: names no files") from error
    if (folder / _SPLITS).is_file():
        splits = read_json_object(folder / _SPLITS, DataError).get("splits", [])
        named = " or ".join(str(folder / str(split)) for split in splits)
        raise DataError(f"{folder}: holds several splits of a data set: name one of them, {named}")
    found, seen = [], set[Path]()
    for place, below, names in os.walk(folder, onerror=_refuse, followlinks=True):
        where = Path(place)
        if (real := where.resolve()) in seen:  # a link that leads back, or two to one folder
            below.clear()
            continue
        seen.add(real)
        below[:] = sorted(name for name in below if not name.startswith("."))
        found += [where / name for name in names if not name.startswith(".") and _is_file(where / name)]
    if not found:
        raise DataError(f"{folder}: the folder holds no files")
    return sorted(found)


def _refuse(error: OSError) -> NoReturn:
    raise DataError(f"{error.filename}: cannot be read: {error.strerror}") from error


def _is_file(path: Path) -> bool:
    """Return whether what was found is a file, so that nothing is left out because it cannot be reached.

    Raises:
        DataError: that cannot be told.
    """
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError as error:
        if path.is_symlink():  # as of DVC and git-annex for what was not fetched
            raise DataError(f"{path}: is a link to what is not there: fetch it, or remove the link") from error
        _refuse(error)


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)
