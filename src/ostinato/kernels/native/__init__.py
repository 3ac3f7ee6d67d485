"""Kernels of ours in C, for what cached decoding does at every token."""

from ostinato.kernels.native.build import described, library
from ostinato.kernels.native.calls import CachedKeys, few_rows, read_cache
from ostinato.kernels.native.gates import MOST_ROWS, ActGate, StickBreakingGate
from ostinato.kernels.native.links import AttentionLink, Chain, FeedForwardLink, NormOf, RouteOf

__all__ = [
    "MOST_ROWS",
    "ActGate",
    "AttentionLink",
    "CachedKeys",
    "Chain",
    "FeedForwardLink",
    "NormOf",
    "RouteOf",
    "StickBreakingGate",
    "described",
    "few_rows",
    "library",
    "read_cache",
]
