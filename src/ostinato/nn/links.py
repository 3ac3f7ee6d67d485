"""Modules as kernels know them: where their weights lie, and whether kernels can read them.

Kernels know exactly the modules of this library, as they are. A module that was replaced, changed or has hooks is not
known, and its own code runs.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from ostinato.kernels import (
    AttentionLink,
    FeedForwardLink,
    NormOf,
    RouteOf,
)
from ostinato.nn.attention import Attention
from ostinato.nn.cross_attention import CrossAttention
from ostinato.nn.experts import ExpertAttention, ExpertFeedForward, ExpertMaps, Routed
from ostinato.nn.feedforward import FeedForward, FeedForwardSubLayer
from ostinato.nn.layers import Linear, OffsetRMSNorm
from ostinato.nn.relative import RelativePositions
from ostinato.nn.routing import Gate, HypersphereRouter, LinearRouter, MlpRouter, Router
from ostinato.nn.self_attention import SelfAttention
from ostinato.nn.shapes import Tensor
from ostinato.nn.sub_layer import SubLayer


def can_read(sub_layer: SelfAttention) -> bool:
    """Return whether kernels can read the keys of a self-attention: they know no positions, no groups of heads, and
    no keys that serve other steps or are seen in some rounds only."""
    relation = sub_layer.relation
    has_positions = relation is not None and (type(relation) is not RelativePositions or relation.reach is not None)
    return (
        not has_positions
        and not (sub_layer.keys_from or sub_layer.sees_some)
        and bool(sub_layer.module.is_read_plainly)
    )


_Map = tuple[Tensor, Tensor | None]


def link_of(sub_layer: SubLayer) -> AttentionLink | FeedForwardLink | None:
    """Return a sub-layer as a part of a call; None where its own code must run."""
    module, use = sub_layer.module, sub_layer.use
    route, norm = _route_of(module), sub_layer.norm(use.before or use.after)
    # Kernels know one norm, of what is read or of the sum, and nothing that rounds or tokens add beside it.
    if use.delta is not None or use.modulation is not None or use.values is not None:
        return None
    if use.output is not None or use.scores is not None or len(use.norms) > 1 or not knows_norm(norm):
        return None
    if isinstance(sub_layer, FeedForwardSubLayer):
        return _feed_forward_link(module, norm_of(norm), route, is_before=use.before is not None)
    if not isinstance(sub_layer, SelfAttention | CrossAttention):
        return None
    if isinstance(sub_layer, SelfAttention) and not can_read(sub_layer):
        return None
    makes_keys = isinstance(sub_layer, SelfAttention)
    return _attention_link(module, norm_of(norm), route, is_before=use.before is not None, makes_keys=makes_keys)


def _attention_link(
    module: nn.Module, norm: NormOf | None, route: RouteOf | None, *, is_before: bool, makes_keys: bool
) -> AttentionLink | None:
    if type(module) is Attention and module.is_read_plainly and module.qk_bias is None and module.output_gate is None:
        if is_changed(module, module.qkv, module.out):  # what stands there may have no weight
            return None
        weight, bias, n = module.qkv.weight, module.qkv.bias, module.inner
        queries: _Map = weight[:n], None if bias is None else bias[:n]
        keys_values: _Map = weight[n:], None if bias is None else bias[n:]
        output: _Map = module.out.weight, module.out.bias
    elif type(module) is ExpertAttention and module.is_read_plainly and route is not None and module.sum_bias_D is None:
        if is_changed(module, module.kv):
            return None
        queries, output = (module.query_EDI, module.query_bias_EI), (module.out_EID, module.out_bias_ED)
        keys_values = module.kv.weight, module.kv.bias
    else:
        return None
    if not are_plain(*queries, *keys_values, *output):
        return None
    if module.n_choices != (1 if route is None else route.top_k):
        return None
    made = keys_values if makes_keys else None
    return AttentionLink(norm, is_before=is_before, queries=queries, keys_values=made, output=output, route=route)


def _feed_forward_link(
    module: nn.Module, norm: NormOf | None, route: RouteOf | None, *, is_before: bool
) -> FeedForwardLink | None:
    known: FeedForward | ExpertMaps
    if type(module) is FeedForward:
        known = module
        if is_changed(module, module.up, module.down):
            return None
        up: _Map = module.up.weight, module.up.bias
        down: _Map = module.down.weight, module.down.bias
    elif type(module) is ExpertFeedForward and route is not None and module.sum_bias_D is None:
        if type(module.experts) is not ExpertMaps or is_changed(module.experts):
            return None
        known = module.experts
        up, down = (known.up_EDF, known.up_bias_EF), (known.down_EFD, known.down_bias_ED)
    else:
        return None
    if not are_plain(*up, *down):
        return None
    return FeedForwardLink(norm, known.activation, is_before=is_before, up=up, down=down, route=route)


def _route_of(module: nn.Module) -> RouteOf | None:
    """Return a router and its gate as kernels know them; None where there is none that they know."""
    if not isinstance(module, Routed) or module.router is None or type(module.gate) is not Gate:
        return None
    router, gate = module.router, module.gate
    scores = _scores_of(router)
    if scores is None or is_changed(module):
        return None
    return RouteOf(*scores, float(router.temperature()), gate.top_k, gate.kind, gate.is_renormalised)


def _scores_of(router: Router) -> tuple[Tensor, _Map | None, bool, bool] | None:
    """Return what scores are made of: (hidden map, tanh, or the row as it is) W^T.

    Returns:
        W; the hidden map, None where there is none; whether tanh follows it; whether scores are cosines, and rows of W
        have length 1. None: the router must be called.
    """
    maps: tuple[nn.Linear, ...] = ()
    has_tanh = is_normalised = False
    if type(router) is LinearRouter:
        scores_EC: Tensor = router.experts_ED
    elif type(router) is MlpRouter:
        if is_changed(router, router.hidden, router.scores):
            return None
        bias_E: Tensor | None = router.scores.bias
        if bias_E is not None:
            return None
        scores_EC, maps, has_tanh = router.scores.weight, (router.hidden, router.scores), True
    elif type(router) is HypersphereRouter:
        is_normalised = router.is_normalised
        scores_EC = F.normalize(router.experts_EC, dim=1) if is_normalised else router.experts_EC
        maps = () if router.projection is None else (router.projection,)
    else:
        return None
    if is_changed(router, *maps):
        return None
    hidden = (maps[0].weight, maps[0].bias) if maps else None
    if not are_plain(scores_EC, *(hidden or ())):
        return None
    return scores_EC, hidden, has_tanh, is_normalised


def is_changed(module: nn.Module, *maps: nn.Module) -> bool:
    """Return whether a module has other maps than its own, is in training, or has hooks that look at it."""
    is_other = any(type(one) not in (Linear, nn.Linear) for one in maps)
    return is_other or module.training or any(_has_hooks(one) for one in (module, *maps))


def _has_hooks(module: nn.Module) -> bool:
    everywhere = torch.nn.modules.module
    if everywhere._global_forward_hooks or everywhere._global_forward_pre_hooks:
        return True
    # A function of an instance's own, as patches and accelerate's hooks are, is no less of a hook.
    return bool(module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))


def are_plain(*tensors: Tensor | None) -> bool:
    """Return whether kernels can read these as they lie."""
    return all(
        x is None or (x.dtype == torch.float32 and x.device.type == "cpu" and x.is_contiguous()) for x in tensors
    )


def knows_norm(norm: nn.Module | None) -> bool:
    """Return whether there is no norm, or one that kernels know."""
    if not isinstance(norm, nn.LayerNorm | nn.RMSNorm):
        return norm is None
    if type(norm) not in (nn.LayerNorm, nn.RMSNorm, OffsetRMSNorm):  # one's own may compute something else
        return False
    bias_D = norm.bias if isinstance(norm, nn.LayerNorm) else None
    return not _has_hooks(norm) and are_plain(norm.weight, bias_D)


def norm_of(norm: nn.Module | None) -> NormOf | None:
    """Return a norm as kernels know it; None where there is none."""
    if not isinstance(norm, nn.LayerNorm | nn.RMSNorm):
        return None
    bias_D = norm.bias if isinstance(norm, nn.LayerNorm) else None
    eps = torch.finfo(torch.float32).eps if norm.eps is None else norm.eps
    weight_D = 1.0 + norm.weight if isinstance(norm, OffsetRMSNorm) else norm.weight
    return NormOf(isinstance(norm, nn.RMSNorm), weight_D, bias_D, norm.normalized_shape[0], eps)
