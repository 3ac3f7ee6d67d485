"""Sizes of single parameter sets and their matrices, and the questions every count asks of a configuration.

A set belongs to a bank by its kind and name (`ostinato.plan`). Stacks that name the same bank use the same sets, so a
set is identified by (kind, name) over all stacks of a model, never by its place in a stack.

With D = d_model, I = n_heads d_head, F = d_ff, E experts, b = 1 with biases, else 0:

    attention                    2 D I + 2 D J + b (I + 2 J + D), J = n_kv_heads d_head (I unless given); without the
                                 output's bias (qkv) or with those of queries and keys only (qk) the fewer; an output
                                 gate D I; learned norms of queries and keys 2 d_head
    feed-forward                 2 D F + b (F + D),  gated 3 D F + b (2 F + D)
    separable convolution        D kernel_in + F kernel_out + 2 D F + b (F + D)
    one expert, feed-forward     as a feed-forward
    one expert, sparse layer     n_layers times that and a norm of 2 D
    one expert, attention        2 D I + b (I + D): queries and output
    keys and values              2 D J + 2 b J, shared by all experts of a set
    experts of heads             D J + D I for the experts of one number in all heads (values and outputs); queries and
                                 keys D I + D J, shared; routers as below, one of H_kv E and one of H E experts
    bias of the sum              D, where it is asked for
    router   linear              E D
             mlp                 D^2 + D + E D
             hypersphere         d_e D + E d_e + 1, without projection E D + 1 (the 1 is the temperature)
    values by token              a table V J, one a number in `value_embeddings.share`, and a gate C H_kv each
    gate of halting              stick_breaking D^2 + D + 2 D (+ 1 with an initial bias), act and exit D + 1
    relative positions           window I (2 W + 1), buckets n_buckets n_heads, a table

The weights of matrices (`Weights.products`) are also the multiply-accumulates of one token. A token uses top_k experts,
one projection to keys and values, and the router, so that only the router's cost depends on E. One expert alone has no
router. Sparse Universal Transformer, sections 2.2 and 2.3; X-MoE, section 2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from ostinato.config.experts import (
    ExpertAttentionConfig,
    ExpertFeedForwardConfig,
    HeadExpertAttentionConfig,
    HypersphereRouterConfig,
    MlpRouterConfig,
    RoutedConfig,
    SparseLayerConfig,
)
from ostinato.config.halting import ActConfig, ChoosingConfig, ExitConfig, HaltingConfig, StickBreakingConfig
from ostinato.config.model import EncoderConfig, ModelConfig, StackModelConfig
from ostinato.config.norm import NormalisationConfig
from ostinato.config.positions import BucketsConfig, OneRelativeConfig, RelativeConfig, WindowConfig
from ostinato.config.stack import StackConfig
from ostinato.config.sub_layers import (
    GATED,
    AttentionConfig,
    DenseFeedForwardConfig,
    SeparableConvConfig,
    SubLayerConfig,
)
from ostinato.errors import ConfigError, Problem
from ostinato.plan import Plan, Step, Use

FeedForward = DenseFeedForwardConfig | ExpertFeedForwardConfig | SparseLayerConfig
"""What has the maps of a feed-forward, once or once an expert."""


@dataclass(frozen=True, slots=True)
class PlannedUse:
    """One use of a sub-layer, with the configuration of what it uses."""

    stack: str
    step: int
    round: int
    """Of the loop; a use before or after it runs for every token, as the first round does."""
    is_looped: bool
    use: Use
    sub: SubLayerConfig | SparseLayerConfig
    stack_config: StackConfig
    borrows_keys: bool = False
    """Self-attention that reads the keys and values of another step, and makes none."""
    n_key_sets: int = 1
    """How many steps' keys and values self-attention reads, side by side."""
    sees_some: bool = False
    """Self-attention in which some tokens may be hidden, because a router left them out of a round."""
    is_after_loop: bool = False
    """In a segment that follows the loop."""
    delta_rank: int = 0
    """Of what its round adds to its maps."""
    is_timed: bool = False
    """Whether its modulation is made of the time of the round."""

    @property
    def relative(self) -> WindowConfig | OneRelativeConfig:
        """Relative positions of self-attention."""
        return self.stack_config.relative_of(self.use)

    @property
    def name(self) -> str:
        """What its costs are shown under within its stack: its kind, or ``sparse_layer``."""
        return "sparse_layer" if isinstance(self.sub, SparseLayerConfig) else self.use.kind

    @property
    def part(self) -> str:
        """What its costs are shown under: ``<stack>.<kind>``, or ``<stack>.sparse_layer``."""
        return f"{self.stack}.{self.name}"


