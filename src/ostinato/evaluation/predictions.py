"""Predictions on disk: JSON lines, in the order of the split."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from heapq import heappop, heappush
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ostinato.data.disk import finite
from ostinato.data.output_files import check_output, new_file

Record = dict[str, Any]
"""One prediction: index, source, reference, prediction, score, finished, columns."""

WriteRecord = Callable[[Record], None]
_LONGEST_LINE = 1 << 24
"""Characters of a first line that are read to tell predictions from other files."""


class PredictionWriter:
    """Writes one JSON line for every prediction; pass it as `predictions=` to `evaluate`.

    Lines stand in the order of the split, `index` is the row number from 0: records come in the order of the batches,
    and each is held until those before it are written. The file appears under its name only when all is written; a
    failed evaluation leaves nothing behind.

    Args:
        path: a new file. overwrite: one that is there may be replaced, if it is one of predictions.

    Raises:
        ConfigError: on entry, before anything is written: a link, a device, a folder, or a file that may not be
            replaced. Without `overwrite` also at the end, where a file has appeared meanwhile.
    """

    def __init__(self, path: Path, *, overwrite: bool = False) -> None:
        self.path = path
        self._overwrite = overwrite

    def check(self) -> None:
        """Refuse what entering would refuse, before long work."""
        check_output(self.path, overwrite=self._overwrite, is_ours=are_predictions)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            partial = stack.enter_context(new_file(self.path, overwrite=self._overwrite, is_ours=are_predictions))
            self._file = stack.enter_context(partial.open("w", encoding="utf-8"))
            self._stack = stack.pop_all()
        self._next, self._n_given = 0, 0
        self._held: list[tuple[int, int, str]] = []
        """A heap of lines that come later in the file, by index; of one index, by when they were given."""
        return self

    def __call__(self, record: Record) -> None:
        """Write one record, and those after it that have waited for it."""
        line = json.dumps(finite(record), ensure_ascii=False, default=str) + "\n"
        self._n_given += 1
        heappush(self._held, (record["index"], self._n_given, line))
        while self._held and self._held[0][0] <= self._next:
            index = self._write_first()
            self._next = max(self._next, index + 1)

    def _write_first(self) -> int:
        index, _, line = heappop(self._held)
        self._file.write(line)
        return index

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while error is None and self._held:
            self._write_first()
        self._stack.__exit__(kind, error, trace)


def are_predictions(path: Path) -> bool:
    """Return whether a file is empty, or its first line is a prediction: what may be replaced by predictions."""
    with path.open(encoding="utf-8") as stream:
        try:
            line = stream.readline(_LONGEST_LINE)
            first = json.loads(line) if line else {"index": 0, "prediction": ""}
        except (ValueError, RecursionError):
            return False
    return isinstance(first, dict) and {"index", "prediction"} <= first.keys()
