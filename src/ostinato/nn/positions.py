"""Absolute positions: sinusoids or learned vectors added to the states.

For position i and dimension pair j = 0 .. D/2 - 1:

    P[i, 2j] = sin(i / 10000^(2j / D))      P[i, 2j + 1] = cos(i / 10000^(2j / D))

    sinusoidal   P[i], once, positions from 0                        Vaswani et al. 2017, section 3.5
                 in halves: the sine of pair j in component j, its cosine in component D/2 + j (Marian)
    coordinates  P[i] + P[t], before every round t, both from 1      Universal Transformers, section 2.1
    learned      W[i + offset], once, positions from 0               GPT-2, BERT; BART with an offset of 2

Left padding: positions are those of the real tokens, so padding before a sentence changes nothing.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ostinato.errors import DataError
from ostinato.kernels import float64, is_exporting
from ostinato.nn.shapes import Bool, Float, Int, Tensor


def sinusoids(
    values: Int[Tensor, "*N"], d_model: int, *, in_halves: bool = False, highest: int | None = None
) -> Float[Tensor, "*N D"]:
    """Return P for integer positions, in float32.

    Args:
        highest: a number that none of them is above; None: the highest.
    """
    if torch.compiler.is_compiling():  # the size of a table would be part of the graph, and every length had its own
        return _sinusoids(values, d_model, in_halves)
    if highest is None:
        highest = highest_position(values)
    return F.embedding(values, _table(_room(highest + 1), d_model, values.device, in_halves))


def highest_position(positions: Int[Tensor, "*N"], n_columns: int | None = None) -> int:
    """Return a number that no position is above: the last column's, or where that is not known the highest."""
    if n_columns is not None:
        return n_columns - 1
    return int(positions.max()) if positions.numel() else 0


