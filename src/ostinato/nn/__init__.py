"""Layers: tensors in, tensors out; one file per idea. They know no configuration.

The modules that hold parameters are public names of this package, loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ostinato.nn.act import Act, ActUnit
    from ostinato.nn.attention import Attention, Visibility
    from ostinato.nn.bank import Banks
    from ostinato.nn.by_length import ByLength
    from ostinato.nn.cache import Cache
    from ostinato.nn.execution import Execution, RoundsByLength, RoundsBySentence
    from ostinato.nn.experts import ExpertAttention, ExpertFeedForward, ExpertMaps, SparseLayer
    from ostinato.nn.feedforward import FeedForward
    from ostinato.nn.layers import Linear
    from ostinato.nn.recurrent import GlobalAttention, Lstm
    from ostinato.nn.relative import Buckets, RelativeWindow, Rotary
    from ostinato.nn.routing import Gate, HypersphereRouter, LinearRouter, MlpRouter
    from ostinato.nn.separable import SeparableConv
    from ostinato.nn.stack import Stack
    from ostinato.nn.stick_breaking import StickBreaking, StickBreakingUnit

_HOMES = {
    "act": ("Act", "ActUnit"),
    "by_length": ("ByLength",),
    "attention": ("Attention", "Visibility"),
    "bank": ("Banks",),
    "cache": ("Cache",),
    "execution": ("Execution", "RoundsByLength", "RoundsBySentence"),
    "experts": ("ExpertAttention", "ExpertFeedForward", "ExpertMaps", "SparseLayer"),
    "feedforward": ("FeedForward",),
    "layers": ("Linear",),
    "recurrent": ("GlobalAttention", "Lstm"),
    "relative": ("Buckets", "RelativeWindow", "Rotary"),
    "routing": ("Gate", "HypersphereRouter", "LinearRouter", "MlpRouter"),
    "separable": ("SeparableConv",),
    "stack": ("Stack",),
    "stick_breaking": ("StickBreaking", "StickBreakingUnit"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Act",
    "ActUnit",
    "Attention",
    "Banks",
    "Buckets",
    "ByLength",
    "Cache",
    "Execution",
    "ExpertAttention",
    "ExpertFeedForward",
    "ExpertMaps",
    "FeedForward",
    "Gate",
    "GlobalAttention",
    "HypersphereRouter",
    "Linear",
    "LinearRouter",
    "Lstm",
    "MlpRouter",
    "RelativeWindow",
    "Rotary",
    "RoundsByLength",
    "RoundsBySentence",
    "SeparableConv",
    "SparseLayer",
    "Stack",
    "StickBreaking",
    "StickBreakingUnit",
    "Visibility",
]


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'ostinato.nn' has no attribute {name!r}")
    return getattr(import_module(f"ostinato.nn.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
