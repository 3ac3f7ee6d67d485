"""Memory of large arrays on a CPU that is used again in place of being returned to the system and asked for anew.

The system hands out pages of 4 KiB and fills each with zeros when it is first written to. For the gradients of many
experts that can take as long as computing one of them (docs/experts.md, "Memory of gradients").

    keep_freed_memory      blocks below 32 MiB stay with the C library when they are released
    room_for_gradient      larger ones, which it always returns: the gradient of a weight takes the memory that an
                           earlier gradient of the same weight has left
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import weakref
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from pathlib import Path
from threading import Lock

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

LEAST_BYTES = 2**25
"""Size from which the GNU C library maps every block anew, whatever it is told."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Names of parameters of `mallopt`."""


def keep_freed_memory() -> bool:
    """Let this process keep blocks below 32 MiB that it has released; return whether it could be told.

    For the whole process and from now on: only the GNU C library knows this, and what the environment says of it
    (`MALLOC_...`, `GLIBC_TUNABLES`) comes first. The most memory ever used stays what it is.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return False
    try:
        library = ctypes.CDLL(None)
        return hasattr(library, "gnu_get_libc_version") and bool(
            library.mallopt(_MMAP_THRESHOLD, LEAST_BYTES) and library.mallopt(_TRIM_THRESHOLD, -1)
        )
    except (OSError, AttributeError, TypeError):
        return False


def peak_memory(device: torch.device) -> int | None:
    """Return the most bytes that this process has held so far, whatever it was doing: of tensors on a CUDA device,
    elsewhere of all its memory on the host; None where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with suppress(OSError, KeyError):  # Linux, where `getrusage` begins with the peak of the process that started it
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
        return 1024 * int(dict(line.split(":", 1) for line in lines)["VmHWM"].split()[0])
    try:
        import resource
    except ImportError:  # Windows
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most  # KiB but on macOS


class _Block:
    """Mapped memory of one size, in large pages where the system has them, and the view that a tensor uses."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):  # a system may have none
                self.memory.madvise(mmap.MADV_HUGEPAGE)
        self.view: Callable[[], memoryview | None] = lambda: None


_blocks: MutableMapping[Tensor, list[_Block]] = WeakTensorKeyDictionary()
_lock = Lock()


def room_for_gradient(weight: Tensor) -> Tensor:
    """Return an uninitialised contiguous tensor of the shape and type of `weight`.

    The blocks of a weight, as many as it ever had gradients at a time, live as long as it does, in large pages where
    the system has them.

    Plain twin: `torch.empty_like`, used for smaller weights, for weights that are no parameters, on accelerators, and
    where the system has no private memory maps.
    """
    size = weight.numel() * weight.element_size()
    if size < LEAST_BYTES or not weight.is_leaf or weight.device.type != "cpu" or not hasattr(mmap, "MAP_PRIVATE"):
        return torch.empty_like(weight, memory_format=torch.contiguous_format)
    with _lock:
        blocks = _blocks.setdefault(weight, [])
        # A tensor's storage holds the view that it was made of: without one, no tensor uses the block.
        block = next((block for block in blocks if block.view() is None and block.size == size), None)
        if block is None:
            block = _Block(size)
            blocks.append(block)
        view = memoryview(block.memory)
        block.view = weakref.ref(view)
        # Not a view: autograd adds to a gradient in place only where nothing else refers to its storage.
        return torch.frombuffer(view, dtype=weight.dtype).resize_(weight.shape)
