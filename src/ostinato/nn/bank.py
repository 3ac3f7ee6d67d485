"""Banks: the parameter sets a plan refers to by name, owned by the model.

One bank per kind of sub-layer, one for norms, one for tables of relative positions, one for halting
units, by stack. A set may serve many steps and
more than one stack; it is one object, so it is counted, optimised and stored once.
"""

from __future__ import annotations

from torch import nn

from ostinato.nn.attention import Attention
from ostinato.nn.experts import ExpertAttention, ExpertFeedForward, SparseLayer
from ostinato.nn.feedforward import FeedForward
from ostinato.nn.relative import RelativePositions
from ostinato.nn.separable import SeparableConv
from ostinato.plan import Kind


class Banks(nn.Module):
    """Parameter sets by kind and name."""

    def __init__(self) -> None:
        super().__init__()
        self.self_attention = nn.ModuleDict()
        self.cross_attention = nn.ModuleDict()
        self.ffn = nn.ModuleDict()
        self.norm = nn.ModuleDict()
        self.relative = nn.ModuleDict()
        self.halting = nn.ModuleDict()

    def attention(self, kind: Kind, name: str) -> Attention | ExpertAttention:
        """Return a parameter set of self- or cross-attention."""
        module = (self.self_attention if kind == "self_attention" else self.cross_attention)[name]
        if not isinstance(module, Attention | ExpertAttention):
            raise TypeError(f"{kind} '{name}' is a {type(module).__name__}")
        return module

    def feed_forward(self, name: str) -> FeedForward | SeparableConv | ExpertFeedForward | SparseLayer:
        """Return a parameter set of the feed-forward."""
        module = self.ffn[name]
        if not isinstance(module, FeedForward | SeparableConv | ExpertFeedForward | SparseLayer):
            raise TypeError(f"ffn '{name}' is a {type(module).__name__}")
        return module

    def relation(self, name: str | None) -> RelativePositions | None:
        """Return a table of relative positions."""
        module = None if name is None else self.relative[name]
        if module is not None and not isinstance(module, RelativePositions):
            raise TypeError(f"relative '{name}' is a {type(module).__name__}")
        return module
