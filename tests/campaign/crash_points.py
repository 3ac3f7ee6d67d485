"""Where a session can end: before every operation on files, and in the middle of every write."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from file_operations import Operation
from lossy_disk import LossyDisk


class Points:
    """The crash points of a session: every operation before it is done, and the middle of every write.

    Args:
        kill_at: the point, from 1, at which this process is killed; None: at none.
        look: called at every point. disk: follows what is flushed.
    """

    def __init__(
        self,
        root: Path,
        kill_at: int | None = None,
        look: Callable[[], None] = lambda: None,
        disk: LossyDisk | None = None,
    ) -> None:
        self.root, self.kill_at, self.look, self.disk = root, kill_at, look, disk
        self.names: list[str] = []

    def before(self, operation: Operation) -> None:
        self._reach(operation.kind, operation)
        if operation.half is not None:
            self._reach(f"half {operation.kind}", operation)
        if self.disk is not None:
            self.disk.before(operation)

    def _reach(self, kind: str, operation: Operation) -> None:
        self.names.append(f"{kind} {operation.path.relative_to(self.root)}")
        self.look()
        if len(self.names) == self.kill_at:
            if kind.startswith("half") and operation.half is not None:
                operation.half()
            os.kill(os.getpid(), signal.SIGKILL)
