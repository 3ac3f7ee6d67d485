"""A process that takes the compiled kernels from the cache for every line that it is sent, each time in a new process.

The loader of the system keeps what it has loaded under a name: only a process that has loaded nothing yet reads a file.
"""

from __future__ import annotations

import os
import sys

from ostinato.kernels.native import build

for _ in sys.stdin:
    if not (child := os.fork()):
        print(build.library() is not None, build.described(), flush=True)
        os._exit(0)
    if code := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        print(f"ended with {code}", flush=True)
