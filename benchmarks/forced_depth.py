"""Depths that are prescribed: patterns of them, those of a trained run, and the halting rule that keeps to them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from ostinato.nn.by_length import Prescribed, SentencesPass
from ostinato.nn.context import Pass
from ostinato.nn.halting import Visible, where_active
from ostinato.nn.rows import Rows

Pattern = Literal["half", "uniform", "early", "none", "trace"]
"""half: every second token stops at half depth. uniform: as many at every depth. early: two thirds stop after round 2.
none: nobody stops. trace: as in a trained run."""
PATTERNS: tuple[Pattern, ...] = get_args(Pattern)
_EARLY_SHARE, _EARLY_ROUNDS = 2 / 3, 2

Trace = Mapping[str, Tensor]
"""Of every stack how large a part of its tokens ran 1, 2, ... rounds."""


def depths(pattern: Pattern, shape: tuple[int, int], n_rounds: int, *, shares_R: Tensor | None = None) -> Tensor:
    """Return the rounds of every token, `[B, T]`, in random order, the same for the same arguments.

    Sentences have as many tokens of every depth as each other, as far as their length allows; sentences of one token
    after the other (decoding) differ.

    Args:
        shares_R: of a trace: how many tokens ran 1, 2, ... rounds; spread over `n_rounds` where it knows others.
    """
    B, T = shape
    generator = torch.Generator().manual_seed(1)
    if pattern == "none":
        return torch.full(shape, n_rounds)
    # Quantiles of the distribution, in the middle of equal parts.
    parts_T = (torch.arange(T) + 0.5) / T
    if pattern == "half":
        row_T = torch.where(parts_T < 0.5, n_rounds // 2, n_rounds)
    elif pattern == "early":
        row_T = torch.where(parts_T < _EARLY_SHARE, min(_EARLY_ROUNDS, n_rounds), n_rounds)
    elif pattern == "uniform":
        row_T = (parts_T * n_rounds).long() + 1
    else:
        row_T = _quantiles(parts_T, n_rounds, shares_R)
    return torch.stack([row_T[torch.randperm(T, generator=generator)] for _ in range(B)])


def _quantiles(parts_T: Tensor, n_rounds: int, shares_R: Tensor | None) -> Tensor:
    if shares_R is None:  # a stack of whose depths the run says nothing: all rounds
        return torch.full(parts_T.shape, n_rounds)
    cumulated_R = shares_R.cumsum(0) / shares_R.sum()
    rounds_T = torch.searchsorted(cumulated_R, parts_T.to(cumulated_R)).clamp_max(len(shares_R) - 1) + 1
    return (rounds_T * n_rounds / len(shares_R)).ceil().long()


def read_trace(path: Path) -> dict[str, Tensor]:
    """Return how many tokens of every stack ran 1, 2, ... rounds in a trained run.

    Args:
        path: results.json of a run (the first split with depths); other JSON {stack: {"histogram": [tokens that ran 1,
            2, ... rounds]} or {"depths": rounds of every token, in lists}}; NPZ with the rounds of every token of a
            stack under its name, 0 for padding. Of depths alone, the deepest is taken for the number of rounds.

    Raises:
        SystemExit: a file that says nothing of depths.
    """
    if path.suffix == ".npz":
        with np.load(path) as stored:
            return {stack: _counts(stored[stack].reshape(-1)) for stack in stored.files}
    found = json.loads(path.read_text(encoding="utf-8"))
    if "splits" in found:
        found = next((split["halting"] for split in found["splits"].values() if split.get("halting")), {})
    trace = {stack: _histogram(said) for stack, said in found.items() if {"histogram", "depths"} & said.keys()}
    if not trace:
        raise SystemExit(f"{path}: no depths: expected results.json of a run in which tokens halt, see --help")
    return trace


def _histogram(said: Mapping[str, Any]) -> Tensor:
    if "histogram" in said:
        return torch.tensor(said["histogram"], dtype=torch.float64)
    rows = said["depths"]
    return _counts(np.concatenate([np.atleast_1d(row) for row in rows]))


def _counts(rounds: Any) -> Tensor:
    return torch.from_numpy(np.bincount(rounds.astype(np.int64))[1:].astype(np.float64))


class ForcedDepths(Prescribed):
    """A halting rule that lets every token run as many rounds as it is told, and leaves it as it then stands.

    Args:
        depths_BT: see `prescribe`.
    """

    def __init__(self, depths_BT: Tensor) -> None:
        self.prescribe(depths_BT)

    def prescribe(self, depths_BT: Tensor) -> None:
        """Set the rounds of every token of the passes that follow.

        Passes over fewer columns (the steps of decoding) take them one after the other and begin anew after the last.
        Compiled steps keep the rule they were prepared with: to change the depths of a model that decodes within one
        `packing()`, prescribe others to the same rule.
        """
        self._depths_BT, self._column = depths_BT, 0

    def ends(self, rows: Rows, run: Pass, n_rounds: int | Tensor) -> Tensor:
        """Return the rounds of the columns that come next."""
        first, self._column = self._column, (self._column + rows.n_columns) % self._depths_BT.shape[1]
        return self._depths_BT[: rows.n_sentences, first : first + rows.n_columns].flatten()

    def start(self, states_ND: Tensor, rows: Rows, run: Pass, n_rounds: int | Tensor) -> ForcedPass:
        """Begin a pass."""
        return ForcedPass(states_ND, rows, run, self.ends(rows, run, n_rounds))


class ForcedPass(SentencesPass):
    """One pass, in which no round is counted: a rule's own work is no part of what is measured.

    Args:
        depths_N: rounds of every row, of the same sentence or not.
    """

    def __init__(self, states_ND: Tensor, rows: Rows, run: Pass, depths_N: Tensor) -> None:
        super().__init__(states_ND, rows, run, torch.zeros_like(depths_N), depths_N)
        self._ends_R = torch.bincount(self._end_N.cpu()).tolist()  # how many tokens end after 0, 1, ... rounds

    def active(self, index: int | Tensor, states_ND: Tensor) -> Tensor | None:
        """Those who have rounds to go."""
        n = sum(self._ends_R[int(index) + 1 :])
        self._set_active(None if n == self._end_N.shape[0] else self._end_N > index, n)
        return self.active_N

    def enter(self, index: int | Tensor, states_ND: Tensor, entered_ND: Tensor) -> tuple[Tensor | None, Visible]:
        """Halted tokens show the state that left their last round; nothing is recorded."""
        active_N = self.active_N
        if active_N is None:
            return None, None
        return active_N.to(states_ND.dtype), lambda later_ND: where_active(active_N, later_ND, states_ND)
