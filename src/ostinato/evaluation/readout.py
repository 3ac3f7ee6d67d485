"""Outputs of the head of an encoder-only model, with scores, and outputs as texts.

classification, tagging   the most probable label at every place; score: mean log-probability of those
span                      the columns start <= end of the passage, at most `max_answer_length` tokens, whose
                          start and end scores have the largest sum; score: the sum of their log-probabilities
"""

from __future__ import annotations

from itertools import chain, repeat

import torch
from torch import Tensor

from ostinato.config.data import DataConfig
from ostinato.config.model import EncoderConfig, ModelConfig
from ostinato.config.special_ids import NO_LABEL
from ostinato.data.batch import Batch
from ostinato.data.example import Example
from ostinato.data.labelled import first_tokens, passage_of
from ostinato.data.tokenizers import Tokenizers
from ostinato.decoding import Hypothesis


def read_out(config: EncoderConfig, logits_BLV: Tensor, batch: Batch) -> list[Hypothesis]:
    """Return the output of every sentence: the ids of its labels, or its answer's first and last column.

    Args:
        logits_BLV: scores of V labels at L places, padded on the right (classification: one place); of a span
            `[B, 2, T]`, scores of every column as the start and as the end.
    """
    log_probs_BLV = logits_BLV.float().log_softmax(-1)
    if config.head.kind == "span":
        return _answers(log_probs_BLV, config.head.max_answer_length)
    best = log_probs_BLV.max(-1)
    n_labels = batch.loss_mask_BT.sum(1).tolist()
    found = []
    for ids, log_probs, n in zip(best.indices.tolist(), best.values.tolist(), n_labels, strict=True):
        total, labels = sum(log_probs[:n], 0.0), ids[:n]
        found.append(Hypothesis(labels, total / max(len(labels), 1), total, finished=True))
    return found


def _answers(log_probs_B2T: Tensor, longest: int) -> list[Hypothesis]:
    sums_BTT = log_probs_B2T[:, 0, :, None] + log_probs_B2T[:, 1, None, :]
    allowed_TT = torch.ones_like(sums_BTT[0], dtype=torch.bool).triu().tril(longest - 1)
    # Columns outside the passage hold the least float of all, whose sum with another is -inf.
    best = sums_BTT.masked_fill(~allowed_TT, -torch.inf).flatten(1).max(1)
    width = sums_BTT.shape[-1]
    return [
        Hypothesis(list(divmod(place, width)), value, value, finished=True)
        for place, value in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]


def text_of(config: ModelConfig, ids: list[int], example: Example, tokenizers: Tokenizers, data: DataConfig) -> str:
    """Return an output as text: decoded, or cut out of the example's passage.

    Words without a label (`NO_LABEL`) have none here either. Words that were cut off where `data.over_length` is
    "truncate", and those without a token, get the most frequent label.
    """
    if config.reads == "span":
        _, passage = passage_of(example, tokenizers.source, data)
        return passage.answer(ids[0], ids[1])
    if config.reads == "tagging":
        without = {place for place, tag in enumerate(example.target.split()) if tag == NO_LABEL}
        most_frequent = tokenizers.target.decode([0])
        labels = chain(tokenizers.target.decode(ids).split(), repeat(most_frequent))
        firsts = first_tokens(example.source or "", tokenizers.source)
        return " ".join(
            NO_LABEL if place in without else most_frequent if first is None else next(labels)
            for place, first in enumerate(firsts)
        )
    return tokenizers.target.decode(ids)
