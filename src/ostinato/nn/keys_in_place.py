"""Keys and values that stay where they were written, however hypotheses move: what compiled kernels read.

Position s of hypothesis b lies in row places[b, s] of a buffer `[2, R, H, room, K]`, beyond the table in row b. To move
hypotheses is to move rows of the table, which the steps of a search share: beam search copies neither keys nor values,
and the hypotheses of a sentence share those of its prompt. Plain twin: `ostinato.nn.cache.KeyValues`.
"""

from __future__ import annotations

import torch

from ostinato.kernels import CachedKeys
from ostinato.nn.attention import MultiHead
from ostinato.nn.shapes import Bool, Float, Int, Tensor

_BLOCK = 32
_DEVICE = torch.device("cpu")
"""Whatever torch's default is."""

Tables = dict[int, tuple[Tensor | None, Tensor]]
"""Tables before and after a move, by the identity of the one before: made once for all steps that share it."""


class KeyValuesInPlace:
    """Keys and values of one step.

    Args:
        attention: whose they are.
    """

    def __init__(self, attention: MultiHead) -> None:
        self._attention = attention
        self._kv_2RHSK: Tensor | None = None
        self._places_BS: Int[Tensor, "B S"] | None = None
        self._keys: CachedKeys | None = None
        self._n_hypotheses = 0
        self.length = 0

    def append(self, kv_2BHTK: Float[Tensor, "2 B H T K"]) -> Float[Tensor, "2 B H S K"]:
        """Add the keys and values of T new positions; return all of them, in order."""
        start, end = self.length, self.length + kv_2BHTK.shape[3]
        buffer = self._kv_2RHSK
        if buffer is None or buffer.shape[3] < end or self._places_BS is not None:
            buffer = self._move(kv_2BHTK.shape[1], end)
        buffer[:, :, :, start:end] = kv_2BHTK
        self.length, self._n_hypotheses = end, kv_2BHTK.shape[1]
        return buffer[:, :, :, :end]

    def next(
        self, n_hypotheses: int, keep_BS: Bool[Tensor, "B S"] | None, rows_N: Int[Tensor, "N"] | None
    ) -> CachedKeys:
        """Make room for one position more, which the kernel writes; return what it reads.

        Args:
            n_hypotheses: B. keep_BS: real positions; None: all. rows_N: the hypotheses that ask; None: all.
        """
        buffer = self._kv_2RHSK
        if buffer is None or buffer.shape[3] <= self.length or buffer.shape[1] < n_hypotheses:
            buffer = self._move(n_hypotheses, self.length + 1)
        if self._keys is None:
            self._keys = CachedKeys(buffer, self._attention.scale, self._attention.n_choices)
        self.length, self._n_hypotheses = self.length + 1, n_hypotheses
        return self._keys.see(self.length, self._places_BS, keep_BS, rows_N)

    def newest(self) -> Float[Tensor, "2 R H K"]:
        """Return the last position of the buffer's rows, to be written."""
        assert self._kv_2RHSK is not None
        return self._kv_2RHSK[:, :, :, self.length - 1]

    def select(self, rows_B: Int[Tensor, "B"], tables: Tables) -> None:
        """Keep these hypotheses, in this order."""
        if self._kv_2RHSK is None:
            return
        before = self._places_BS
        if id(before) not in tables:
            tables[id(before)] = before, self._table().index_select(0, rows_B)
        self._places_BS = tables[id(before)][1]
        self._n_hypotheses = rows_B.shape[0]

    def _table(self) -> Int[Tensor, "B S"]:
        """Return the row of every position up to now."""
        known = self._places_BS
        n = self.length if known is None else self.length - known.shape[1]
        own = torch.arange(self._n_hypotheses, dtype=torch.int32, device=_DEVICE)[:, None].expand(-1, n)
        return own if known is None else torch.cat([known, own], dim=1)

    def _move(self, n_rows: int, length: int) -> Tensor:
        """Write all positions in order to a new buffer, one row a hypothesis, with room for `length` of them."""
        room, n_heads = -(-length // _BLOCK) * _BLOCK, self._attention.n_heads
        # Zeros: positions of padding are never written, and their weights of 0 need numbers to meet.
        sizes = (2, n_rows, n_heads, room, self._attention.d_head)
        new = torch.zeros(sizes, dtype=torch.float32, device=_DEVICE)
        if self._kv_2RHSK is not None:
            rows_BHS = self._table().long()[:, None, :]
            heads_H1, places_S = (
                torch.arange(n_heads, device=_DEVICE)[:, None],
                torch.arange(self.length, device=_DEVICE),
            )
            new[:, :, :, : self.length] = self._kv_2RHSK[:, rows_BHS, heads_H1, places_S]
        self._kv_2RHSK, self._places_BS, self._keys = new, None, None
        return new
