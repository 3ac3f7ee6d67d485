"""Scores of generated outputs, accumulated example by example: see `ostinato.metrics.base.Metric`."""

from __future__ import annotations

from difflib import get_close_matches

from ostinato.errors import ConfigError, Problem
from ostinato.metrics.base import Metric
from ostinato.metrics.labels import Accuracy, AnswerEm, AnswerF1, MacroF1, SpanF1, TagAccuracy
from ostinato.metrics.matching import (
    CharacterAccuracyFree,
    ExactMatch,
    FirstWord,
    SecondWord,
    TokenAccuracyFree,
    consistency,
)
from ostinato.metrics.translation import Bleu, BleuCompoundsSplit, Chrf, SpBleu

__all__ = [
    "METRICS",
    "Accuracy",
    "AnswerEm",
    "AnswerF1",
    "Bleu",
    "BleuCompoundsSplit",
    "CharacterAccuracyFree",
    "Chrf",
    "ExactMatch",
    "FirstWord",
    "MacroF1",
    "Metric",
    "SecondWord",
    "SpBleu",
    "SpanF1",
    "TagAccuracy",
    "TokenAccuracyFree",
    "consistency",
    "make_metric",
]

METRICS: dict[str, type[Metric]] = {
    "exact_match": ExactMatch,
    "token_accuracy_free": TokenAccuracyFree,
    "character_accuracy_free": CharacterAccuracyFree,
    "first_word": FirstWord,
    "second_word": SecondWord,
    "bleu": Bleu,
    "bleu_compounds_split": BleuCompoundsSplit,
    "spbleu": SpBleu,
    "chrf": Chrf,
    "accuracy": Accuracy,
    "macro_f1": MacroF1,
    "tag_accuracy": TagAccuracy,
    "span_f1": SpanF1,
    "answer_em": AnswerEm,
    "answer_f1": AnswerF1,
}
"""Every metric by its name in recipes; its result holds a number of the same name."""


def make_metric(name: str, key: str = "evaluation.metrics") -> Metric:
    """Return a fresh accumulator of one metric.

    Args:
        name: one of `METRICS`.
        key: the setting that the error names.

    Raises:
        ConfigError: no metric has this name; lists those that there are.
    """
    if name not in METRICS:
        close = get_close_matches(name, METRICS, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise ConfigError([Problem(key, name, f"must be one of {', '.join(METRICS)}{hint}")])
    return METRICS[name]()
