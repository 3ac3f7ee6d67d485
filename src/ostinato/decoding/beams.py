"""The hypotheses of a search: the live ones, the finished ones, their tokens and their scores.

Letters: S sentences still in the batch, K hypotheses of each, N proposals of each, L generated tokens, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from ostinato.config.decoding import DecodingConfig, LengthPenaltyConfig
from ostinato.decoding.proposals import Proposals
from ostinato.kernels import on_device, runs_ahead

# The tensors of `Beams` that have a row for every sentence in the batch.
_PER_SENTENCE = (
    *("_minimum_S", "_limit_S", "_last_penalty_S", "log_prob_SK", "stopped_S"),
    *("_best_score_SK", "_best_log_prob_SK", "_best_place_SK", "_is_cut_S"),
)


_LOOK_EVERY = 8
"""Tokens after which an accelerator is asked who has stopped: more rows are computed in vain than a look costs."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One output.

    Args:
        ids: what was generated, without the begin and end symbols and without a forced prefix.
        score: `log_prob` divided by the length penalty.
        log_prob: sum of the model's own log-probabilities (temperature 1, whole vocabulary), the end symbol's included.
        finished: False where the length limit stopped it before its end symbol.
        token_log_probs: of every token generated, the end symbol's last; None without `token_scores`. They
            are differences of float32 sums, whose rounding they carry.
    """

    ids: list[int]
    score: float
    log_prob: float
    finished: bool
    token_log_probs: list[float] | None = None

    @property
    def n_tokens(self) -> int:
        """Tokens generated, the end symbol included."""
        return len(self.ids) + self.finished


def length_penalty(config: LengthPenaltyConfig, n_tokens: int) -> float:
    """Return the divisor of the log-probability of n generated tokens (end symbol included).

    none: 1.   gnmt: ((5 + n) / 6)^alpha  (Wu et al. 2016, eq. 14).   exponent: n^alpha.

    It never falls as n grows, so a hypothesis of log-probability s <= 0 that may still grow to m tokens scores at most
    s / length_penalty(m): the bound of the stopping rule.
    """
    if config.kind == "none":
        return 1.0
    base = (5.0 + n_tokens) / 6.0 if config.kind == "gnmt" else float(n_tokens)
    return math.pow(base, config.alpha)


@dataclass(frozen=True, slots=True)
class Outputs:
    """The outputs of sentences that have left the batch; numbers that are still on the device.

    Args:
        rows: of the first batch. is_cut_S: no hypothesis has finished.
        scores_SN, log_probs_SN, places_SN: of their best results.
        steps_2LSK: tokens of the live hypotheses by step, and the hypothesis each one continued.
        sums_LSK: their log-probabilities so far; None without `token_scores`.
    """

    rows: list[int]
    scores_SN: Tensor
    log_probs_SN: Tensor
    places_SN: Tensor
    is_cut_S: Tensor
    steps_2LSK: Tensor
    sums_LSK: Tensor | None

    def read(self) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Yield the outputs, best first, each with the sentence's row in the first batch."""
        best = (self.scores_SN, self.log_probs_SN, self.places_SN)
        scores, log_probs, places = (best_SN.tolist() for best_SN in best)
        is_cut, (tokens, parents) = self.is_cut_S.tolist(), self.steps_2LSK.tolist()
        sums = None if self.sums_LSK is None else self.sums_LSK.tolist()
        n_beams = self.steps_2LSK.shape[-1]
        for i, row in enumerate(self.rows):
            finished = not is_cut[i]
            found: list[Hypothesis] = []
            for score, log_prob, place in zip(scores[i], log_probs[i], places[i], strict=True):
                if found and score == -torch.inf:
                    continue
                slots = _slots(parents, i, *divmod(place, n_beams))
                ids, token_log_probs = [tokens[step][i][slot] for step, slot in enumerate(slots)], None
                if sums is not None:
                    totals = [0.0, *(sums[step][i][slot] for step, slot in enumerate(slots)), *[log_prob] * finished]
                    token_log_probs = [after - before for before, after in pairwise(totals)]
                found.append(Hypothesis(ids, score, log_prob, finished, token_log_probs))
            yield row, found


