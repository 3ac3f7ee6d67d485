"""Bytes that autograd keeps for the backward pass of one training pass, counted from the configuration.

With B sentences of T tokens, D = d_model, I = n_heads d_head, F = d_ff, H heads, S keys, V vocabulary rows, w = 4 bytes
(2 under bfloat16 autocast, where what is marked * stays at 4), per use of a sub-layer:

    norm            input B T D *, LayerNorm 2 B T *, RMSNorm B T + B T D * (the input before its weight)
    input           of the first map: B T D
    dropout         of embeddings and of a sub-layer's output: B T D bytes, the mask (`ostinato.kernels.dropout`)
    attention       q, k, v in one 3 B T I, output B T I, log-sum-exp B H T *           fused kernel
                    q, k, v 3 B T I *, weights B H T S *, output B T I                  plain kernel, where positions
                    add a learned bias to the scores (window, buckets)
                    q, k, v 3 B T I, weights B H T S and as many bytes, output B T I    where weights are dropped
    positions       window: scaled queries B T I, table B I (2 W + 1), scores B H T (2 W + 1), distances 8 T S.
                    rotary: turned q and k and a second output 3 B T I. buckets: distances 8 T S once a stack.
                    A causal stack that adds a bias keeps its mask, T S; with prefixes every sentence's, B T S
    cross-attention queries and output 2 B T I, log-sum-exp; per SET keys and values 2 B S I
    feed-forward    relu B T F, gelu 2 B T F, geglu 4 B T F; dropout of all but relu: B T F bytes more
    convolution     the two padded inputs and outputs: B (T + K_in - 1) D, B T D, B (T + K_out - 1) F, B T F, and relu;
                    dropout: B T F bytes more
    experts         attention: k times the queries, outputs, weights and positions of queries; keys and values as
                    without; where k > 1 a causal stack keeps its mask in the fused kernel, too, k T S. The rest:
                    `ostinato.budget.expert_activations`
    LSTM            estimated: `ostinato.budget.recurrent`
    halting         gates, mixed states, and expected states of others: `ostinato.budget.halting_activations`

and per pass the ids 8 B T, the states the output projection reads B T D, log-probabilities B T V *, and under autocast
a bfloat16 copy of every weight. A tensor that two operations keep counts once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ostinato.budget.expert_activations import (
    decision_bytes,
    feed_forward_bytes,
    sparse_layer_bytes,
    states_bytes,
    weight_copies,
)
from ostinato.budget.experts import n_choices
from ostinato.budget.halting_activations import expected_states_bytes, halting_bytes, reads_expected_states
from ostinato.budget.passes import FLOAT, ID, PER_HIDDEN_UNIT, TrainingPass
from ostinato.budget.recurrent import recurrent_bytes
from ostinato.budget.sizes import (
    PlannedUse,
    hidden_branches,
    inner_width,
    n_outputs,
    planned_uses,
    plans,
    vocabulary,
)
from ostinato.config.experts import ExpertAttentionConfig, ExpertFeedForwardConfig, RoutedConfig, SparseLayerConfig
from ostinato.config.positions import BucketsConfig, RotaryConfig, WindowConfig
from ostinato.config.sub_layers import AttentionConfig, DenseFeedForwardConfig, SeparableConvConfig


def activation_parts(run: TrainingPass, n_steps: int | None, vocab_size: int | None) -> dict[str, int]:
    """Return the bytes by part: ``<stack>.<kind>``, ``.norms``, ``.dropout``, ``embeddings``, ``output``, ``copies``.

    ``<stack>.<kind>.router`` is what choosing experts keeps, ``<stack>.halting`` what gates and mixed states do.
    ``copies`` are the bfloat16 copies of weights. Where steps are recomputed, a stack keeps ``<stack>.steps`` (the
    states between them) and what all its steps share; ``recomputed`` is all that the most costly step keeps while its
    own backward pass runs.
    """
    config, parts = run.config, Counter[str]()
    uses = list(planned_uses(config, n_steps))
    steps: dict[tuple[str, int], Counter[str]] = {}
    for planned in uses:
        steps.setdefault((planned.stack, planned.step), Counter()).update(_use(run, planned))
    for (stack, _), kept in steps.items():
        if run.is_recomputed:
            parts[f"{stack}.steps"] += FLOAT * run.tokens(stack) * config.d_model
        else:
            parts.update(kept)
    if run.is_recomputed:
        parts["recomputed"] = max((kept.total() for kept in steps.values()), default=0)
    for name, plan in plans(config, n_steps).items():
        first = {planned.round: planned for planned in reversed(uses) if planned.stack == name}
        parts[f"{name}.halting"] += halting_bytes(run, name, [first.get(r) for r in range(plan.n_rounds)])
    parts.update(_shared(run, uses))
    parts.update(recurrent_bytes(run))
    parts.update(_ends(run, vocabulary(config, "target", vocab_size)))
    return {part: n for part, n in parts.items() if n}


def _ends(run: TrainingPass, n_rows: int) -> Counter[str]:
    """Return what embeddings, final norms, output projection and loss keep."""
    config, found = run.config, Counter[str]()
    for name, stack in config.stacks().items():
        words = run.tokens(name) * (config.max_words or 1)
        found["embeddings"] += ID * words
        # The words that masks multiply, and which of them are padding: every fact is taken to be the longest.
        found["facts"] += 0 if config.max_words is None else words * (FLOAT * config.d_model + 1)
        found[f"{name}.dropout"] += run.tokens(name) * config.d_model if config.dropout else 0
        found[f"{name}.norms"] += _norm(run, name) if stack.norm.placement == "pre" else 0
    (*_, last), outputs = config.readers(), n_outputs(config)
    tokens = run.tokens(last)
    if outputs is not None:
        return found + _head(run, tokens, outputs)
    found["output"] = run.width * tokens * config.d_model + FLOAT * tokens * n_rows + ID * tokens
    found["copies"] = run.copy_of(n_rows * config.d_model)
    return found


def _head(run: TrainingPass, tokens: int, outputs: int) -> Counter[str]:
    """Return what a head with a projection of its own keeps: what it reads, its mask of dropout, and its outputs."""
    config = run.config
    n_read = run.batch if config.reads == "classification" else tokens
    n_labels = 2 * run.batch if config.reads == "span" else n_read
    read = (run.width + (FLOAT if config.dropout else 0)) * n_read * config.d_model
    return Counter(head=read + FLOAT * n_read * outputs + ID * n_labels, copies=run.copy_of(outputs * config.d_model))


def _shared(run: TrainingPass, uses: Iterable[PlannedUse]) -> Counter[str]:
    """Return what a pass makes once for all steps that share it; it is kept even where steps are recomputed."""
    d_model, found = run.config.d_model, Counter[str]()
    sets: dict[tuple[str, str], PlannedUse] = {}
    for planned in uses:
        # In order, so that a set is used whole by its first use if by any.
        sets.setdefault((planned.use.kind, planned.use.weights), planned)
        if planned.use.position and isinstance(planned.stack_config.relative, BucketsConfig):
            found[f"{planned.stack}.self_attention"] = ID * run.lengths[planned.stack] ** 2
    is_read = False
    for planned in sets.values():
        if not run.is_recomputed:
            found["copies"] += run.copy_of(_whole_weights(planned, d_model))
        if planned.use.kind == "cross_attention" and isinstance(planned.sub, AttentionConfig):
            inner, memory = inner_width(planned.sub, d_model), run.tokens("encoder")
            is_copied = planned.sub.dropout and _copies_heads(run, planned.sub) and not run.is_recomputed
            kept = 0 if is_copied else 2 * memory * inner
            # One tensor of states serves all sets, unless autocast copies it for each.
            kept += memory * d_model if run.is_mixed or not is_read else 0
            found[f"{planned.stack}.cross_attention"] += run.width * kept
            found["copies"] += run.copy_of(2 * inner * d_model)
            is_read = True
    return found


def _use(run: TrainingPass, planned: PlannedUse) -> Counter[str]:
    """Return what one use of a sub-layer keeps for itself."""
    stack, kind, d_model = planned.stack, planned.use.kind, run.config.d_model
    states = run.tokens(stack) * d_model
    found = Counter({f"{stack}.norms": 0 if planned.use.norm is None else _norm(run, stack)})
    reads_expected = reads_expected_states(planned)
    # A convolution needs no norm of the states themselves.
    if reads_expected and planned.stack_config.norm.placement == "pre" and isinstance(planned.sub, AttentionConfig):
        found[f"{stack}.norms"] += _norm(run, stack)
    if isinstance(planned.sub, RoutedConfig):
        found[f"{planned.part}.router"] = decision_bytes(run, planned.sub, run.tokens(stack))
        found["copies"] += weight_copies(run, planned.sub)
    if run.config.dropout:
        found[f"{stack}.dropout"] = states
    if run.is_recomputed:
        found["copies"] += run.copy_of(_whole_weights(planned, d_model))
    if reads_expected:
        found["copies"] += run.copy_of(_sliced_weights(planned, d_model))
    match planned.sub:
        case ExpertAttentionConfig() as attention:
            kept = _expert_attention(run, planned, attention)
        case AttentionConfig() as attention if kind == "cross_attention":
            kept = run.width * states + _attend(run, planned, attention)
            # A slice of packed weights is copied at every use.
            found["copies"] += run.copy_of(d_model * inner_width(attention, d_model))
        case AttentionConfig() as attention:
            kept = run.width * states + _positions(run, planned, attention)
            kept += _attend(run, planned, attention, is_split=reads_expected)
        case DenseFeedForwardConfig() as ffn:
            per_unit = run.width * PER_HIDDEN_UNIT[ffn.activation]
            per_unit += 1 if ffn.dropout and ffn.activation != "relu" else 0
            kept = run.width * states + per_unit * run.tokens(stack) * ffn.d_ff
        case SeparableConvConfig() as conv:
            kept = _convolution(run, stack, conv)
        case ExpertFeedForwardConfig() as ffn:
            kept = feed_forward_bytes(run, ffn, run.tokens(stack))
        case SparseLayerConfig() as layer:
            kept = sparse_layer_bytes(run, layer, run.tokens(stack))
        case other:
            raise TypeError(f"no activations are known for {type(other).__name__}")
    found[planned.part] = kept + (expected_states_bytes(run, planned) if reads_expected else 0)
    return found


def _expert_attention(run: TrainingPass, planned: PlannedUse, attention: ExpertAttentionConfig) -> int:
    """Return what one use of attention with experts keeps, without the decision."""
    stack = planned.stack
    kept = states_bytes(run, attention, run.tokens(stack))
    if planned.use.kind == "cross_attention":
        return kept + _attend(run, planned, attention)
    # Queries, and keys and values, have each a copy of the states in autocast's type.
    kept += run.width * run.tokens(stack) * run.config.d_model if run.is_mixed else 0
    kept += _positions(run, planned, attention)
    return kept + _attend(run, planned, attention)


def _norm(run: TrainingPass, stack: str) -> int:
    is_layer, d_model = run.config.stacks()[stack].norm.kind == "layer", run.config.d_model
    return FLOAT * run.tokens(stack) * (d_model + 2 if is_layer else 2 * d_model + 1)


def _copies_heads(run: TrainingPass, attention: AttentionConfig) -> bool:
    """Return True where plain matrix products work on copies of keys and values that have the heads outermost."""
    return run.batch > 1 and attention.n_heads > 1


def _attend(run: TrainingPass, planned: PlannedUse, attention: AttentionConfig, *, is_split: bool = False) -> int:
    """Return what softmax(q k^T) v keeps, and q, k, v where they are of one use.

    Args:
        is_split: queries of self-attention are not packed with keys and values, as those of experts never are.
    """
    stack, is_cross = planned.stack, planned.use.kind == "cross_attention"
    seen, relative = ("encoder", None) if is_cross else (stack, planned.stack_config.relative)
    inner, n, keys = inner_width(attention, run.config.d_model), n_choices(attention), run.tokens(seen)
    queries = n * run.tokens(stack)
    is_split = is_split or isinstance(attention, ExpertAttentionConfig)
    packed = 0 if is_cross else keys * inner * (2 if is_split else 3)
    n_weights = queries * attention.n_heads * run.lengths[seen]
    if attention.dropout:
        is_copied = _copies_heads(run, attention)
        # Turned queries and keys stand beside what they were turned from.
        is_turned = isinstance(relative, RotaryConfig)
        heads = (queries + 2 * keys) * inner if is_copied else packed + (queries * inner if is_split or is_cross else 0)
        heads += (queries + keys) * inner if is_turned and not is_copied else 0
        return run.width * (heads + n_weights + queries * inner) + n_weights
    if not isinstance(relative, WindowConfig | BucketsConfig):
        # The order of the columns needs no mask; prefixes and several queries a token do.
        mask = n * run.mask(stack) if not is_cross and (run.has_prefixes or n > 1) else 0
        kept = queries * inner * (2 if is_split or is_cross else 1)
        return run.width * (packed + kept + mask) + FLOAT * queries * attention.n_heads
    values = keys * inner if run.is_mixed or _copies_heads(run, attention) else packed
    return FLOAT * ((queries + keys) * inner + values + n_weights) + run.width * queries * inner


def _positions(run: TrainingPass, planned: PlannedUse, attention: AttentionConfig) -> int:
    """Return what relative positions keep at one use."""
    stack, inner, length = planned.stack, inner_width(attention, run.config.d_model), run.lengths[planned.stack]
    n = n_choices(attention)
    queries = n * run.tokens(stack)
    match planned.stack_config.relative:
        case WindowConfig(window=window):
            has_copies = run.batch > 1 and attention.n_heads > 1
            tables = run.batch if has_copies else 1 if run.is_mixed else 0
            reach = 2 * window + 1
            numbers = queries * (inner + attention.n_heads * reach) + tables * inner * reach
            return run.width * numbers + n * (ID * length**2 + run.mask(stack))
        case BucketsConfig():
            return n * run.mask(stack)
        case RotaryConfig():
            # Turned queries take the place of others, but stand beside packed ones.
            is_split = isinstance(attention, ExpertAttentionConfig) or reads_expected_states(planned)
            turned = (0 if is_split else queries) + run.tokens(stack)
            turned = (turned + (queries if attention.n_heads > 1 else 0)) * inner
            angles = (n + 1) * length * attention.head_width(run.config.d_model)
            return run.width * ((0 if attention.dropout else turned) + angles)
    return 0


def _convolution(run: TrainingPass, stack: str, conv: SeparableConvConfig) -> int:
    """Return what a separable convolution keeps: what both convolutions and both maps read, and the relu's output."""
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


def _sliced_weights(planned: PlannedUse, d_model: int) -> int:
    """Return the numbers of packed maps of which self-attention with expected states takes slices."""
    if not isinstance(planned.sub, AttentionConfig) or isinstance(planned.sub, ExpertAttentionConfig):
        return 0
    return 3 * d_model * inner_width(planned.sub, d_model)


def _whole_weights(planned: PlannedUse, d_model: int) -> int:
    """Return the numbers of one set's maps that are used whole, biases aside."""
    if reads_expected_states(planned) and (sliced := _sliced_weights(planned, d_model)):
        return sliced // 3
    match planned.sub:
        case ExpertAttentionConfig() as attention:
            return 0 if planned.use.kind == "cross_attention" else 2 * d_model * inner_width(attention, d_model)
        case AttentionConfig() as attention:
            return (1 if planned.use.kind == "cross_attention" else 4) * d_model * inner_width(attention, d_model)
        case DenseFeedForwardConfig() as ffn:
            return (hidden_branches(ffn) + 1) * d_model * ffn.d_ff
        case SeparableConvConfig() as conv:
            return 2 * d_model * conv.d_ff
    return 0
