"""Scores of one group of examples in an evaluation: teacher-forced numbers and decoded metrics.

    loss = sum of -log p(label) / number of labels        nats per label, no label smoothing, the end symbol included
    perplexity = exp(loss)
    token_accuracy = labels that are the most probable token / labels
    sequence_accuracy_forced = sentences with every label right, and at least one label / sentences

(an unknown label is right where the unknown token is the most probable one, so that a smaller vocabulary makes more
labels easy: where labels are unknown, accuracies compare models of one vocabulary only)

and, where every token of a text is a label and none unknown, with the end of a text as one more word and one more byte:

    word_perplexity = exp(sum of -log p(label) / number of words)          words: what white space separates
    bits_per_byte = sum of -log2 p(label) / number of bytes                of the text in UTF-8

These two, unlike loss and perplexity, compare models with different tokenizers on the same text. All are
teacher-forced: the true labels before a label are given. Sums are kept in float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ostinato.data.batch import TextSize
from ostinato.errors import ConfigError, Problem
from ostinato.metrics import make_metric
from ostinato.metrics.perplexity import perplexity

_EXACT = "exact_match"
_PASSED = 0.95
COUNTS_UNKNOWN = "counts unknown labels that are predicted as unknown as right, and these runs' vocabularies differ"
"""Why accuracies of texts with unknown labels are not compared between vocabularies."""
_ROWS = 2048
"""Labels scored at a time: a softmax over the vocabulary is never held for a whole batch."""


@dataclass(frozen=True, slots=True)
class SentenceScores:
    """Teacher-forced numbers of one sentence: summed -log p, labels, and labels predicted right."""

    nll: float
    n_labels: int
    n_right: int


def score_sentences(logits_BTV: Tensor, labels_BT: Tensor, loss_mask_BT: Tensor) -> list[SentenceScores]:
    """Score the labels where `loss_mask_BT` is True, one result a sentence."""
    flat, labels = logits_BTV.flatten(0, 1), labels_BT.flatten()
    nll_parts, right_parts = [], []
    for start in range(0, len(labels), _ROWS):
        part, wanted = flat[start : start + _ROWS].float(), labels[start : start + _ROWS]
        nll_parts.append(part.logsumexp(dim=1) - part.gather(1, wanted[:, None])[:, 0])
        right_parts.append(part.argmax(dim=1) == wanted)
    keep_BT = loss_mask_BT.cpu()
    nll_BT = torch.cat(nll_parts).view(labels_BT.shape).cpu().double().masked_fill(~keep_BT, 0.0)
    right_BT = torch.cat(right_parts).view(labels_BT.shape).cpu() & keep_BT
    sums = zip(nll_BT.sum(1).tolist(), keep_BT.sum(1).tolist(), right_BT.sum(1).tolist(), strict=True)
    return [SentenceScores(nll, n_labels, n_right) for nll, n_labels, n_right in sums]


class ForcedCounts(NamedTuple):
    """What teacher-forced scores follow from, of one example or summed over several.

    Args:
        n: examples. n_sentences_right: those with labels, all of them right. n_words, n_bytes: of texts; 0 where one
            is cut or has an unknown token.
    """

    n: float = 0
    n_labels: float = 0
    nll: float = 0.0
    n_right: float = 0
    n_sentences_right: float = 0
    n_words: float = 0
    n_bytes: float = 0

    @classmethod
    def of(cls, scores: SentenceScores, size: TextSize | None) -> ForcedCounts:
        """Return the counts of one example; `size`: of the text that its labels are."""
        is_right = 0 < scores.n_labels == scores.n_right
        words, n_bytes = (0, 0) if size is None else (size.n_words, size.n_bytes)
        return cls(1, scores.n_labels, scores.nll, scores.n_right, is_right, words, n_bytes)

    def plus(self, other: ForcedCounts) -> ForcedCounts:
        """Return the sums."""
        return ForcedCounts(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def scores(self) -> dict[str, float]:
        """Return the scores by name, and where there are words those of whole texts, with their sizes."""
        loss = self.nll / self.n_labels if self.n_labels else math.nan
        found = {
            "loss": loss,
            "perplexity": perplexity(loss),
            "token_accuracy": self.n_right / self.n_labels if self.n_labels else math.nan,
            "sequence_accuracy_forced": self.n_sentences_right / self.n if self.n else math.nan,
        }
        if self.n_words:
            found |= {
                "n_words": self.n_words,
                "n_bytes": self.n_bytes,
                "word_perplexity": perplexity(self.nll / self.n_words),
                "bits_per_byte": self.nll / math.log(2) / self.n_bytes,
            }
        return found


class Totals:
    """Totals of one group of examples; memory does not grow with their number.

    Args:
        metrics: names of decoded metrics, see `ostinato.metrics`.
    """

    def __init__(self, metrics: Sequence[str]) -> None:
        self.n = 0
        self._counts, self._has_sizes = ForcedCounts(), True
        self._metrics = [make_metric(name) for name in metrics]

    def add(self, scores: SentenceScores, size: TextSize | None = None) -> None:
        """Count one example's teacher-forced numbers; `size`: of the text that its labels are."""
        self.n += 1
        self._has_sizes &= size is not None
        self._counts = self._counts.plus(ForcedCounts.of(scores, size))

    def add_prediction(self, prediction: str, reference: str, source: str) -> None:
        """Count one example's output."""
        for metric in self._metrics:
            metric.update(prediction, reference, source)

    def compute(self) -> dict[str, Any]:
        """Return all numbers by name."""
        counts = self._counts if self._has_sizes else self._counts._replace(n_words=0, n_bytes=0)
        result: dict[str, Any] = {"n": self.n, "n_labels": counts.n_labels, **counts.scores()}
        for metric in self._metrics:
            result.update(metric.compute())
        return result


def check_metrics(metrics: Sequence[str]) -> None:
    """Raise a ConfigError that holds every name that is not a decoded metric."""
    problems: list[Problem] = []
    for name in metrics:
        try:
            make_metric(name)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)


def macro_means(groups: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Return the mean of every number over groups, each group counting once whatever its size."""
    if not groups:
        return {}
    results = list(groups.values())
    counts = {"n", "n_labels", "n_words", "n_bytes"}
    return {
        name: math.fsum(result[name] for result in results) / len(results)
        for name, value in results[0].items()
        if name not in counts and isinstance(value, int | float) and all(name in result for result in results)
    }


def count_failed(groups: dict[str, dict[str, Any]]) -> int | None:
    """Return how many groups have more than 5 % of their outputs wrong; None where exact match was not measured.

    This is how failed tasks of bAbI are counted (Weston et al. 2015, arXiv 1502.05698).
    """
    if not groups or any(_EXACT not in result for result in groups.values()):
        return None
    return sum(float(result[_EXACT]) < _PASSED for result in groups.values())