Rounds = int | Mapping[str, int] | None
"""Rounds at call time: of every stack, or by the names of some; None: the plans' own."""


def plans(config: ModelConfig, n_steps: Rounds) -> dict[str, Plan]:
    """Return the plan of every stack, run for `n_steps` rounds where that is given.

    Raises:
        ConfigError: `n_steps` for a stack whose rounds differ, or for a model that has none.
    """
    own = config.plans()
    if isinstance(n_steps, Mapping):
        return {name: plan.with_rounds(n_steps.get(name, plan.n_rounds)) for name, plan in own.items()}
    config.check_rounds(n_steps)
    return own if n_steps is None else {name: plan.with_rounds(n_steps) for name, plan in own.items()}


def planned_uses(config: ModelConfig, n_steps: Rounds = None) -> Iterator[PlannedUse]:
    """Yield every use of every stack in the order they run."""
    stacks = config.stacks()
    for name, plan in plans(config, n_steps).items():
        loop = plan.segments.index(plan.loop)
        for number, segment in enumerate(plan.segments):
            rank = stacks[name].segments[number].delta_rank if stacks[name].segments else 0
            for step in segment.steps:
                for use in step.uses:
                    settings, whole = stacks[name].settings_of(use), stacks[name]
                    place = name, step.index, step.round, segment.is_loop
                    planned = PlannedUse(*place, use, settings, whole, is_after_loop=number > loop)
                    planned = replace(planned, delta_rank=rank if use.delta else 0, is_timed=segment.time is not None)
                    yield _reading(planned, plan, step) if use.kind == "self_attention" else planned


def _reading(planned: PlannedUse, plan: Plan, step: Step) -> PlannedUse:
    """Return a use of self-attention with whose keys and values it reads."""
    halting, sees_some = planned.stack_config.halting, False
    if isinstance(halting, ChoosingConfig) and planned.is_looped:
        may_lack, rounds = halting.may_lack(plan.n_rounds), {one.index: one.round for one in plan.steps}
        sees_some = any(may_lack[rounds[index]] for index in step.keys or (step.index,))
    return replace(planned, borrows_keys=not step.makes_keys, n_key_sets=len(step.keys) or 1, sees_some=sees_some)


@dataclass(frozen=True, slots=True)
class TopK:
    """How many experts a token gets: `top_k` of `n_experts`."""

    top_k: int
    n_experts: int

    def __str__(self) -> str:
        return f"{self.top_k} of {self.n_experts} experts"


def chosen_experts(config: ModelConfig) -> dict[str, TopK]:
    """Return the experts a token gets by routed sub-layer: ``<stack>.<kind>`` or ``<stack>.sparse_layer``."""
    routed = ((planned.part, planned.sub) for planned in planned_uses(config) if isinstance(planned.sub, RoutedConfig))
    return {part: TopK(sub.top_k, sub.n_experts) for part, sub in routed if sub.has_router}


def n_choices(attention: AttentionConfig) -> int:
    """Return the queries a token has of a head: one for every expert it gets, 1 without experts."""
    return attention.top_k if isinstance(attention, ExpertAttentionConfig) else 1


def inner_width(attention: AttentionConfig, d_model: int) -> int:
    """Return I = n_heads d_head, the width of queries over all heads, and of keys and values without `n_kv_heads`."""
    return attention.n_heads * attention.head_width(d_model)


def keys_width(attention: AttentionConfig, d_model: int) -> int:
    """Return J = n_kv_heads d_head, the width of keys, and of values, over all their heads."""
    return attention.n_key_heads * attention.head_width(d_model)


def hidden_branches(ffn: FeedForward) -> int:
    """Return how many D x F maps lead to the hidden layer: one, or two with a gate."""
    return 2 if ffn.activation in GATED else 1


