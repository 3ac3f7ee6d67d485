"""Which tokens of a batch a round computes: all of them, or the rows that are left when halted ones are gathered away.

Whatever treats every token by itself (projections, feed-forwards, experts, norms, gates) sees rows `[N, D]` and knows
nothing of sentences. Attention sees queries `[B, A, ...]`: the rows of every sentence side by side, A of them where the
sentence with most has A, zeros behind the others'.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from ostinato.kernels import on_device, places_where
from ostinato.nn.shapes import Bool, Int, Tensor

_NUMBERS_A_CALL = 2**14
"""Numbers that attention reads in the time of a call."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a pass over `[B, T]` tokens, in order of sentence and column.

    Args:
        n_sentences, n_columns: B and T.
        index_N: place b T + t of every row; None: all tokens.
        slots_N: place u A + a of every row among the queries; None: they lie side by side already.
        n_queries: A.
        sentences_U: the sentences that have a row, where others have none: attention is for these alone. None: for all.
        occupied: of one column, the sentences that have a row, in order; None: all have, or it is not known.
        n_rows_B: rows of every sentence, on the host; None: as many as there are columns, or it is not known.
    """

    n_sentences: int
    n_columns: int
    index_N: Int[Tensor, "N"] | None = None
    slots_N: Int[Tensor, "N"] | None = None
    n_queries: int = 0
    sentences_U: Int[Tensor, "U"] | None = None
    occupied: tuple[int, ...] | None = None
    n_rows_B: tuple[int, ...] | None = None

    @classmethod
    def all(cls, n_sentences: int, n_columns: int) -> Rows:
        """Return every token."""
        return cls(n_sentences, n_columns, n_queries=n_columns)

    def keep(self, kept_M: Int[Tensor, "M"], n_rows_B: Sequence[int] | None = None) -> Rows:
        """Return some of these rows, given in order.

        Args:
            n_rows_B: how many of every sentence; None: counted, for which an accelerator is waited for.
        """
        B, T = self.n_sentences, self.n_columns
        index_M = kept_M if self.index_N is None else self.index_N[kept_M]
        n = index_M.shape[0]
        if T == 1:  # one query a sentence, also where it has none: decoding
            occupied = tuple(index_M.tolist()) if n < B and index_M.device.type == "cpu" else None
            return Rows(B, T, index_M, None if n == B else index_M, 1, occupied=occupied)
        if n_rows_B is None:
            n_rows_B = torch.bincount(index_M.div(T, rounding_mode="floor"), minlength=B).tolist()
        sentences = [sentence for sentence, count in enumerate(n_rows_B) if count]
        return Rows._side_by_side(B, T, index_M, n_rows_B, None if len(sentences) == B or not n else sentences)

    def count(self, mask_N: Bool[Tensor, "N"]) -> list[int]:
        """Return at how many rows of every sentence a mask is True. Waits for an accelerator, once."""
        if self.index_N is None:
            return mask_N.view(self.n_sentences, self.n_columns).sum(1).tolist()
        sentences_N = self.index_N.div(self.n_columns, rounding_mode="floor")
        counts_B = torch.zeros(self.n_sentences, dtype=torch.long, device=mask_N.device)
        return counts_B.index_add_(0, sentences_N, mask_N.long()).tolist()

    def counts(self) -> Sequence[int]:
        """Return the number of rows of every sentence."""
        return (self.n_columns,) * self.n_sentences if self.n_rows_B is None else self.n_rows_B

    @classmethod
    def _side_by_side(
        cls,
        B: int,
        T: int,
        index_M: Int[Tensor, "M"],
        n_rows_B: Sequence[int],
        sentences: Sequence[int] | None,
    ) -> Rows:
        """Return rows with places among the queries of some sentences, each with as many as the longest has."""
        n, most, device = index_M.shape[0], max(n_rows_B), index_M.device
        counts = n_rows_B if sentences is None else [n_rows_B[sentence] for sentence in sentences]
        sentences_U = None if sentences is None else on_device(sentences, device)
        slots_M = None
        if n != len(counts) * most:
            # First slot of a sentence, less the rows before it.
            before = accumulate(counts, initial=0)
            shifts = [number * most - first for number, first in zip(range(len(counts)), before, strict=False)]
            counts_U, shift_U = on_device([counts, shifts], device)
            slots_M = torch.arange(n, device=device) + shift_U.repeat_interleave(counts_U, output_size=n)
        return cls(B, T, index_M, slots_M, most, sentences_U, n_rows_B=tuple(n_rows_B))

    def for_all_sentences(self) -> Rows:
        """Return the same rows with places among the queries of all sentences."""
        if self.sentences_U is None or self.index_N is None:
            return self
        return Rows._side_by_side(self.n_sentences, self.n_columns, self.index_N, self.counts(), None)

    @property
    def n_tokens(self) -> int:
        """B T."""
        return self.n_sentences * self.n_columns

    @property
    def n_rows(self) -> int:
        """N; also where it is the symbol of a graph, which `len` would make a number."""
        return self.n_tokens if self.index_N is None else self.index_N.shape[0]

    def __len__(self) -> int:
        """N."""
        return self.n_rows

    def take(self, x: Tensor) -> Tensor:
        """Return the rows of something that every token has, `[B, T, ...]`, or every column, `[1, T, ...]`."""
        if self.index_N is None:
            return x.expand(self.n_sentences, *x.shape[1:]).flatten(0, 1)
        if x.shape[0] == self.n_sentences:
            return take_rows(x.flatten(0, 1), self.index_N)
        return x[0].index_select(0, self.index_N % self.n_columns)

    def grid(self, x_N: Tensor) -> Tensor:
        """Return rows in their places, `[B, T, ...]`; zeros elsewhere."""
        return put_rows(x_N, self.index_N, self.n_tokens).view(self.n_sentences, self.n_columns, *x_N.shape[1:])

    def queries(self, x_N: Tensor) -> Tensor:
        """Return rows as queries of the sentences that attention is for, `[U, A, ...]`."""
        U, A = self.n_sentences if self.sentences_U is None else len(self.sentences_U), self.n_queries
        return put_rows(x_N, self.slots_N, U * A).view(U, A, *x_N.shape[1:])

    def of_sentences(self, x: Tensor) -> Tensor:
        """Return what the sentences that attention is for have of `[B, ...]`; what all share, `[1, ...]`, as it is."""
        if self.sentences_U is None or (x.shape[0] == 1 < self.n_sentences):
            return x
        return x.index_select(0, self.sentences_U)

    def from_queries(self, x_BA: Tensor) -> Tensor:
        """Return what the queries of a sentence gave as rows: the inverse of `queries`."""
        return take_rows(x_BA.flatten(0, 1), self.slots_N)

    def ranges(self, k_BHSK: Tensor, n_beams: int = 1) -> list[tuple[int, int]]:
        """Return which sentences attention must look at, (first, end) each, where not all are `occupied`.

        Each range is a call of its own, so that a gap is bridged where to read it takes no longer than a call.

        Args:
            k_BHSK: keys of B / `n_beams` sentences.
        """
        widest_gap = _NUMBERS_A_CALL // (2 * k_BHSK[0].numel())
        found: list[list[int]] = []
        for row in self.occupied or ():
            sentence = row // n_beams
            if found and sentence - found[-1][1] <= widest_gap:
                found[-1][1] = sentence + 1
            else:
                found.append([sentence, sentence + 1])
        return [(first, last) for first, last in found]

    def places(self, device: torch.device) -> Int[Tensor, "N"]:
        """Return b T + t of every row."""
        return torch.arange(self.n_tokens, device=device) if self.index_N is None else self.index_N

    def columns(self) -> Int[Tensor, "U A"] | None:
        """Return the column of every query, 0 behind the last; None where they are the columns themselves."""
        return None if self.index_N is None or self.n_columns == 1 else self.queries(self.index_N % self.n_columns)


def put_rows(x_N: Tensor, index_N: Tensor | None, n: int) -> Tensor:
    """Return n rows with these in the given places, which differ, and zeros elsewhere; None: they are all."""
    return x_N if index_N is None else x_N.new_zeros(n, *x_N.shape[1:]).index_copy_(0, index_N, x_N)


def lay_rows(parts: Sequence[tuple[Tensor, Tensor]], n: int) -> Tensor:
    """Return n rows made of parts, (places, rows) each, all places different; zeros elsewhere.

    The gradient of every part is its own rows of what comes back. Plain twin: one `index_copy` into another, where the
    gradient is copied whole for every part.
    """
    places, rows = zip(*parts, strict=True)
    return _Laid.apply(n, places, *rows)  # type: ignore[no-any-return, no-untyped-call]


class _Laid(torch.autograd.Function):
    """Rows of several tensors side by side in the order of their places."""

    @staticmethod
    def forward(ctx: Any, n: int, places: tuple[Tensor, ...], *parts: Tensor) -> Tensor:
        ctx.places = places
        shape = (n, *parts[0].shape[1:])
        is_full = sum(len(part) for part in parts) == n
        laid = parts[0].new_empty(shape) if is_full else parts[0].new_zeros(shape)
        for index, part in zip(places, parts, strict=True):
            laid.index_copy_(0, index, part)
        return laid

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        needs = ctx.needs_input_grad[2:]
        parts = zip(ctx.places, needs, strict=True)
        return None, None, *(grad.index_select(0, index) if needed else None for index, needed in parts)


def take_rows(x: Tensor, index_N: Tensor | None) -> Tensor:
    """Return the rows at the given places; None: all."""
    return x if index_N is None else x.index_select(0, index_N)


def kept_and_halted(active_N: Bool[Tensor, "N"], n_active: int) -> tuple[Int[Tensor, "M"], Int[Tensor, "L"]]:
    """Return the rows that go on, `n_active` of them, and the others."""
    return places_where(active_N, n_active), places_where(~active_N, active_N.shape[0] - n_active)
