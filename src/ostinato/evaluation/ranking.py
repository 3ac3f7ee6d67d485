"""Which of two continuations of a text a language model prefers.

    accuracy = examples with log p(right | before) > log p(wrong | before) / examples

log p is summed over the tokens of the continuation; ties count as wrong. Right and wrong continue the same text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ostinato.config.data import DataConfig
from ostinato.data.batching import evaluation_batches
from ostinato.data.example import Example
from ostinato.data.rows import encode_rows
from ostinato.data.tokenizer import Tokenizers
from ostinato.errors import DataError
from ostinato.evaluation.scores import score_sentences
from ostinato.models import Model


def rank(
    model: Model,
    examples: Sequence[Example],
    tokenizers: Tokenizers,
    data: DataConfig,
    *,
    contrast: str,
    by: Sequence[str],
    name: str,
    n_steps: int | None = None,
) -> dict[str, Any]:
    """Return how often the right target is more probable than the wrong one, in the model's present mode.

    Args:
        examples: whose targets continue a source. contrast: column of the wrong target. by: columns to report by.

    Returns:
        n, accuracy; by: column -> value -> n, accuracy; macro: column -> the mean over its values.

    Raises:
        DataError: an example without a wrong target, or that cannot be encoded.
    """
    both: list[Example] = []
    for number, example in enumerate(examples, 1):
        wrong = example.columns.get(contrast)
        if not isinstance(wrong, str) or not example.continues:
            raise DataError(f"{name}: example {number} has no wrong target {contrast!r} to compare with")
        both += [example, replace(example, target=wrong)]
    rows = encode_rows(both, tokenizers, data, model.config, training=False, name=f"{name}, right and wrong")
    log_probs = [0.0] * len(both)
    for batch in evaluation_batches(rows, data.eval_tokens_per_batch):
        moved = batch.to(model.device)
        logits_BTV = model(moved, n_steps=n_steps).logits_BTV
        for index, scores in zip(
            batch.indices, score_sentences(logits_BTV, moved.labels_BT, moved.loss_mask_BT), strict=True
        ):
            log_probs[index] = -scores.nll
    is_right = [right > wrong for right, wrong in zip(log_probs[::2], log_probs[1::2], strict=True)]
    groups: dict[str, dict[str, dict[str, Any]]] = {}
    macro: dict[str, dict[str, float]] = {}
    for column in by:
        by_value: dict[str, list[bool]] = {}
        for example, right in zip(examples, is_right, strict=True):
            by_value.setdefault(str(example.columns[column]), []).append(right)
        groups[column] = {value: _accuracy(rights) for value, rights in sorted(by_value.items())}
        macro[column] = {"accuracy": sum(found["accuracy"] for found in groups[column].values()) / len(groups[column])}
    return _accuracy(is_right) | {"by": groups, "macro": macro}


def _accuracy(is_right: Sequence[bool]) -> dict[str, Any]:
    return {"n": len(is_right), "accuracy": sum(is_right) / len(is_right)}
