"""How many CPU threads torch uses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import torch

_LOCK = Lock()
_INSIDE: list[list[int]] = []
"""What each that is inside is to leave behind it, in the order in which they came; they may be in several threads."""


@contextmanager
def cpu_threads(n_threads: int | None) -> Iterator[None]:
    """Use this many CPU threads inside; None: as many as now."""
    with _LOCK:
        _INSIDE.append(before := [torch.get_num_threads()])
        if n_threads is not None:
            torch.set_num_threads(n_threads)
    try:
        yield
    finally:
        with _LOCK:
            place = next(index for index, one in enumerate(_INSIDE) if one is before)
            for later in _INSIDE[place + 1 : place + 2]:  # it found what this one had set, which is not to stay
                later[0] = before[0]
            del _INSIDE[place]
            torch.set_num_threads(before[0])
