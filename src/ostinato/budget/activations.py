"""Bytes that autograd keeps for the backward pass of one training pass, counted from the configuration.

With B sentences of T tokens, D = d_model, I = n_heads d_head, F = d_ff, H heads, S keys, V vocabulary rows, w = 4 bytes
(2 under bfloat16 autocast, where what is marked * stays at 4), per use of a sub-layer:

    norm            input B T D *, LayerNorm 2 B T *, RMSNorm B T + B T D * (the input before its weight)
    input           of the first map: B T D
    dropout         of a sub-layer's output: B T D (the drawn mask, as wide as what it drops on a CPU)
    attention       q, k, v in one 3 B T I, output B T I, log-sum-exp B H T *           fused kernel
                    q, k, v 3 B T I *, weights B H T S *, output B T I                  plain kernel
                    and with dropout of the weights 2 B H T S more. The kernel is the plain one where weights are
                    dropped or positions add a learned bias to the scores (window, buckets)
    positions       window: scaled queries B T I, table B I (2 W + 1), scores B H T (2 W + 1), distances 8 T S.
                    rotary: turned q and k and a second output 3 B T I. buckets: distances 8 T S once a stack.
                    A causal stack that adds a bias keeps its mask, T S; with prefixes every sentence's, B T S
    cross-attention queries and output 2 B T I, log-sum-exp; per SET keys and values 2 B S I
    feed-forward    relu B T F, gelu 2 B T F, geglu 4 B T F; dropout: 2 B T F more, geglu 1 B T F more
    convolution     the two padded inputs and outputs: B (T + K_in - 1) D, B T D, B (T + K_out - 1) F, B T F, and relu

and per pass the ids 8 B T, the states the output projection reads B T D, log-probabilities B T V *, and under autocast
a bfloat16 copy of every weight. A tensor that two operations keep counts once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ostinato.budget.sizes import PlannedUse, hidden_branches, inner_width, planned_uses, vocabulary
from ostinato.config.model import (
    AttentionConfig,
    BucketsConfig,
    DenseFeedForwardConfig,
    LanguageModelConfig,
    ModelConfig,
    RotaryConfig,
    SeparableConvConfig,
    WindowConfig,
)

FLOAT, _HALF, _ID = 4, 2, 8
_PER_HIDDEN_UNIT = {"relu": (1, 3), "gelu": (2, 3), "geglu": (4, 5)}
"""Numbers kept for every unit of a feed-forward's hidden layer, without and with dropout."""


@dataclass(frozen=True, slots=True)
class TrainingPass:
    """One training pass over a batch without padding.

    Args:
        lengths: tokens of a sentence by stack. batch: sentences.
        is_mixed: bfloat16 autocast. is_recomputed: only the states between steps are kept.
    """

    config: ModelConfig
    lengths: dict[str, int]
    batch: int
    is_mixed: bool
    is_recomputed: bool

    @property
    def width(self) -> int:
        """Bytes of a number that a matrix product reads or writes."""
        return _HALF if self.is_mixed else FLOAT

    def tokens(self, stack: str) -> int:
        """Return the tokens of all sentences."""
        return self.batch * self.lengths[stack]

    def mask(self, stack: str) -> int:
        """Return the places of the mask of self-attention: one for all sentences, or with prefixes one for each."""
        length = self.lengths[stack]
        return (self.batch if self.has_prefixes else 1) * length**2 if stack == "decoder" and length > 1 else 0

    @property
    def has_prefixes(self) -> bool:
        """Whether sentences have a part whose tokens see each other in both directions."""
        return isinstance(self.config, LanguageModelConfig) and self.config.mask == "prefix"

    def copy_of(self, n: int) -> int:
        """Return the bytes of autocast's copy of `n` weights."""
        return _HALF * n if self.is_mixed else 0