class Weights(NamedTuple):
    """Parameters: `products`, the weights of matrices, which are the multiply-accumulates of a token, and `others`."""

    products: int
    others: int

    @property
    def size(self) -> int:
        """All of them."""
        return self.products + self.others


def set_weights(sub: SubLayerConfig | SparseLayerConfig, d_model: int) -> Weights:
    """Return the parameters of one set of a sub-layer, or of one expert; without router, and experts' keys and values.

    Of a separable convolution every weight outside the biases multiplies once a token.
    """
    match sub:
        case ExpertAttentionConfig():
            inner = inner_width(sub, d_model)
            biases = (inner if sub.bias else 0) + (d_model if sub.bias is True else 0)
            return Weights(2 * d_model * inner, biases)
        case HeadExpertAttentionConfig():
            return Weights(d_model * (inner_width(sub, d_model) + keys_width(sub, d_model)), 0)
        case AttentionConfig():
            inner, keys_values = inner_width(sub, d_model), 2 * keys_width(sub, d_model)
            # Biases of the queries, and of the output; those of keys and values, and both norms, are in the rest.
            biases = (inner if sub.bias else 0) + (d_model if sub.bias is True else 0) + qk_norm_size(sub, d_model)
            biases += keys_values_size(sub, d_model) - d_model * keys_values
            maps = 3 if sub.output_gate else 2
            return Weights(d_model * (maps * inner + keys_values), biases)
        case SeparableConvConfig():
            products = d_model * sub.kernel_in + sub.d_ff * sub.kernel_out + 2 * d_model * sub.d_ff
            return Weights(products, sub.d_ff + d_model if sub.bias else 0)
        case DenseFeedForwardConfig() | ExpertFeedForwardConfig() | SparseLayerConfig():
            hidden = hidden_branches(sub) * sub.d_ff
            products, biases = (hidden + sub.d_ff) * d_model, hidden + d_model if sub.bias else 0
            if isinstance(sub, SparseLayerConfig):
                return Weights(sub.n_layers * products, sub.n_layers * (biases + 2 * d_model))
            return Weights(products, biases)
    raise TypeError(f"no parameters are known for {type(sub).__name__}")


def keys_values_size(attention: AttentionConfig, d_model: int) -> int:
    """Return the parameters that make keys and values, with experts or without: maps, biases, the norm of keys.

    Where values are made by experts, those that make keys.
    """
    width = keys_width(attention, d_model)
    if isinstance(attention, HeadExpertAttentionConfig):
        return width * d_model + qk_norm_size(attention, d_model)
    biases = 0 if attention.bias is False else width if attention.bias == "qk" else 2 * width
    return 2 * width * d_model + biases + qk_norm_size(attention, d_model)


def qk_norm_size(attention: AttentionConfig, d_model: int) -> int:
    """Return the parameters of the norm of queries, or of that of keys."""
    return attention.head_width(d_model) if attention.qk_norm == "rms" else 0


def common_size(sub: RoutedConfig, d_model: int) -> int:
    """Return what all experts share beside router, keys and values: the bias of their sum, the norm of queries, and
    queries where they are dense."""
    size = d_model if isinstance(sub, ExpertFeedForwardConfig | ExpertAttentionConfig) and sub.sum_bias else 0
    if isinstance(sub, HeadExpertAttentionConfig):
        return d_model * inner_width(sub, d_model) + qk_norm_size(sub, d_model)
    return size + (qk_norm_size(sub, d_model) if isinstance(sub, ExpertAttentionConfig) else 0)


def router_weights(sub: RoutedConfig, d_model: int, n_heads: int | None = None) -> Weights:
    """Return the parameters of a router; none where there is nothing to choose.

    Args:
        n_heads: that it chooses for, each among experts of its own; None: those that outputs are of.
    """
    if not sub.has_router:
        return Weights(0, 0)
    n_experts = sub.n_experts * (choosing_heads(sub) if n_heads is None else n_heads)
    match sub.router:
        case MlpRouterConfig():
            return Weights(d_model**2 + n_experts * d_model, d_model)
        case HypersphereRouterConfig(project=True):
            return Weights(sub.router_width * (d_model + n_experts), 1)
        case router:
            return Weights(n_experts * d_model, 1 if isinstance(router, HypersphereRouterConfig) else 0)


