"""What a run writes while it goes: one JSON line per record.

metrics.jsonl holds what is a function of the recipe and the data alone: losses, learning rates, scores. After a crash
it is cut back to the length the last checkpoint knows of, and grows again to the same bytes an uninterrupted run
writes. That is why nothing that differs from one run to the next may be in it: times and speeds go to timings.jsonl,
which is never cut back, because the time was spent.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from ostinato.errors import CheckpointError

METRICS, TIMINGS = "metrics.jsonl", "timings.jsonl"


class Records:
    """The two logs of a run, opened for appending by every call, so that a killed run leaves whole lines."""

    def __init__(self, directory: Path) -> None:
        self.metrics = directory / METRICS
        self.timings = directory / TIMINGS

    def add(self, record: dict[str, Any], timing: dict[str, Any]) -> None:
        """Append a record, and what it took."""
        _append(self.metrics, record)
        _append(self.timings, {"kind": record["kind"], "update": record["update"], **timing})

    def n_bytes(self) -> int:
        """Force metrics.jsonl to the disk and return its length."""
        if not self.metrics.exists():
            return 0
        with self.metrics.open("rb") as file:
            os.fsync(file.fileno())
        return self.metrics.stat().st_size

    def cut(self, n_bytes: int) -> None:
        """Forget the metrics beyond a length.

        Raises:
            CheckpointError: the file is shorter than that, so somebody changed it.
        """
        present = self.metrics.stat().st_size if self.metrics.exists() else 0
        if present < n_bytes:
            raise CheckpointError(
                f"{self.metrics}: has {present} bytes, but the last checkpoint was saved at {n_bytes}"
            )
        if present > n_bytes:
            os.truncate(self.metrics, n_bytes)


class NoRecords(Records):
    """Of a process that writes nothing, because the first one of its run does."""

    def add(self, record: dict[str, Any], timing: dict[str, Any]) -> None:
        """Write nothing."""

    def n_bytes(self) -> int:
        """Return 0."""
        return 0

    def cut(self, n_bytes: int) -> None:
        """Cut nothing."""


def _append(path: Path, record: dict[str, Any]) -> None:
    with path.open("a", encoding="utf-8", newline="\n") as file:
        file.write(json.dumps(_strict(record), ensure_ascii=False, allow_nan=False) + "\n")


def _strict(value: Any) -> Any:
    """Return the value with infinities and NaN as null: JSON has no such numbers, and other readers refuse them."""
    if isinstance(value, dict):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_strict(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
