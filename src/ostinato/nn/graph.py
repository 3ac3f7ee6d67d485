"""A pass as one graph, traced once for all data (`Execution.as_graph`): a loop of tensors, and what it caches.

The rounds after the first one are the body of one loop over the same weights (`torch.while_loop`, a Loop in ONNX):
their number is an input, and the loop ends earlier where all tokens have halted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from ostinato.kernels import is_exporting
from ostinato.nn.cache import Cache, ColumnWindow
from ostinato.nn.context import Pass, Round
from ostinato.nn.halting import HaltingPass
from ostinato.nn.shapes import Bool, Float, Int, Tensor
from ostinato.nn.sub_layer import Runnable

Carried = tuple[Tensor, ...]


def is_first(index: int | Tensor) -> bool:
    """Return whether a round is the first one: where its number is a tensor, the first one has been run before."""
    return not isinstance(index, Tensor) and index == 0


def repeat_while(
    goes_on: Callable[..., Bool[Tensor, ""]],
    body: Callable[..., Carried],
    carried: Carried,
    of_known_sizes: Sequence[Tensor],
) -> Carried:
    """Return what `body` makes of the carried tensors, again and again while `goes_on` says so, maybe never.

    Python's own loop, but where torch.export traces: there it is one operator. That knows no tensors but those that it
    is given, and no weights: whatever else the two functions read is found by running them, and given.

    Args:
        of_known_sizes: tensors some of whose sizes the two functions know, whether they read them or not.
    """
    if not is_exporting():
        while goes_on(*carried):
            carried = body(*carried)
        return carried
    from torch._higher_order_ops.while_loop import while_loop_op
    from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

    with disable_proxy_modes_tracing():
        # Copies, so that who reads a first value itself, as one that stays as it is, is told apart.
        copies = tuple(one.clone() for one in carried)
        with _Reads(copies) as reads:
            goes_on(*copies)
            body(*copies)
    reads.others.update((id(one), one) for one in of_known_sizes if id(one) not in reads.own)
    others, n = list(reads.others.values()), len(carried)

    def closed(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Tensor) -> Any:
            with _InPlaceOf({id(one): value for one, value in zip(others, given[n:], strict=True)}):
                return function(*given[:n])

        return run

    # The operator returns no tensor that it was given.
    fresh = closed(lambda *given: tuple(one.clone() for one in body(*given)))
    # What is carried must not lie in the memory of anything else.
    own = tuple(one.clone(memory_format=torch.contiguous_format) for one in carried)
    return while_loop_op(closed(goes_on), fresh, own, tuple(map(_from_the_start, others)))  # type: ignore[arg-type, no-any-return]


def _from_the_start(x: Tensor) -> Tensor:
    """Return a tensor that begins where its memory does: ONNX knows no place in memory that is a symbol."""
    return x.clone(memory_format=torch.contiguous_format) if isinstance(x.storage_offset(), torch.SymInt) else x


class _Reads(TorchFunctionMode):
    """Finds the tensors that are read and were not made inside."""

    def __init__(self, given: Sequence[Tensor]) -> None:
        super().__init__()
        # The tensors themselves are kept, so that no later one gets the identity of one that is gone.
        self.own = {id(one): one for one in given}
        self.others: dict[int, Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for one in pytree.tree_leaves((args, kwargs)):
            if isinstance(one, Tensor) and id(one) not in self.own:
                self.others[id(one)] = one
        made = func(*args, **(kwargs or {}))
        self.own.update((id(one), one) for one in pytree.tree_leaves(made) if isinstance(one, Tensor))
        return made


class _InPlaceOf(TorchFunctionMode):
    """Reads other tensors in place of some, which are named by identity."""

    def __init__(self, others: dict[int, Tensor]) -> None:
        super().__init__()
        self.others = others

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = pytree.tree_map_only(Tensor, lambda one: self.others.get(id(one), one), (args, kwargs or {}))
        return func(*args, **kwargs)


class GivenKeyValues:
    """Keys and values of one step as a graph gets and returns them (`ostinato.nn.cache.KeyValues`).

    Args:
        past_2BHSK: of the columns before this pass.
    """

    def __init__(self, past_2BHSK: Float[Tensor, "2 B H S K"]) -> None:
        self._past_2BHSK = past_2BHSK
        self.new_2BHTK: Tensor | None = None
        self.length = 0

    def append(self, kv_2BHTK: Float[Tensor, "2 B H T K"]) -> Float[Tensor, "2 B H N K"]:
        """Return all keys and values, the new ones last."""
        self.new_2BHTK = kv_2BHTK
        return self.all_2BHNK

    @property
    def all_2BHNK(self) -> Float[Tensor, "2 B H N K"]:
        """Past and new ones; the past ones where the pass made none."""
        if self.new_2BHTK is None:
            return self._past_2BHSK
        return torch.cat([self._past_2BHSK, self.new_2BHTK], dim=3)


WINDOWS = ("first", "second")
"""The two convolutions of a step, of whose inputs it caches the last."""
Slot = tuple[int, str]
"""A step of a round, counted from 0, and what it caches: "keys", or a window by its name."""


@dataclass(slots=True)
class GraphCache(Cache):
    """What a cached pass gets and returns where it is a graph: tensors, by step or, of a loop, by step of its round.

    Args:
        of_rounds: what every round of the loop caches, `[R, ...]`.
    """

    of_rounds: dict[Slot, Tensor] = field(default_factory=dict)


class RoundsMemory:
    """Reads and writes what the rounds of a loop cache, while they run.

    Args:
        cache: of the pass; None: nothing is cached.
    """

    def __init__(self, cache: Cache | None) -> None:
        self._cache = cache if isinstance(cache, GraphCache) else None
        self._slots = () if self._cache is None else tuple(self._cache.of_rounds)
        self.past = () if self._cache is None else tuple(self._cache.of_rounds.values())

    @contextmanager
    def round(self, run: Pass, index: int | Tensor, first_step: int, made: list[Tensor]) -> Iterator[Pass]:
        """Give a round what it cached before; afterwards `made` holds what it caches now.

        Args:
            run: the pass. first_step: the number of the first step of the round.
        """
        if self._cache is None:
            yield run
            return
        own = replace(self._cache, self_kv=dict(self._cache.self_kv), windows=dict(self._cache.windows), of_rounds={})
        windows: dict[int, list[ColumnWindow]] = {}
        for (step, what), past in zip(self._slots, self.past, strict=True):
            of_round = past[0] if isinstance(index, int) else past.index_select(0, index.view(1))[0]
            if what == "keys":
                own.self_kv[first_step + step] = GivenKeyValues(of_round)  # type: ignore[assignment]
            else:
                windows.setdefault(step, []).append(ColumnWindow(of_round))
        own.windows.update({first_step + step: (first, second) for step, (first, second) in windows.items()})
        yield replace(run, cache=own)
        for step, what in self._slots:
            kept: Any = own.self_kv[first_step + step] if what == "keys" else windows[step][WINDOWS.index(what)]
            made.append(kept.new_2BHTK if what == "keys" else kept.last_BWC)

    def start(self, made: Sequence[Tensor]) -> Carried:
        """Return room for what all rounds cache, given what the first one did."""
        rooms = []
        for past, first in zip(self.past, made, strict=True):
            room = first.new_zeros(past.shape[0], *first.shape)
            rooms.append(room.index_copy(0, torch.zeros(1, dtype=torch.long, device=first.device), first[None]))
        return tuple(rooms)

    @staticmethod
    def write(rooms: Sequence[Tensor], index: Int[Tensor, ""], made: Sequence[Tensor]) -> Carried:
        """Return the rooms with what a round caches."""
        return tuple(room.index_copy(0, index.view(1), one[None]) for room, one in zip(rooms, made, strict=True))

    def finish(self, rooms: Sequence[Tensor]) -> None:
        """Leave in the cache what all rounds have cached, keys behind the past ones."""
        if self._cache is None:
            return
        for slot, past, room in zip(self._slots, self.past, rooms, strict=True):
            self._cache.of_rounds[slot] = torch.cat([past, room], dim=4) if slot[1] == "keys" else room


def repeat_rounds(
    one_round: Callable[[int | Tensor, Tensor, HaltingPass, Pass], Tensor],
    fills: Sequence[Runnable],
    first_steps: Sequence[int],
    n_rounds: Int[Tensor, ""],
    states_ND: Float[Tensor, "N E"],
    halting: HaltingPass,
    run: Pass,
    *,
    can_end: bool,
) -> tuple[Float[Tensor, "B T E"], HaltingPass]:
    """Run a loop of a number of rounds that a tensor holds; return what leaves it, and who took part.

    What rounds cache that were left out, they cache in a second loop: later tokens may go deeper, and look back.

    Args:
        one_round: the states after a round, given its number and those before it.
        fills: the sub-layers of a round. first_steps: the first step of every round.
        can_end: the loop ends earlier where all tokens have halted.
    """
    memory = RoundsMemory(run.cache)
    sized = [one for one in (run.keep_BT, run.positions, *memory.past) if one is not None]

    def alone(index: int | Tensor, made: list[Tensor]) -> AbstractContextManager[Pass]:
        fresh = replace(run, keys={}, halted_keys={}, routings=[], captures={})
        return memory.round(fresh, index, first_steps[0 if isinstance(index, int) else 1], made)

    halting.active(0, states_ND)
    made: list[Tensor] = []
    with alone(0, made) as own:
        states_ND = one_round(0, states_ND, halting, own)
    next_index = torch.ones((), dtype=torch.long, device=states_ND.device)
    halting.active(next_index, states_ND)
    names = tuple(halting.carried())

    def goes_on(index: Tensor, states_ND: Tensor, *carried: Tensor) -> Tensor:
        more = index < n_rounds
        active_N = dict(zip(names, carried, strict=False)).get("active_N")
        return more if active_N is None or not can_end else more & active_N.any()

    def body(index: Tensor, states_ND: Tensor, *carried: Tensor) -> tuple[Tensor, ...]:
        here = halting.standing_at(dict(zip(names, carried, strict=False)))
        made: list[Tensor] = []
        with alone(index, made) as own:
            states_ND = one_round(index, states_ND, here, own)
        here.active(index + 1, states_ND)
        rooms = memory.write(carried[len(names) :], index, made)
        return index + 1, states_ND, *here.carried().values(), *rooms

    start = next_index, states_ND, *halting.carried().values(), *memory.start(made)
    index, states_ND, *carried = repeat_while(goes_on, body, start, sized)
    halting, rooms = halting.standing_at(dict(zip(names, carried, strict=False))), carried[len(names) :]
    if can_end and rooms:

        def fill(index: Tensor, *rooms: Tensor) -> tuple[Tensor, ...]:
            left, made = halting.standing_at({}), list[Tensor]()
            with alone(index, made) as own:
                weight_N, visible = left.enter(index, states_ND, states_ND)
                here = Round.of(own, index, left.rows, weight_N, visible, ())
                for sub_layer in fills:
                    sub_layer.fill_cache(states_ND, own, here)
            return index + 1, *memory.write(rooms, index, made)

        _, *rooms = repeat_while(lambda index, *rooms: index < n_rounds, fill, (index, *rooms), sized)
    memory.finish(rooms)
    return halting.output(states_ND), halting
