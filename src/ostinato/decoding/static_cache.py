"""Steps of decoding whose tensors have the same sizes and the same memory at every token, so that one that was recorded
can be replayed (`decoding.static_cache`). Plain twin: the model's `step` with the cache as it grows.

A step of few rows is many small operations, and what takes time on a GPU is that the host launches each of them. A CUDA
graph launches all of them at once; but it does exactly what was recorded, with the memory of then. So

    keys and values lie in buffers of a fixed number of columns: the tokens so far, then empty columns, in the last of
    which the newest token is read;
    a mask says which columns are tokens: to the model the others are padding, which it hides and does not count;
    where the newest token goes for the tokens to come is a number on the device;
    rows of sentences that have stopped stay.

The model knows nothing of it: its last column is the new one, as always. When the empty columns are used up, the
buffers are made anew, with more of them, and the step is recorded again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from ostinato.errors import ConfigError, see
from ostinato.nn.cache import Cache, ColumnWindow, KeyValues
from ostinato.nn.shapes import Bool, Float, Int, Tensor
from ostinato.system_errors import is_out_of_memory

N_EMPTY = 128
"""Columns made at once. Attention reads the empty ones too; to record a step takes as long as to do a few."""


def recorder(device: torch.device) -> Callable[[Callable[[], Tensor]], Callable[[], Tensor]] | None:
    """Return what records a function, without running it, as one that replays it; None: the device cannot."""
    return partial(_record, device) if device.type == "cuda" else None


def _record(device: torch.device, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
    graph = torch.cuda.CUDAGraph()
    try:
        # By itself torch records what the current GPU does, which may be another one: then the graph is empty.
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        with torch.cuda.device(device), torch.cuda.graph(graph, stream=stream):
            result = run()
    except RuntimeError as error:
        if is_out_of_memory(error):  # a smaller batch mends it, and the setting is not to blame
            raise
        reason = str(error).partition("\n")[0]
        why = f"decoding.static_cache: a step cannot be recorded as a CUDA graph ({reason}): set it to false"
        raise ConfigError(why + see("decoding")) from error

    def replay() -> Tensor:
        graph.replay()
        return result

    return replay


class StaticKeyValues(KeyValues):
    """Keys and values of one step in columns of a fixed number, the newest token's also in the last one.

    Args:
        kv_2BHSK: those of the tokens so far. n_columns: in all. next_1: the column of the next token.
    """

    def __init__(self, kv_2BHSK: Float[Tensor, "2 B H S K"], n_columns: int, next_1: Int[Tensor, "1"]) -> None:
        super().__init__()
        _, B, H, S, K = kv_2BHSK.shape
        # Zeros: hidden columns have a weight of 0, which needs numbers to meet.
        self._columns = kv_2BHSK.new_zeros(2, B, H, n_columns, K)
        self._columns[:, :, :, :S] = kv_2BHSK
        self._next_1 = next_1

    def append(self, kv_2BHTK: Float[Tensor, "2 B H 1 K"]) -> Float[Tensor, "2 B H S K"]:
        """Write the newest token where this step and where later ones read it; return all columns."""
        self._columns.index_copy_(3, self._next_1, kv_2BHTK)
        self._columns[:, :, :, -1:] = kv_2BHTK
        return self._columns

    def whole(self) -> Float[Tensor, "2 B H S K"]:
        """Return all columns, of which the first ones are tokens."""
        return self._columns

    def select(self, rows_B: Int[Tensor, "B"]) -> None:
        """Keep these rows, in this order."""
        self._columns.copy_(self._columns.index_select(1, rows_B))


class StaticWindow(ColumnWindow):
    """Last inputs of a convolution, in the same memory at every token."""

    def extend(self, x_BTC: Float[Tensor, "B 1 C"], width: int) -> Float[Tensor, "B S C"]:
        """Return the last columns and this one; remember the last of them."""
        extended = torch.cat([self.last_BWC, x_BTC], dim=1)
        self.last_BWC.copy_(extended[:, 1:])
        return extended

    def select(self, rows_B: Int[Tensor, "B"]) -> None:
        """Keep these rows, in this order."""
        self.last_BWC.copy_(self.last_BWC.index_select(0, rows_B))


class StaticSteps:
    """The steps of one search after its first one: called with the last tokens, it returns the logits after them.

    Args:
        step: the model's. cache: after the first step, with all hypotheses, whose number must not change any more.
        most: tokens that it will be called with, at most.
    """

    def __init__(self, step: Callable[[Tensor, Cache], Tensor], cache: Cache, most: int) -> None:
        self._step, self._cache, self._limit = step, cache, cache.length + most
        self._n_tokens, self._n_columns = cache.length, 0
        self._replay: Callable[[], Tensor] | None = None

    def __call__(self, ids_R1: Int[Tensor, "R 1"]) -> Float[Tensor, "R V"]:
        """Add one token to every row."""
        is_first = self._n_tokens >= self._n_columns
        if is_first:
            self._make_room(ids_R1)
        self._ids_R1.copy_(ids_R1)
        moved_RS, self._cache.keep_BS = self._cache.keep_BS, self._keep_RS
        if moved_RS is not None and moved_RS is not self._keep_RS:  # with the hypotheses
            self._keep_RS.copy_(moved_RS)
        self._n_tokens += 1
        if self._replay is None and not is_first and (record := recorder(ids_R1.device)) is not None:
            self._replay = record(self._run)  # the first step with these buffers has made what is made once
        return self._run() if self._replay is None else self._replay()

    def _run(self) -> Float[Tensor, "R V"]:
        """Do one step. Nothing but what tensors hold, in memory of their own, may differ from token to token."""
        cache = self._cache
        cache.length, cache.keep_BS = self._n_columns - 1, self._keep_RS[:, :-1]
        logits_RV = self._step(self._ids_R1, cache)
        self._keep_RS.index_fill_(1, self._next_1, True)
        self._next_1.add_(1)
        cache.keep_BS = self._keep_RS
        return logits_RV

    def _make_room(self, ids_R1: Int[Tensor, "R 1"]) -> None:
        """Move what is cached to buffers with empty columns, and forget what was recorded."""
        cache, n = self._cache, self._n_tokens
        # No more than the search can fill: learned positions may have no vector for further ones.
        self._n_columns = min(n + N_EMPTY, self._limit)
        self._replay = None
        self._ids_R1 = torch.empty_like(ids_R1)
        self._next_1 = torch.full((1,), n, device=ids_R1.device)
        keep_RS: Bool[Tensor, "R S"] = torch.zeros(len(ids_R1), self._n_columns, dtype=torch.bool, device=ids_R1.device)
        keep_RS[:, :n] = True if cache.keep_BS is None else cache.keep_BS[:, :n]
        self._keep_RS = cache.keep_BS = keep_RS
        cache.self_kv = {
            step: StaticKeyValues(kv.whole()[:, :, :, :n], self._n_columns, self._next_1)
            for step, kv in cache.self_kv.items()
        }
        cache.windows = {
            step: (StaticWindow(first.last_BWC), StaticWindow(second.last_BWC))
            for step, (first, second) in cache.windows.items()
        }