def value_router_weights(sub: SubLayerConfig | SparseLayerConfig, d_model: int) -> Weights:
    """Return the parameters of the router of values; none where they are made by no experts."""
    if not isinstance(sub, HeadExpertAttentionConfig):
        return Weights(0, 0)
    return router_weights(sub, d_model, sub.n_key_heads)


def choosing_heads(sub: RoutedConfig) -> int:
    """Return the heads that choose among experts of their own for their outputs; 1 where all rows do as a whole."""
    return sub.n_heads if isinstance(sub, HeadExpertAttentionConfig) else 1


def value_gate_size(planned: PlannedUse) -> int:
    """Return the parameters of the gate of a table of values, and its products of a token; 0 where there is none."""
    tables, attention = planned.stack_config.value_embeddings, planned.sub
    if planned.use.values is None or planned.borrows_keys or tables is None:
        return 0
    assert isinstance(attention, AttentionConfig)  # other sub-layers have no values
    return tables.gate_width * attention.n_key_heads


def norm_size(norm: NormalisationConfig, width: int) -> int:
    """Return the parameters of one norm: weight and bias, or the weight only, or none."""
    return width * (norm.weight + norm.has_bias)


def embedding_map_weights(config: ModelConfig) -> Weights:
    """Return the parameters of one stack's map from embeddings to states; none where they are equally wide."""
    if not isinstance(config, StackModelConfig) or config.d_embedding is None:
        return Weights(0, 0)
    return Weights(config.d_embedding * config.d_model, config.d_model if config.embedding_bias else 0)


def transform_weights(config: ModelConfig) -> Weights:
    """Return the parameters of the map, and of its norm, before the output projection; none where there is none."""
    transform, width = config.output.transform, config.embedding_width
    if transform is None or not config.has_vocabulary_output:
        return Weights(0, 0)
    others = (width if transform.bias else 0) + (0 if transform.norm is None else norm_size(transform.norm, width))
    return Weights(config.d_model * width, others)


def table_size(relative: RelativeConfig, attention: AttentionConfig, d_model: int) -> int:
    """Return the parameters of one table of relative positions; 0 where there is none."""
    match relative:
        case WindowConfig(window=window):
            return inner_width(attention, d_model) * (2 * window + 1)
        case BucketsConfig(n_buckets=n_buckets):
            return n_buckets * attention.n_heads
        case _:
            return 0


def vocabulary(config: ModelConfig, side: str, vocab_size: int | None) -> int:
    """Return the rows of one side's vocabulary: the configuration's own, or else `vocab_size`.

    Raises:
        ConfigError: neither is given; the message names the key.
    """
    key = config.vocabulary_key(side)
    rows: int | None = getattr(config, key)
    rows = vocab_size if rows is None else rows
    if rows is None or rows < 1:
        reason = "a count needs the rows of the vocabulary: set it, or pass vocab_size (at least 1)"
        raise ConfigError([Problem(f"model.{key}", rows, reason)])
    return rows


def n_outputs(config: ModelConfig) -> int | None:
    """Return the numbers that a head's own projection gives; None where there is none, but logits over a vocabulary.

    Raises:
        ConfigError: it depends on labels whose number is not set.
    """
    found = config.n_outputs if isinstance(config, EncoderConfig) else None
    if found == 0:
        raise ConfigError([Problem("model.n_labels", None, "a count needs the number of labels: set it")])
    return found


def gate_weights(halting: HaltingConfig, d_model: int, n_rounds: int) -> Weights:
    """Return the parameters of a stack's gate; none without halting. It is asked about one token at a time.

    Args:
        n_rounds: of the stack's plan, some of which have a router of their own.
    """
    match halting:
        case ChoosingConfig() as c:
            return Weights(c.n_routers(n_rounds) * d_model, 0)
        case StickBreakingConfig() as c:
            return Weights(d_model**2 + 2 * d_model, d_model + (0 if c.initial_bias is None else 1))
        case ActConfig() | ExitConfig():
            return Weights(d_model, 1)
    return Weights(0, 0)
