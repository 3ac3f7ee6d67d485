"""Sizes of single parameter sets, and the questions every count asks of a configuration.

A set belongs to a bank by its kind and name (`ostinato.plan`). Stacks that name the same bank use the same sets, so a
set is identified by (kind, name) over all stacks of a model, never by its place in a stack.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ostinato.config.experts import ExpertFeedForwardConfig, RoutedConfig, SparseLayerConfig
from ostinato.config.halting import ActConfig, HaltingConfig, StickBreakingConfig
from ostinato.config.model import EncoderConfig, ModelConfig
from ostinato.config.positions import BucketsConfig, RelativeConfig, WindowConfig
from ostinato.config.stack import NormConfig, StackConfig
from ostinato.config.sub_layers import AttentionConfig, DenseFeedForwardConfig, SeparableConvConfig, SubLayerConfig
from ostinato.errors import ConfigError, Problem
from ostinato.plan import Plan, Use


@dataclass(frozen=True, slots=True)
class PlannedUse:
    """One use of a sub-layer, with the configuration of what it uses."""

    stack: str
    step: int
    round: int
    use: Use
    sub: SubLayerConfig | SparseLayerConfig
    stack_config: StackConfig

    @property
    def part(self) -> str:
        """What its costs are shown under: ``<stack>.<kind>``, or ``<stack>.sparse_layer``."""
        return f"{self.stack}.{part_of(self)}"


def part_of(planned: PlannedUse) -> str:
    """Return the name of a use's part within its stack: its kind, or ``sparse_layer``."""
    return "sparse_layer" if isinstance(planned.sub, SparseLayerConfig) else planned.use.kind


def plans(config: ModelConfig, n_steps: int | None) -> dict[str, Plan]:
    """Return the plan of every stack, run for `n_steps` rounds where that is given.

    Raises:
        ConfigError: `n_steps` for a stack whose rounds differ, or for a model that has none.
    """
    config.check_rounds(n_steps)
    own = config.plans()
    return own if n_steps is None else {name: plan.with_rounds(n_steps) for name, plan in own.items()}


def planned_uses(config: ModelConfig, n_steps: int | None = None) -> Iterator[PlannedUse]:
    """Yield every use of every stack in the order they run."""
    stacks = config.stacks()
    for name, plan in plans(config, n_steps).items():
        for step in plan.steps:
            for use in step.uses:
                yield PlannedUse(name, step.index, step.round, use, stacks[name].settings_of(use), stacks[name])


def dense_size(sub: SubLayerConfig | SparseLayerConfig, d_model: int) -> int:
    """Return the parameters of one set of a sub-layer without experts (of experts: `ostinato.budget.experts`).

    attention:    4 D I (+ 3 I + D biases),     I = n_heads d_head
    feed-forward: 2 D F (+ F + D biases);       geglu: 3 D F (+ 2 F + D)
    separable convolution: D kernel_in + F kernel_out + 2 D F (+ F + D)
    """
    match sub:
        case RoutedConfig():
            pass
        case AttentionConfig():
            inner = inner_width(sub, d_model)
            return 4 * d_model * inner + (3 * inner + d_model if sub.bias else 0)
        case DenseFeedForwardConfig():
            branches = hidden_branches(sub)
            biases = branches * sub.d_ff + d_model if sub.bias else 0
            return (branches + 1) * d_model * sub.d_ff + biases
        case SeparableConvConfig():
            return separable_products(sub, d_model) + (sub.d_ff + d_model if sub.bias else 0)
    raise TypeError(f"no size without experts is known for {type(sub).__name__}")


def inner_width(attention: AttentionConfig, d_model: int) -> int:
    """Return I = n_heads d_head, the width of queries, keys and values over all heads."""
    return attention.n_heads * attention.head_width(d_model)


def hidden_branches(ffn: DenseFeedForwardConfig | ExpertFeedForwardConfig | SparseLayerConfig) -> int:
    """Return how many D x F maps lead to the hidden layer: one, or two with a gate."""
    return 2 if ffn.activation == "geglu" else 1


def separable_products(conv: SeparableConvConfig, d_model: int) -> int:
    """Return the weights of a separable convolution without biases: also its MACs for one token."""
    return d_model * conv.kernel_in + conv.d_ff * conv.kernel_out + 2 * d_model * conv.d_ff


def norm_size(norm: NormConfig, d_model: int) -> int:
    """Return the parameters of one norm: weight and bias, or the weight only."""
    return 2 * d_model if norm.kind == "layer" else d_model


def table_size(relative: RelativeConfig, attention: AttentionConfig, d_model: int) -> int:
    """Return the parameters of one table of relative positions.

    window: n_heads d_head (2 W + 1).     buckets: n_buckets n_heads.     none, rotary: 0.
    """
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
    key = f"{side}_vocab_size" if config.has_two_sides else "vocab_size"
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


def halting_size(halting: HaltingConfig, d_model: int) -> int:
    """Return the parameters of a stack's halting unit.

    stick_breaking: D^2 + D + 2 D (+ 1 with an initial bias).     act: D + 1.     none: 0.
    """
    match halting:
        case StickBreakingConfig() as c:
            return d_model**2 + 3 * d_model + (0 if c.initial_bias is None else 1)
        case ActConfig():
            return d_model + 1
    return 0


def gate_products(halting: HaltingConfig, d_model: int) -> int:
    """Return the multiply-accumulates of asking a stack's gate about one token once.

    stick_breaking: D^2 + 2 D.     act: D.     none: 0.
    """
    match halting:
        case StickBreakingConfig():
            return d_model**2 + 2 * d_model
        case ActConfig():
            return d_model
    return 0
