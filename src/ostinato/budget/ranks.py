"""Bytes of a model in one of several processes: parameters, gradients, the optimiser's state, activations.

By `training.parallel`: `none` and `ddp` hold all of a model in every process, `fsdp` holds 1 / n of every parameter, of
its gradient and of its optimiser's state, and gathers what it computes with:

    held      sum over parameters of 4 ceil(d / n) (elements / d), d the size of the dimension that is divided; rank 0
              holds the most. Gradients as much, of what is trained; Adam's two moments twice that,
              and a mean of the weights (`training.ema_decay`) as much again
    gathered  whole weights and whole gradients of everything but the parameter sets of sub-layers, and of the sets that
              stay gathered (`FsdpConfig.keep_shared`); of the others twice the largest: the next is fetched while one
              computes, and a gradient is sent while the next is made

Not counted: the messages' buffers, logits, what lives within one operation, allocator and process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ostinato.config.training import FsdpConfig, ParallelConfig
from ostinato.plan import Plan

_BYTES = 4
_MOMENTS = 2

SetName = tuple[str, str]
"""Kind and name of a parameter set that sub-layers use."""


def shard_dimension(shape: Sequence[int], n: int) -> int:
    """Return along which dimension n processes share a parameter: the first that they divide, else the first.

    Experts stand side by side in the first one, and may be fewer than the processes.
    """
    return next((dimension for dimension, size in enumerate(shape) if size % n == 0), 0)


def set_uses(plans: Iterable[Plan], *, is_drawn: bool) -> dict[SetName, int]:
    """Return every parameter set of sub-layers, and how often an update uses it.

    Args:
        is_drawn: rounds that share all weights are as many as an update draws: at least two uses are counted.
    """
    found = Counter[SetName]()
    for plan in plans:
        for use in plan.uses():
            found[use.kind, use.weights] += 2 if is_drawn and plan.is_fully_shared else 1
    return dict(found)


@dataclass(frozen=True, slots=True)
class RankBytes:
    """Bytes of rank 0 of `n_ranks` processes; the others hold at most as much.

    Args:
        optimizer: Adam's moments, and a mean of the weights where one is kept.
        gathered: more weights and gradients, while an update is computed. activations: of its sentences.
    """

    n_ranks: int
    parameters: int
    gradients: int
    optimizer: int
    gathered: int
    activations: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.parameters + self.gradients + self.optimizer + self.gathered + self.activations


def count_rank_bytes(
    shapes: Mapping[str, Sequence[int]],
    uses: Mapping[SetName, int],
    parallel: ParallelConfig,
    n_ranks: int,
    *,
    activations: int = 0,
    frozen: Collection[str] = (),
    has_mean: bool = False,
) -> RankBytes:
    """Return what one of several processes holds, and what it gathers besides.

    Args:
        shapes: of all parameters, by their names in the model. uses: of its sets, see `set_uses`.
        activations: bytes of the sentences of one process. frozen: names of parameters that are not trained.
        has_mean: a mean of the trained weights is kept.
    """
    is_sharded = isinstance(parallel, FsdpConfig) and n_ranks > 1
    parts = {name: _part(shape, n_ranks) if is_sharded else prod(shape) for name, shape in shapes.items()}
    held = _BYTES * sum(parts.values())
    trained = _BYTES * sum(size for name, size in parts.items() if name not in frozen)
    gathered = 0
    if is_sharded:
        whole = {name: prod(shape) * (1 if name in frozen else 2) for name, shape in shapes.items() if shape}
        gathered = _BYTES * _gathered(whole, uses, isinstance(parallel, FsdpConfig) and parallel.keep_shared)
    return RankBytes(n_ranks, held, trained, (_MOMENTS + has_mean) * trained, gathered, activations)


def _part(shape: Sequence[int], n: int) -> int:
    """Return the elements of a parameter that rank 0 holds; of one without dimensions all."""
    if not shape:
        return 1
    divided = shape[shard_dimension(shape, n)]
    return -(-divided // n) * (prod(shape) // divided)


def _gathered(whole: Mapping[str, int], uses: Mapping[SetName, int], keep_shared: bool) -> int:
    """Return the most numbers that are gathered at once, given those of every parameter and its gradient."""
    sizes = dict.fromkeys(uses, 0)
    always = 0
    for name, size in whole.items():
        bank, _, rest = name.removeprefix("banks.").partition(".")
        owner = bank, rest.partition(".")[0]
        if name.startswith("banks.") and owner in sizes:
            sizes[owner] += size
        else:
            always += size
    kept = {name for name, n in uses.items() if n > 1 and keep_shared}
    largest = max((size for name, size in sizes.items() if name not in kept), default=0)
    return always + sum(sizes[name] for name in kept) + 2 * largest
