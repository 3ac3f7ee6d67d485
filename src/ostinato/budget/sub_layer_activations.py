"""Bytes that autograd saves for the backward pass at one use of a sub-layer, counted from the configuration.

With B sentences of T tokens, N = B T, D = d_model, I = n_heads d_head, F = d_ff, H heads, S keys, w = 4 bytes (2 under
bfloat16 autocast, where what is marked * stays at 4), per use:

    norm            input N D *, LayerNorm 2 N *, RMSNorm N + N D * (the input before its weight)
    input           of the first map: N D
    dropout         of a sub-layer's output: N D bytes, the mask (`ostinato.kernels.dropout`)
    attention       q, k, v in one 3 N I, output N I, highest and sum of scores 2 N H; where weights are dropped
                    N H S bytes                                                   compiled kernel, in float32
                    q, k, v in one 3 N I, output N I, log-sum-exp N H *           torch's kernel, under autocast
                    q, k, v 3 N I *, weights N H S *, output N I                  plain products, where positions
                    add a learned bias to the scores (window, buckets)
                    q, k, v 3 N I, weights N H S and as many bytes, output N I    where these, or autocast, drop weights
    positions       window: scaled queries N I, table B I (2 W + 1), scores N H (2 W + 1), distances 8 T S.
                    rotary: turned q and k 2 N I, under autocast a second output N I. buckets: distances 8 T S once a
                    stack. A causal stack that adds a bias saves its mask, T S; with prefixes every sentence's, B T S
    values by token the gate twice 2 N H_kv, and keys and values side by side 2 N J; under autocast a copy of what the
                    gate reads N C. Once a table its rows N J *
    keys: all       round r puts r sets of keys and values side by side, 2 r N I, and weights and masks are r times as
                    many; a causal stack saves its mask
    chosen tokens   where a router may have left some out of a round, every sentence's mask, B T S
    cross-attention queries and output 2 N I, numbers of the scores; per SET keys and values 2 B S I
    feed-forward    relu N F, others 2 N F, gated 4 N F; dropout of all but relu: N F bytes more
    convolution     the two padded inputs and outputs: B (T + K_in - 1) D, N D, B (T + K_out - 1) F, N F, and relu N F;
                    dropout: N F bytes more

With E experts, M = top_k N rows sorted by expert, and d_e the width of a hypersphere router:

    dispatch        slot, row and expert of every row 24 M, ends 4 E
    router          states N D *; mlp N D *, with dropout 2 N D * and N D bytes; hypersphere projected and normed
                    rows 2 N d_e *, their norms 2 N *, normed experts E (d_e + 2) *, scores N E *
    gate            probabilities N E *, chosen experts 8 M, gates M *; renormalised (M + N) * more; of the scores
                    (sigmoid, topk_softmax) N E * more. Of one expert: gates M *
    feed-forward    states N D (with a router in float32 those it saves), M F, gated 2 M F, dropout of all
                    but relu M F bytes. Where a round adds to its maps, as a dense one of M rows
    sparse layer    per sub-layer inputs, normed rows and norm weights 3 M D *, mean and deviation 2 M *, rows M D and
                    what a feed-forward saves of M F; outputs M D *
    attention       top_k times the queries, outputs, weights and positions of queries; keys and values as without;
                    for top_k > 1 a causal stack saves its mask without a learned bias, too, top_k T S
    experts of      values by choice k N J, outputs by choice k N I in place of the outputs (k > 1), keys and values
    heads           side by side 2 N J; two decisions, of k N H rows and of k N H_kv
    weights         a bfloat16 copy of all experts' weights and biases

Rows are taken from where they lie: neither sorted rows nor experts' results are saved (`ostinato.kernels.feedforward`,
backend "segments", which is the one of a CPU).

Under stick-breaking a sub-layer that mixes tokens reads, in every round but the first, the expected states of all
tokens in place of the states themselves:

    expected states N D *, where the sub-layer's own input is not those; attention: a second input of keys and values
                    N D; pre-norm: a second norm

A tensor that two operations save counts once.
"""

from __future__ import annotations

from collections import Counter

from ostinato.budget.attention_activations import AttentionBytes
from ostinato.budget.by_round import delta_bytes, delta_size, modulation_bytes
from ostinato.budget.sizes import (
    FeedForward,
    PlannedUse,
    choosing_heads,
    hidden_branches,
    inner_width,
    keys_width,
    set_weights,
    value_gate_size,
)
from ostinato.budget.training_pass import FLOAT, ID, TrainingPass, reads_expected_states, states_of_experts
from ostinato.config.experts import (
    ExpertAttentionConfig,
    ExpertFeedForwardConfig,
    HeadExpertAttentionConfig,
    HypersphereRouterConfig,
    MlpRouterConfig,
    RoutedConfig,
    SparseLayerConfig,
)
from ostinato.config.norm import NormalisationConfig
from ostinato.config.sub_layers import AttentionConfig, DenseFeedForwardConfig, SeparableConvConfig
from ostinato.plan import PLACES


