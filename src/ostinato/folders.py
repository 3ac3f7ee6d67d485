"""Where files are kept that can be made or fetched again."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path


def cache_folder() -> Path:
    """Return OSTINATO_CACHE, or a folder of ours where programs of this platform keep such files."""
    given = os.environ.get("OSTINATO_CACHE")
    return Path(given).expanduser() if given else _platform_cache() / "ostinato"


def _platform_cache() -> Path:
    try:
        return _folder_of_user()
    except RuntimeError:  # no HOME, and a user without a name or home, as containers start them
        return Path(tempfile.gettempdir()) / f"user-{os.getuid()}"


def _folder_of_user() -> Path:
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return Path(local) if local else Path.home() / "AppData" / "Local"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
