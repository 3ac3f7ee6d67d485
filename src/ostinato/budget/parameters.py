"""Parameters of a model, counted from its configuration: stored, active and executed.

    stored     what is on disk: every parameter set once, however many steps and stacks use it
    active     what one generated token touches in cached decoding, each parameter once
    executed   the same parameters counted once per use, over all steps of all stacks

A generated token touches its row of the target embedding and of a table of learned positions, every set its stack's
plan names, their norms and tables, the final norm, and the whole output projection (where that is tied to the
embedding, its row is inside). Of cross-attention it touches the query and output projections only: keys and values were
made of the source, once. The encoder is not touched. Of an encoder-only model active is what one token touches: its row
of the embedding, its stack, and the head, or all of the matrix over the vocabulary where the head is one. Executed
parameters count a forward pass over one source token and one target token: all uses of both stacks (cross-attention
whole), one row of each embedding, and the output projection. A use that reads the keys and values of another round
(`keys: first`) neither executes nor touches what makes them.

Of E experts a token touches k = top_k at every use, and the whole router. Steps that share a set of experts may choose
others each time: n uses touch min(E, n k) of them at most, and that is what is counted as active. Executed are k a use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ostinato.budget.by_round import delta_size, modulation_size, time_size
from ostinato.budget.loops import planned_segments
from ostinato.budget.recurrent import recurrent_parts
from ostinato.budget.sizes import (
    PlannedUse,
    common_size,
    embedding_map_weights,
    gate_weights,
    keys_values_size,
    keys_width,
    n_outputs,
    norm_size,
    planned_uses,
    router_weights,
    set_weights,
    table_size,
    transform_weights,
    value_gate_size,
    value_router_weights,
    vocabulary,
)
from ostinato.config.common import PairModelConfig
from ostinato.config.experts import HeadExpertAttentionConfig, RoutedConfig
from ostinato.config.model import EncoderConfig, ModelConfig
from ostinato.config.positions import LearnedConfig
from ostinato.config.sub_layers import AttentionConfig

SHARED = "shared"
"""Part prefix of the sets that serve more than one stack."""


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """How many parameters a model has.

    Args:
        stored, active, executed: see the module.
        executed_without_embeddings: `executed` less rows of embeddings, output projection and head.
        by_part: the stored parameters by part, adding up to `stored`: ``encoder.self_attention``, ``decoder.ffn``, ...
            (``shared.ffn`` for sets of a bank that serves two stacks), ``decoder.sparse_layer`` (its norms included),
            each with its ``.router`` as a part beside it; ``norms``, ``positions``, ``embeddings``, ``output`` where
            the output projection is a matrix of its own, and of an encoder-only model the ``head`` and the masks of
            ``facts``. ``embeddings`` has learned positions, token types, tables of values and the map from d_embedding,
            too; ``output``
            the bias and the transform before it. Parts without parameters are left out.
    """

    stored: int
    active: int
    executed: int
    executed_without_embeddings: int
    by_part: dict[str, int]


class _Item(NamedTuple):
    """Parameters as one use sees them: their identity in the model and their number.

    Args:
        size: stored. executed: what the use runs. touched: what a generated token touches of it; further uses of the
            same parameters may touch others of them.
    """

    key: tuple[str, str]
    part: str
    size: int
    executed: int
    touched: int


def count_parameters(
    config: ModelConfig, *, n_steps: int | None = None, vocab_size: int | None = None
) -> ParameterCount:
    """Return the parameters of a model.

    Args:
        config: the model.
        n_steps: rounds at call time, for stacks whose rounds are all shared; changes `executed`, and `active` where
            there are experts to choose from.
        vocab_size: rows of every vocabulary that the configuration leaves open.

    Raises:
        ConfigError: a vocabulary size that is neither set nor passed, or `n_steps` for stacks that cannot change it.
    """
    stored: dict[tuple[str, str], _Item] = {}
    touched: dict[tuple[str, str], int] = {}
    executed = 0
    own = list(_items(config, None))
    for _, item in own:  # rounds may have some of their own, which are there whether they run or not
        stored.setdefault(item.key, item)
    for name, item in own if n_steps is None else _items(config, n_steps):
        executed += item.executed
        if config.side_of(name) == "target":
            touched[item.key] = min(item.size, touched.get(item.key, 0) + item.touched)
    by_part = Counter(dict.fromkeys(_part_order(config), 0))
    for item in stored.values():
        by_part[item.part] += item.size
    embeddings, active_rows, executed_rows = _embeddings(config, vocab_size)
    by_part.update(embeddings)
    return ParameterCount(
        stored=sum(by_part.values()),
        active=sum(touched.values()) + active_rows,
        executed=executed + executed_rows,
        executed_without_embeddings=executed,
        by_part={part: size for part, size in by_part.items() if size},
    )


def _items(config: ModelConfig, n_steps: int | None) -> Iterator[tuple[str, _Item]]:
    """Yield the stack and the parameter sets of every use, then the final norms; then what recurrences are made of."""
    d_model = config.d_model
    uses = list(planned_uses(config, n_steps))
    owners: dict[tuple[str, str], str] = {}
    for planned in uses:
        key = planned.use.kind, planned.use.weights
        owners[key] = planned.stack if owners.get(key, planned.stack) == planned.stack else SHARED
    for planned in uses:
        for item in _set(planned, owners[planned.use.kind, planned.use.weights], d_model):
            yield planned.stack, item
        for name in planned.use.norms:
            norm = norm_size(planned.stack_config.norm, d_model)
            yield planned.stack, _whole(("norm", name), "norms", norm)
        for of_keys, what in ((False, "delta"), (True, "delta of keys")):
            if delta := delta_size(planned, d_model, of_keys=of_keys):
                is_run = not (of_keys and planned.borrows_keys)
                by = what, planned.use.delta or ""
                yield planned.stack, _whole(by, f"{planned.stack}.deltas", delta, is_run=is_run)
        if modulation := modulation_size(planned, d_model):
            by = "modulation", planned.use.modulation or ""
            yield planned.stack, _whole(by, f"{planned.stack}.modulation", modulation)
        if gate := value_gate_size(planned):
            yield planned.stack, _whole(("values", planned.use.values or ""), f"{planned.stack}.value_gates", gate)
        if planned.use.position is not None and isinstance(planned.sub, AttentionConfig):
            table = table_size(planned.relative, planned.sub, d_model)
            yield planned.stack, _whole(("position", planned.use.position), "positions", table)
    for own in planned_segments(config, n_steps):
        name, norm = own.stack, norm_size(own.stack_config.norm, d_model)
        once = {"start": (own.segment.start, own.start), "input": (own.segment.inject, own.of_input)}
        for what, (of, weights) in (once | {"end map": (own.segment.end_map, own.end_map)}).items():
            if weights.size:
                yield name, _whole((f"loop {what}", of or ""), own.part, weights.size)
        if own.segment.time is not None:
            yield name, _whole(("time", own.segment.time), f"{name}.modulation", time_size(d_model))
        for r in range(own.n_rounds):
            if own.segment.vectors is not None:
                vector = f"{own.segment.vectors} {min(r, own.n_vectors - 1)}"
                yield name, _whole(("vector", vector), own.part, d_model)
            if own.of_rounds.size:
                yield name, _whole(("loop round", own.segment.inject or ""), own.part, own.of_rounds.size)
        for norm_name in own.norms:
            yield name, _whole(("norm", norm_name), "norms", norm_size(own.norm_of(norm_name), d_model))
    for name, stack in config.stacks().items():
        if stack.norm.has_final:
            yield name, _whole(("norm", f"final_{name}"), "norms", norm_size(stack.norm.of_final, d_model))
        if stack.norm.embedding:
            yield name, _whole(("embedding norm", name), "norms", norm_size(stack.norm, config.embedding_width))
        if unit := gate_weights(stack.halting, d_model, stack.plan(name).n_rounds).size:
            yield name, _whole(("halting", name), f"{name}.halting", unit)
    for one in recurrent_parts(config):
        yield one.reader, _Item(("recurrence", one.part), one.part, one.size, one.size, one.touched)


def _whole(key: tuple[str, str], part: str, size: int, *, is_run: bool = True) -> _Item:
    """Return parameters that a use runs, and its token touches, whole or not at all."""
    used = size if is_run else 0
    return _Item(key, part, size, used, used)


def _set(planned: PlannedUse, where: str, d_model: int) -> Iterator[_Item]:
    """Yield the parameters of a set: what makes keys and values, the rest, and of experts their router.

    A generated token touches no projection of cross-attention that makes keys and values.
    """
    kind, weights, sub = planned.use.kind, planned.use.weights, planned.sub
    part, makes_keys = f"{where}.{planned.name}", not planned.borrows_keys
    # Attention with experts is an AttentionConfig, too: all experts share one projection to keys and values.
    shared = keys_values_size(sub, d_model) if isinstance(sub, AttentionConfig) else 0
    if shared:
        executed = shared if makes_keys else 0
        touched = 0 if kind == "cross_attention" else executed
        yield _Item((f"{kind} keys and values", weights), part, shared, executed, touched)
    values = d_model * keys_width(sub, d_model) if isinstance(sub, HeadExpertAttentionConfig) else 0
    if not isinstance(sub, RoutedConfig):
        yield _whole((kind, weights), part, set_weights(sub, d_model).size - shared)
        return
    one = set_weights(sub, d_model).size - values
    if values:
        chosen = sub.top_k * values if makes_keys else 0
        yield _Item((f"{kind} values", weights), part, sub.n_experts * values, chosen, chosen)
    yield _Item((kind, weights), part, sub.n_experts * one, sub.top_k * one, sub.top_k * one)
    if common := common_size(sub, d_model):
        yield _whole((f"{kind} common", weights), part, common)
    router = f"{part}.router"
    yield _whole((f"{kind} router", weights), router, router_weights(sub, d_model).size)
    of_values = value_router_weights(sub, d_model).size
    yield _whole((f"{kind} router of values", weights), router, of_values, is_run=makes_keys)


def _embeddings(config: ModelConfig, vocab_size: int | None) -> tuple[dict[str, int], int, int]:
    """Return what embeddings and output projection store, by part, and how much of it is active and executed."""
    width, rows = config.embedding_width, vocabulary(config, "target", vocab_size)
    added, active, executed = _beside_embeddings(config, vocab_size)
    target, outputs = rows * width, n_outputs(config)
    if outputs is not None:
        head = outputs * (config.d_model + 1)
        masks = 0 if config.max_words is None else 2 * config.max_words * width
        # A position of facts has as many rows as it has tokens, and as many rows of masks.
        row = width * (1 if config.max_words is None else 2 * config.max_words)
        stored = {"embeddings": target + added, "facts": masks, "head": head}
        return stored, row + head + active, row + head + executed
    source = source_row = 0
    if isinstance(config, PairModelConfig):
        of_source = vocabulary(config, "source", vocab_size)
        source, source_row = 0 if config.has_joint_embedding else of_source * width, width
    has_own_output = config.tie_embeddings in ("none", "input")
    others = transform_weights(config).size + (rows if config.output.bias else 0)
    stored = {"embeddings": source + target + added, "output": others + (target if has_own_output else 0)}
    # Tied to the output projection, a token's row of the embedding is inside.
    active += target + others + (width if has_own_output else 0)
    return stored, active, source_row + width + target + others + executed


def _beside_embeddings(config: ModelConfig, vocab_size: int | None) -> tuple[int, int, int]:
    """Return what stands beside the matrices of embeddings: stored, active and executed.

    Of tables of positions, of token types and of values a token takes one row, of the map to the states' width all.
    """
    width, stored, active, executed = config.embedding_width, 0, 0, 0
    if isinstance(config, EncoderConfig) and config.n_token_types:
        stored, active, executed = config.n_token_types * width, width, width
    for name, stack in config.stacks().items():
        rows, side = stack.positions.n_rows if isinstance(stack.positions, LearnedConfig) else 0, config.side_of(name)
        mapped = embedding_map_weights(config).size
        tables = {use.values for use in stack.plan(name).uses() if use.values is not None}
        values = len(tables) * keys_width(stack.self_attention, config.d_model)
        of_values = values * vocabulary(config, side, vocab_size) if values else 0
        row = (width if rows else 0) + mapped + values
        stored, executed = stored + rows * width + mapped + of_values, executed + row
        active += row if side == "target" else 0
    return stored, active, executed


def _part_order(config: ModelConfig) -> Iterator[str]:
    names: list[str] = []
    for name, stack in config.stacks().items():
        parts = [*(kind for kind, _ in stack.sub_layers()), "sparse_layer"]
        own = [part for kind in parts for part in (kind, f"{kind}.router")]
        names += own
        yield from (f"{name}.{part}" for part in (*own, "value_gates", "loop", "deltas", "modulation", "halting"))
    yield from (f"{SHARED}.{part}" for part in dict.fromkeys(names))
    yield from (one.part for one in recurrent_parts(config))
    yield from ("norms", "positions", "embeddings", "facts", "output", "head")
