"""Set-up of the whole suite, before anything imports torch.

Being here puts `tests` on the import path: `architectures`, `contract` and `reference` are imported by name.
"""

from __future__ import annotations

import os
import signal

# The tensors are tiny: a second thread costs a hundred times what it saves, and workers run side by side.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_configure() -> None:
    """Take Ctrl-C as Python does on its own: what is started in the background may have been told to ignore it."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
