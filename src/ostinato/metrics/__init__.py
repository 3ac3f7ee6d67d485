"""Scores of generated outputs, accumulated example by example: see `ostinato.metrics.base.Metric`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from ostinato.config.own_code import is_own, own_class
from ostinato.errors import ConfigError, OstinatoError, Problem
from ostinato.metrics.base import Metric
from ostinato.metrics.comet import Comet
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
    "Comet",
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
    "decoded_scores",
    "make_metric",
]

_OURS: dict[str, type[Metric]] = {
    "exact_match": ExactMatch,
    "token_accuracy_free": TokenAccuracyFree,
    "character_accuracy_free": CharacterAccuracyFree,
    "first_word": FirstWord,
    "second_word": SecondWord,
    "bleu": Bleu,
    "bleu_compounds_split": BleuCompoundsSplit,
    "spbleu": SpBleu,
    "chrf": Chrf,
    "comet": Comet,
    "accuracy": Accuracy,
    "macro_f1": MacroF1,
    "tag_accuracy": TagAccuracy,
    "span_f1": SpanF1,
    "answer_em": AnswerEm,
    "answer_f1": AnswerF1,
}


class _Metrics(Mapping[str, type[Metric]]):
    """Our metrics by name, and any class of the user's own by `package.module:Class`; it lists ours."""

    def __getitem__(self, name: str) -> type[Metric]:
        if is_own(name):
            return own_class(name, Metric, "metric")  # type: ignore[type-abstract]
        return _OURS[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_OURS)

    def __len__(self) -> int:
        return len(_OURS)


METRICS: Mapping[str, type[Metric]] = _Metrics()
"""Every metric by its name in recipes; its result holds a number of the same name."""


def decoded_scores(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the scores of decoded outputs among the numbers of a result, ours first."""
    names = [*METRICS, *(name for name in result if is_own(name))]
    return {name: result[name] for name in names if isinstance(result.get(name), int | float)}


def make_metric(name: str) -> Metric:
    """Return a fresh accumulator of one metric.

    Args:
        name: one of `METRICS`.

    Raises:
        ConfigError: no metric has this name, with a list of those that there are; a class of the user's own that cannot
            be used.
    """
    if name not in METRICS:
        close = get_close_matches(name, METRICS, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise ConfigError([Problem("evaluation.metrics", name, f"must be one of {', '.join(METRICS)}{hint}")])
    kind = METRICS[name]
    try:
        metric = kind()
    except OstinatoError:
        raise
    except Exception as error:  # whatever the user's code raises: --debug shows where
        reason = f"cannot be made by a call without arguments ({type(error).__name__}: {error})"
        raise ConfigError([Problem("metric", name, reason)]) from error
    metric.name = name
    return metric
