"""BLEU (Papineni et al. 2002) and chrF (Popović 2015) as sacreBLEU computes them (Post 2018, arXiv 1804.08771).

Both are functions of counts summed over the set: n-grams of each order that were written, that match, and that the
references have. sacreBLEU extracts the counts of one sentence and turns their sum into the score; only the sum is kept
here, so the result equals sacreBLEU's `corpus_score` over all sentences at once. Scores are in [0, 100]; a score is
meaningful only beside its signature.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, Literal

from ostinato.metrics.base import Metric

_Name = Literal["bleu", "chrf"]


@cache
def _sacrebleu(name: _Name) -> Any:
    """Return sacreBLEU's metric with its defaults; imported on first use, shared by all accumulators."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    return BLEU() if name == "bleu" else CHRF()


def _counts(name: _Name, prediction: str, reference: str) -> list[int]:
    # sacreBLEU has no public call for the counts of one sentence; a test compares the result with its corpus_score.
    (counts,) = _sacrebleu(name)._extract_corpus_statistics([prediction], [[reference]])
    return list(counts)


class _SacreBleuMetric(Metric):
    name: _Name

    def __init__(self) -> None:
        self._n = 0
        self._totals = [0] * len(_counts(self.name, "", ""))

    def update(self, prediction: str, reference: str) -> None:
        """Add the counts of one sentence."""
        counts = _counts(self.name, prediction, reference)
        self._n += 1
        self._totals = [total + count for total, count in zip(self._totals, counts, strict=True)]

    def compute(self) -> dict[str, float | str]:
        """Return the score in [0, 100] and sacreBLEU's signature."""
        metric = _sacrebleu(self.name)
        score = float(metric._compute_score_from_stats(self._totals).score) if self._n else math.nan
        return {self.name: score, f"{self.name}_signature": str(metric.get_signature())}


class Bleu(_SacreBleuMetric):
    """Corpus BLEU with sacreBLEU's defaults: up to 4-grams, tokeniser 13a, mixed case, exponential smoothing."""

    name = "bleu"


class Chrf(_SacreBleuMetric):
    """Corpus chrF2 with sacreBLEU's defaults: character n-grams up to 6, no word n-grams, white space ignored."""

    name = "chrf"