def use_bytes(run: TrainingPass, planned: PlannedUse) -> Counter[str]:
    """Return what one use saves for itself, by part; ``copies`` are autocast's copies of weights."""
    stack, config = planned.stack, run.config
    n_norms = len(planned.use.norms)
    own = _sub_layer(run, planned)
    tokens, is_attention = run.tokens(stack), isinstance(planned.sub, AttentionConfig)
    is_expected = reads_expected_states(planned)
    is_twice = is_expected and is_attention
    if is_expected:
        states = tokens * config.d_model
        # Expected states have a norm of their own. A convolution needs none of the states themselves.
        n_norms += 1 if planned.use.before_keys is not None and is_attention else 0
        own += 0 if saves_its_states(run, planned) else FLOAT * states
        # Under autocast experts have a copy of the states for keys and values in any case.
        has_copy = run.is_mixed and isinstance(planned.sub, ExpertAttentionConfig)
        own += run.width * states if is_attention and not has_copy else 0
    per_use, per_set = copied_weights(planned, config.d_model)
    found = Counter(
        {
            f"{stack}.norms": n_norms * norm_bytes(planned.stack_config.norm, tokens, config.d_model),
            f"{stack}.dropout": tokens * config.d_model if config.dropout else 0,
            "copies": run.copy_of(per_use + (per_set + value_gate_size(planned) if run.is_recomputed else 0)),
            planned.part: own,
            f"{stack}.modulation": modulation_bytes(planned, tokens, config.d_model, reads_twice=is_twice),
            f"{stack}.deltas": delta_bytes(planned, tokens, config.d_model, run.width, reads_twice=is_twice)
            + run.copy_of(delta_size(planned, config.d_model)),
        }
    )
    if isinstance(heads := planned.sub, HeadExpertAttentionConfig) and not planned.borrows_keys:
        # Both routers read the same states; that of values reads expected ones, of which keys are made, too.
        shared = 0 if is_expected and run.is_mixed else FLOAT * tokens * config.d_model
        found[f"{planned.part}.router"] += _decision(run, heads, tokens, heads.n_key_heads) - shared
    if isinstance(routed := planned.sub, RoutedConfig):
        found[f"{planned.part}.router"] += _decision(run, routed, tokens, choosing_heads(routed))
    return found


def norm_bytes(norm: NormalisationConfig, tokens: int, width: int) -> int:
    """Return what one norm of some tokens' states saves."""
    if norm.kind == "layer":
        return FLOAT * tokens * (width + 2)
    # With a weight what it multiplies; where one is added to that, the sum is no parameter.
    weighted = tokens * width if norm.weight else 0
    return FLOAT * (tokens * (width + 1) + weighted + (width if norm.unit_offset else 0))


def copied_weights(planned: PlannedUse, d_model: int) -> tuple[int, int]:
    """Return of how many weights autocast makes a copy at every use, and of how many one copy for a whole pass.

    It copies a parameter once a pass. What is a slice of one (queries of packed queries, keys and values) or made of
    several (the experts' maps) is copied at every use. Biases of maps that are used whole are not counted.
    """
    is_cross = planned.use.kind == "cross_attention"
    match planned.sub:
        case ExpertAttentionConfig() as attention:
            is_given = is_cross or planned.borrows_keys
            keys_values = 0 if is_given else 2 * d_model * keys_width(attention, d_model)
            experts = attention.n_experts * set_weights(attention, d_model).size
            return (experts, keys_values) if planned.use.scores is None else (experts + keys_values, 0)
        case ExpertFeedForwardConfig() | SparseLayerConfig() as experts:
            norms = 2 * d_model * experts.n_layers if isinstance(experts, SparseLayerConfig) else 0
            return experts.n_experts * (set_weights(experts, d_model).size - norms), 0
        case HeadExpertAttentionConfig() as attention:
            queries, keys = (width(attention, d_model) * d_model for width in (inner_width, keys_width))
            if planned.borrows_keys:
                return attention.n_experts * queries + queries, 0
            experts = attention.n_experts * (queries + keys)
            dense = queries + keys
            return (experts + dense, 0) if reads_expected_states(planned) else (experts, dense)
        case AttentionConfig() as attention:
            one_map, keys_values = (
                d_model * width for width in (inner_width(attention, d_model), 2 * keys_width(attention, d_model))
            )
            whole = one_map * (2 if attention.output_gate else 1)
            if is_cross or planned.borrows_keys:
                return one_map, whole
            # Queries are made of other states than keys and values: all three maps are slices.
            slices = one_map + keys_values
            is_sliced = reads_expected_states(planned) or planned.use.scores is not None
            return (slices, whole) if is_sliced else (0, slices + whole)
        case DenseFeedForwardConfig() as ffn:
            return 0, set_weights(ffn, d_model).products
        case SeparableConvConfig() as conv:
            return 0, 2 * d_model * conv.d_ff
        case other:
            raise TypeError(f"no activations are known for {type(other).__name__}")