def activation_parts(run: TrainingPass, n_steps: int | None, vocab_size: int | None) -> dict[str, int]:
    """Return the bytes by part: ``<stack>.<kind>``, ``.norms``, ``.dropout``, ``embeddings``, ``output``, ``copies``.

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
    parts.update(_shared(run, uses))
    parts.update(_ends(run, vocabulary(config, "target", vocab_size)))
    return {part: n for part, n in parts.items() if n}


def _ends(run: TrainingPass, n_rows: int) -> Counter[str]:
    """Return what embeddings, final norms, output projection and loss keep."""
    config, found = run.config, Counter[str]()
    for name, stack in config.stacks().items():
        found["embeddings"] += _ID * run.tokens(name)
        found[f"{name}.dropout"] += FLOAT * run.tokens(name) * config.d_model if config.dropout else 0
        found[f"{name}.norms"] += _norm(run, name) if stack.norm.placement == "pre" else 0
    tokens = run.tokens("decoder")
    found["output"] = run.width * tokens * config.d_model + FLOAT * tokens * n_rows + _ID * tokens
    found["copies"] = run.copy_of(n_rows * config.d_model)
    return found


def _shared(run: TrainingPass, uses: Iterable[PlannedUse]) -> Counter[str]:
    """Return what a pass makes once for all steps that share it; it is kept even where steps are recomputed."""
    d_model, found = run.config.d_model, Counter[str]()
    sets: dict[tuple[str, str], PlannedUse] = {}
    for planned in uses:
        sets.setdefault((planned.use.kind, planned.use.weights), planned)
        if planned.use.position and isinstance(planned.stack_config.relative, BucketsConfig):
            found[f"{planned.stack}.self_attention"] = _ID * run.lengths[planned.stack] ** 2
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
    found = Counter({f"{stack}.norms": _norm(run, stack)})
    if run.config.dropout:
        found[f"{stack}.dropout"] = run.width * states
    if run.is_recomputed:
        found["copies"] += run.copy_of(_whole_weights(planned, d_model))
    match planned.sub:
        case AttentionConfig() as attention if kind == "cross_attention":
            kept = run.width * states + _attend(run, stack, attention, "encoder", has_bias=False)
            # A slice of packed weights is copied at every use.
            found["copies"] += run.copy_of(d_model * inner_width(attention, d_model))
        case AttentionConfig() as attention:
            has_bias = isinstance(planned.stack_config.relative, WindowConfig | BucketsConfig)
            kept = run.width * states + _positions(run, planned, attention)
            kept += _attend(run, stack, attention, stack, has_bias=has_bias)
        case DenseFeedForwardConfig() as ffn:
            per_unit = _PER_HIDDEN_UNIT[ffn.activation][1 if ffn.dropout else 0]
            kept = run.width * (states + per_unit * run.tokens(stack) * ffn.d_ff)
        case SeparableConvConfig() as conv:
            kept = _convolution(run, stack, conv)
        case other:
            raise TypeError(f"no activations are known for {type(other).__name__}")
    found[f"{stack}.{kind}"] = kept
    return found


def _norm(run: TrainingPass, stack: str) -> int:
    is_layer, d_model = run.config.stacks()[stack].norm.kind == "layer", run.config.d_model
    return FLOAT * run.tokens(stack) * (d_model + 2 if is_layer else 2 * d_model + 1)


def _copies_heads(run: TrainingPass, attention: AttentionConfig) -> bool:
    """Return True where plain matrix products work on copies of keys and values that have the heads outermost."""
    return run.is_mixed or (run.batch > 1 and attention.n_heads > 1)


def _attend(run: TrainingPass, stack: str, attention: AttentionConfig, seen: str, *, has_bias: bool) -> int:
    """Return what softmax(q k^T) v keeps, and q, k, v where they are of one use."""
    inner, queries, keys = inner_width(attention, run.config.d_model), run.tokens(stack), run.tokens(seen)
    is_cross = seen != stack
    given = queries * inner * (1 if is_cross else 3)
    if not has_bias and not attention.dropout:
        # The order of the columns needs no mask, prefixes do.
        mask = run.mask(stack) if not is_cross and run.has_prefixes else 0
        return run.width * (given + queries * inner + mask) + FLOAT * queries * attention.n_heads
    weights = queries * attention.n_heads * run.lengths[seen] * (3 if attention.dropout else 1)
    values = keys * inner if _copies_heads(run, attention) else 0 if is_cross else given
    return FLOAT * ((queries + keys) * inner + values + weights) + run.width * queries * inner


def _positions(run: TrainingPass, planned: PlannedUse, attention: AttentionConfig) -> int:
    """Return what relative positions keep at one use."""
    stack, inner, length = planned.stack, inner_width(attention, run.config.d_model), run.lengths[planned.stack]
    match planned.stack_config.relative:
        case WindowConfig(window=window):
            has_copies = run.batch > 1 and attention.n_heads > 1
            tables = run.batch if has_copies else 1 if run.is_mixed else 0
            reach = 2 * window + 1
            numbers = run.tokens(stack) * (inner + attention.n_heads * reach) + tables * inner * reach
            return run.width * numbers + _ID * length**2 + run.mask(stack)
        case BucketsConfig():
            return run.mask(stack)
        case RotaryConfig():
            turned = 0 if attention.dropout else (3 if attention.n_heads > 1 else 2) * run.tokens(stack) * inner
            return run.width * (turned + 2 * length * attention.head_width(run.config.d_model))
    return 0


def _convolution(run: TrainingPass, stack: str, conv: SeparableConvConfig) -> int:
    """Return what a separable convolution keeps: what both convolutions and both maps read, and the relu's output."""
    d_model, length = run.config.d_model, run.lengths[stack]
    per_sentence = (2 * length + conv.kernel_in - 1) * d_model
    per_sentence += (2 * length + conv.kernel_out - 1) * conv.d_ff
    per_sentence += length * conv.d_ff * (2 if conv.dropout else 1)
    # Laid out anew for the kernel; one tap a channel lies as it should already, unless autocast copies it.
    taps = sum(
        kernel * width
        for kernel, width in ((conv.kernel_in, d_model), (conv.kernel_out, conv.d_ff))
        if kernel > 1 or run.is_mixed
    )
    return run.width * (run.batch * per_sentence + taps)


def _whole_weights(planned: PlannedUse, d_model: int) -> int:
    """Return the numbers of one set's maps that are used whole, biases aside."""
    match planned.sub:
        case AttentionConfig() as attention:
            return (1 if planned.use.kind == "cross_attention" else 4) * d_model * inner_width(attention, d_model)
        case DenseFeedForwardConfig() as ffn:
            return (hidden_branches(ffn) + 1) * d_model * ffn.d_ff
        case SeparableConvConfig() as conv:
            return 2 * d_model * conv.d_ff
    return 0
