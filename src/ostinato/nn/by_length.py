"""Rounds by length: longer sources get more of them (Universal Transformers, appendix on computational power).

    T(n) = min(R, max(1, ceil(a n + b)))        n: real tokens of the source, R: rounds of the stack

A decoder's sentence has the rounds that its source's length gives. Nothing is learned: whoever has had its rounds stays
as it is, and that is what others see of it.
"""

from __future__ import annotations

import math

import torch

from ostinato.nn.context import Pass
from ostinato.nn.halting import HaltingPass, Visible, where_active
from ostinato.nn.rows import Rows
from ostinato.nn.shapes import Bool, Float, Tensor


class ByLength:
    """The rule of one stack.

    Args:
        per_token, extra: a and b.
    """

    threshold = math.inf
    freezes = True

    def __init__(self, per_token: float, extra: float) -> None:
        self.per_token, self.extra = per_token, extra

    def at(self, threshold: float) -> ByLength:
        """Return this rule: it has no threshold."""
        return self

    def start(self, states_ND: Float[Tensor, "N D"], rows: Rows, run: Pass, n_rounds: int) -> ByLengthPass:
        """Begin a pass."""
        lengths_B = run.source_lengths(rows.n_sentences)
        rounds_B = (self.per_token * lengths_B.double() + self.extra).ceil().long().clamp(1, n_rounds)
        return ByLengthPass(states_ND, rows, run, rounds_B.repeat_interleave(rows.n_columns))


class ByLengthPass(HaltingPass):
    """One pass: `rounds_N` is T of every row; that of padding does not count."""

    def __init__(self, states_ND: Tensor, rows: Rows, run: Pass, rounds_N: Tensor) -> None:
        super().__init__(states_ND, rows, run)
        self._rounds_N = rounds_N if self._keep_N is None else torch.where(self._keep_N, rounds_N, 0)

    def active(self, index: int, states_ND: Float[Tensor, "N D"]) -> Bool[Tensor, "N"] | None:
        """Those whose T is not reached."""
        self._set_active(self._rounds_N > index)
        return self.active_N

    def enter(
        self, index: int, states_ND: Float[Tensor, "N D"], entered_ND: Float[Tensor, "N D"]
    ) -> tuple[Tensor | None, Visible]:
        """Halted tokens show the state that left their last round, which is all of their output."""
        active_N, runs_N = self.active_N, self._runs_N()
        last_N = (self._rounds_N == index + 1).to(self._zeros_N.dtype)
        self._record(self._probs, last_N)
        self._record(self._weights, last_N)
        self._record(self._left, runs_N.to(self._zeros_N.dtype))
        self._record(self._executed, runs_N)
        if active_N is None:
            return None, None
        return active_N.to(states_ND.dtype), lambda later_ND: where_active(active_N, later_ND, states_ND)

    def leave(self, index: int, states_ND: Float[Tensor, "N D"], left_ND: Float[Tensor, "N D"]) -> Float[Tensor, "N D"]:
        """Halted tokens keep their states."""
        return where_active(self.active_N, left_ND, states_ND)

    def aux_loss(self) -> None:
        """Depth costs nothing: there is nothing to learn."""

    def _final(self, states_ND: Tensor) -> Tensor:
        return states_ND

    def _halted(self, states_ND: Tensor) -> tuple[Tensor, Tensor]:
        return states_ND, states_ND

    def _keep_rows(self, kept_M: Tensor) -> None:
        self._rounds_N = self._rounds_N[kept_M]
