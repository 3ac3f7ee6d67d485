"""BLEU (Papineni et al. 2002) and chrF (Popović 2015) as sacreBLEU computes them (Post 2018, arXiv 1804.08771).

Both are functions of counts summed over the set: n-grams of each order that were written, that match, and that the
references have. sacreBLEU extracts the counts of one sentence and turns their sum into the score; only the sum is kept
here, so the result equals sacreBLEU's `corpus_score` over all sentences at once. Scores are in [0, 100]; a score is
meaningful only beside its signature.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar, Literal

from ostinato.metrics.base import Metric

_Name = Literal["bleu", "chrf"]


@cache
def _sacrebleu(name: _Name) -> Any:
    """Return sacreBLEU's metric with its defaults; it is imported on first use and shared by all accumulators."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    return BLEU() if name == "bleu" else CHRF()


class _SacreBleuMetric(Metric):
    name: ClassVar[_Name]
    perfect = 100.0

    def counts(self, prediction: str, reference: str) -> list[int]:
        """Return the n-grams that sacreBLEU counts in one sentence."""
        # sacreBLEU has no public call for them: pyproject.toml bounds its version, and a test compares the result with
        # its corpus_score.
        (counts,) = _sacrebleu(self.name)._extract_corpus_statistics([prediction], [[reference]])
        return list(counts)

    def score(self, totals: Sequence[int]) -> float:
        """Return the score in [0, 100]."""
        return float(_sacrebleu(self.name)._compute_score_from_stats(list(totals)).score)

    def signature(self) -> str:
        """Return sacreBLEU's signature."""
        return str(_sacrebleu(self.name).get_signature())


class Bleu(_SacreBleuMetric):
    """Corpus BLEU with sacreBLEU's defaults: up to 4-grams, tokeniser 13a, mixed case, exponential smoothing."""

    name = "bleu"


class Chrf(_SacreBleuMetric):
    """Corpus chrF2 with sacreBLEU's defaults: character n-grams up to 6, no word n-grams, white space ignored."""

    name = "chrf"
