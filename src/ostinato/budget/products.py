"""The matrix products of a model, use by use, and what they cost a token that halts after some rounds.

A `Product` is one matrix product of one use, in multiply-accumulates (MACs) for one token: a fixed number, and a number
for every token that its attention looks at. The tokens it is made for:

    most products    queries and output, scores and values, window scores, feed-forwards, experts, routers, gates:
                     tokens that take part in the round
    keys and values  of self-attention: tokens that take part, and halted ones, to which others go on attending, once
                     for all later uses of the same weights (in pre-norm stacks: and norm), because their states are
                     frozen
    of every token   the map of embeddings, the output projection, heads, the memory's keys and values (once a set),
                     recurrences: halted or not
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from ostinato.budget.by_round import delta_products
from ostinato.budget.loops import planned_segments
from ostinato.budget.recurrent import RecurrentPart, recurrent_parts
from ostinato.budget.sizes import (
    PlannedUse,
    Rounds,
    embedding_map_weights,
    gate_weights,
    inner_width,
    keys_width,
    n_choices,
    n_outputs,
    planned_uses,
    plans,
    router_weights,
    set_weights,
    transform_weights,
    value_gate_size,
    value_router_weights,
    vocabulary,
)
from ostinato.config.experts import HeadExpertAttentionConfig, RoutedConfig
from ostinato.config.halting import ChoosingConfig, SelectConfig, StickBreakingConfig, TokenChoiceConfig
from ostinato.config.model import ModelConfig
from ostinato.config.positions import WindowConfig
from ostinato.config.sub_layers import AttentionConfig

SCORES, WINDOW, ROUTER, HEAD, EMBEDDINGS = "scores", "positions", "router", "head", "embeddings"
EXITS, DELTAS = "exits", "deltas"


Reused = tuple[bool, str, str | None, str | None, str | None, str | None, int | None]
"""See `Product`."""


@dataclass(frozen=True, slots=True)
class Product:
    """One matrix product of one use, in multiply-accumulates for one token.

    Args:
        part: what they are shown under. side: whose tokens it is made for. round: 0-based, of its stack.
        macs: whatever is seen. per_key: for every token of the side `seen` besides.
        of_every_token: made for halted tokens, too.
        reused: of keys and values what they are made with: whether in the loop, weights, norm, delta, modulation, table
            of values, and the round where its time changes that; made once for a halted token.
    """

    part: str
    side: str
    round: int
    macs: int
    per_key: int = 0
    seen: str = "target"
    of_every_token: bool = False
    reused: Reused | None = None


class TokenMacs(NamedTuple):
    """Multiply-accumulates of one token: a fixed number, and a number for every source and target token there is."""

    macs: int = 0
    per_source: int = 0
    per_target: int = 0

    def at(self, source_length: int, target_length: int) -> int:
        """Return them for a sentence of these lengths."""
        return self.macs + self.per_source * source_length + self.per_target * target_length


def use_products(config: ModelConfig, n_steps: Rounds = None) -> Iterator[tuple[PlannedUse, list[Product]]]:
    """Yield every use of a sub-layer in the order they run, with its products."""
    projected: set[str] = set()
    for planned in planned_uses(config, n_steps):
        part, side, sub, own = planned.part, config.side_of(planned.stack), planned.sub, list[Product]()
        if isinstance(sub, RoutedConfig):
            macs = router_weights(sub, config.d_model).products
            own.append(Product(f"{part}.{ROUTER}", side, planned.round, macs))
        if isinstance(sub, AttentionConfig):
            own += _attention(planned, sub, config, projected)
        else:
            macs = set_weights(sub, config.d_model).products * (sub.top_k if isinstance(sub, RoutedConfig) else 1)
            own.append(Product(part, side, planned.round, macs))
            if delta := delta_products(planned, config.d_model, of_keys=False):
                own.append(Product(f"{planned.stack}.{DELTAS}", side, planned.round, delta))
        yield planned, own


def products(
    config: ModelConfig, n_steps: Rounds, vocab_size: int | None, exits: Mapping[str, bool] | None = None
) -> dict[str, list[Product]]:
    """Return the products of a pass by stack or recurrence; the output projection is among the last one's.

    A head that says one thing of a whole sentence is not made for its tokens: see `sentence_macs`.

    Args:
        exits: stacks whose tokens stop by a criterion in place of their rule, whose gates are not asked; True: after
            every round but the last the tokens that ran it (all of them, where steps follow the loop, which read each
            other) go through what follows, up to the output, for a prediction.

    Raises:
        ConfigError: a vocabulary size that is neither set nor passed, or `n_steps` for stacks that cannot change it.
    """
    found: dict[str, list[Product]] = {name: [] for name in config.readers()}
    exits, after = exits or {}, {name: list[Product]() for name in found}
    reads_on = {segment.stack for segment in planned_segments(config, n_steps) if segment.is_after_loop}
    for planned, own in use_products(config, n_steps):
        side = config.side_of(planned.stack)
        found[planned.stack] += own
        if planned.is_after_loop:
            # Keys and values of the memory are kept.
            after[planned.stack] += [product for product in own if product.side == side]
    for segment in planned_segments(config, n_steps):
        side, own = config.side_of(segment.stack), found[segment.stack]
        of_input, end_map = (
            Product(segment.part, side, 0, once.products, of_every_token=True)
            for once in (segment.of_input, segment.end_map)
        )
        rounds = range(segment.n_rounds) if segment.is_loop else [0] * segment.n_rounds
        of_rounds = [Product(segment.part, side, r, segment.of_rounds.products) for r in rounds]
        own += [of_input, end_map, *of_rounds]
        if segment.is_loop:
            after[segment.stack].append(end_map)
        elif segment.is_after_loop:
            after[segment.stack] += [of_input, end_map, *of_rounds]
    for name, plan in plans(config, n_steps).items():
        if name not in exits:
            found[name] += _gates(config, name, plan.n_rounds)
    for one in recurrent_parts(config):
        found[one.reader] += _recurrence(one, config.side_of(one.reader))
    if mapped := embedding_map_weights(config).products:
        for name in config.stacks():
            found[name].append(Product(EMBEDDINGS, config.side_of(name), 0, mapped, of_every_token=True))
    last, read = list(found)[-1], list(_outputs(config, vocab_size))
    found[last] += read
    after[last] += read
    for name, plan in plans(config, n_steps).items():
        if exits.get(name):
            found[name] += [
                replace(product, part=f"{name}.{EXITS}", round=r, of_every_token=name in reads_on, reused=None)
                for r in range(plan.n_rounds - 1)
                for product in after[name]
            ]
    return found


def _gates(config: ModelConfig, stack: str, n_rounds: int) -> Iterator[Product]:
    """Yield what says which tokens take part in the rounds of a stack."""
    halting, asked = config.stacks()[stack].halting, list(range(n_rounds))
    # One that is asked about all rounds at once is so about its own, however many are called for.
    macs = gate_weights(halting, config.d_model, config.plans()[stack].n_rounds).products
    match halting:
        case StickBreakingConfig():
            asked = asked[:-1]  # its gate is not asked about the last round
        case TokenChoiceConfig():
            asked = [0]  # about all rounds at once, before the first one
        case SelectConfig():
            # A router is asked about those that took part in the round before, or about all.
            routed = [r for r, one in enumerate(halting.capacities_of(n_rounds)) if one is not None]
            macs, asked = config.d_model, [max(r - 1, 0) if halting.among == "chosen" else 0 for r in routed]
    for index in asked:
        yield Product(f"{stack}.halting", config.side_of(stack), index, macs)


def _recurrence(one: RecurrentPart, side: str) -> Iterator[Product]:
    """Yield the products of a recurrence, or of attention beside one."""
    if not one.per_source:
        yield Product(one.part, side, 0, one.products, of_every_token=True)
        return
    yield Product(f"{one.part}.projections", "target", 0, one.products, of_every_token=True)
    yield Product(f"{one.part}.{SCORES}", "target", 0, 0, one.per_source, "source", of_every_token=True)
    yield Product(f"{one.part}.projections", "source", 0, one.memory, of_every_token=True)


def _outputs(config: ModelConfig, vocab_size: int | None) -> Iterator[Product]:
    """Yield what is read off the states of every token."""
    outputs = n_outputs(config)
    if outputs is None:
        macs = config.embedding_width * vocabulary(config, "target", vocab_size) + transform_weights(config).products
        yield Product("output", "target", 0, macs, of_every_token=True)
    elif config.reads != "classification":
        yield Product(HEAD, "target", 0, config.d_model * outputs, of_every_token=True)


def sentence_macs(config: ModelConfig) -> int:
    """Return what a sentence costs however many tokens it has: the head of a classification."""
    outputs = n_outputs(config)
    return config.d_model * outputs if config.reads == "classification" and outputs is not None else 0


def token_macs(of_stack: Iterable[Product], depth: int, deepest: int) -> dict[tuple[str, str], TokenMacs]:
    """Return what one token of a stack costs, by part and by the side whose tokens the products are made for.

    Args:
        depth: rounds the token takes part in. deepest: rounds that run, because some token takes part in them.
    """
    sums: dict[tuple[str, str], dict[str, int]] = {}
    reused: set[Reused] = set()
    for product in of_stack:
        if product.round >= deepest:
            continue
        if product.round >= depth and not product.of_every_token:
            # The token has halted: only its keys and values are made, once for all later uses of the same weights.
            if product.reused is None or product.reused in reused:
                continue
            reused.add(product.reused)
        key = product.part, product.side
        if key not in sums:
            sums[key] = {"macs": 0, "source": 0, "target": 0}
        sums[key]["macs"] += product.macs
        sums[key][product.seen] += product.per_key
    return {key: TokenMacs(total["macs"], total["source"], total["target"]) for key, total in sums.items()}


def _attention(
    planned: PlannedUse, attention: AttentionConfig, config: ModelConfig, projected: set[str]
) -> Iterator[Product]:
    """Yield the products of one use of attention; all that experts change is how many queries a token has.

    Args:
        projected: the sets that have projected the memory.
    """
    part, side, index, d_model = planned.part, config.side_of(planned.stack), planned.round, config.d_model
    keys_values = 2 * d_model * keys_width(attention, d_model)
    outputs = d_model * inner_width(attention, d_model)
    if isinstance(attention, HeadExpertAttentionConfig):
        keys_values += (attention.top_k - 1) * d_model * keys_width(attention, d_model)
        outputs *= attention.top_k
    inner, n, is_cross = inner_width(attention, d_model), n_choices(attention), planned.use.kind == "cross_attention"
    seen = "source" if is_cross else side
    if is_cross and planned.use.weights not in projected:
        projected.add(planned.use.weights)
        yield Product(f"{part}.projections", "source", index, keys_values, of_every_token=True)
    queries = d_model * inner * (2 if attention.output_gate else 1)
    yield Product(f"{part}.projections", side, index, n * (queries + outputs))
    yield Product(f"{part}.{SCORES}", side, index, 0, per_key=2 * n * inner * planned.n_key_sets, seen=seen)
    if delta := delta_products(planned, d_model, of_keys=False):
        yield Product(f"{planned.stack}.{DELTAS}", side, index, delta)
    if is_cross:
        return
    if not planned.borrows_keys:
        use, index_of_time = planned.use, index if planned.is_timed else None
        made_by = planned.is_looped, use.weights, use.before_keys, use.delta, use.modulation, use.values, index_of_time
        # Whom a router leaves out is not seen either.
        reused = None if isinstance(planned.stack_config.halting, ChoosingConfig) else made_by
        yield Product(f"{part}.projections", side, index, keys_values + value_gate_size(planned), reused=reused)
        if scores := value_router_weights(attention, d_model).products:
            of_router = None if reused is None else (reused[0], f"{use.weights} router", *reused[2:])
            yield Product(f"{part}.{ROUTER}", side, index, scores, reused=of_router)
        if delta := delta_products(planned, d_model, of_keys=True):
            added = None if reused is None else (reused[0], f"{use.weights} and what is added", *reused[2:])
            yield Product(f"{planned.stack}.{DELTAS}", side, index, delta, reused=added)
    relative = planned.relative
    if isinstance(relative, WindowConfig):
        yield Product(f"{part}.{WINDOW}", side, index, n * inner * (2 * relative.window + 1))
