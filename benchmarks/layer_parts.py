"""Where the time of a call goes: torch's operations, named by what they are for, forward and backward."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

from torch.profiler import ProfilerActivity, profile, record_function

from ostinato.kernels.native import calls, gates, links

Sizes = list[list[int]]
FORWARD, BACKWARD = "forward", "backward"
_CALL = "a profiled call"
_LIBRARIES = ("aten::", "mkldnn::", "ostinato::")
_NODE = "autograd::engine::evaluate_function"
_BETWEEN = "Python and autograd between operations"


def parts(call: Callable[[], object], n: int, name_of: Callable[[str, Sizes, str], str]) -> list[dict[str, Any]]:
    """Return the median seconds of a call's parts over n calls, the longest first.

    An operation's time includes that of operations it calls. Profiling itself adds about a microsecond to each.

    Args:
        name_of: what an operation is for, by its name ("mm"), the sizes of its inputs, and forward or backward.

    Returns:
        Rows {part, direction, seconds, share, operations}; one of them, with an empty direction, is the time outside
        of all operations.
    """
    call()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, acc_events=True) as watched:
        for _ in range(n):
            with record_function(_CALL):
                call()
    tree = watched.profiler.kineto_results.experimental_event_tree()
    calls = [event for event in tree if event.name == _CALL]
    whole = median(event.duration_time_ns for event in calls)
    spent: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0] * len(calls))
    count: Counter[tuple[str, str]] = Counter()
    for place, event in enumerate(calls):
        for operation, direction in _operations(event, FORWARD):
            key = name_of(operation.name.split("::", 1)[1], _sizes(operation), direction), direction
            spent[key][place] += operation.duration_time_ns
            count[key] += 1
    nanoseconds = {key: median(found) for key, found in spent.items()}
    nanoseconds[_BETWEEN, ""] = whole - sum(nanoseconds.values())
    rows = [
        {
            "part": part,
            "direction": direction,
            "seconds": time / 1e9,
            "share": time / whole,
            "operations": count[part, direction] // len(calls),
        }
        for (part, direction), time in nanoseconds.items()
    ]
    return sorted(rows, key=lambda row: -row["seconds"])


def _operations(event: Any, direction: str) -> Iterator[tuple[Any, str]]:
    """Yield the outermost operations of torch under an event, whatever functions they stand in."""
    for child in event.children:
        name = getattr(child, "name", "")
        if name.startswith(_LIBRARIES):
            yield child, direction
        else:
            yield from _operations(child, BACKWARD if name.startswith(_NODE) else direction)


def _sizes(event: Any) -> Sizes:
    inputs = getattr(event.extra_fields, "inputs", ())
    return [list(one.sizes) for one in inputs if hasattr(one, "sizes")]


@contextmanager
def seen_kernels() -> Iterator[None]:
    """Let torch's profiler see the compiled kernels, by their names."""
    plain = calls.kernels

    class Shown:
        def __getattr__(self, name: str) -> Callable[..., Any]:
            function = getattr(plain(), name)

            def shown(*given: Any) -> Any:
                with record_function(f"ostinato::{name}"):
                    return function(*given)

            return shown

    found = Shown()
    users = (calls, links, gates)
    for module in users:
        module.kernels = lambda: found
    try:
        yield
    finally:
        for module in users:
            module.kernels = plain
