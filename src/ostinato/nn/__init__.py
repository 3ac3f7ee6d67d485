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
    from ostinato.nn.by_round import Deltas, LowRank, Modulation, RoundTime, RoundVectors, TimeModulation
    from ostinato.nn.cache import Cache
    from ostinato.nn.choosing import Routers
    from ostinato.nn.execution import Execution, RoundsByLength, RoundsBySentence
    from ostinato.nn.experts import ExpertAttention, ExpertFeedForward, ExpertMaps, SparseLayer
    from ostinato.nn.feedforward import FeedForward
    from ostinato.nn.head_experts import HeadExpertAttention
    from ostinato.nn.layers import Linear, OffsetRMSNorm
    from ostinato.nn.loops import DecayInjection, LearnedState, LinearInjection
    from ostinato.nn.recurrent import GlobalAttention, Lstm
    from ostinato.nn.relative import Buckets, RelativeWindow, Rotary
    from ostinato.nn.routing import Gate, HypersphereRouter, LinearRouter, MlpRouter
    from ostinato.nn.separable import SeparableConv
    from ostinato.nn.stack import Stack
    from ostinato.nn.stick_breaking import StickBreaking, StickBreakingUnit
    from ostinato.nn.token_values import TokenValues

_HOMES = {
    "act": ("Act", "ActUnit"),
    "attention": ("Attention", "Visibility"),
    "bank": ("Banks",),
    "by_length": ("ByLength",),
    "by_round": ("Deltas", "LowRank", "Modulation", "RoundTime", "RoundVectors", "TimeModulation"),
    "cache": ("Cache",),
    "choosing": ("Routers",),
    "execution": ("Execution", "RoundsByLength", "RoundsBySentence"),
    "experts": ("ExpertAttention", "ExpertFeedForward", "ExpertMaps", "SparseLayer"),
    "feedforward": ("FeedForward",),
    "head_experts": ("HeadExpertAttention",),
    "layers": ("Linear", "OffsetRMSNorm"),
    "loops": ("DecayInjection", "LearnedState", "LinearInjection"),
    "recurrent": ("GlobalAttention", "Lstm"),
    "relative": ("Buckets", "RelativeWindow", "Rotary"),
    "routing": ("Gate", "HypersphereRouter", "LinearRouter", "MlpRouter"),
    "separable": ("SeparableConv",),
    "stack": ("Stack",),
    "stick_breaking": ("StickBreaking", "StickBreakingUnit"),
    "token_values": ("TokenValues",),
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
    "DecayInjection",
    "Deltas",
    "Execution",
    "ExpertAttention",
    "ExpertFeedForward",
    "ExpertMaps",
    "FeedForward",
    "Gate",
    "GlobalAttention",
    "HeadExpertAttention",
    "HypersphereRouter",
    "LearnedState",
    "Linear",
    "LinearInjection",
    "LinearRouter",
    "LowRank",
    "Lstm",
    "MlpRouter",
    "Modulation",
    "OffsetRMSNorm",
    "RelativeWindow",
    "Rotary",
    "RoundTime",
    "RoundVectors",
    "RoundsByLength",
    "RoundsBySentence",
    "Routers",
    "SeparableConv",
    "SparseLayer",
    "Stack",
    "StickBreaking",
    "StickBreakingUnit",
    "TimeModulation",
    "TokenValues",
    "Visibility",
]


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'ostinato.nn' has no attribute {name!r}")
    return getattr(import_module(f"ostinato.nn.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