def _sub_layer(run: TrainingPass, planned: PlannedUse) -> int:
    """Return what the sub-layer itself saves at one use: its input, and what its maps and kernels need."""
    stack, tokens = planned.stack, run.tokens(planned.stack)
    match planned.sub:
        case AttentionConfig() as attention:
            return AttentionBytes(run, planned, attention).total()
        case DenseFeedForwardConfig() as ffn:
            return tokens * (run.width * run.config.d_model + _hidden_row(run, ffn, is_fused=False))
        case SeparableConvConfig() as conv:
            return _convolution(run, stack, conv)
        case ExpertFeedForwardConfig() as ffn:
            row = _hidden_row(run, ffn, is_fused=planned.use.delta is None)
            return states_of_experts(run, ffn, tokens) + ffn.top_k * tokens * row
        case SparseLayerConfig() as layer:
            d_model = run.config.d_model
            one = FLOAT * (3 * d_model + 2) + run.width * d_model + _hidden_row(run, layer, is_fused=True)
            return layer.top_k * tokens * (layer.n_layers * one + FLOAT * d_model)
        case other:
            raise TypeError(f"no activations are known for {type(other).__name__}")


def _convolution(run: TrainingPass, stack: str, conv: SeparableConvConfig) -> int:
    """Return what a separable convolution saves: what both convolutions and both maps read, and the relu's output."""
    d_model, length = run.config.d_model, run.lengths[stack]
    per_sentence = (2 * length + conv.kernel_in - 1) * d_model
    per_sentence += (2 * length + conv.kernel_out - 1) * conv.d_ff
    per_sentence += length * conv.d_ff
    # Laid out anew for the kernel; one tap a channel lies as it should already, unless autocast copies it.
    taps = sum(
        kernel * width
        for kernel, width in ((conv.kernel_in, d_model), (conv.kernel_out, conv.d_ff))
        if kernel > 1 or run.is_mixed
    )
    dropped = run.batch * length * conv.d_ff if conv.dropout else 0
    return run.width * (run.batch * per_sentence + taps) + dropped


def _decision(run: TrainingPass, sub: RoutedConfig, tokens: int, n_heads: int) -> int:
    """Return what choosing experts saves, for so many heads: router, gate and the order of the rows."""
    rows, n_experts = n_heads * sub.top_k * tokens, n_heads * sub.n_experts
    dispatch = 3 * ID * rows + 4 * n_experts
    if not sub.has_router:
        return dispatch + FLOAT * tokens
    states, n_scores = tokens * run.config.d_model, tokens * n_experts
    numbers, mask = states + n_scores + rows, 0
    match sub.router:
        case MlpRouterConfig(dropout=dropout):
            numbers += states * (2 if dropout else 1)
            mask = states if dropout else 0
        case HypersphereRouterConfig() as router:
            width = sub.router_width if router.project else run.config.d_model
            numbers += n_scores if router.learn_temperature else 0
            numbers += tokens * width if router.project else 0
            numbers += (tokens + n_experts) * (width + 2) if router.normalise else 0
    if sub.gate.kind != "softmax":
        numbers += n_scores
    elif sub.is_renormalised:
        numbers += rows + n_heads * tokens
    return dispatch + ID * rows + FLOAT * numbers + mask


def _hidden_row(run: TrainingPass, sub: FeedForward, *, is_fused: bool) -> int:
    """Return the bytes of one row's hidden layer, and of its mask of dropout.

    Args:
        is_fused: the maps of experts are one operation, which keeps what its activation reads. Else that, and the
            result; of relu the result alone.
    """
    n, is_relu = hidden_branches(sub), sub.activation == "relu"
    if not is_fused:
        n = 1 if is_relu else 2 * n
    return n * sub.d_ff * run.width + (sub.d_ff if sub.dropout and not is_relu else 0)


def reads_what_enters_the_step(planned: PlannedUse) -> bool:
    """Return True for a use that saves the states that enter its step, as other uses of the step do: for a norm, or,
    under stick-breaking, for the expected states that a convolution reads."""
    return planned.stack_config.norm.placement == "parallel" and planned.use.before is not None


def saves_its_states(run: TrainingPass, planned: PlannedUse | None) -> bool:
    """Return True where a use saves the states it starts from, unchanged and in float32."""
    if planned is None:
        return False
    is_normed = planned.use.before is not None or isinstance(planned.sub, SparseLayerConfig)
    if planned.use.scores is not None:
        return True
    is_scaled = planned.use.modulation is not None and planned.use.before is None
    if is_scaled or ("before" in PLACES[planned.stack_config.norm.placement] and is_normed):
        # What scales them, or the norm, saves them, unless there is none: a convolution reads expected states only.
        return not (isinstance(planned.sub, SeparableConvConfig) and reads_expected_states(planned))
    if isinstance(planned.sub, RoutedConfig) and planned.sub.has_router:
        return True
    # A convolution pads them.
    return not run.is_mixed and not isinstance(planned.sub, SeparableConvConfig)
