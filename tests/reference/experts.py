"""Experts for single tokens: scores, choices and gates one number at a time, one expert after the other.

Written from the papers' equations (X-MoE, sections 2.1 and 2.3; Sparse Universal Transformer, sections 2.2 and 2.3).
Nothing is sorted, gathered or grouped: an expert is read out of the stacked weights and run.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ostinato.config.experts import HypersphereRouterConfig, LinearRouterConfig, RoutedConfig
from reference.equations import ACTIVATIONS, layer_norm, softmax
from reference.weights import Affine, Heads, read_affine

Choices = list[tuple[int, Tensor]]
"""Chosen experts and their gates."""


def choose(config: RoutedConfig, module: nn.Module, x_D: Tensor) -> Choices:
    """Return the k experts of a token with the largest scores, and their gates."""
    if config.n_experts == 1:
        return [(0, torch.ones((), dtype=x_D.dtype))]
    return choose_by(config, module.router, x_D)  # type: ignore[arg-type]


def choose_by(config: RoutedConfig, router: nn.Module, x_D: Tensor, head: int = 0) -> Choices:
    """Return the choices of one head of a router; experts are counted from the head's first."""
    first = head * config.n_experts
    all_scores = _scores(config, router, x_D)[first : first + config.n_experts]
    scores = [s / _temperature(config, router) for s in all_scores]
    chosen = sorted(range(config.n_experts), key=lambda e: -float(scores[e].detach()))[: config.top_k]
    if config.gate.kind == "sigmoid":
        return [(e, torch.sigmoid(scores[e])) for e in chosen]
    if config.gate.kind == "topk_softmax":
        return list(zip(chosen, softmax([scores[e] for e in chosen]), strict=True))
    probs = softmax(scores)
    if not config.is_renormalised:
        return [(e, probs[e]) for e in chosen]
    total = sum(probs[e] for e in chosen) + 1e-6
    return [(e, probs[e] / total) for e in chosen]


def _scores(config: RoutedConfig, router: nn.Module, x_D: Tensor) -> list[Tensor]:
    """linear: h . e_i. mlp: e_i . tanh(W h + b). hypersphere: (W h . e_i) / (|W h| |e_i|), or an ablation of it."""
    if isinstance(config.router, LinearRouterConfig):
        return [_dot(x_D, e_D) for e_D in _rows(router.experts_ED)]
    if not isinstance(config.router, HypersphereRouterConfig):
        hidden_D = torch.tanh(read_affine(router.hidden)(x_D))  # type: ignore[arg-type]
        return [_dot(hidden_D, e_D) for e_D in _rows(router.scores.weight)]  # type: ignore[union-attr]
    z_C = read_affine(router.projection)(x_D) if config.router.project else x_D  # type: ignore[arg-type]
    experts = _rows(router.experts_EC)
    if not config.router.normalise:
        return [_dot(z_C, e_C) for e_C in experts]
    return [_dot(z_C, e_C) / torch.sqrt(_dot(z_C, z_C) * _dot(e_C, e_C)) for e_C in experts]


def _temperature(config: RoutedConfig, router: nn.Module) -> Tensor | float:
    if not isinstance(config.router, HypersphereRouterConfig):
        return 1.0
    tau = router.tau
    assert isinstance(tau, Tensor)
    return tau if float(tau.detach()) > config.router.floor else torch.full_like(tau, config.router.floor)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum()


def _rows(table: object) -> list[Tensor]:
    assert isinstance(table, Tensor)
    return [table[e] for e in range(table.shape[0])]


def weighted(choices: Choices, run: Callable[[int], Tensor]) -> Tensor:
    """Return the sum over the chosen experts of gate times output."""
    parts = [gate * run(expert) for expert, gate in choices]
    return sum(parts[1:], parts[0])


def run_maps(maps: nn.Module, expert: int, activation: str, x_D: Tensor) -> Tensor:
    """act(x U + b) V + c with one expert's weights; gated: (act(x Ug + bg) * (x U + b)) V + c."""
    down = _expert_map(maps.down_EFD, maps.down_bias_ED, expert)
    n_hidden = down.W.shape[1]
    act, is_gated = ACTIVATIONS[activation]
    if is_gated:
        gate = _expert_map(maps.up_EDF, maps.up_bias_EF, expert, 0, n_hidden)
        linear = _expert_map(maps.up_EDF, maps.up_bias_EF, expert, n_hidden, 2 * n_hidden)
        return down(act(gate(x_D)) * linear(x_D))
    return down(act(_expert_map(maps.up_EDF, maps.up_bias_EF, expert)(x_D)))


def run_stack(module: nn.Module, expert: int, activation: str, eps: float, x_D: Tensor) -> Tensor:
    """What an expert of a sparse layer adds: x_n - x_0 of x_i = x_{i-1} + f_i(norm_i(x_{i-1}))."""
    entered_D = x_D
    layers = zip(module.experts, module.norm_weights, module.norm_biases, strict=True)  # type: ignore[arg-type]
    for maps, weight_ED, bias_ED in layers:
        x_D = x_D + run_maps(maps, expert, activation, layer_norm(x_D, weight_ED[expert], bias_ED[expert], eps))
    return x_D - entered_D


def read_expert_heads(module: nn.Module, expert: int, n_heads: int, n_kv_heads: int, d_head: int) -> Heads:
    """Return an expert's heads: queries and output of its own, keys and values (packed in that order) of all."""
    inner = n_kv_heads * d_head
    starts = [head * d_head for head in range(n_heads)]
    query = [_expert_map(module.query_EDI, module.query_bias_EI, expert, start, start + d_head) for start in starts]
    shared = [start // d_head // (n_heads // n_kv_heads) * d_head for start in starts]
    key = [read_affine(module.kv, start, start + d_head) for start in shared]  # type: ignore[arg-type]
    value = [read_affine(module.kv, inner + start, inner + start + d_head) for start in shared]  # type: ignore[arg-type]
    return Heads(query, key, value, _expert_map(module.out_EID, module.out_bias_ED, expert), d_head)


def value_of_head(config: RoutedConfig, module: nn.Module, head: int, scored_D: Tensor, x_D: Tensor) -> Tensor:
    """Return the sum over a head's chosen experts of gate times V x."""
    maps = module.value_EDK
    assert isinstance(maps, Tensor)
    choices = choose_by(config, module.value_router, scored_D, head)  # type: ignore[arg-type]
    return weighted(choices, lambda e: (maps[head * config.n_experts + e].T * x_D).sum(-1))


def output_of_heads(config: RoutedConfig, module: nn.Module, scored_D: Tensor, read: list[Tensor]) -> Tensor:
    """Return the sum over heads and their chosen experts of gate times O o_h."""
    maps, parts = module.out_EKD, []
    assert isinstance(maps, Tensor)
    for head, o_K in enumerate(read):
        choices = choose_by(config, module.router, scored_D, head)  # type: ignore[arg-type]
        table = maps[head * config.n_experts : (head + 1) * config.n_experts]
        parts.append(weighted(choices, lambda e, table=table, o_K=o_K: (table[e].T * o_K).sum(-1)))  # type: ignore[misc]
    return sum(parts[1:], parts[0])


def _expert_map(weight: object, bias: object, expert: int, start: int = 0, end: int | None = None) -> Affine:
    """Return the outputs start .. end of one expert's map; stacked weights are input x output."""
    assert isinstance(weight, Tensor)
    b = bias[expert, start:end] if isinstance(bias, Tensor) else None
    return Affine(weight[expert].T[start:end], b)
