"""Multiply-accumulates of one forward pass, counted from the configuration.

With D = d_model, I = n_heads d_head, F = d_ff, S keys, T queries, V vocabulary rows, per use of a sub-layer:

    self-attention projections     4 D I T
    scores and values              2 I T S       (S = T; causal attention counts as full T^2)
    window positions               I (2 W + 1) T (scores of the queries with the table; gathering is free)
    cross-attention, per use       2 D I T for queries and output, 2 I T S for scores and values
    cross-attention, per set       2 D I S for keys and values: steps that share a set share them
    feed-forward                   2 D F T, geglu 3 D F T
    separable convolution          (D kernel_in + F kernel_out + 2 D F) T
    output projection              D V T
    gates of halting               stick_breaking (R - 1) (D^2 + 2 D) T, act R D T, of a stack of R rounds

and of sub-layers with E experts, k of them a token (Sparse Universal Transformer, section 2.7):

    self-attention projections     (2 k D I + 2 D I) T for queries and output, and for keys and values
    scores and values              2 k I T S
    window positions               k I (2 W + 1) T
    cross-attention, per use       2 k D I T, 2 k I T S; per set 2 D I S
    feed-forward                   2 k D F T, geglu 3 k D F T; sparse layer: n_layers times that
    router, per use                linear E D T; mlp (D^2 + E D) T; hypersphere d_e (D + E) T, a part of its own

so that E costs something in the router only.

Biases, norms, activations, softmax, embeddings, rotations and gates are element-wise and are not counted, as in
`torch.utils.flop_counter` (which counts 2 FLOPs for a MAC, and a sum weighted by gates where it is made by a matrix
product). The counts of Sparse Universal Transformer, Table 1 are
reproduced at S = T = 10 without scores and values: `MacCount.without_attention`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ostinato.budget.depth import expected_depths
from ostinato.budget.experts import expert_products, n_choices, router_products
from ostinato.budget.sizes import (
    PlannedUse,
    halting_products,
    hidden_branches,
    inner_width,
    planned_uses,
    plans,
    separable_products,
    vocabulary,
)
from ostinato.config.model import (
    AttentionConfig,
    DenseFeedForwardConfig,
    ModelConfig,
    RoutedConfig,
    SeparableConvConfig,
    Seq2SeqConfig,
    WindowConfig,
)
from ostinato.errors import ConfigError, Problem

_PRODUCTS = "scores"
_WINDOW = "positions"
_ROUTER = "router"


@dataclass(frozen=True, slots=True)
class MacCount:
    """What a forward pass over one sentence costs, in multiply-accumulates.

    Args:
        total: the whole pass.
        by_part: adding up to `total`: ``<stack>.<kind>.projections``, ``.scores`` (scores and values), ``.positions``
            (window scores), ``<stack>.ffn``, ``<stack>.sparse_layer``, ``output``; of routed sub-layers
            ``<stack>.<kind>.router``. Parts that cost nothing are left out.
        per_source_token: the encoder and the cross-attention keys and values, divided by the source length; 0 for
            language models.
        per_target_token: everything else, divided by the target length.
        per_generated_token: one token in cached decoding, attending to `context` target tokens, itself included.
    """

    total: int
    by_part: dict[str, int]
    per_source_token: int
    per_target_token: int
    per_generated_token: int

    @property
    def per_token(self) -> int:
        """One token of a language model; for seq2seq the same as `per_target_token`."""
        return self.per_target_token

    @property
    def without_attention(self) -> int:
        """The pass without attention scores and values and window scores: what does not grow with the length."""
        return self.total - sum(
            n for part, n in self.by_part.items() if part.endswith((f".{_PRODUCTS}", f".{_WINDOW}"))
        )


@dataclass(frozen=True, slots=True)
class _Cost:
    """A part's MACs for one token of one side."""

    part: str
    side: str
    macs: int


