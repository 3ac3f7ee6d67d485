"""Keys and values of cached decoding that stay where they were written, and that kernels read."""

from __future__ import annotations

from functools import lru_cache

import torch

from ostinato.kernels import CachedKeys, Seen
from ostinato.nn.attention import MultiHead
from ostinato.nn.cache import KeyValues
from ostinato.nn.shapes import Bool, Float, Int, Tensor

_BLOCK = 32
_CPU = torch.device("cpu")
"""Whatever torch's default is."""


class Moves:
    """The last move of hypotheses, and what is seen of them: what all steps of a search have in common.

    They share their tables of places, so that each is made once.

    Attributes:
        seen: what kernels see of all of them, said once a token.
    """

    def __init__(self) -> None:
        self.seen = Seen()
        self._rows_B: Tensor | None = None
        self._length = 0
        self._made: dict[int, tuple[Tensor | None, Tensor]] = {}

    def after(self, rows_B: Int[Tensor, "B"], kv: KeyValuesInPlace) -> Int[Tensor, "B S"]:
        """Return the table of places once hypotheses are replaced by those of `rows_B`."""
        # The same tensor may be given again later: another length is another move.
        if self._rows_B is not rows_B or self._length != kv.length:
            self._rows_B, self._length, self._made = rows_B, kv.length, {}
        before = kv.places_BS
        if id(before) not in self._made:
            self._made[id(before)] = before, kv.table().index_select(0, rows_B)
        return self._made[id(before)][1]


@lru_cache(maxsize=64)
def _own_rows(n: int) -> Int[Tensor, "n 1"]:
    with torch.inference_mode(False):
        return torch.arange(n, dtype=torch.int32, device=_CPU)[:, None]


class KeyValuesInPlace(KeyValues):
    """Keys and values of one step that stay where they were written, however hypotheses move.

    Position s of hypothesis b lies in row places[b, s] of a buffer `[2, R, H, room, K]`, beyond the table in row b. To
    move hypotheses is to move rows of the table. Keys and values are copied, in order, where the buffer is full (every
    32 positions) and where hypotheses become more than its rows. Plain twin: `ostinato.nn.cache.KeyValues`.

    Args:
        attention: whose they are. moves: of the search.
    """

    def __init__(self, attention: MultiHead, moves: Moves) -> None:
        super().__init__()
        self._attention, self.moves = attention, moves
        self._kv_2RHSK: Tensor | None = None
        self.places_BS: Int[Tensor, "B S"] | None = None
        self._keys: CachedKeys | None = None
        self._n_hypotheses = 0

    def append(self, kv_2BHTK: Float[Tensor, "2 B H T K"]) -> Float[Tensor, "2 B H S K"]:
        """Add the keys and values of T new positions; return all of them, in order."""
        start, end = self.length, self.length + kv_2BHTK.shape[3]
        buffer = self._kv_2RHSK
        if buffer is None or buffer.shape[3] < end or self.places_BS is not None:
            buffer = self._in_order(kv_2BHTK.shape[1], end)
        buffer[:, :, :, start:end] = kv_2BHTK
        self.length, self._n_hypotheses = end, kv_2BHTK.shape[1]
        return buffer[:, :, :, :end]

    def next(self, n_hypotheses: int, rows_N: Int[Tensor, "N"] | None) -> CachedKeys:
        """Make room for one position more, which the kernel writes; return what it reads; call `see` before it does.

        Args:
            n_hypotheses: B. rows_N: the hypotheses that have a query; None: all.
        """
        keys = self._keys
        if keys is None or keys.room <= self.length or keys.n_rows < n_hypotheses:
            buffer, attention = self._kv_2RHSK, self._attention
            if buffer is None or buffer.shape[3] <= self.length or buffer.shape[1] < n_hypotheses:
                buffer = self._in_order(n_hypotheses, self.length + 1)
            keys = self._keys = CachedKeys(buffer, attention.scale, attention.n_choices, seen=self.moves.seen)
        self.length, self._n_hypotheses = self.length + 1, n_hypotheses
        keys.ask(rows_N)
        return keys

    def see(self, keep_BS: Bool[Tensor, "B S"] | None) -> None:
        """Let kernels see all positions, also of other steps that have as many; `keep_BS`: real ones; None: all."""
        self.moves.seen.set(self.length, self.places_BS, keep_BS)

    def newest(self) -> Float[Tensor, "2 R H K"]:
        """Return the last position of the buffer's rows, to be written."""
        assert self._kv_2RHSK is not None
        return self._kv_2RHSK.select(3, self.length - 1)

    def select(self, rows_B: Int[Tensor, "B"]) -> None:
        """Keep these hypotheses, in this order."""
        if self._kv_2RHSK is not None:
            self.places_BS = self.moves.after(rows_B, self)
            self._n_hypotheses = rows_B.shape[0]

    def table(self) -> Int[Tensor, "B S"]:
        """Return the row of every position up to now."""
        known = self.places_BS
        n = self.length if known is None else self.length - known.shape[1]
        own = _own_rows(self._n_hypotheses)
        own = own if n == 1 else own.expand(-1, n)
        return own if known is None else torch.cat([known, own], dim=1)

    def _in_order(self, n_rows: int, length: int) -> Tensor:
        """Write all positions in order to a new buffer, one row a hypothesis, with room for `length` of them."""
        room, n_heads = -(-length // _BLOCK) * _BLOCK, self._attention.n_heads
        old, n = self._kv_2RHSK, 0 if self._kv_2RHSK is None else self.length
        new = torch.empty(2, n_rows, n_heads, room, self._attention.d_head, dtype=torch.float32, device=_CPU)
        # Zeros: positions of padding are never written, and their weights of 0 need numbers to meet.
        new[:, :, :, n:] = 0.0
        if old is not None and self.places_BS is None:
            new[:, :, :, :n] = old[:, :, :, :n]
        elif old is not None:
            rows_BHS = self.table().long()[:, None, :]
            heads_H1 = torch.arange(n_heads, device=_CPU)[:, None]
            new[:, :, :, :n] = old[:, rows_BHS, heads_H1, torch.arange(n, device=_CPU)]
        self._kv_2RHSK, self.places_BS, self._keys = new, None, None
        return new
