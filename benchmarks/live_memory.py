"""The most memory a call holds at once, in two ways.

live       every allocation and release of torch's tensor allocator, those inside operators included, as its profiler
           notes them: exact, the same in every run. What libraries take past that allocator (packing buffers of matrix
           products) is not seen.
resident   what the system counts for the process: also what the C library keeps after a release. Only a process that
           has done nothing else gives an honest number.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from torch import Tensor
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile


def peak_bytes(call: Callable[[], object], kept: Callable[[], Iterable[Tensor]]) -> int:
    """Return the largest sum of bytes that a call allocated and had not released yet.

    Args:
        call: what to watch. What it leaves allocated counts, unless it is `kept`.
        kept: after the call, tensors that do not count from their allocation on: the gradients of parameters.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as watched:
        call()
    kinetic = watched.profiler.kineto_results
    events = sorted(_allocations(kinetic.experimental_event_tree()))
    return _peak(events, {tensor.untyped_storage().data_ptr() for tensor in kept()})


def _allocations(tree: Iterable[Any]) -> Iterator[tuple[int, int, int]]:
    """Yield (time, address, bytes) of everything allocated (> 0) or released (< 0)."""
    for event in tree:
        if event.tag == _EventType.Allocation:
            yield event.start_time_ns, event.extra_fields.ptr, event.extra_fields.alloc_size
        yield from _allocations(event.children)


def _peak(events: list[tuple[int, int, int]], kept: set[int]) -> int:
    """Return the largest sum of live bytes; the last allocation at an address of `kept` does not count."""
    last = {address: place for place, (_, address, size) in enumerate(events) if size > 0}
    uncounted = {last[address] for address in kept if address in last}
    live: dict[int, int] = {}
    held = most = 0
    for place, (_, address, size) in enumerate(events):
        if size > 0:
            live[address] = 0 if place in uncounted else size
            held += live[address]
        else:  # What was allocated before the call began is not known here.
            held -= live.pop(address, 0)
        most = max(most, held)
    return most


def resident_bytes(call: Callable[[], object]) -> int | None:
    """Return by how much a call raises the process's resident memory at its peak; None where the system does not say.

    Linux only: the peak is set back to the present value first.
    """
    try:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        before = _status("VmRSS")
        call()
        return _status("VmHWM") - before
    except (OSError, AttributeError, KeyError):
        return None


def _status(key: str) -> int:
    """Return a size of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return int(fields[key].split()[0]) * 1024
