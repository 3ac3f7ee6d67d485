"""What experts and their routers are made of and cost a token.

With D = d_model, I = n_heads d_head, F = d_ff, E experts, k of them a token, b = 1 with biases, else 0:

    one expert, feed-forward     2 D F + b (F + D),  geglu 3 D F + b (2 F + D)
    one expert, sparse layer     n_layers times that and a norm of 2 D
    one expert, attention        2 D I + b (I + D): queries and output
    keys and values              2 D I + 2 b I, shared by all experts of a set
    router   linear              E D
             mlp                 D^2 + D + E D
             hypersphere         d_e D + E d_e + 1, without projection E D + 1 (the 1 is the temperature)

A token runs k experts, one projection to keys and values, and the router: only the router's cost depends on E. One
expert alone has no router. Sparse Universal Transformer, sections 2.2 and 2.3; X-MoE, section 2.
"""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.budget.sizes import hidden_branches, inner_width, planned_uses
from ostinato.config.experts import (
    ExpertAttentionConfig,
    ExpertFeedForwardConfig,
    HypersphereRouterConfig,
    MlpRouterConfig,
    RoutedConfig,
    SparseLayerConfig,
)
from ostinato.config.model import ModelConfig
from ostinato.config.sub_layers import AttentionConfig


@dataclass(frozen=True, slots=True)
class TopK:
    """How many experts a token gets: k of n_experts."""

    k: int
    n_experts: int

    def __str__(self) -> str:
        return f"{self.k} of {self.n_experts} experts"


def chosen_experts(config: ModelConfig) -> dict[str, TopK]:
    """Return the experts a token gets by routed sub-layer: ``<stack>.<kind>`` or ``<stack>.sparse_layer``."""
    routed = ((planned.part, planned.sub) for planned in planned_uses(config) if isinstance(planned.sub, RoutedConfig))
    return {part: TopK(sub.top_k, sub.n_experts) for part, sub in routed if sub.has_router}


def expert_size(sub: RoutedConfig, d_model: int) -> int:
    """Return the parameters of one expert."""
    match sub:
        case ExpertAttentionConfig():
            inner = inner_width(sub, d_model)
            return 2 * d_model * inner + (inner + d_model if sub.bias else 0)
        case ExpertFeedForwardConfig():
            return _maps_size(sub, d_model)
        case SparseLayerConfig():
            return sub.n_layers * (_maps_size(sub, d_model) + 2 * d_model)
    raise TypeError(f"no size of an expert is known for {type(sub).__name__}")


def _maps_size(sub: ExpertFeedForwardConfig | SparseLayerConfig, d_model: int) -> int:
    branches = hidden_branches(sub)
    return (branches + 1) * d_model * sub.d_ff + (branches * sub.d_ff + d_model if sub.bias else 0)


def n_choices(attention: AttentionConfig) -> int:
    """Return the queries a token has of a head: one for every expert it gets, 1 without experts."""
    return attention.top_k if isinstance(attention, ExpertAttentionConfig) else 1


def keys_values_size(attention: AttentionConfig, d_model: int) -> int:
    """Return the parameters that make keys and values, with experts or without."""
    return 2 * inner_width(attention, d_model) * (d_model + (1 if attention.bias else 0))


def router_size(sub: RoutedConfig, d_model: int) -> int:
    """Return the parameters of a router; 0 where there is nothing to choose."""
    if not sub.has_router:
        return 0
    match sub.router:
        case MlpRouterConfig():
            return router_products(sub, d_model) + d_model
        case HypersphereRouterConfig():
            return router_products(sub, d_model) + 1
        case _:
            return router_products(sub, d_model)


def router_products(sub: RoutedConfig, d_model: int) -> int:
    """Return the weights of a router's matrices: also its MACs for one token."""
    if not sub.has_router:
        return 0
    match sub.router:
        case MlpRouterConfig():
            return d_model**2 + sub.n_experts * d_model
        case HypersphereRouterConfig(project=True):
            return sub.router_width * (d_model + sub.n_experts)
        case _:
            return sub.n_experts * d_model


def expert_products(sub: RoutedConfig, d_model: int) -> int:
    """Return the weights of one expert's matrices: also its MACs for one token."""
    match sub:
        case ExpertAttentionConfig():
            return 2 * d_model * inner_width(sub, d_model)
        case ExpertFeedForwardConfig():
            return (hidden_branches(sub) + 1) * d_model * sub.d_ff
        case SparseLayerConfig():
            return sub.n_layers * (hidden_branches(sub) + 1) * d_model * sub.d_ff
    raise TypeError(f"no cost of an expert is known for {type(sub).__name__}")
