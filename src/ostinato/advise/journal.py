"""What was decided by the clock, kept so that a search that was killed goes on as it began.

All else follows from the runs in the store. The file says which question it is of: another question, in the same
folder, is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ostinato.data.disk import MADE_AGAIN, make_folder, read_json_object, write_json
from ostinato.errors import ConfigError, DataError, OstinatoError

FILE, _LOCK = "search.json", ".search.lock"


class Journal:
    """Decisions by name, in a file that is this process's own until `close`, or its end.

    Args:
        folder: of the answer. question: all that the answer depends on but time.

    Raises:
        ConfigError: the folder holds the search of another question, or another process is at work on it.
    """

    def __init__(self, folder: Path, question: Mapping[str, Any]) -> None:
        self.path = folder / FILE
        make_folder(folder)
        self._lock = FileLock(folder / _LOCK, timeout=0)
        try:
            self._lock.acquire()
        except Timeout as error:
            reason = "another process is at work on a search in this folder: wait for it, or name another with --out"
            raise ConfigError(f"{folder}: {reason}") from error
        key = hashlib.sha256(json.dumps(question, sort_keys=True, default=str).encode()).hexdigest()
        self._content: dict[str, Any] = {"question": key, "decided": {}}
        try:
            if self.path.is_file():
                self._content = read_json_object(self.path, DataError, MADE_AGAIN)
            if self._content.get("question") != key:
                reason = (
                    "holds the search of another recipe, budget, space or metric, or of other data, or one that "
                    "another version of ostinato began: name another folder with --out"
                )
                raise ConfigError(f"{folder}: {reason}")
        except OstinatoError:
            self.close()
            raise

    def close(self) -> None:
        """Let other processes search here."""
        self._lock.release()

    def kept(self, name: str) -> Any:
        """Return what was decided; None where it was not."""
        return self._content["decided"].get(name)

    def decide(self, name: str, make: Callable[[], Any]) -> Any:
        """Return what was decided; decide it now where it was not, and keep it."""
        decided: dict[str, Any] = self._content["decided"]
        if name not in decided:
            decided[name] = make()
            write_json(self.path, self._content)
        return decided[name]
