"""Matrix products of rows grouped by expert: one plain twin, and backends chosen by a trial run on the device.

Letters of the shape suffixes: N rows (tokens), K chosen experts a row, M dispatched slots (at most N K), E experts,
D input width, F output width.
"""

from __future__ import annotations

from ostinato.kernels.choose import Backend, BackendChoice, choose_backend, grouped_linear
from ostinato.kernels.dispatch import Dispatch, combine, dispatch, from_slots, gather, to_slots

__all__ = [
    "Backend",
    "BackendChoice",
    "Dispatch",
    "choose_backend",
    "combine",
    "dispatch",
    "from_slots",
    "gather",
    "grouped_linear",
    "to_slots",
]
