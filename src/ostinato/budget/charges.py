"""What one token pays for, round by round, and what of it is left once the token has halted.

A charge is one product of one use, in multiply-accumulates for one token: so many whatever it sees, and so many for
every token its attention looks at. Three kinds of charges differ in who pays them:

    of a round       queries and output, scores and values, window scores, feed-forwards, experts, routers, gates:
                     tokens that take part in the round
    keys and values  of self-attention: tokens that take part, and halted ones, which others go on looking at, once
                     for all later uses of the same weights (in pre-norm stacks: and norm), because their states are
                     frozen
    of everyone      the output projection, the memory's keys and values (once a set): every token
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ostinato.budget.experts import expert_products, n_choices, router_products
from ostinato.budget.recurrent import recurrent_parts
from ostinato.budget.sizes import (
    PlannedUse,
    gate_products,
    hidden_branches,
    inner_width,
    n_outputs,
    planned_uses,
    plans,
    separable_products,
    vocabulary,
)
from ostinato.config.experts import RoutedConfig
from ostinato.config.halting import StickBreakingConfig
from ostinato.config.model import ModelConfig
from ostinato.config.positions import WindowConfig
from ostinato.config.sub_layers import AttentionConfig, DenseFeedForwardConfig, SeparableConvConfig

SCORES, WINDOW, ROUTER, HEAD = "scores", "positions", "router", "head"


@dataclass(frozen=True, slots=True)
class Charge:
    """Multiply-accumulates for one token.

    Args:
        part: what they are shown under. side: whose tokens pay. round: 0-based, of its stack.
        macs: whatever is seen. per_key: for every token of the side `seen` besides.
        of_everyone: also halted tokens pay. reused: weights (and norm) of keys and values, which a halted token pays
            once.
    """

    part: str
    side: str
    round: int
    macs: int
    per_key: int = 0
    seen: str = "target"
    of_everyone: bool = False
    reused: tuple[str, str | None] | None = None


class Price(NamedTuple):
    """What one token pays of a part: so much, and so much for every source and target token that is there."""

    macs: int = 0
    per_source: int = 0
    per_target: int = 0

    def at(self, source_length: int, target_length: int) -> int:
        """Return it for a sentence of these lengths."""
        return self.macs + self.per_source * source_length + self.per_target * target_length


def charges(config: ModelConfig, n_steps: int | None, vocab_size: int | None) -> dict[str, list[Charge]]:
    """Return by stack or recurrence what a pass charges; the output projection is the last one's.

    A head that says one thing of a whole sentence is not charged to its tokens: see `sentence_macs`.

    Raises:
        ConfigError: a vocabulary size that is neither set nor passed, or `n_steps` for stacks that cannot change it.
    """
    found: dict[str, list[Charge]] = {name: [] for name in config.readers()}
    projected: set[str] = set()
    for planned in planned_uses(config, n_steps):
        found[planned.stack] += _of_use(planned, config, projected)
    for name, plan in plans(config, n_steps).items():
        found[name] += _gates(name, config, plan.n_rounds)
    for reader, charge in _recurrences(config):
        found[reader].append(charge)
    last, outputs = list(found)[-1], n_outputs(config)
    if outputs is None:
        output = config.d_model * vocabulary(config, "target", vocab_size)
        found[last].append(Charge("output", "target", 0, output, of_everyone=True))
    elif config.reads != "classification":
        found[last].append(Charge(HEAD, "target", 0, config.d_model * outputs, of_everyone=True))
    return found


def _recurrences(config: ModelConfig) -> Iterator[tuple[str, Charge]]:
    """Yield what recurrences over positions charge: every token, whatever the depth of others."""
    for one in recurrent_parts(config):
        if not one.per_source:
            yield one.reader, Charge(one.part, config.side_of(one.reader), 0, one.products, of_everyone=True)
            continue
        yield one.reader, Charge(f"{one.part}.projections", "target", 0, one.products, of_everyone=True)
        yield one.reader, Charge(f"{one.part}.{SCORES}", "target", 0, 0, one.per_source, "source", of_everyone=True)
        yield one.reader, Charge(f"{one.part}.projections", "source", 0, one.memory, of_everyone=True)


def sentence_macs(config: ModelConfig) -> int:
    """Return what a sentence costs however many tokens it has: the head of a classification."""
    outputs = n_outputs(config)
    return config.d_model * outputs if config.reads == "classification" and outputs is not None else 0


def prices(of_stack: Iterable[Charge], depth: int, deepest: int) -> dict[tuple[str, str], Price]:
    """Return what a token of a stack pays, by part and side that pays.

    Args:
        depth: rounds the token takes part in. deepest: rounds that run, because some token takes part in them.
    """
    sums: dict[tuple[str, str], Counter[str]] = {}
    reused: set[tuple[str, str | None]] = set()
    for charge in of_stack:
        if charge.round >= deepest:
            continue
        if charge.round >= depth and not charge.of_everyone:
            if charge.reused is None or charge.reused in reused:
                continue
            reused.add(charge.reused)
        paid = sums.setdefault((charge.part, charge.side), Counter())
        paid.update({"macs": charge.macs, charge.seen: charge.per_key})
    return {key: Price(paid["macs"], paid["source"], paid["target"]) for key, paid in sums.items()}


def _of_use(planned: PlannedUse, config: ModelConfig, projected: set[str]) -> Iterator[Charge]:
    """Yield the charges of one use; `projected` holds the sets that have projected the memory."""
    d_model = config.d_model
    part, side, index = planned.part, config.side_of(planned.stack), planned.round
    if isinstance(planned.sub, RoutedConfig):
        yield Charge(f"{part}.{ROUTER}", side, index, router_products(planned.sub, d_model))
    match planned.sub:
        # With experts or without: what differs is how many queries a token has.
        case AttentionConfig() as attention if planned.use.kind == "self_attention":
            yield from _self_attention(planned, attention, d_model, side)
        case AttentionConfig() as attention:
            if planned.use.weights not in projected:
                projected.add(planned.use.weights)
                keys_values = 2 * d_model * inner_width(attention, d_model)
                yield Charge(f"{part}.projections", "source", index, keys_values, of_everyone=True)
            yield from _queries(planned, attention, d_model, side, "source")
        case DenseFeedForwardConfig() as ffn:
            yield Charge(part, side, index, (hidden_branches(ffn) + 1) * d_model * ffn.d_ff)
        case SeparableConvConfig() as conv:
            yield Charge(part, side, index, separable_products(conv, d_model))
        case RoutedConfig() as experts:
            yield Charge(part, side, index, experts.top_k * expert_products(experts, d_model))
        case other:
            raise TypeError(f"no cost is known for {type(other).__name__}")


def _self_attention(planned: PlannedUse, attention: AttentionConfig, d_model: int, side: str) -> Iterator[Charge]:
    yield from _queries(planned, attention, d_model, side, side)
    norm = planned.use.norm if planned.stack_config.norm.placement == "pre" else None
    keys_values = 2 * d_model * inner_width(attention, d_model)
    made_of = (planned.use.weights, norm)
    yield Charge(f"{planned.part}.projections", side, planned.round, keys_values, reused=made_of)
    relative = planned.stack_config.relative
    if isinstance(relative, WindowConfig):
        table = n_choices(attention) * inner_width(attention, d_model) * (2 * relative.window + 1)
        yield Charge(f"{planned.part}.{WINDOW}", side, planned.round, table)


def _queries(planned: PlannedUse, attention: AttentionConfig, d_model: int, side: str, seen: str) -> Iterator[Charge]:
    """Yield queries and output, and scores and values over all tokens of the side `seen`."""
    part, index = planned.part, planned.round
    width = n_choices(attention) * inner_width(attention, d_model)
    yield Charge(f"{part}.projections", side, index, 2 * d_model * width)
    yield Charge(f"{part}.{SCORES}", side, index, 0, per_key=2 * width, seen=seen)


def _gates(stack: str, config: ModelConfig, n_rounds: int) -> Iterator[Charge]:
    """Yield the gate of every round about which it is asked: stick-breaking's not about the last."""
    halting = config.stacks()[stack].halting
    asked = n_rounds - 1 if isinstance(halting, StickBreakingConfig) else n_rounds
    for index in range(asked):
        yield Charge(f"{stack}.halting", config.side_of(stack), index, gate_products(halting, config.d_model))
