"""Start a program of these tests in several processes, as a launcher does."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

TIME_LIMIT = 1800.0
"""Seconds after which processes hang: many times what they take on a busy machine."""


def launch(script: Path, *arguments: str, n: int = 2) -> list[tuple[int, str]]:
    """Return exit code and standard error of every process; one that hangs is killed, and an error."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = os.environ | {"OMP_NUM_THREADS": "1", "WORLD_SIZE": str(n), "LOCAL_WORLD_SIZE": str(n)}
    # The processes import what this one can.
    paths = os.pathsep.join(path for path in sys.path if path)
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "PYTHONPATH": paths}
    shared["PYTHONFAULTHANDLER"] = "1"  # a process that is ended by a signal says where it was
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), *arguments],
            stderr=subprocess.PIPE,
            text=True,
            env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(n)
    ]
    deadline = time.monotonic() + TIME_LIMIT
    try:
        said = [process.communicate(timeout=max(0.1, deadline - time.monotonic()))[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [(process.returncode, text) for process, text in zip(processes, said, strict=True)]
