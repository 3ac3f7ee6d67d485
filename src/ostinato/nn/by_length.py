"""Rounds by sentence: all tokens of a sentence run T of them.

By length: longer sources get more rounds (Universal Transformers, appendix on computational power).

    T(n) = min(R, max(1, ceil(a n + b)))        n: real tokens of the source, R: rounds of the stack

A decoder's sentence has the rounds that its source's length gives. Nothing is learned: whoever has had its rounds stays
as it is, and that is what others see of it.

As given: T is a number for every sentence, R the largest (Prairie et al. 2026, Parcae, in training; masked updates in
its public code). A sentence waits in the first R - T rounds, as it started. So all end together, and the last k rounds
of a pass, through which a gradient goes, are the last k of every sentence, or all that it has.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch

from ostinato.kernels import float64, on_device
from ostinato.nn.context import Pass
from ostinato.nn.halting import HaltingPass, HaltingRule, Visible, where_active
from ostinato.nn.rows import Rows
from ostinato.nn.shapes import Bool, Float, Int, Tensor


class Prescribed(HaltingRule):
    """A rule that knows before the first round how many rounds every token runs: compiled kernels need `ends` alone."""

    @abstractmethod
    def ends(self, rows: Rows, run: Pass, n_rounds: int | Tensor) -> Int[Tensor, "N"]:
        """Return how many rounds every token runs, 1 or more; padding counts as a token."""

    def start(self, states_ND: Float[Tensor, "N D"], rows: Rows, run: Pass, n_rounds: int | Tensor) -> SentencesPass:
        """Begin a pass."""
        ends_N = self.ends(rows, run, n_rounds)
        return SentencesPass(states_ND, rows, run, torch.zeros_like(ends_N), ends_N)


class ByLength(Prescribed):
    """The rule of one stack.

    Args:
        per_token, extra: a and b.
    """

    def __init__(self, per_token: float, extra: float) -> None:
        self.per_token, self.extra = per_token, extra

    def ends(self, rows: Rows, run: Pass, n_rounds: int | Tensor) -> Int[Tensor, "N"]:
        """Return T of every token's sentence."""
        lengths_B = run.source_lengths(rows.n_sentences).to(float64(run.positions.device))
        # Decimal numbers: 0.07 times 100 is 7.000000000000001, and means 7 rounds.
        rounds_B = (self.per_token * lengths_B + self.extra - 1e-9).ceil().long().clamp(min=1).clamp(max=n_rounds)
        return rows.take(rounds_B[:, None].expand(-1, rows.n_columns))


class BySentence(HaltingRule):
    """The rule of one stack whose sentences have the rounds that are given, at least 1.

    All rows are computed in every round: what was gathered away while it waited would not come back.
    """

    freezes = False

    def __init__(self, rounds: Sequence[int]) -> None:
        self.rounds = rounds

    def start(self, states_ND: Float[Tensor, "N D"], rows: Rows, run: Pass, n_rounds: int | Tensor) -> SentencesPass:
        """Begin a pass.

        Raises:
            ValueError: another number of sentences.
        """
        if len(self.rounds) != rows.n_sentences:
            raise ValueError(f"rounds are given for {len(self.rounds)} sentences, and there are {rows.n_sentences}")
        rounds_N = rows.take(on_device(self.rounds, states_ND.device)[:, None].expand(-1, rows.n_columns))
        started = SentencesPass(states_ND, rows, run, n_rounds - rounds_N, torch.full_like(rounds_N, int(n_rounds)))
        started.ends_early = False
        return started


class SentencesPass(HaltingPass):
    """One pass: rows run from their round `first_N` to before `end_N`; those of padding in none."""

    def __init__(self, states_ND: Tensor, rows: Rows, run: Pass, first_N: Tensor, end_N: Tensor) -> None:
        super().__init__(states_ND, rows, run)
        self._first_N = first_N
        self._end_N = end_N if self._keep_N is None else torch.where(self._keep_N, end_N, 0)
        self._learns, self._is_alike = torch.is_grad_enabled(), run.execution.any_process is not None

    def active(self, index: int | Tensor, states_ND: Float[Tensor, "N D"]) -> Bool[Tensor, "N"] | None:
        """Those that have begun and not ended."""
        self._set_active((self._first_N <= index) & (index < self._end_N))
        return self.active_N

    def enter(
        self, index: int | Tensor, states_ND: Float[Tensor, "N D"], entered_ND: Float[Tensor, "N E"]
    ) -> tuple[Tensor | None, Visible]:
        """Tokens that have ended show the state that left their last round, which is all of their output."""
        active_N, runs_N = self.active_N, self._runs_N()
        last_N = (self._end_N == index + 1).to(self._zeros_N.dtype)
        self._record(self._probs, last_N)
        self._record(self._weights, last_N)
        self._record(self._left, runs_N.to(self._zeros_N.dtype))
        self._record(self._executed, runs_N)
        if active_N is None:
            return None, None
        return active_N.to(states_ND.dtype), lambda later_ND: where_active(active_N, later_ND, states_ND)

    def leave(
        self, index: int | Tensor, states_ND: Float[Tensor, "N D"], left_ND: Float[Tensor, "N D"]
    ) -> Float[Tensor, "N D"]:
        """Rows that do not run keep their states, with the gradient of these even in a round that runs without one.

        A sentence that waits in early rounds (`Execution.gradient_rounds`) still learns what it started from.
        """
        # Without a mask there would be no `where` in the graph, and all processes must build the same one.
        active_N = self._runs_N() if self._is_alike else self.active_N
        with torch.set_grad_enabled(self._learns):
            return where_active(active_N, left_ND, states_ND)

    def _keep_rows(self, kept_M: Tensor) -> None:
        self._first_N, self._end_N = self._first_N[kept_M], self._end_N[kept_M]
