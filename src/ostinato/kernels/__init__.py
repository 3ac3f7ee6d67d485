"""Matrix products of rows grouped by expert: one plain twin, and backends chosen by a trial run on the device.

Letters of the shape suffixes: N rows (tokens), K chosen experts a row, M dispatched slots (at most N K), E experts,
D input width, F output width.
"""

from __future__ import annotations

from ostinato.kernels.choose import Backend, choose_backend, grouped_linear
from ostinato.kernels.dispatch import Dispatch, combine, dispatch, gather

__all__ = ["Backend", "Dispatch", "choose_backend", "combine", "dispatch", "gather", "grouped_linear"]
