"""Processes that work for another one."""

from __future__ import annotations

import os
import signal
import threading
from multiprocessing import parent_process


def end_with_parent() -> None:
    """End this process as soon as the one that started it has ended, however it ends.

    An interrupt at the terminal is left to the parent to answer.
    """

    def wait_for_parent() -> None:
        if (parent := parent_process()) is not None:
            parent.join()
            os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=wait_for_parent, daemon=True).start()