def count_macs(
    config: ModelConfig,
    source_length: int,
    target_length: int,
    *,
    context: int | None = None,
    n_steps: int | None = None,
    vocab_size: int | None = None,
    expected_depth: Mapping[str, float] | None = None,
) -> MacCount:
    """Return the multiply-accumulates of one forward pass over one sentence.

    Args:
        config: the model.
        source_length, target_length: tokens of each side, begin and end symbols included; language models have no
            source, and ignore its length.
        context: target tokens a generated token attends to, itself included; default: `target_length`.
        n_steps: rounds at call time, for stacks whose rounds are all shared.
        vocab_size: rows of the vocabulary where the configuration leaves it open.
        expected_depth: rounds a token is expected to take part in, by stack; see `expected_depths`. It is checked and
            changes nothing yet: what a round computes for halted tokens is thrown away, so that all rounds count.

    Raises:
        ConfigError: a length below 1, a vocabulary size that is neither set nor passed, an `expected_depth` that
            cannot be, or `n_steps` for stacks that cannot change it.
    """
    expected_depths(config, expected_depth, n_steps=n_steps)
    context = target_length if context is None else context
    is_seq2seq = isinstance(config, Seq2SeqConfig)
    source_length = source_length if is_seq2seq else 0
    _check_lengths(source_length if is_seq2seq else None, target_length, context)
    output = _Cost("output", "target", config.d_model * vocabulary(config, "target", vocab_size))
    costs = [*_costs(config, n_steps, source_length, target_length), output]
    lengths = {"source": source_length, "target": target_length}
    by_part: Counter[str] = Counter()
    for cost in costs:
        by_part[cost.part] += cost.macs * lengths[cost.side]
    generated = [*_costs(config, n_steps, source_length, context), output]
    return MacCount(
        total=sum(by_part.values()),
        by_part={part: macs for part, macs in by_part.items() if macs},
        per_source_token=_of_side(costs, "source"),
        per_target_token=_of_side(costs, "target"),
        per_generated_token=_of_side(generated, "target"),
    )


def _of_side(costs: list[_Cost], side: str) -> int:
    return sum(cost.macs for cost in costs if cost.side == side)


def _check_lengths(source_length: int | None, target_length: int, context: int) -> None:
    """Refuse lengths that no sentence has."""
    named = {"source_length": source_length, "target_length": target_length, "context": context}
    found = [
        Problem(key, n, "a sentence has at least one token") for key, n in named.items() if n is not None and n < 1
    ]
    if found:
        raise ConfigError(found)


def _costs(config: ModelConfig, n_steps: int | None, source_length: int, target_length: int) -> Iterator[_Cost]:
    """Yield what every use costs one token of the side that pays for it."""
    projected: set[str] = set()
    for planned in planned_uses(config, n_steps):
        side = _side(planned.stack)
        if isinstance(planned.sub, RoutedConfig):
            yield _Cost(f"{planned.part}.{_ROUTER}", side, router_products(planned.sub, config.d_model))
        match planned.sub:
            # With experts or without: what differs is how many queries a token has.
            case AttentionConfig() as attention if planned.use.kind == "self_attention":
                length = source_length if planned.stack == "encoder" else target_length
                yield from _self_attention(planned, attention, config.d_model, length)
            case AttentionConfig() as attention:
                is_first = planned.use.weights not in projected
                projected.add(planned.use.weights)
                yield from _cross_attention(planned.part, attention, config.d_model, source_length, is_first)
            case DenseFeedForwardConfig() as ffn:
                yield _Cost(planned.part, side, (hidden_branches(ffn) + 1) * config.d_model * ffn.d_ff)
            case SeparableConvConfig() as conv:
                yield _Cost(planned.part, side, separable_products(conv, config.d_model))
            case RoutedConfig() as experts:
                yield _Cost(planned.part, side, experts.k * expert_products(experts, config.d_model))
            case other:
                raise TypeError(f"no cost is known for {type(other).__name__}")
    for name, plan in plans(config, n_steps).items():
        halting = config.stacks()[name].halting
        yield _Cost(f"{name}.halting", _side(name), halting_products(halting, config.d_model, plan.n_rounds))


def _side(stack: str) -> str:
    return "source" if stack == "encoder" else "target"


def _self_attention(planned: PlannedUse, attention: AttentionConfig, d_model: int, length: int) -> Iterator[_Cost]:
    """Yield projections, scores and values, and window scores of one token."""
    inner, queries = inner_width(attention, d_model), n_choices(attention) * inner_width(attention, d_model)
    part, side = planned.part, _side(planned.stack)
    yield _Cost(f"{part}.projections", side, 2 * d_model * (queries + inner))
    yield _Cost(f"{part}.{_PRODUCTS}", side, 2 * length * queries)
    relative = planned.stack_config.relative
    if isinstance(relative, WindowConfig):
        yield _Cost(f"{part}.{_WINDOW}", side, queries * (2 * relative.window + 1))


def _cross_attention(
    part: str, attention: AttentionConfig, d_model: int, source_length: int, is_first: bool
) -> Iterator[_Cost]:
    """Yield a target token's queries, output and products; at a set's first use also a source token's keys, values."""
    inner, queries = inner_width(attention, d_model), n_choices(attention) * inner_width(attention, d_model)
    if is_first:
        yield _Cost(f"{part}.projections", "source", 2 * d_model * inner)
    yield _Cost(f"{part}.projections", "target", 2 * d_model * queries)
    yield _Cost(f"{part}.{_PRODUCTS}", "target", 2 * source_length * queries)
