"""Bytes that autograd keeps of sub-layers with experts, counted from the configuration.

With N tokens, M = k N rows sorted by expert, D = d_model, F = d_ff, E experts, d_e the width of a hypersphere router, w
bytes a number (2 under bfloat16 autocast, where what is marked * stays at 4), per use:

    dispatch        slot, row and expert of every row 24 M, ends 4 E
    router          states N D *; mlp N D *, with dropout 2 N D * and N D bytes; hypersphere projected and normed
                    rows 2 N d_e *, their norms 2 N *, normed experts E (d_e + 2) *, scores N E *
    gate            probabilities N E *, chosen experts 8 M, gates M *; renormalised (M + N) * more; of the scores
                    (sigmoid, topk_softmax) N E * more
    one expert      gates M *
    feed-forward    states N D (with a router in float32 those it keeps), relu, gelu M F, geglu 2 M F, dropout of all
                    but relu M F bytes
    sparse layer    per sub-layer inputs, normed rows and norm weights 3 M D *, mean and deviation 2 M *, rows M D and
                    what a feed-forward keeps of M F; outputs M D *
    weights         a bfloat16 copy of all experts' weights and biases at every use

Rows are taken out of the states one expert at a time, so that they are never kept sorted, nor are an expert's results
(`ostinato.kernels.feedforward`, backend "segments", which is the one of a CPU).
"""

from __future__ import annotations

from ostinato.budget.experts import expert_size
from ostinato.budget.passes import FLOAT, ID, TrainingPass
from ostinato.budget.sizes import hidden_branches
from ostinato.config.experts import (
    ExpertFeedForwardConfig,
    HypersphereRouterConfig,
    MlpRouterConfig,
    RoutedConfig,
    SparseLayerConfig,
)

_END = 4


def decision_bytes(run: TrainingPass, sub: RoutedConfig, tokens: int) -> int:
    """Return what choosing experts keeps: router, gate and the order of the rows."""
    dispatch = 3 * ID * sub.top_k * tokens + _END * sub.n_experts
    if not sub.has_router:
        return dispatch + FLOAT * tokens
    router = FLOAT * (tokens * run.config.d_model + _router_numbers(run, sub, tokens))
    if isinstance(sub.router, MlpRouterConfig) and sub.router.dropout:
        router += tokens * run.config.d_model
    return dispatch + router + _gate_bytes(sub, tokens)


def _router_numbers(run: TrainingPass, sub: RoutedConfig, tokens: int) -> int:
    """Return the numbers a router keeps besides the states it reads."""
    d_model, n_scores = run.config.d_model, tokens * sub.n_experts
    match sub.router:
        case MlpRouterConfig(dropout=dropout):
            return tokens * d_model * (2 if dropout else 1)
        case HypersphereRouterConfig() as router:
            width = sub.router_width if router.project else d_model
            kept = n_scores if router.learn_temperature else 0
            kept += tokens * width if router.project else 0
            if router.normalise:
                kept += tokens * (width + 2) + sub.n_experts * (width + 2)
            return kept
    return 0


def _gate_bytes(sub: RoutedConfig, tokens: int) -> int:
    rows, n_scores = sub.top_k * tokens, tokens * sub.n_experts
    kept = FLOAT * (n_scores + rows) + ID * rows
    if sub.gate.kind != "softmax":
        kept += FLOAT * n_scores
    elif sub.is_renormalised:
        kept += FLOAT * (rows + tokens)
    return kept


def feed_forward_bytes(run: TrainingPass, sub: ExpertFeedForwardConfig, tokens: int) -> int:
    """Return what the experts of a feed-forward keep, without the decision."""
    return states_bytes(run, sub, tokens) + sub.top_k * tokens * _hidden_bytes(run, sub)


def states_bytes(run: TrainingPass, sub: RoutedConfig, tokens: int) -> int:
    """Return the bytes of the states that experts read, where they are not those that the router keeps."""
    return run.width * tokens * run.config.d_model if run.is_mixed or not sub.has_router else 0


def sparse_layer_bytes(run: TrainingPass, sub: SparseLayerConfig, tokens: int) -> int:
    """Return what the experts of a sparse layer keep, without the decision."""
    rows, d_model = sub.top_k * tokens, run.config.d_model
    one = FLOAT * (3 * d_model + 2) + run.width * d_model + _hidden_bytes(run, sub)
    return rows * (sub.n_layers * one + FLOAT * d_model)


def _hidden_bytes(run: TrainingPass, sub: ExpertFeedForwardConfig | SparseLayerConfig) -> int:
    """Return the bytes of one row's hidden layer, and of what was dropped of it."""
    return hidden_branches(sub) * sub.d_ff * run.width + (sub.d_ff if sub.dropout and sub.activation != "relu" else 0)


def weight_copies(run: TrainingPass, sub: RoutedConfig) -> int:
    """Return the bytes of the copies of all experts' weights and biases that one use makes."""
    d_model = run.config.d_model
    norms = 2 * d_model * sub.n_layers if isinstance(sub, SparseLayerConfig) else 0
    return run.copy_of(sub.n_experts * (expert_size(sub, d_model) - norms))
