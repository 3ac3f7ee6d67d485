"""The search loop: one for greedy, sampling and beam search, over any model with `encode` and `step`.

Scores. A hypothesis of n generated tokens (end symbol included) and log-probability s scores s / length_penalty(n);
see `ostinato.decoding.hypothesis`.

Lengths. A sentence may generate at most max_length + floor(max_length_ratio * source tokens) tokens, and must generate
min_length + floor(min_length_ratio * source tokens) of them: before that, the end symbol is impossible. The end symbols
of both sides count; a prefix does not.

Every step ranks the continuations of a sentence's K hypotheses. Those among the first K that are an end symbol finish
and are set aside; the best K others live on. (Greedy and sampling: K = 1.) A sentence stops

    - at its length limit;
    - greedy, sampling: when its only hypothesis ends;
    - beam search: when no live hypothesis can beat the worst of the n_best best finished ones, even if all its further
      tokens were certain: s / length_penalty(limit) <= worst. Its outputs are those of a search run to the limit. With
      `stopping="count"` also when K hypotheses have finished, whatever might still come.

The best finished hypotheses are the result; where none finished, the best live ones, marked `finished=False`. The
encoder runs once, a prompt runs once per sentence, sentences that stopped leave the batch, and a hypothesis that has
finished gives its place to a live one.

Letters: S sentences still in the batch, K hypotheses of each, N proposals of each, T columns.
"""

from __future__ import annotations

from math import floor
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from ostinato.config.decoding import DecodingConfig
from ostinato.data.batch import Batch, Tokens
from ostinato.decoding.beams import Beams
from ostinato.decoding.hypothesis import Hypothesis
from ostinato.decoding.prompts import make_prompt
from ostinato.decoding.proposals import Beam, Greedy, Proposer, Sampling, next_log_probs, sentence_seed
from ostinato.nn.cache import Cache

# Stopped sentences leave the batch when they are at least this part of it: leaving copies the cache of those that stay,
# so that doing it for every single one would cost more than it saves.
_LEAVE_AT = 1 / 8


@runtime_checkable
class Decodable(Protocol):
    """What the search asks of a model."""

    def encode(self, batch: Batch, *, n_steps: int | None = None) -> Cache:
        """Return the cache that decoding starts from, one row a sentence."""

    def step(self, ids_BT: Tensor, cache: Cache, keep_BT: Tensor | None = None) -> Tensor:
        """Add T target columns to the cache and return the logits after the last one, `[B, V]`."""


def search(
    model: Decodable,
    batch: Batch,
    config: DecodingConfig,
    prefix: Tokens | None = None,
    n_steps: int | None = None,
) -> list[Hypothesis]:
    """Search the best output for every sentence of a batch, in the batch's order; see `search_n_best`."""
    return [found[0] for found in search_n_best(model, batch, config, prefix, n_steps)]


@torch.inference_mode()
def search_n_best(
    model: Decodable,
    batch: Batch,
    config: DecodingConfig,
    prefix: Tokens | None = None,
    n_steps: int | None = None,
) -> list[list[Hypothesis]]:
    """Search the `config.n_best` best outputs for every sentence of a batch, best first, in the batch's order.

    There are fewer where fewer have finished within the length limit. Their ids differ; their texts may not, where a
    tokenizer writes one text in several ways. The model is used as it stands: put it in evaluation mode first.

    Args:
        batch: the sources, also those that a language model reads in one sequence with the target: they become its
            prompt. Of texts a language model only takes the number of sentences.
        prefix: target tokens that are given, padded on the left, begin symbol first: a language model's prompt, or a
            translation's beginning. None: the begin symbol alone. Limits and scores count only what is generated.
        n_steps: rounds to run instead of the plans' own (fully shared plans only).

    Sampling draws from one stream a sentence, seeded with `config.seed` and its row number `batch.indices` (its place
    in the batch where there is none).

    Raises:
        DataError: a prefix that does not fit the batch or is padded on the right.
    """
    n_sentences = batch.n_sentences
    if n_sentences == 0:
        return []
    prompt = make_prompt(batch, prefix)
    lengths = _lengths(batch, prompt, config)
    device = prompt.ids_BT.device
    propose = _proposer(config, batch, [most for _, most in lengths], device)
    cache = model.encode(batch, n_steps=n_steps)
    logits_RV = model.step(prompt.ids_BT, cache, prompt.keep_BT)
    K = config.beam
    if K > 1:
        cache.expand(K, n_sentences)
        logits_RV = logits_RV.repeat_interleave(K, dim=0)
    beams = Beams(lengths, config, device)
    found: list[list[Hypothesis]] = [[] for _ in range(n_sentences)]
    while True:
        log_p_RV = beams.allowed(next_log_probs(logits_RV))
        rows_R = beams.advance(propose(log_p_RV, beams.log_prob_SK, beams.length))
        stopped = beams.stopped_S.tolist()
        n_stopped = sum(stopped)
        is_over = n_stopped == len(stopped)
        if not is_over and K > 1:
            cache.reorder(rows_R)
        if is_over or (n_stopped and n_stopped >= _LEAVE_AT * len(stopped)):
            for row, hypotheses in beams.leave([i for i, stop in enumerate(stopped) if stop]):
                found[row] = hypotheses
            if is_over:
                return found
            stay_S = torch.tensor([i for i, stop in enumerate(stopped) if not stop], device=device)
            beams.keep(stay_S)
            propose.keep(stay_S)
            cache.keep(stay_S)
        logits_RV = model.step(beams.last_ids_R1, cache)


def _lengths(batch: Batch, prompt: Tokens, config: DecodingConfig) -> list[tuple[int, int]]:
    """Return the least and the most tokens of every sentence; where there are no sources, prompts count.

    At least one may be generated, and what may be is never less than what must.
    """
    if config.max_length_ratio == config.min_length_ratio == 0.0:
        sources = [0] * batch.n_sentences
    elif batch.prefix_lengths_B is not None:
        sources = batch.prefix_lengths_B.tolist()
    else:
        sources = (prompt if batch.source is None else batch.source).keep_BT.sum(dim=1).tolist()
    found = []
    for n in sources:
        most = max(1, config.max_length + floor(config.max_length_ratio * n))
        found.append((min(most, config.min_length + floor(config.min_length_ratio * n)), most))
    return found


def _proposer(config: DecodingConfig, batch: Batch, limits: list[int], device: torch.device) -> Proposer:
    if config.strategy == "beam":
        return Beam()
    if config.strategy == "greedy":
        return Greedy()
    indices = batch.indices or range(batch.n_sentences)
    return Sampling(config, [sentence_seed(config.seed, index) for index in indices], limits, device)
