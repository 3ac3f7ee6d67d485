"""Kernels of ours in C: what cached decoding does at every token, with gates that halt and the choice of the next one;
attention of all queries, large products, those of experts, and dropout."""

from ostinato.kernels.native.build import described, library
from ostinato.kernels.native.calls import (
    CachedKeys,
    FullAttention,
    Seen,
    add_dropped,
    draw_kept,
    drop,
    drop_relu,
    drop_relu_gradient,
    few_rows,
    grouped_gradients,
    grouped_products,
    highest,
    large_product,
    log_probs,
    read_cache,
    row_products,
    takes,
)
from ostinato.kernels.native.gates import MOST_ROWS, ActGate, HaltsBy, StickBreakingGate
from ostinato.kernels.native.links import AttentionLink, Chain, FeedForwardLink, NormOf, RouteOf

__all__ = [
    "MOST_ROWS",
    "ActGate",
    "AttentionLink",
    "CachedKeys",
    "Chain",
    "FeedForwardLink",
    "FullAttention",
    "HaltsBy",
    "NormOf",
    "RouteOf",
    "Seen",
    "StickBreakingGate",
    "add_dropped",
    "described",
    "draw_kept",
    "drop",
    "drop_relu",
    "drop_relu_gradient",
    "few_rows",
    "grouped_gradients",
    "grouped_products",
    "highest",
    "large_product",
    "library",
    "log_probs",
    "read_cache",
    "row_products",
    "takes",
]
