"""The two logs of a run, with one JSON line per record.

metrics.jsonl holds what is a function of the recipe and the data alone: losses, learning rates, scores. When a run is
resumed, it is cut back to its length at the last checkpoint, and then grows to the same bytes that an uninterrupted run
writes. So nothing that differs between two equal runs may be in it: times, speeds and memory go to timings.jsonl, which
is never cut back.
"""

from __future__ import annotations

import hashlib
import json
import os
from itertools import takewhile
from pathlib import Path
from typing import Any

from ostinato.data.disk import finite, sync
from ostinato.errors import CheckpointError
from ostinato.system_errors import naming

METRICS, TIMINGS = "metrics.jsonl", "timings.jsonl"
_OF_UPDATES = b'{"kind": "training"'
"""Begins a line of metrics.jsonl that is of updates; of a long training nearly all are."""
_PIECE = 2**20


class Records:
    """Writes both logs; every call opens, appends and closes them, so that a killed run leaves whole lines."""

    def __init__(self, directory: Path) -> None:
        self.metrics = directory / METRICS
        self.timings = directory / TIMINGS
        self._hash = hashlib.sha256()  # of metrics.jsonl

    def add(self, record: dict[str, Any], timing: dict[str, Any]) -> None:
        """Append a record to metrics.jsonl and its timing to timings.jsonl."""
        self._hash.update(_append(self.metrics, record))
        _append(self.timings, {"kind": record["kind"], "update": record["update"], **timing})

    def flush(self) -> tuple[int, str]:
        """Flush metrics.jsonl to the disk and return its length and the SHA-256 of what was written to it."""
        if not self.metrics.exists():
            return 0, self._hash.hexdigest()
        sync(self.metrics)
        return self.metrics.stat().st_size, self._hash.hexdigest()

    def last_evaluation(self, n_bytes: int = -1) -> int:
        """Return the update of the last evaluation in the first bytes of metrics.jsonl (-1: all), 0 without one.

        Raises:
            CheckpointError: a line of it cannot be read.
        """
        if not self.metrics.exists():
            return 0
        with self.metrics.open("rb") as file:
            lines = takewhile(lambda line: not 0 <= n_bytes < file.tell(), file)
            found = (json.loads(line) for line in lines if not line.startswith(_OF_UPDATES))
            try:
                return max((int(record["update"]) for record in found if record["kind"] == "evaluation"), default=0)
            except (KeyError, RecursionError, TypeError, ValueError) as error:
                raise CheckpointError(f"{self.metrics}: is damaged: {error!r}") from error

    def check(self, n_bytes: int, sha256: str | None = None) -> None:
        """Check that metrics.jsonl begins with what was written to it; the hash of what is added goes on from there.

        Args:
            n_bytes: length of the file at the last checkpoint. sha256: of these bytes; None: not known, as in runs of
                earlier versions.

        Raises:
            CheckpointError: the file is shorter than that, or not what was written: it was changed from outside.
        """
        present = self.metrics.stat().st_size if self.metrics.exists() else 0
        if present < n_bytes:
            raise CheckpointError(
                f"{self.metrics}: has {present} bytes, but the last checkpoint was saved at {n_bytes}"
            )
        if not present:
            return
        self._hash = hashlib.sha256()
        with self.metrics.open("rb") as file:
            while part := file.read(min(n_bytes - file.tell(), _PIECE)):
                self._hash.update(part)
        if sha256 not in (None, self._hash.hexdigest()):
            raise CheckpointError(
                f"{self.metrics}: not the file that was written: the SHA-256 of its first {n_bytes} bytes differs. Put "
                "it back as it was to go on with the run"
            )

    def cut(self, n_bytes: int, sha256: str | None = None) -> None:
        """Cut metrics.jsonl back to a length; see `check`."""
        self.check(n_bytes, sha256)
        if self.metrics.exists() and self.metrics.stat().st_size > n_bytes:
            os.truncate(self.metrics, n_bytes)

    def mend_timings(self) -> None:
        """Cut off the last line of timings.jsonl where it was not written whole, as on a disk that was full."""
        if self.timings.exists():
            written = self.timings.read_bytes()
            os.truncate(self.timings, written.rfind(b"\n") + 1)


def _append(path: Path, record: dict[str, Any]) -> bytes:
    line = (json.dumps(finite(record), ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8")
    with naming(path), path.open("ab") as file:
        file.write(line)
    return line
