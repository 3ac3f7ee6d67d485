"""Proposals for the next token: greedy search, sampling, beam search.

Letters: S sentences in the batch, K hypotheses of each, R = S * K rows (sentence-major), V vocabulary, N proposals of
each sentence, T tokens a sentence may generate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from ostinato.config.decoding import DecodingConfig
from ostinato.config.special_ids import SpecialIds
from ostinato.kernels import float64, highest, log_probs


class Proposals(NamedTuple):
    """Continuations of every sentence's hypotheses, best first.

    Args:
        ids_SN: next token.
        parents_SN: hypothesis it continues.
        log_prob_SN: of the whole continuation; -inf where it is impossible.
    """

    ids_SN: Tensor
    parents_SN: Tensor
    log_prob_SN: Tensor


@runtime_checkable
class Proposer(Protocol):
    """Turns the model's next-token distribution into proposals."""

    def __call__(self, x_RV: Tensor, so_far_SK: Tensor, length: int) -> Proposals:
        """Propose the token after `length` generated ones.

        Args:
            x_RV: log-probabilities of all tokens, up to a constant a row. It may be overwritten: with a large
                vocabulary, new memory takes longer than a sum.
            so_far_SK: those of the hypotheses so far, without these constants: x + so_far is a continuation's.
        """

    def keep(self, sentences_S: Tensor) -> None:
        """Keep these sentences, in this order; nothing to do where nothing belongs to a sentence."""
        return


def next_log_probs(logits_RV: Tensor, log_prob_SK: Tensor, special_ids: SpecialIds) -> tuple[Tensor, Tensor]:
    """Return x_RV and so_far_SK, float32, whose sum is the log-probability of hypothesis r continued by token v.

    Either x is the logits, which are overwritten, and so_far = log p - log sum_v e^x, or x is their log-softmax, and
    so_far is log p, that of the hypothesis. Padding and the begin symbol, which are never generated, have x = -inf: set
    after normalising, so that the others keep the model's own log-probabilities. An id that is also the end symbol's
    stays.
    """
    logits_RV = logits_RV.float()
    if not logits_RV.is_inference():  # made before the search: the model may keep it
        logits_RV = logits_RV.clone()
    return log_probs(logits_RV, log_prob_SK, tuple({special_ids.pad, special_ids.bos} - {special_ids.eos}))


class Highest(Proposer):
    """The most probable continuations of K hypotheses.

    Args:
        n_proposals: a sentence, where there are as many. Greedy search: 1. Beam search: 2K, of which at most K end, so
            that K can be continued.
    """

    def __init__(self, n_proposals: int) -> None:
        self._n_proposals = n_proposals

    def __call__(self, x_RV: Tensor, so_far_SK: Tensor, length: int) -> Proposals:
        """Propose them."""
        x_SKV = x_RV.view(*so_far_SK.shape, -1)
        n = min(self._n_proposals, x_SKV.shape[1] * x_SKV.shape[2])
        log_prob_SN, parents_SN, ids_SN = highest(x_SKV, n, so_far_SK)
        return Proposals(ids_SN, parents_SN, log_prob_SN)


class Sampling:
    """A token drawn from softmax(log p / temperature), among the `top_k` most probable where that is set.

    Every sentence has its own stream of uniform numbers, from its own seed; a number u picks the first token whose
    cumulated probability exceeds u. So the draw depends on the sentence and its seed, not on the rest of the batch.

    Args:
        seeds: one a sentence.
        limits: tokens each sentence may generate.
    """

    def __init__(self, config: DecodingConfig, seeds: list[int], limits: list[int], device: torch.device) -> None:
        self.temperature, self.top_k = config.temperature, config.top_k
        uniform_ST = torch.zeros(len(seeds), max(limits), dtype=float64(device), device="cpu")
        generator = torch.Generator()
        for row, (seed, limit) in enumerate(zip(seeds, limits, strict=True)):
            generator.manual_seed(seed)
            uniform_ST[row, :limit] = torch.rand(limit, dtype=torch.float64, generator=generator, device="cpu")
        self._uniform_ST = uniform_ST.to(device)

    def __call__(self, x_RV: Tensor, so_far_SK: Tensor, length: int) -> Proposals:
        """Draw one token a sentence."""
        if self.top_k is None or self.top_k >= x_RV.shape[1]:
            kept, kept_ids = x_RV, None
        else:
            kept, kept_ids = x_RV.topk(self.top_k, dim=1)
        # From the highest one, whose quotient no temperature makes infinite.
        below_RV = kept.double() - kept.double().amax(dim=1, keepdim=True)
        cumulated = torch.softmax(below_RV / self.temperature, dim=1).cumsum(dim=1)
        u_S1 = self._uniform_ST[:, length, None] * cumulated[:, -1:]
        drawn_S1 = torch.searchsorted(cumulated, u_S1, right=True).clamp_(max=cumulated.shape[1] - 1)
        ids_S1 = drawn_S1 if kept_ids is None else kept_ids.gather(1, drawn_S1)
        return Proposals(ids_S1, torch.zeros_like(ids_S1), so_far_SK + x_RV.gather(1, ids_S1))

    def keep(self, sentences_S: Tensor) -> None:
        """Keep these sentences' streams."""
        self._uniform_ST = self._uniform_ST.index_select(0, sentences_S)


def make_proposer(config: DecodingConfig, indices: Sequence[int], limits: list[int], device: torch.device) -> Proposer:
    """Return the proposer of a strategy.

    Args:
        indices: row number of every sentence, which sampling is seeded with.
        limits: tokens each sentence may generate.
    """
    match config.strategy:
        case "beam":
            return Highest(2 * config.beam)
        case "greedy":
            return Highest(1)
        case "sample":
            return Sampling(config, [sentence_seed(config.seed, index) for index in indices], limits, device)


def sentence_seed(seed: int, index: int) -> int:
    """Return a seed for one sentence, from the search's seed and the sentence's row number."""
    # Two rounds of a 64-bit mixer (odd multipliers, xor of the high half): near seeds give unrelated ones.
    mixed = (seed * 0x9E3779B97F4A7C15 + index + 1) % 2**64
    for multiplier in (0xD6E8FEB86659FD93, 0xA0761D6478BD642F):
        mixed = (mixed ^ (mixed >> 32)) * multiplier % 2**64
    return mixed ^ (mixed >> 32)
