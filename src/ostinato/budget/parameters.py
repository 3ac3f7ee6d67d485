"""Parameters of a model, counted from its configuration: stored, active and executed.

    stored     what is on disk: every parameter set once, however many steps and stacks use it
    active     what one generated token touches in cached decoding, each parameter once
    executed   the same parameters counted once per use, over all steps of all stacks

A generated token touches its row of the target embedding, every set its stack's plan names, their norms and tables,
the final norm, and the whole output projection (where that is tied to the embedding, its row is inside). Of
cross-attention it touches the query and output projections only: keys and values were made of the source, once. The
encoder is not touched. Executed parameters count a forward pass over one source token and one target token: all uses
of both stacks (cross-attention whole), one row of each embedding, and the output projection.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from ostinato.budget.sizes import (
    PlannedUse,
    inner_width,
    norm_size,
    planned_uses,
    set_size,
    table_size,
    vocabulary,
)
from ostinato.config.model import AttentionConfig, LanguageModelConfig, ModelConfig

SHARED = "shared"
"""Part prefix of the sets that serve more than one stack."""


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """How many parameters a model has.

    Args:
        stored, active, executed: see the module.
        by_part: the stored parameters by part, adding up to `stored`: ``encoder.self_attention``, ``decoder.ffn``, ...
            (``shared.ffn`` for sets of a bank that serves two stacks), ``norms``, ``positions``, ``embeddings``, and
            ``output`` where the output projection is a matrix of its own. Parts without parameters are left out.
    """

    stored: int
    active: int
    executed: int
    by_part: dict[str, int]

    @property
    def without_embeddings(self) -> int:
        """Stored parameters less embeddings and output projection."""
        return self.stored - self.by_part.get("embeddings", 0) - self.by_part.get("output", 0)


@dataclass(frozen=True, slots=True)
class _Item:
    """A parameter set as one use sees it: its identity in the model, its size, and what a generated token touches."""

    key: tuple[str, str]
    part: str
    size: int
    touched: int


def count_parameters(
    config: ModelConfig, *, n_steps: int | None = None, vocab_size: int | None = None
) -> ParameterCount:
    """Return the parameters of a model.

    Args:
        config: the model.
        n_steps: rounds at call time, for stacks whose rounds are all shared; changes `executed` only.
        vocab_size: rows of every vocabulary that the configuration leaves open.

    Raises:
        ConfigError: a vocabulary size that is neither set nor passed, or `n_steps` for stacks that cannot change it.
    """
    stored: dict[tuple[str, str], _Item] = {}
    touched: dict[tuple[str, str], int] = {}
    executed = 0
    for name, item in _items(config, n_steps):
        stored.setdefault(item.key, item)
        executed += item.size
        if name == "decoder":
            touched.setdefault(item.key, item.touched)
    by_part = Counter(dict.fromkeys(_part_order(config), 0))
    for item in stored.values():
        by_part[item.part] += item.size
    rows = _embeddings(config, vocab_size)
    by_part.update(rows.stored)
    return ParameterCount(
        stored=sum(by_part.values()),
        active=sum(touched.values()) + rows.active,
        executed=executed + rows.executed,
        by_part={part: size for part, size in by_part.items() if size},
    )


def _items(config: ModelConfig, n_steps: int | None) -> Iterator[tuple[str, _Item]]:
    """Yield the stack and the parameter sets of every use, then the final norms."""
    d_model = config.d_model
    uses = list(planned_uses(config, n_steps))
    owners: dict[tuple[str, str], set[str]] = {}
    for planned in uses:
        owners.setdefault((planned.use.kind, planned.use.weights), set()).add(planned.stack)
    for planned in uses:
        key = (planned.use.kind, planned.use.weights)
        where = SHARED if len(owners[key]) > 1 else planned.stack
        size = set_size(planned.sub, d_model)
        yield planned.stack, _Item(key, f"{where}.{planned.use.kind}", size, _touched_by_token(planned, d_model))
        if planned.use.norm is not None:
            norm = norm_size(planned.stack_config.norm, d_model)
            yield planned.stack, _Item(("norm", planned.use.norm), "norms", norm, norm)
        if planned.use.position is not None and isinstance(planned.sub, AttentionConfig):
            table = table_size(planned.stack_config.relative, planned.sub, d_model)
            yield planned.stack, _Item(("position", planned.use.position), "positions", table, table)
    for name, stack in config.stacks().items():
        if stack.norm.placement == "pre":
            norm = norm_size(stack.norm, d_model)
            yield name, _Item(("final norm", name), "norms", norm, norm)


def _touched_by_token(planned: PlannedUse, d_model: int) -> int:
    """Return what one generated token touches of a set: of cross-attention not the key and value projections."""
    size = set_size(planned.sub, d_model)
    if planned.use.kind != "cross_attention" or not isinstance(planned.sub, AttentionConfig):
        return size
    keys_values = 2 * inner_width(planned.sub, d_model) * (d_model + (1 if planned.sub.bias else 0))
    return size - keys_values


@dataclass(frozen=True, slots=True)
class _Rows:
    """Embeddings and output projection."""

    stored: dict[str, int]
    active: int
    executed: int


def _embeddings(config: ModelConfig, vocab_size: int | None) -> _Rows:
    """Return the counts of embeddings and output projection."""
    d_model = config.d_model
    target = vocabulary(config, "target", vocab_size) * d_model
    source = 0
    source_row = 0
    if not isinstance(config, LanguageModelConfig):
        source = vocabulary(config, "source", vocab_size) * d_model
        source_row = d_model
        if config.tie_embeddings == "all":
            source = 0
    output = target if config.tie_embeddings == "none" else 0
    own_row = d_model if config.tie_embeddings == "none" else 0
    return _Rows(
        stored={"embeddings": source + target, "output": output},
        active=target + own_row,
        executed=source_row + d_model + target,
    )


def _part_order(config: ModelConfig) -> Iterator[str]:
    """Yield the parts in the order they are shown."""
    kinds: list[str] = []
    for name, stack in config.stacks().items():
        for kind, _ in stack.sub_layers():
            kinds.append(kind)
            yield f"{name}.{kind}"
    for shared in dict.fromkeys(kinds):
        yield f"{SHARED}.{shared}"
    yield from ("norms", "positions", "embeddings", "output")
