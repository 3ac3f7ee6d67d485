"""What a CUDA graph does, on a CPU: operations are recorded once, and done again with the memory of then.

Nothing of the host's program runs again: numbers it had become part of the recording, and what it would have read of
tensors, too. So a step that is recorded for one token and replayed for others gives their results only if nothing but
the numbers in tensors differs between tokens, and all that is kept from one to the next lies in the same memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Recording(TorchDispatchMode):
    """Notes every operation inside."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[tuple[Any, Any, dict[str, Any], Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        self.done.append((func, args, kwargs or {}, found))
        return found

    def again(self, result: Tensor) -> Tensor:
        """Do all operations again, what some made being given to others; return what `result` becomes."""
        made: dict[int, Tensor] = {}
        for func, args, kwargs, found in self.done:
            new = func(*_replaced(args, made), **_replaced(kwargs, made))
            made.update(zip(map(id, _tensors(found)), _tensors(new), strict=True))
        return made[id(result)]


def record(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """Record a function as one that replays it. It has to run for that: the first replay gives what it returned."""
    with Recording() as recording:
        result = run()
    first = [result]
    return lambda: first.pop() if first else recording.again(result)


def _tensors(given: Any) -> list[Tensor]:
    if isinstance(given, Tensor):
        return [given]
    return [x for one in given for x in _tensors(one)] if isinstance(given, (list, tuple)) else []


def _replaced(given: Any, made: dict[int, Tensor]) -> Any:
    if isinstance(given, Tensor):
        return made.get(id(given), given)
    if isinstance(given, dict):
        return {name: _replaced(one, made) for name, one in given.items()}
    return type(given)(_replaced(one, made) for one in given) if type(given) in (list, tuple) else given
