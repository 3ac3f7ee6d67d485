"""Kernels of ours in C, for what cached decoding does at every token."""

from ostinato.kernels.native.build import described, library
from ostinato.kernels.native.calls import (
    AttentionLink,
    CachedKeys,
    Chain,
    FeedForwardLink,
    NormOf,
    few_rows,
    read_cache,
)

__all__ = [
    "AttentionLink",
    "CachedKeys",
    "Chain",
    "FeedForwardLink",
    "NormOf",
    "described",
    "few_rows",
    "library",
    "read_cache",
]
