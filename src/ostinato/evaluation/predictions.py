"""Predictions on disk: JSON lines, written as they come."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

Record = dict[str, Any]
"""One prediction: index, source, reference, prediction, score, finished, columns."""

WriteRecord = Callable[[Record], None]


class PredictionWriter:
    """Writes one JSON line for every prediction; pass it as `predictions=` to `evaluate`.

    Lines come in the order of the batches, not of the split: `index` is the row number. The file appears under its name
    only when all is written; a failed evaluation leaves nothing behind.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._partial = path.with_name(path.name + ".partial")

    def __enter__(self) -> Self:
        self._partial.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._partial.open("w", encoding="utf-8")
        return self

    def __call__(self, record: Record) -> None:
        """Write one record."""
        self._file.write(json.dumps(record, ensure_ascii=False, default=str) + "\n")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        if kind is None:
            self._partial.replace(self.path)
        else:
            self._partial.unlink(missing_ok=True)