def _slots(parents_LSK: list[list[list[int]]], sentence: int, length: int, slot: int) -> list[int]:
    """Return the slot that a hypothesis had at every step, the first one first.

    Args:
        slot: that it had at the last one.
    """
    found = []
    for step in range(length - 1, -1, -1):
        found.append(slot)
        slot = parents_LSK[step][sentence][slot]
    return found[::-1]


class Beams:
    """State of a search over S sentences with K live hypotheses each, all of `length` generated tokens.

    Args:
        lengths: least and most tokens of every sentence, the end symbol included.
        config: its beam is K; its length penalty, stopping rule, number of outputs and whether they carry scores.
        eos: id of the end symbol.

    Attributes:
        log_prob_SK: of the live hypotheses, best first; -inf where there is none.
        stopped_S: True for sentences whose result is final. They stay in the batch until `keep`.
        limits: most tokens of every sentence in the batch.
    """

    def __init__(
        self, lengths: Sequence[tuple[int, int]], config: DecodingConfig, eos: int, device: torch.device
    ) -> None:
        S, K = len(lengths), config.beam
        self.n_beams, self.length, self._eos = K, 0, eos
        self._penalty, self._stopping, self._n_best = config.length_penalty, config.stopping, config.n_best
        self._token_scores = config.token_scores
        # Tokens of the live hypotheses by step, with the hypothesis each one continued. A sequence is read back when
        # its sentence leaves the batch: to copy sequences at every step would cost time quadratic in their length.
        self._ids_LSK: list[Tensor] = []
        self._parents_LSK: list[Tensor] = []
        self._sums_LSK: list[Tensor] = []  # with `token_scores`: log-probabilities up to every step
        self._rows = list(range(S))
        # These are Python numbers, so that most steps need no wait for the device to compare lengths.
        self._shortest_minimum = min(least for least, _ in lengths)
        self._longest_minimum = max(least for least, _ in lengths)
        self.limits = [most for _, most in lengths]
        self._minimum_S, self._limit_S = on_device(lengths, device).unbind(1)
        penalties = [length_penalty(self._penalty, most) for _, most in lengths]
        self._last_penalty_S = on_device(penalties, device)
        self.log_prob_SK = torch.full((S, K), -torch.inf, device=device)
        self.log_prob_SK[:, 0] = 0.0
        self.stopped_S = torch.zeros(S, dtype=torch.bool, device=device)
        # The K best results, best first: score, log-probability, and length * K + slot of the hypothesis that ended.
        self._best_score_SK = torch.full((S, K), -torch.inf, device=device)
        self._best_log_prob_SK = torch.full((S, K), -torch.inf, device=device)
        self._best_place_SK = torch.zeros(S, K, dtype=torch.long, device=device)
        self._is_cut_S = torch.zeros(S, dtype=torch.bool, device=device)
        self._none_has_ended = not runs_ahead(device)  # an accelerator is not asked
        self.last_ids_R1 = torch.empty(S * K, 1, dtype=torch.long, device=device)
        self._first_rows_S1 = torch.arange(0, S * K, K, device=device)[:, None]

    def mask_early_ends(self, x_RV: Tensor) -> Tensor:
        """Set x of the end symbol (see `next_log_probs`) to -inf, in place, where a sentence is too short to end."""
        if self.length + 1 < self._shortest_minimum:
            x_RV[:, self._eos] = -torch.inf
        elif self.length + 1 < self._longest_minimum:
            is_short_R = (self._minimum_S > self.length + 1).repeat_interleave(self.n_beams)
            x_RV[:, self._eos].masked_fill_(is_short_R, -torch.inf)
        return x_RV

    def advance(self, proposals: Proposals) -> None:
        """Finish and continue hypotheses."""
        self.length += 1
        S, K = self.log_prob_SK.shape
        eos, ids_SN = self._eos, proposals.ids_SN
        ends_SN = ids_SN == eos if runs_ahead(ids_SN.device) or any(eos in ids for ids in ids_SN.tolist()) else None
        if ends_SN is not None:
            self._finish(proposals, ends_SN)
        if ends_SN is None or K == 1:
            # Where none ends, the best proposals, which come first, are continued. A single hypothesis that ends leaves
            # no other to continue: the sentence stops.
            kept = proposals if ids_SN.shape[1] == K else (x_SN[:, :K] for x_SN in proposals)
            ids_SK, parents_SK, self.log_prob_SK = kept
        else:
            self.log_prob_SK, live_SK = proposals.log_prob_SN.masked_fill(ends_SN, -torch.inf).topk(K, dim=1)
            ids_SK, parents_SK = ids_SN.gather(1, live_SK), proposals.parents_SN.gather(1, live_SK)
        self._ids_LSK.append(ids_SK)
        self._parents_LSK.append(parents_SK)
        if self._token_scores:
            self._sums_LSK.append(self.log_prob_SK)
        self.last_ids_R1 = ids_SK.reshape(S * K, 1)
        if ends_SN is not None or self.has_reached_a_limit or (K > 1 and self._may_be_decided()):
            self._mark_stopped(ends_SN)

    def continued(self) -> Tensor:
        """Return for every row the row that it continues."""
        return (self._first_rows_S1 + self._parents_LSK[-1]).flatten()

    def leading(self) -> dict[int, list[int]]:
        """Return the ids of every sentence's best live hypothesis, by the sentence's row in the first batch."""
        tokens, parents = self._steps_2LSK().tolist()
        return {
            sentence: [tokens[step][i][slot] for step, slot in enumerate(_slots(parents, i, len(parents), 0))]
            for i, sentence in enumerate(self._rows)
        }

    def _steps_2LSK(self) -> Tensor:
        return torch.stack([torch.stack(self._ids_LSK), torch.stack(self._parents_LSK)])

    @property
    def has_reached_a_limit(self) -> bool:
        """Whether some sentence in the batch has just as many tokens as it may have."""
        return self.length in self.limits

    def who_stopped(self) -> list[bool]:
        """Return whether the result of each sentence is known to be final.

        An accelerator, which is waited for, is asked at every `_LOOK_EVERY`th token and where some sentence reaches its
        limit only, and not where the lengths tell: a sentence that has stopped stays as it is, however many tokens its
        rows are given after that.
        """
        S = len(self._rows)
        if self.length >= max(self.limits):
            return [True] * S
        is_early = self.length < self._shortest_minimum
        if (
            runs_ahead(self.stopped_S.device)
            and (self.length % _LOOK_EVERY or is_early)
            and not self.has_reached_a_limit
        ):
            return [False] * S
        return self.stopped_S.tolist()

    def outputs(self, stopped: Sequence[int]) -> Outputs:
        """Return the outputs of sentences, to be read when the search is over.

        Args:
            stopped: the sentences, by their row in the batch as it is now.
        """
        stopped_S = on_device(stopped, self.stopped_S.device)
        best = (self._best_score_SK, self._best_log_prob_SK, self._best_place_SK)
        scores_SN, log_probs_SN, places_SN = (x_SK.index_select(0, stopped_S)[:, : self._n_best] for x_SK in best)
        return Outputs(
            [self._rows[sentence] for sentence in stopped],
            scores_SN,
            log_probs_SN,
            places_SN,
            self._is_cut_S.index_select(0, stopped_S),
            self._steps_2LSK().index_select(2, stopped_S),
            torch.stack(self._sums_LSK).index_select(1, stopped_S) if self._token_scores else None,
        )

    def keep(self, sentences: Sequence[int], sentences_S: Tensor) -> None:
        """Keep these sentences, by number on the host and on the device; the others leave the batch."""
        self._rows, self.limits = ([found[i] for i in sentences] for found in (self._rows, self.limits))
        K = self.n_beams
        self.last_ids_R1 = self.last_ids_R1.view(-1, K).index_select(0, sentences_S).view(-1, 1)
        self._first_rows_S1 = self._first_rows_S1[: len(sentences)]
        for name in _PER_SENTENCE:
            setattr(self, name, getattr(self, name).index_select(0, sentences_S))
        for x_LSK in (self._ids_LSK, self._parents_LSK, self._sums_LSK):
            if x_LSK:  # the sums are kept with `token_scores` only
                x_LSK[:] = torch.stack(x_LSK).index_select(1, sentences_S)

    def _finish(self, proposals: Proposals, ends_SN: Tensor) -> None:
        """Put those of the first K proposals that end among the K best results so far."""
        K = self.n_beams
        if self.length < self._shortest_minimum:
            return
        if not runs_ahead(ends_SN.device) and not bool(ends_SN[:, :K].any()):
            return  # a CPU ranks only where something ends
        self._none_has_ended = False
        log_prob_SK = proposals.log_prob_SN[:, :K]
        counts_SK = ends_SN[:, :K] & ~self.stopped_S[:, None]
        score_SK = (log_prob_SK / length_penalty(self._penalty, self.length)).masked_fill(~counts_SK, -torch.inf)
        place_SK = proposals.parents_SN[:, :K] + (self.length - 1) * K
        self._best_score_SK, best_SK = torch.cat([self._best_score_SK, score_SK], dim=1).topk(K, dim=1)
        self._best_log_prob_SK = torch.cat([self._best_log_prob_SK, log_prob_SK], dim=1).gather(1, best_SK)
        self._best_place_SK = torch.cat([self._best_place_SK, place_SK], dim=1).gather(1, best_SK)

    def _may_be_decided(self) -> bool:
        """Return whether something has ended, or nothing lives in some sentence; an accelerator is not asked."""
        return not self._none_has_ended or any(best == -math.inf for best, *_ in self.log_prob_SK.tolist())

    def _mark_stopped(self, ends_SN: Tensor | None) -> None:
        """Mark the sentences whose result is final.

        Args:
            ends_SN: the proposals that end; None: none does.
        """
        if self.n_beams == 1:
            is_decided_S = torch.zeros_like(self.stopped_S) if ends_SN is None else ends_SN[:, 0]
        else:
            # A best score is -inf where fewer hypotheses have finished; the bound is -inf where none lives.
            bound_S = self.log_prob_SK[:, 0] / self._last_penalty_S
            is_decided_S = bound_S <= self._best_score_SK[:, self._n_best - 1]
            if self._stopping == "count":
                is_decided_S |= self._best_score_SK[:, -1] > -torch.inf
        if self.has_reached_a_limit:
            is_last_S = self._limit_S <= self.length
            self._take_live(is_last_S & ~self.stopped_S)
            is_decided_S = is_decided_S | is_last_S
        self.stopped_S = self.stopped_S | is_decided_S

    def _take_live(self, where_S: Tensor) -> None:
        """Make the live hypotheses the result of those sentences where none has finished."""
        S, K = self.log_prob_SK.shape
        is_cut_S1 = (where_S & (self._best_score_SK[:, 0] == -torch.inf))[:, None]
        score_SK = self.log_prob_SK / length_penalty(self._penalty, self.length)
        place_SK = (torch.arange(K, device=where_S.device) + self.length * K).expand(S, K)
        self._best_score_SK = torch.where(is_cut_S1, score_SK, self._best_score_SK)
        self._best_log_prob_SK = torch.where(is_cut_S1, self.log_prob_SK, self._best_log_prob_SK)
        self._best_place_SK = torch.where(is_cut_S1, place_SK, self._best_place_SK)
        self._is_cut_S = self._is_cut_S | is_cut_S1[:, 0]
