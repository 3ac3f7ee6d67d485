"""Which of two ways to go on a language model prefers.

    accuracy = examples with log p(right | before) > log p(wrong | before) / examples

log p being summed over the tokens of what follows; equal ones are wrong. Right and wrong follow the same text.
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
        examples: that go on from a source. contrast: column of the wrong target. by: columns to report by.

    Returns:
        n, accuracy; by: column -> value -> n, accuracy; macro: column -> the mean over its values.

    Raises:
        DataError: an example without a wrong target, or that cannot be encoded.
    """
    both = [one for number, example in enumerate(examples, 1) for one in _pair(example, contrast, name, number)]
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
    groups = {column: _by(column, examples, is_right) for column in by}
    macro = {
        column: {"accuracy": sum(found["accuracy"] for found in of.values()) / len(of)} for column, of in groups.items()
    }
    return _share(is_right) | {"by": groups, "macro": macro}


def _pair(example: Example, contrast: str, name: str, number: int) -> tuple[Example, Example]:
    wrong = example.columns.get(contrast)
    if not isinstance(wrong, str) or not example.continues:
        raise DataError(f"{name}: example {number} has no wrong target {contrast!r} to compare with")
    return example, replace(example, target=wrong)


def _by(column: str, examples: Sequence[Example], is_right: Sequence[bool]) -> dict[str, dict[str, Any]]:
    found: dict[str, list[bool]] = {}
    for example, right in zip(examples, is_right, strict=True):
        found.setdefault(str(example.columns[column]), []).append(right)
    return {value: _share(rights) for value, rights in sorted(found.items())}


def _share(is_right: Sequence[bool]) -> dict[str, Any]:
    return {"n": len(is_right), "accuracy": sum(is_right) / len(is_right)}
