"""What takes the time: matrix products (of experts, too), attention, dropout, loss, and the cached steps of decoding.

Each has a plain twin in torch's operations, and where that pays others, which are chosen by the device or by a trial
run on it; those in C are in `ostinato.kernels.native`. Here is also what depends on the device, and what is kept in
memory.

Letters of the shape suffixes: N rows (tokens), K chosen experts a row, M dispatched slots (at most N K), E experts,
D input width, F output width.
"""

from __future__ import annotations

from ostinato.kernels.activation import GATES, Activation, activate
from ostinato.kernels.attention import attend, attend_some, for_all_heads, hidden_score, split, unbind
from ostinato.kernels.choose import Backend, BackendChoice, choose_backend, noting_backends
from ostinato.kernels.cross_entropy import IGNORED, cross_entropy_sums
from ostinato.kernels.devices import (
    autocast_dtype,
    float64,
    has_float64,
    is_exporting,
    mean_where,
    moved,
    on_device,
    places_where,
    runs_ahead,
    wait_for,
    without_autocast,
)
from ostinato.kernels.dispatch import Dispatch, combine, dense_dispatch, dispatch, gather
from ostinato.kernels.dropout import Draws, Kept, add_dropped, draw_kept, drop, drop_activated
from ostinato.kernels.feedforward import ExpertWeights, expert_feed_forward
from ostinato.kernels.large_products import product
from ostinato.kernels.linear import routed_linear
from ostinato.kernels.log_probs import highest, log_probs
from ostinato.kernels.memory import keep_freed_memory, peak_memory
from ostinato.kernels.native import (
    MOST_ROWS,
    ActGate,
    AttentionLink,
    CachedKeys,
    Chain,
    FeedForwardLink,
    HaltsBy,
    NormOf,
    RouteOf,
    Seen,
    StickBreakingGate,
    read_cache,
)
from ostinato.kernels.packed import PackedMatrix, Packing, active_packing, compiled_packing, packing
from ostinato.kernels.sums import active_sums, summing

__all__ = [
    "GATES",
    "IGNORED",
    "MOST_ROWS",
    "ActGate",
    "Activation",
    "AttentionLink",
    "Backend",
    "BackendChoice",
    "CachedKeys",
    "Chain",
    "Dispatch",
    "Draws",
    "ExpertWeights",
    "FeedForwardLink",
    "HaltsBy",
    "Kept",
    "NormOf",
    "PackedMatrix",
    "Packing",
    "RouteOf",
    "Seen",
    "StickBreakingGate",
    "activate",
    "active_packing",
    "active_sums",
    "add_dropped",
    "attend",
    "attend_some",
    "autocast_dtype",
    "choose_backend",
    "combine",
    "compiled_packing",
    "cross_entropy_sums",
    "dense_dispatch",
    "dispatch",
    "draw_kept",
    "drop",
    "drop_activated",
    "expert_feed_forward",
    "float64",
    "for_all_heads",
    "gather",
    "has_float64",
    "hidden_score",
    "highest",
    "is_exporting",
    "keep_freed_memory",
    "log_probs",
    "mean_where",
    "moved",
    "noting_backends",
    "on_device",
    "packing",
    "peak_memory",
    "places_where",
    "product",
    "read_cache",
    "routed_linear",
    "runs_ahead",
    "split",
    "summing",
    "unbind",
    "wait_for",
    "without_autocast",
]
