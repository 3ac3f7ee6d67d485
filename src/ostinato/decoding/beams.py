"""The hypotheses of a search: what lives, what has finished, and how each was reached.

Letters: S sentences still in the batch, K hypotheses of each, N proposals of each, L generated tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from ostinato.config.decoding import DecodingConfig
from ostinato.data.tokenizer import EOS_ID
from ostinato.decoding.hypothesis import Hypothesis, length_penalty
from ostinato.decoding.proposals import Proposals

_BY_SENTENCE = (
    *("_minimum_S", "_limit_S", "_last_penalty_S", "log_prob_SK", "stopped_S"),
    *("_kept_SK", "_kept_log_prob_SK", "_kept_place_SK", "_is_cut_S"),
)


class _History:
    """Tokens of the live hypotheses step by step, with the hypothesis each one continued.

    Only two numbers a hypothesis are added at each step, and its log-probability where `scores` are wanted; whole
    sequences are read back when a sentence leaves.
    """

    def __init__(self, scores: bool) -> None:
        self._steps_LS2K: list[Tensor] = []
        self._sums_LSK: list[Tensor] | None = [] if scores else None

    def append(self, ids_SK: Tensor, parents_SK: Tensor, log_prob_SK: Tensor) -> None:
        """Add one step."""
        self._steps_LS2K.append(torch.stack([ids_SK, parents_SK], dim=1)[None])
        if self._sums_LSK is not None:
            self._sums_LSK.append(log_prob_SK[None])

    def keep(self, sentences_S: Tensor) -> None:
        """Keep these sentences."""
        self._steps_LS2K = [torch.cat(self._steps_LS2K).index_select(1, sentences_S)]
        if self._sums_LSK is not None:
            self._sums_LSK = [torch.cat(self._sums_LSK).index_select(1, sentences_S)]

    def of(self, sentences_S: Tensor) -> _Paths:
        """Return what can be read back of these sentences."""
        steps_LS2K = torch.cat(self._steps_LS2K).index_select(1, sentences_S).tolist()
        if self._sums_LSK is None:
            return _Paths(steps_LS2K, None)
        return _Paths(steps_LS2K, torch.cat(self._sums_LSK).index_select(1, sentences_S).tolist())


class _Paths:
    """Reads back how hypotheses were reached."""

    def __init__(self, steps_LS2K: list[list[list[list[int]]]], sums_LSK: list[list[list[float]]] | None) -> None:
        self._steps_LS2K, self._sums_LSK = steps_LS2K, sums_LSK

    def trace(self, sentence: int, length: int, slot: int) -> tuple[list[int], list[float]]:
        """Return the first `length` tokens of the hypothesis that stood at `slot` then, and the sums up to each."""
        ids: list[int] = []
        sums: list[float] = []
        for step in range(length - 1, -1, -1):
            ids_K, parents_K = self._steps_LS2K[step][sentence]
            ids.append(ids_K[slot])
            if self._sums_LSK is not None:
                sums.append(self._sums_LSK[step][sentence][slot])
            slot = parents_K[slot]
        return ids[::-1], sums[::-1]


class Beams:
    """State of a search over S sentences with K live hypotheses each, all of `length` generated tokens.

    Args:
        lengths: least and most tokens of every sentence, the end symbol included.
        config: its beam is K; its length penalty, stopping rule, number of outputs and whether they carry scores.

    Attributes:
        log_prob_SK: of the live hypotheses, best first; -inf where there is none.
        stopped_S: True for sentences whose result stands. They stay in the batch, unchanged, until `keep`.
    """

    def __init__(self, lengths: Sequence[tuple[int, int]], config: DecodingConfig, device: torch.device) -> None:
        S, K = len(lengths), config.beam
        self.n_beams, self.length = K, 0
        self._penalty, self._stopping, self._n_best = config.length_penalty, config.stopping, config.n_best
        self._scores = config.token_scores
        self._history = _History(self._scores)
        self._rows = list(range(S))
        # Known without asking the device: when no sentence is too short any more, and when one may be cut.
        self._shortest_minimum, self._longest_minimum = (found(least for least, _ in lengths) for found in (min, max))
        self._limits = {most for _, most in lengths}
        self._minimum_S, self._limit_S = torch.tensor(lengths, device=device).unbind(1)
        penalties = [length_penalty(self._penalty, most) for _, most in lengths]
        self._last_penalty_S = torch.tensor(penalties, device=device)
        self.log_prob_SK = torch.full((S, K), -torch.inf, device=device)
        self.log_prob_SK[:, 0] = 0.0
        self.stopped_S = torch.zeros(S, dtype=torch.bool, device=device)
        # The K best results, best first: score, log-probability, and length * K + slot of what the end symbol follows.
        self._kept_SK = torch.full((S, K), -torch.inf, device=device)
        self._kept_log_prob_SK = torch.full((S, K), -torch.inf, device=device)
        self._kept_place_SK = torch.zeros(S, K, dtype=torch.long, device=device)
        self._is_cut_S = torch.zeros(S, dtype=torch.bool, device=device)
        self.last_ids_R1 = torch.empty(S * K, 1, dtype=torch.long, device=device)

    def allowed(self, log_p_RV: Tensor) -> Tensor:
        """Return the log-probabilities, in place -inf for the end symbol where it would come too early."""
        if self.length + 1 < self._shortest_minimum:
            log_p_RV[:, EOS_ID] = -torch.inf
        elif self.length + 1 < self._longest_minimum:
            is_short_R = (self._minimum_S > self.length + 1).repeat_interleave(self.n_beams)
            log_p_RV[:, EOS_ID].masked_fill_(is_short_R, -torch.inf)
        return log_p_RV

    def advance(self, proposals: Proposals) -> Tensor:
        """Finish and continue hypotheses; return for every row the row it continues."""
        self.length += 1
        S, K = self.log_prob_SK.shape
        ends_SN = proposals.ids_SN == EOS_ID
        self._finish(proposals, ends_SN)
        if K == 1:  # No need to look for one that lives: where the first one ends, the sentence stops.
            ids_SK, parents_SK = proposals.ids_SN[:, :1], proposals.parents_SN[:, :1]
            self.log_prob_SK = proposals.log_prob_SN[:, :1]
        else:
            self.log_prob_SK, live_SK = proposals.log_prob_SN.masked_fill(ends_SN, -torch.inf).topk(K, dim=1)
            ids_SK, parents_SK = proposals.ids_SN.gather(1, live_SK), proposals.parents_SN.gather(1, live_SK)
        self._history.append(ids_SK, parents_SK, self.log_prob_SK)
        self.last_ids_R1 = ids_SK.reshape(S * K, 1)
        self._stop(ends_SN)
        return (torch.arange(S, device=parents_SK.device)[:, None] * K + parents_SK).flatten()

    def leave(self, stopped: list[int]) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Yield the results of these sentences (by their place in the batch now), with their row in the first batch."""
        stopped_S = torch.tensor(stopped, device=self.stopped_S.device)
        kept = (self._kept_SK, self._kept_log_prob_SK, self._kept_place_SK)
        scores, log_probs, places = (kept_SK.index_select(0, stopped_S)[:, : self._n_best].tolist() for kept_SK in kept)
        is_cut = self._is_cut_S.index_select(0, stopped_S).tolist()
        paths = self._history.of(stopped_S)
        for i, sentence in enumerate(stopped):
            results = zip(scores[i], log_probs[i], places[i], strict=True)
            yield (
                self._rows[sentence],
                [
                    self._hypothesis(paths, i, score, log_prob, place, finished=not is_cut[i])
                    for rank, (score, log_prob, place) in enumerate(results)
                    if rank == 0 or score > -torch.inf
                ],
            )

    def _hypothesis(
        self, paths: _Paths, sentence: int, score: float, log_prob: float, place: int, *, finished: bool
    ) -> Hypothesis:
        ids, sums = paths.trace(sentence, *divmod(place, self.n_beams))
        token_log_probs = None
        if self._scores:
            sums = [0.0, *sums, log_prob] if finished else [0.0, *sums]
            token_log_probs = [after - before for before, after in pairwise(sums)]
        return Hypothesis(ids, score, log_prob, finished, token_log_probs)

    def keep(self, sentences_S: Tensor) -> None:
        """Keep these sentences; the others leave the batch."""
        self._rows = [self._rows[i] for i in sentences_S.tolist()]
        K = self.n_beams
        self.last_ids_R1 = self.last_ids_R1.view(-1, K).index_select(0, sentences_S).view(-1, 1)
        for name in _BY_SENTENCE:
            setattr(self, name, getattr(self, name).index_select(0, sentences_S))
        self._history.keep(sentences_S)

    def _finish(self, proposals: Proposals, ends_SN: Tensor) -> None:
        """Set the first K proposals that end aside, and remember the K best of all that ever did."""
        K = self.n_beams
        if not bool(ends_SN[:, :K].any()):  # to ask takes less time, also of a GPU, than to rank what is known
            return
        log_prob_SK = proposals.log_prob_SN[:, :K]
        counts_SK = ends_SN[:, :K] & ~self.stopped_S[:, None]
        score_SK = (log_prob_SK / length_penalty(self._penalty, self.length)).masked_fill(~counts_SK, -torch.inf)
        place_SK = proposals.parents_SN[:, :K] + (self.length - 1) * K
        self._kept_SK, best_SK = torch.cat([self._kept_SK, score_SK], dim=1).topk(K, dim=1)
        self._kept_log_prob_SK = torch.cat([self._kept_log_prob_SK, log_prob_SK], dim=1).gather(1, best_SK)
        self._kept_place_SK = torch.cat([self._kept_place_SK, place_SK], dim=1).gather(1, best_SK)

    def _stop(self, ends_SN: Tensor) -> None:
        """Mark sentences whose result stands."""
        if self.n_beams == 1:
            is_decided_S = ends_SN[:, 0]
        else:
            # What was kept is -inf where fewer have finished; the bound is -inf where nothing lives.
            bound_S = self.log_prob_SK[:, 0] / self._last_penalty_S
            is_decided_S = bound_S <= self._kept_SK[:, self._n_best - 1]
            if self._stopping == "count":
                is_decided_S |= self._kept_SK[:, -1] > -torch.inf
        if self.length in self._limits:
            is_last_S = self._limit_S <= self.length
            self._cut(is_last_S & ~self.stopped_S)
            is_decided_S = is_decided_S | is_last_S
        self.stopped_S = self.stopped_S | is_decided_S

    def _cut(self, where_S: Tensor) -> None:
        """Where nothing has finished, the live hypotheses are the result."""
        S, K = self.log_prob_SK.shape
        is_cut_S1 = (where_S & (self._kept_SK[:, 0] == -torch.inf))[:, None]
        score_SK = self.log_prob_SK / length_penalty(self._penalty, self.length)
        place_SK = (torch.arange(K, device=where_S.device) + self.length * K).expand(S, K)
        self._kept_SK = torch.where(is_cut_S1, score_SK, self._kept_SK)
        self._kept_log_prob_SK = torch.where(is_cut_S1, self.log_prob_SK, self._kept_log_prob_SK)
        self._kept_place_SK = torch.where(is_cut_S1, place_SK, self._kept_place_SK)
        self._is_cut_S = self._is_cut_S | is_cut_S1[:, 0]
