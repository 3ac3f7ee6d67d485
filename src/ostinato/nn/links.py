"""Modules as compiled kernels know them: addresses of their weights, or nothing where the modules must be called.

Exactly the modules of this library are known. What others have put in their place, changed, or look at by hooks, runs
as it is.
"""

from __future__ import annotations

import torch
from torch import nn

from ostinato.kernels import AttentionLink, FeedForwardLink, NormOf, RouteOf
from ostinato.nn.attention import Attention
from ostinato.nn.expert_attention import ExpertAttention
from ostinato.nn.experts import ExpertFeedForward, ExpertMaps, Routed
from ostinato.nn.feedforward import FeedForward
from ostinato.nn.linear import Linear
from ostinato.nn.routing import Gate
from ostinato.nn.shapes import Tensor

_Map = tuple[Tensor, Tensor | None]


def attention_link(
    module: nn.Module, norm: nn.Module | None, *, is_before: bool, makes_keys: bool
) -> AttentionLink | None:
    """Return an attention sub-layer; None where plain code must run it.

    Args:
        norm: None: there is none. is_before: pre-norm. makes_keys: of what it reads, too (self-attention).
    """
    route = _route_of(module)
    maps: tuple[_Map, _Map, _Map]
    dense: tuple[nn.Module, ...]
    if type(module) is Attention:
        maps, dense = _attention_maps(module), (module.qkv, module.out)
    elif type(module) is ExpertAttention and route is not None:
        of_experts = (module.query_EDI, module.query_bias_EI), (module.out_EID, module.out_bias_ED)
        maps, dense = (of_experts[0], (module.kv.weight, module.kv.bias), of_experts[1]), (module.kv,)
    else:
        return None
    if not _knows_norm(norm) or is_changed(module, *dense) or not all(are_plain(*of_map) for of_map in maps):
        return None
    if module.n_choices != (1 if route is None else route.k):
        return None
    queries, keys_values, output = maps
    made = keys_values if makes_keys else None
    return AttentionLink(
        _norm_of(norm), is_before=is_before, queries=queries, keys_values=made, output=output, route=route
    )


def feed_forward_link(module: nn.Module, norm: nn.Module | None, *, is_before: bool) -> FeedForwardLink | None:
    """Return a feed-forward sub-layer; None where plain code must run it. Arguments as of `attention_link`."""
    route = _route_of(module)
    known: FeedForward | ExpertMaps
    maps: tuple[_Map, _Map]
    dense: tuple[nn.Module, ...] = ()
    if type(module) is FeedForward:
        known, dense = module, (module.up, module.down)
        maps = (module.up.weight, module.up.bias), (module.down.weight, module.down.bias)
    elif type(module) is ExpertFeedForward and route is not None and type(module.experts) is ExpertMaps:
        known = module.experts
        maps = (known.up_EDF, known.up_bias_EF), (known.down_EFD, known.down_bias_ED)
    else:
        return None
    if not _knows_norm(norm) or is_changed(known, *dense) or not all(are_plain(*of_map) for of_map in maps):
        return None
    up, down = maps
    return FeedForwardLink(_norm_of(norm), known.activation, is_before=is_before, up=up, down=down, route=route)


def _attention_maps(module: Attention) -> tuple[_Map, _Map, _Map]:
    """Return the maps to queries, to keys and values, and of the output."""
    weight, bias = module.qkv.weight, module.qkv.bias
    parts = slice(module.inner), slice(module.inner, None)
    queries, keys_values = ((weight[part], None if bias is None else bias[part]) for part in parts)
    return queries, keys_values, (module.out.weight, module.out.bias)


def is_changed(module: nn.Module, *maps: nn.Module) -> bool:
    """Return whether somebody has put other maps into a module, or looks at what it does."""
    is_other = any(type(one) not in (Linear, nn.Linear) for one in maps)
    return is_other or module.training or any(_is_watched(one) for one in (module, *maps))


def _is_watched(module: nn.Module) -> bool:
    """Return whether hooks want to see what a module, or any module, is given or gives."""
    everywhere = torch.nn.modules.module
    if everywhere._global_forward_hooks or everywhere._global_forward_pre_hooks:
        return True
    return bool(module._forward_hooks or module._forward_pre_hooks)


def are_plain(*tensors: Tensor | None) -> bool:
    """Return whether kernels can read these as they lie."""
    return all(
        x is None or (x.dtype == torch.float32 and x.device.type == "cpu" and x.is_contiguous()) for x in tensors
    )


def _route_of(module: nn.Module) -> RouteOf | None:
    """Return a router and its gate as kernels know them; None where there is none that they know."""
    if not isinstance(module, Routed) or module.backend != "auto" or type(module.gate) is not Gate:
        return None
    parts = None if module.router is None else module.router.parts()
    if module.router is None or parts is None or is_changed(module) or is_changed(module.router, *parts.maps):
        return None
    hidden = None if parts.hidden is None else (parts.hidden.weight, parts.hidden.bias)
    if not are_plain(parts.scores_EC, *(hidden or ())):
        return None
    scores = parts.scores_EC, hidden, parts.has_tanh, parts.is_normalised, float(module.router.temperature())
    return RouteOf(*scores, module.gate.k, module.gate.kind, module.gate.is_renormalised)


def _knows_norm(norm: nn.Module | None) -> bool:
    """Return whether there is no norm, or one that kernels know."""
    if not isinstance(norm, nn.LayerNorm | nn.RMSNorm):
        return norm is None
    return not _is_watched(norm) and are_plain(norm.weight, _bias_of(norm))


def _bias_of(norm: nn.LayerNorm | nn.RMSNorm) -> Tensor | None:
    return norm.bias if isinstance(norm, nn.LayerNorm) else None


def _norm_of(norm: nn.Module | None) -> NormOf | None:
    if not isinstance(norm, nn.LayerNorm | nn.RMSNorm):
        return None
    eps = torch.finfo(torch.float32).eps if norm.eps is None else norm.eps
    return NormOf(isinstance(norm, nn.RMSNorm), norm.weight, _bias_of(norm), norm.normalized_shape[0], eps)
