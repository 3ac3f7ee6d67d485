"""How the C library deals with memory that is given back: kept for the next update, or returned to the system.

An update frees and takes again the same large blocks, above all the gradients of stacked experts. glibc maps every
block above 32 MiB anew, and the system clears its pages one fault at a time. `benchmarks/moe_ffn.py --keep-memory`
measures what keeping them is worth.
"""

from __future__ import annotations

import ctypes
import platform

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_BLOCK, _KEPT = 1 << 30, (1 << 31) - 1


def keep_freed_memory() -> bool:
    """Let this process keep up to 2 GiB that it frees, in blocks of up to 1 GiB; return whether that is possible.

    It lasts as long as the process. Elsewhere than on Linux with glibc nothing happens.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(_MMAP_THRESHOLD, _BLOCK)) and bool(mallopt(_TRIM_THRESHOLD, _KEPT))
