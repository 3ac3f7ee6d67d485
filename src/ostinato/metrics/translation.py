"""BLEU (Papineni et al. 2002) and chrF (Popović 2015) as sacreBLEU computes them (Post 2018, arXiv 1804.08771).

Both are functions of counts summed over the set: n-grams of each order that were written, that match, and that the
references have. sacreBLEU extracts the counts of one sentence and turns their sum into the score; only the sum is kept
here, so the result equals sacreBLEU's `corpus_score` over all sentences at once. Scores are in [0, 100]; a score is
meaningful only beside its signature.

`bleu_compounds_split` is the BLEU of the Universal Transformer's and the Sparse Universal Transformer's papers for
English to German (tensor2tensor's get_ende_bleu): n-grams of tokens, in which compounds are taken apart at their
hyphens. It is not comparable with sacreBLEU's. `spbleu` has the pieces of one SentencePiece model for all languages as
tokens (Goyal et al. 2022; the model of 200 languages).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from ostinato.errors import ConfigError, Problem
from ostinato.metrics.base import Metric

_Name = Literal["bleu", "chrf", "bleu_compounds_split", "spbleu"]
_HYPHEN = re.compile(r"(\S)-(\S)")


@cache
def _sacrebleu(name: _Name) -> Any:
    """Return sacreBLEU's metric with its defaults; it is imported on first use and shared by all accumulators."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    if name == "chrf":
        return CHRF()
    if name == "spbleu":
        _check_pieces()
        return BLEU(tokenize="flores200")
    return BLEU() if name == "bleu" else BLEU(tokenize="none", smooth_method="none", force=True)


def _check_pieces() -> None:
    """Refuse spBLEU where sacreBLEU would have to download its model, or could not read it."""
    if find_spec("sentencepiece") is None:
        raise _lacking("spbleu", "needs sentencepiece: pip install 'ostinato[spbleu]'")
    # It exports neither name to type checkers.
    tokenizer_spm: Any = import_module("sacrebleu.tokenizers.tokenizer_spm")
    model = Path(tokenizer_spm.SACREBLEU_DIR) / "models" / Path(tokenizer_spm.SPM_MODELS["flores200"]["url"]).name
    if not model.is_file():
        raise _lacking("spbleu", f"needs the model {model}, which `sacrebleu --tokenize flores200` downloads")


def _lacking(name: _Name, reason: str) -> ConfigError:
    return ConfigError([Problem("evaluation.metrics", name, reason)])


@cache
def _moses() -> Callable[[str], str]:
    """Return Moses' tokenizer for German, its tokens between blanks.

    Raises:
        ConfigError: sacremoses is not installed.
    """
    try:
        from sacremoses import MosesTokenizer
    except ImportError as error:
        raise _lacking("bleu_compounds_split", "needs Moses' tokenizer: pip install 'ostinato[moses]'") from error
    tokenizer = MosesTokenizer(lang="de")
    return lambda text: str(tokenizer.tokenize(text, return_str=True))


def split_compounds(text: str) -> str:
    """Return a text of tokens with the parts of compounds as tokens: Haus-Tür becomes Haus ##AT##-##AT## Tür."""
    return _HYPHEN.sub(r"\1 ##AT##-##AT## \2", text)


class _SacreBleuMetric(Metric):
    name: _Name
    perfect = 100.0

    def counts(self, prediction: str, reference: str, source: str = "") -> list[int]:
        """Return the n-grams that sacreBLEU counts in one sentence."""
        # sacreBLEU has no public call for them: pyproject.toml bounds its version, and a test compares the result with
        # its corpus_score.
        (counts,) = _sacrebleu(self.name)._extract_corpus_statistics([prediction], [[reference]])
        return list(counts)

    def score(self, totals: Sequence[float]) -> float:
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


class SpBleu(_SacreBleuMetric):
    """Corpus BLEU of the pieces of sacreBLEU's SentencePiece model for 200 languages, otherwise as `Bleu`.

    Needs the extra `spbleu` and the model where sacreBLEU looks for it; ConfigError where one is not there.
    """

    name = "spbleu"


class BleuCompoundsSplit(_SacreBleuMetric):
    """BLEU of tokens with compounds split, of German: tensor2tensor's get_ende_bleu.

    Outputs and references, both plain text, are tokenised by Moses' rules for German, a hyphen between two other
    characters becomes a token of its own, and what follows is multi-bleu: up to 4-grams, mixed case, no smoothing.
    Needs the extra `moses`.
    """

    name = "bleu_compounds_split"

    def counts(self, prediction: str, reference: str, source: str = "") -> list[int]:
        """Return the n-grams of one sentence.

        Raises:
            ConfigError: sacremoses is not installed.
        """
        tokenize = _moses()
        return super().counts(*(split_compounds(tokenize(text)) for text in (prediction, reference)))

    def signature(self) -> str:
        """Return sacreBLEU's signature, after how the text was tokenised."""
        return f"moses:de.{version('sacremoses')}|compounds:split|{super().signature()}"
