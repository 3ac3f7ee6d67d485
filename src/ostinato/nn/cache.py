"""What decoding remembers: one object for every sub-layer that looks at other tokens.

Self-attention keeps keys and values per step, in buffers grown by blocks. A separable convolution keeps the last few
inputs of each of its two convolutions, per step. Cross-attention keeps keys and values per PARAMETER SET: one
projection serves every step that shares the set, and it is never copied per beam; beams are folded into the query
positions instead (`n_beams` hypotheses stand side by side for every sentence). An LSTM keeps its state.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field

import torch

from ostinato.nn.execution import Execution
from ostinato.nn.shapes import Bool, Float, Int, Tensor

_BLOCK = 32


class KeyValues:
    """Keys and values of one step, `[2, B, H, S, K]`, in a buffer that grows by blocks of positions.

    Moving hypotheses is put off until the next positions come: then both take one copy, into a buffer without room to
    spare. What attention reads is one stretch of memory then, which is read faster than stretches with
    gaps. Two buffers take turns: fresh memory at every step would cost more than the copy.
    """

    def __init__(self) -> None:
        self._kv_2BHSK: Tensor | None = None
        self._spare: Tensor | None = None
        self._rows_B: Tensor | None = None
        self.length = 0

    def append(self, kv_2BHTK: Float[Tensor, "2 B H T K"]) -> Float[Tensor, "2 B H S K"]:
        """Add the keys and values of T new positions; return all of them."""
        old, start = self._kv_2BHSK, self.length
        end = start + kv_2BHTK.shape[3]
        if old is None or self._rows_B is not None or old.shape[3] < end:
            new = self._buffer(kv_2BHTK, end)
            if old is not None and self._rows_B is not None:
                torch.index_select(old[:, :, :, :start], 1, self._rows_B, out=new[:, :, :, :start])
            elif old is not None:
                new[:, :, :, :start] = old[:, :, :, :start]
            # Where no hypothesis moves, the shorter buffer is of no use any more.
            self._spare = None if self._rows_B is None else old
            self._kv_2BHSK, self._rows_B = new, None
            old = new
        old[:, :, :, start:end] = kv_2BHTK
        self.length = end
        return old[:, :, :, :end]

    def _buffer(self, like_2BHTK: Tensor, end: int) -> Tensor:
        """Return room for at least `end` positions: for no more where hypotheses move at every step."""
        _, B, H, _, K = like_2BHTK.shape
        room = -(-end // _BLOCK) * _BLOCK
        memory, n = self._spare, 2 * B * H * room * K
        if memory is None or memory.untyped_storage().nbytes() != n * memory.element_size():
            memory = like_2BHTK.new_empty(n)
        used = end if self._rows_B is not None else room
        return memory.as_strided((2, B, H, used, K), (B * H * used * K, H * used * K, used * K, K, 1))

    def whole(self) -> Float[Tensor, "2 B H S K"]:
        """Return all keys and values, in order."""
        assert self._kv_2BHSK is not None
        kv_2BHSK = self._kv_2BHSK[:, :, :, : self.length]
        return kv_2BHSK if self._rows_B is None else kv_2BHSK.index_select(1, self._rows_B)

    def select(self, rows_B: Int[Tensor, "B"]) -> None:
        """Keep these rows, in this order, from the next positions on."""
        self._rows_B = rows_B if self._rows_B is None else self._rows_B.index_select(0, rows_B)


class ColumnWindow:
    """Last inputs of one convolution at one step, `[B, W, C]`; None before the first column, where zeros stand."""

    def __init__(self, last_BWC: Float[Tensor, "B W C"] | None = None) -> None:
        self._last_BWC = last_BWC

    @property
    def last_BWC(self) -> Float[Tensor, "B W C"]:
        """Those of the columns so far, of which there are some."""
        assert self._last_BWC is not None
        return self._last_BWC

    def extend(self, x_BTC: Float[Tensor, "B T C"], width: int) -> Float[Tensor, "B S C"]:
        """Return the last `width` columns and these, S = width + T; remember the last `width` of them."""
        B, T, C = x_BTC.shape
        last = x_BTC.new_zeros(B, width, C) if self._last_BWC is None else self._last_BWC
        extended = torch.cat([last, x_BTC], dim=1)
        # A copy: a view would keep the columns of a whole prompt alive.
        self._last_BWC = extended[:, T:].clone()
        return extended

    def select(self, rows_B: Int[Tensor, "B"]) -> None:
        """Keep these rows, in this order."""
        if self._last_BWC is not None:
            self._last_BWC = self._last_BWC.index_select(0, rows_B)


class RecurrentState:
    """Outputs and cells of the layers of an LSTM after the last real token, each `[L, B, D]`."""

    def __init__(self, h_LBD: Float[Tensor, "L B D"], c_LBD: Float[Tensor, "L B D"]) -> None:
        self.tensors = h_LBD, c_LBD

    def select(self, rows_B: Int[Tensor, "B"]) -> None:
        """Keep these rows, in this order."""
        h_LBD, c_LBD = self.tensors
        self.tensors = h_LBD.index_select(1, rows_B), c_LBD.index_select(1, rows_B)


@dataclass(slots=True)
class Cache:
    """State of a search over B sentences with `n_beams` hypotheses each.

    Args:
        length: target positions decoded so far (columns, padding included).
        n_beams: hypotheses per sentence; rows are sentence-major: row = sentence * n_beams + hypothesis.
        keep_BS: real tokens among the decoded positions; None where all are. Padding may stand on the left: a token's
            position is the number of real tokens before it.
        prefix_lengths_B: real tokens at the beginning that see each other in both directions, before the first step,
            which takes all of them; None afterwards and where there are none.
        memory_BSD, memory_keep_BS: encoder output and its keep mask (None where all are real), one row a sentence.
        self_kv: by step index. cross_kv: by name of the parameter set, one sentence each in the second dimension.
            Entries of both are added and never replaced: others mean another dict.
        took_part: by round who took part in it, of stacks in which a router chooses.
        windows: of the two convolutions, by step index. recurrent: of LSTMs, by name of the recurrence.
        n_steps: rounds asked for at call time, in a graph a tensor; None for the plan's own.
        execution: how the search runs; None: as the model does.
        device: where the tensors are.
    """

    length: int = 0
    n_beams: int = 1
    keep_BS: Bool[Tensor, "B S"] | None = None
    prefix_lengths_B: Int[Tensor, "B"] | None = None
    memory_BSD: Float[Tensor, "B S D"] | None = None
    memory_keep_BS: Bool[Tensor, "B S"] | None = None
    self_kv: dict[int, KeyValues] = field(default_factory=dict)
    cross_kv: dict[str, Tensor] = field(default_factory=dict)
    took_part: dict[int, Bool[Tensor, "B S"]] = field(default_factory=dict)
    windows: dict[int, tuple[ColumnWindow, ColumnWindow]] = field(default_factory=dict)
    recurrent: dict[str, RecurrentState] = field(default_factory=dict)
    n_steps: int | Tensor | None = None
    execution: Execution | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Forget the columns that are cached inside: steps that run more than once for the same columns."""
        lengths = {step: kv.length for step, kv in self.self_kv.items()}
        windows = {step: (copy(first), copy(second)) for step, (first, second) in self.windows.items()}
        yield
        for step, kv in self.self_kv.items():
            kv.length = lengths.get(step, 0)
        self.windows = windows

    def reorder(self, rows_B: Int[Tensor, "B"]) -> None:
        """Replace hypotheses: new row i continues old row rows_B[i], which must be of the same sentence.

        Works on what differs between hypotheses only; what belongs to the sentence stays where it is.
        """
        for kv in self.self_kv.values():
            kv.select(rows_B)
        for pair in self.windows.values():
            for window in pair:
                window.select(rows_B)
        for state in self.recurrent.values():
            state.select(rows_B)
        self.took_part = {index: seen_BS.index_select(0, rows_B) for index, seen_BS in self.took_part.items()}
        if self.keep_BS is not None:
            self.keep_BS = self.keep_BS.index_select(0, rows_B)
        if self.prefix_lengths_B is not None:
            self.prefix_lengths_B = self.prefix_lengths_B.index_select(0, rows_B)

    def expand(self, n_beams: int, n_sentences: int) -> None:
        """Turn one hypothesis a sentence into `n_beams` equal ones, side by side."""
        if n_beams > 1:
            self.reorder(torch.arange(n_sentences, device=self.device).repeat_interleave(n_beams))
        self.n_beams = n_beams

    def keep(self, sentences_B: Int[Tensor, "B"]) -> None:
        """Keep these sentences with all their hypotheses; the others leave the batch."""
        if self.memory_BSD is not None:
            self.memory_BSD = self.memory_BSD.index_select(0, sentences_B)
        if self.memory_keep_BS is not None:
            self.memory_keep_BS = self.memory_keep_BS.index_select(0, sentences_B)
        self.cross_kv = {name: kv_2BHSK.index_select(1, sentences_B) for name, kv_2BHSK in self.cross_kv.items()}
        offsets = torch.arange(self.n_beams, device=sentences_B.device)
        self.reorder((sentences_B[:, None] * self.n_beams + offsets).flatten())
