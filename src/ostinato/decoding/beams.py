"""The hypotheses of a search: what lives, what has finished, and how each was reached.

Letters: S sentences still in the batch, K hypotheses of each, N proposals of each, L generated tokens.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ostinato.config.decoding import DecodingConfig
from ostinato.data.tokenizer import EOS_ID
from ostinato.decoding.hypothesis import Hypothesis, length_penalty
from ostinato.decoding.proposals import Proposals


class _History:
    """Tokens of the live hypotheses step by step, with the hypothesis each one continued.

    Only two numbers a hypothesis are added at each step; whole sequences are read back when a sentence leaves.
    """

    def __init__(self) -> None:
        self._steps_LS2K: list[Tensor] = []

    def append(self, ids_SK: Tensor, parents_SK: Tensor) -> None:
        """Add one step."""
        self._steps_LS2K.append(torch.stack([ids_SK, parents_SK], dim=1)[None])

    def keep(self, sentences_S: Tensor) -> None:
        """Keep these sentences."""
        self._steps_LS2K = [torch.cat(self._steps_LS2K).index_select(1, sentences_S)]

    def trace(self, sentences_S: Tensor, lengths: list[int], slots: list[int]) -> Iterator[list[int]]:
        """Yield for each of these sentences the first tokens of the hypothesis that stood at `slot` after `length`."""
        steps = torch.cat(self._steps_LS2K).index_select(1, sentences_S).cpu().numpy()
        for column, (length, slot) in enumerate(zip(lengths, slots, strict=True)):
            ids: list[int] = []
            for ids_K, parents_K in reversed(steps[:length, column]):
                ids.append(int(ids_K[slot]))
                slot = int(parents_K[slot])
            yield ids[::-1]


class Beams:
    """State of a search over S sentences with K live hypotheses each, all of `length` generated tokens.

    Args:
        limits: most tokens of every sentence, the end symbol included.
        config: its beam is K; its length penalty and stopping rule.

    Attributes:
        log_prob_SK: of the live hypotheses, best first; -inf where there is none.
        stopped_S: True for sentences whose result stands. They stay in the batch, unchanged, until `keep`.
    """

    def __init__(self, limits: list[int], config: DecodingConfig, device: torch.device) -> None:
        S, K = len(limits), config.beam
        self.n_beams, self.length = K, 0
        self._penalty, self._stopping = config.length_penalty, config.stopping
        self._history = _History()
        self._rows = list(range(S))
        self._limit_S = torch.tensor(limits, device=device)
        self._last_penalty_S = torch.tensor([length_penalty(self._penalty, n) for n in limits], device=device)
        self.log_prob_SK = torch.full((S, K), -torch.inf, device=device)
        self.log_prob_SK[:, 0] = 0.0
        self.stopped_S = torch.zeros(S, dtype=torch.bool, device=device)
        self._kept_SK = torch.full((S, K), -torch.inf, device=device)
        # The result of every sentence: score, log-probability; and length, slot, and whether it finished.
        self._best_S2 = torch.full((S, 2), -torch.inf, device=device)
        self._where_S3 = torch.zeros(S, 3, dtype=torch.long, device=device)
        self.last_ids_R1 = torch.empty(S * K, 1, dtype=torch.long, device=device)

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
        self._history.append(ids_SK, parents_SK)
        self.last_ids_R1 = ids_SK.reshape(S * K, 1)
        self._stop(ends_SN)
        return (torch.arange(S, device=parents_SK.device)[:, None] * K + parents_SK).flatten()

    def leave(self, stopped: list[int]) -> Iterator[tuple[int, Hypothesis]]:
        """Yield the result of these sentences (by their place in the batch now), with their row in the first batch."""
        stopped_S = torch.tensor(stopped, device=self.stopped_S.device)
        best = self._best_S2.index_select(0, stopped_S).tolist()
        lengths, slots, finished = self._where_S3.index_select(0, stopped_S).t().tolist()
        paths = self._history.trace(stopped_S, lengths, slots)
        for i, (score, log_prob), is_finished, ids in zip(stopped, best, finished, paths, strict=True):
            yield self._rows[i], Hypothesis(ids, score, log_prob, bool(is_finished))

    def keep(self, sentences_S: Tensor) -> None:
        """Keep these sentences; the others leave the batch."""
        self._rows = [self._rows[i] for i in sentences_S.tolist()]
        K = self.n_beams
        self.last_ids_R1 = self.last_ids_R1.view(-1, K).index_select(0, sentences_S).view(-1, 1)
        for name in ("_limit_S", "_last_penalty_S", "log_prob_SK", "stopped_S", "_kept_SK", "_best_S2", "_where_S3"):
            setattr(self, name, getattr(self, name).index_select(0, sentences_S))
        self._history.keep(sentences_S)

    def _finish(self, proposals: Proposals, ends_SN: Tensor) -> None:
        """Set the first K proposals that end aside."""
        K = self.n_beams
        log_prob_SK = proposals.log_prob_SN[:, :K]
        counts_SK = ends_SN[:, :K] & ~self.stopped_S[:, None]
        score_SK = (log_prob_SK / length_penalty(self._penalty, self.length)).masked_fill(~counts_SK, -torch.inf)
        score_S1, first_S1 = score_SK.max(dim=1, keepdim=True)
        self._replace(
            score_S1[:, 0] > self._best_S2[:, 0],
            torch.cat([score_S1, log_prob_SK.gather(1, first_S1)], dim=1),
            proposals.parents_SN.gather(1, first_S1)[:, 0],
            length=self.length - 1,
            finished=True,
        )
        if K > 1:
            self._kept_SK = torch.cat([self._kept_SK, score_SK], dim=1).topk(K, dim=1).values

    def _stop(self, ends_SN: Tensor) -> None:
        """Mark sentences whose result stands; one that nothing finished in takes its best live hypothesis."""
        best_live_S = self.log_prob_SK[:, 0]
        if self.n_beams == 1:
            is_decided_S = ends_SN[:, 0]
        else:
            # The worst is -inf where fewer than K finished; the bound is -inf where nothing lives.
            worst_S, bound_S = self._kept_SK[:, -1], best_live_S / self._last_penalty_S
            is_decided_S = bound_S <= worst_S
            if self._stopping == "count":
                is_decided_S |= worst_S > -torch.inf
        stops_S = (is_decided_S | (self._limit_S <= self.length)) & ~self.stopped_S
        score_S = best_live_S / length_penalty(self._penalty, self.length)
        self._replace(
            stops_S & (self._where_S3[:, 2] == 0),
            torch.stack([score_S, best_live_S], dim=1),
            torch.zeros_like(self._limit_S),
            length=self.length,
            finished=False,
        )
        self.stopped_S = self.stopped_S | stops_S

    def _replace(self, where_S: Tensor, best_S2: Tensor, slot_S: Tensor, *, length: int, finished: bool) -> None:
        found_S3 = torch.stack([torch.full_like(slot_S, length), slot_S, torch.full_like(slot_S, int(finished))], dim=1)
        self._best_S2 = torch.where(where_S[:, None], best_S2, self._best_S2)
        self._where_S3 = torch.where(where_S[:, None], found_S3, self._where_S3)
