"""Sessions in forked processes: torch is imported once, and a process that is killed takes nothing along."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

needs_fork = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux: fork and /proc")


class Ended(NamedTuple):
    """How a forked process ended: its exit code, -9 where it was killed, and what it wrote."""

    code: int
    text: str


def forked(work: Callable[[], object], log: Path) -> Ended:
    """Do work in a forked process, whose two outputs go to a file; exit code 99 is an error, whose traceback is there.

    A SystemExit, which the command line ends with, is an exit code.
    """
    log.write_bytes(b"")
    pid = os.fork()
    if not pid:
        code = 99
        try:
            handle = os.open(log, os.O_WRONLY | os.O_APPEND)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            work()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return Ended(code, log.read_text(encoding="utf-8", errors="replace"))


def report_of(program: str, *arguments: object, within: tuple[str, ...] = ()) -> dict[str, Any]:
    """Run a file as a program, which can fork because it has one thread, and return the JSON of its last line.

    Args:
        within: a command to run it in.
    """
    command = [*within, sys.executable, program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-10_000:]
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report