def positions_from_keep(keep_BT: Bool[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """Return for every column the number of real tokens before it (padding on the left counts as position 0)."""
    return (keep_BT.long().cumsum(-1) - 1).clamp_min(0)


def positions_where_gaps(keep_BT: Bool[Tensor, "B T"]) -> Int[Tensor, "B T"] | None:
    """Return the positions of real tokens where padding stands before some; None where columns count them."""
    has_gap = bool((keep_BT[:, 1:] & ~keep_BT[:, :-1]).any())
    return positions_from_keep(keep_BT) if has_gap else None


def columns_up_to(n: int, device: torch.device) -> Int[Tensor, "1 n"]:
    """Return 0 .. n - 1, the positions of columns of which none is padding; a view of what is kept."""
    if torch.compiler.is_compiling():  # as for sinusoids
        return torch.arange(n, device=device)[None]
    return _columns(_room(n), device)[:, :n]


@lru_cache(maxsize=16)
def _columns(n: int, device: torch.device) -> Int[Tensor, "1 n"]:
    with torch.inference_mode(False):
        return torch.arange(n, device=device)[None]


def _room(n: int) -> int:
    """Round up to a power of two, at least 256, so that few tables are ever made."""
    return max(256, 1 << (n - 1).bit_length())


@lru_cache(maxsize=16)
def _table(n: int, d_model: int, device: torch.device, in_halves: bool = False) -> Tensor:
    # A table first made while evaluating must also serve training: no inference tensor.
    with torch.inference_mode(False), torch.no_grad():
        return _sinusoids(torch.arange(n, device="cpu"), d_model, in_halves).to(device)


def _sinusoids(values: Tensor, d_model: int, in_halves: bool) -> Tensor:
    """Return P, computed in float64: large positions have angles that float32 does not tell apart."""
    exact = float64(values.device)
    pairs = torch.arange(0, d_model, 2, dtype=exact, device=values.device)
    angles = values.to(exact)[..., None] / 10_000.0 ** (pairs / d_model)
    together = torch.cat if in_halves else torch.stack
    return together([angles.sin(), angles.cos()], dim=-1).flatten(values.ndim).float()


class PositionSignal:
    """What a stack adds to its states; this base adds nothing."""

    acts_on_rounds = False
    """Whether something is added before every round, in place of once before the first."""
    random_offset = 0
    """In training every sentence's positions start at a number drawn from 0 .. random_offset, the same in all rounds of
    one pass."""

    def prepare(
        self,
        positions: Int[Tensor, "#B T"],
        *,
        n_columns: int | None = None,
        offset_B: Int[Tensor, "B"] | None = None,
        first: int | None = None,
    ) -> Tensor | None:
        """Return the part that depends on the position only, `[B or 1, T, D]`; computed once for all rounds.

        Args:
            n_columns: cached and new ones, which no position reaches; None: not known.
            offset_B: where the positions of sentences start, at most `random_offset`; None: at 0.
            first: the first position, where all others follow it one by one; None: not known.
        """
        return None

    def draw_offset(self, n_sentences: int, device: torch.device) -> Int[Tensor, "B"] | None:
        """Return where the positions of each sentence start in training; None: at 0."""
        if not self.random_offset:
            return None
        return torch.randint(self.random_offset + 1, (n_sentences,), device=device)

    def at_start(self, prepared: Tensor | None) -> Tensor | None:
        """Return what is added once, before the first round."""
        return None if self.acts_on_rounds else prepared

    def at_round(self, prepared: Tensor | None, index: int | Tensor) -> Tensor | None:
        """Return what is added before the 0-based round `index`."""
        return None

    def of_rounds(self, prepared: Tensor | None, n_rounds: int) -> Float[Tensor, "R B T D"]:
        """Return what `at_round` returns of all rounds, where that is something."""
        added = (self.at_round(prepared, index) for index in range(n_rounds))
        return torch.stack([one for one in added if one is not None])


class Sinusoidal(PositionSignal):
    """Sinusoids of the position, once; the layout is the module's to say.

    Args:
        in_halves: whether sines stand before all cosines.
    """

    first_position = 0

    def __init__(self, d_model: int, random_offset: int = 0, *, in_halves: bool = False) -> None:
        self.d_model, self.random_offset, self.in_halves = d_model, random_offset, in_halves

    def prepare(
        self,
        positions: Int[Tensor, "#B T"],
        *,
        n_columns: int | None = None,
        offset_B: Int[Tensor, "B"] | None = None,
        first: int | None = None,
    ) -> Tensor | None:
        """Return P[i]."""
        if first is not None and offset_B is None and not torch.compiler.is_compiling():  # found without reading them
            start = first + self.first_position
            end = start + positions.shape[1]
            return _table(_room(end), self.d_model, positions.device, self.in_halves)[None, start:end]
        highest = highest_position(positions, n_columns) + self.first_position
        positions = positions + self.first_position
        if offset_B is not None:
            highest += self.random_offset
            positions = positions + offset_B[:, None]
        return sinusoids(positions, self.d_model, in_halves=self.in_halves, highest=highest)


class Learned(PositionSignal):
    """A learned vector of the position, once.

    Args:
        tables: a bank, in which the stack's W, `[offset + max_length, D]`, is looked up once a pass.
        offset: rows before that of position 0. stack: whose it is.
    """

    def __init__(self, tables: nn.ModuleDict, offset: int, stack: str) -> None:
        self._tables, self._offset, self._stack = tables, offset, stack

    def prepare(
        self,
        positions: Int[Tensor, "#B T"],
        *,
        n_columns: int | None = None,
        offset_B: Int[Tensor, "B"] | None = None,
        first: int | None = None,
    ) -> Tensor | None:
        """Return W[i + offset].

        Raises:
            DataError: a position that has no vector.
        """
        table: Any = self._tables[self._stack]
        n_positions = table.num_embeddings - self._offset
        if is_exporting():  # whoever runs the graph finds a row that is not there
            length = 0
        else:
            length = highest_position(positions, n_columns) + 1
        if length > n_positions:  # padding may stand on the left
            length = highest_position(positions) + 1
        if length > n_positions:
            raise DataError(
                f"a sequence of {length} tokens in the {self._stack}, which has learned positions for {n_positions} "
                f"(model.{self._stack}.positions.max_length): give it shorter ones, or more positions before training"
            )
        return table(positions + self._offset if self._offset else positions)  # type: ignore[no-any-return]


class Coordinates(Sinusoidal):
    """Sinusoids of position and step, before every round."""

    first_position = 1
    acts_on_rounds = True

    def at_round(self, prepared: Tensor | None, index: int | Tensor) -> Tensor | None:
        """Return P[i] + P[t]."""
        assert prepared is not None
        if isinstance(index, Tensor) or is_exporting():
            number = torch.as_tensor(index, device=prepared.device) + 1
            return prepared + _sinusoids(number, self.d_model, self.in_halves)
        return prepared + _table(_room(index + 2), self.d_model, prepared.device)[index + 1]

    def of_rounds(self, prepared: Tensor | None, n_rounds: int) -> Float[Tensor, "R B T D"]:
        """Return P[i] + P[t], in one operation."""
        assert prepared is not None
        return prepared + _table(_room(n_rounds + 1), self.d_model, prepared.device)[1 : n_rounds + 1, None, None]


def prefix_columns(positions: Int[Tensor, "#B S"], lengths_B: Int[Tensor, "B"] | None) -> Bool[Tensor, "B S"] | None:
    """Return the columns of the prefix; padding among them is hidden by the keep mask."""
    return None if lengths_B is None else positions < lengths_B[:, None]
