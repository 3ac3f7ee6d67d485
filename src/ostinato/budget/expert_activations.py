"""Bytes that autograd keeps of sub-layers with experts, counted from the configuration.

With N tokens, M = k N rows sorted by expert, D = d_model, F = d_ff, E experts, d_e the width of a hypersphere router, w
bytes a number (2 under bfloat16 autocast, where what is marked * stays at 4), per use:

    dispatch        slot, row and expert of every row 24 M, ends 4 E
    router          states N D *; mlp N D *, with dropout 3 N D *; hypersphere projected and normed rows 2 N d_e *,
                    their norms 2 N *, normed experts E (d_e + 2) *, scores N E *
    gate            probabilities N E *, chosen experts 8 M, gates M *; renormalised (M + N) * more; of the scores
                    (sigmoid, topk_softmax) N E * more
    one expert      gates M *
    rows            sorted inputs M D, outputs M D (of a sparse layer *)
    feed-forward    per unit of M F as the dense one
    sparse layer    per sub-layer inputs, normed rows and norm weights 3 M D *, mean and deviation 2 M *, rows M D,
                    units of M F
    weights         a bfloat16 copy of all experts' weights at every use
"""

from __future__ import annotations

from ostinato.budget.experts import expert_products
from ostinato.budget.passes import FLOAT, ID, PER_HIDDEN_UNIT, TrainingPass
from ostinato.config.model import (
    ExpertFeedForwardConfig,
    HypersphereRouterConfig,
    MlpRouterConfig,
    RoutedConfig,
    SparseLayerConfig,
)

_END = 4


def decision_bytes(run: TrainingPass, sub: RoutedConfig, tokens: int) -> int:
    """Return what choosing experts keeps: router, gate and the order of the rows."""
    dispatch = 3 * ID * sub.k * tokens + _END * sub.n_experts
    if not sub.has_router:
        return dispatch + FLOAT * tokens
    router = FLOAT * (tokens * run.config.d_model + _router_numbers(run, sub, tokens))
    return dispatch + router + _gate_bytes(sub, tokens)


def _router_numbers(run: TrainingPass, sub: RoutedConfig, tokens: int) -> int:
    """Return the numbers a router keeps besides the states it reads."""
    d_model, n_scores = run.config.d_model, tokens * sub.n_experts
    match sub.router:
        case MlpRouterConfig(dropout=dropout):
            return tokens * d_model * (3 if dropout else 1)
        case HypersphereRouterConfig() as router:
            width = sub.router_width if router.project else d_model
            kept = n_scores if router.learn_temperature else 0
            kept += tokens * width if router.project else 0
            if router.normalise:
                kept += tokens * (width + 2) + sub.n_experts * (width + 2)
            return kept
    return 0


def _gate_bytes(sub: RoutedConfig, tokens: int) -> int:
    rows, n_scores = sub.k * tokens, tokens * sub.n_experts
    kept = FLOAT * (n_scores + rows) + ID * rows
    if sub.gate.kind != "softmax":
        kept += FLOAT * n_scores
    elif sub.is_renormalised:
        kept += FLOAT * (rows + tokens)
    return kept


def feed_forward_bytes(run: TrainingPass, sub: ExpertFeedForwardConfig, tokens: int) -> int:
    """Return what the experts of a feed-forward keep, without the decision."""
    rows = sub.k * tokens
    return run.width * rows * (2 * run.config.d_model + _per_unit(sub) * sub.d_ff)


def sparse_layer_bytes(run: TrainingPass, sub: SparseLayerConfig, tokens: int) -> int:
    """Return what the experts of a sparse layer keep, without the decision."""
    rows, d_model = sub.k * tokens, run.config.d_model
    one = FLOAT * rows * (3 * d_model + 2) + run.width * rows * (d_model + _per_unit(sub) * sub.d_ff)
    return sub.n_layers * one + FLOAT * rows * d_model


def _per_unit(sub: ExpertFeedForwardConfig | SparseLayerConfig) -> int:
    return PER_HIDDEN_UNIT[sub.activation][1 if sub.dropout else 0]


def weight_copies(run: TrainingPass, sub: RoutedConfig) -> int:
    """Return the bytes of the copies of all experts' weights that one use makes."""
    return run.copy_of(sub.n_experts * expert_products(sub, run.config.d_model))
