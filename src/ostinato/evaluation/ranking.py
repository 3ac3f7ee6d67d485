"""Which of two continuations of a text a language model prefers.

    accuracy = examples with log p(right | before) > log p(wrong | before) of every wrong one / examples

log p is summed over the tokens of the continuation, of a pair's target with the end symbol; ties count as wrong. Right
and wrong continue the same text, or have the same source. There may be one wrong target (minimal pairs) or several
(classification by likelihood).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from ostinato.config.data import DataConfig
from ostinato.config.model import ModelConfig
from ostinato.data.batching import evaluation_batches
from ostinato.data.collate import AnyRow
from ostinato.data.example import Example
from ostinato.data.rows import encode_rows
from ostinato.data.tokenizers import Tokenizers
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
        examples: whose targets continue a source, or pairs. contrast: column of the wrong target, or of a list of them.
        by: columns to report by.

    Returns:
        n, accuracy; by: column -> value -> n, accuracy; macro: column -> the mean over its values.

    Raises:
        DataError: no examples, an example without a wrong target, or that cannot be encoded.
    """
    if not examples:
        raise DataError(f"{name}: there are no examples to rank")
    rows: list[AnyRow] = []
    ends = [0]
    for candidates in candidate_rows(examples, tokenizers, data, model.config, contrast=contrast, name=name):
        rows += [replace(row, index=index) for index, row in enumerate(candidates, len(rows))]
        ends.append(len(rows))
    log_probs = [0.0] * len(rows)
    for batch in evaluation_batches(rows, data.eval_tokens_per_batch):
        moved = batch.to(model.device)
        logits_BTV = model(moved, n_steps=n_steps).logits_BTV
        for index, scores in zip(
            batch.indices, score_sentences(logits_BTV, moved.labels_BT, moved.loss_mask_BT), strict=True
        ):
            log_probs[index] = -scores.nll
    is_right = [log_probs[start] > max(log_probs[start + 1 : end]) for start, end in pairwise(ends)]
    groups: dict[str, dict[str, dict[str, Any]]] = {}
    macro: dict[str, dict[str, float]] = {}
    for column in by:
        by_value: dict[str, list[bool]] = {}
        for example, right in zip(examples, is_right, strict=True):
            by_value.setdefault(str(example.columns[column]), []).append(right)
        groups[column] = {value: _accuracy(rights) for value, rights in sorted(by_value.items())}
        macro[column] = {"accuracy": sum(found["accuracy"] for found in groups[column].values()) / len(groups[column])}
    return _accuracy(is_right) | {"by": groups, "macro": macro}


def candidate_rows(
    examples: Iterable[Example],
    tokenizers: Tokenizers,
    data: DataConfig,
    config: ModelConfig,
    *,
    contrast: str,
    name: str,
) -> Iterator[list[AnyRow]]:
    """Yield of every example the rows that are compared: with its right target, then with every wrong one.

    Raises:
        DataError: an example without a wrong target, or that cannot be encoded with one of its targets; names it.
    """
    for number, example in enumerate(examples, 1):
        where = f"{name}: example {number}"
        wrong = wrong_targets(example, contrast, where)
        given = [example, *(replace(example, target=target) for target in wrong)]
        where = f"{where}, with its right target and then wrong ones"
        yield list(encode_rows(given, tokenizers, data, config, training=False, name=where))


def wrong_targets(example: Example, contrast: str, where: str) -> list[str]:
    """Return the wrong targets that a column of an example has.

    Raises:
        DataError: it has none; `where` names the example.
    """
    found = example.columns.get(contrast)
    given = found if isinstance(found, list) else [found]
    wrong = [one for one in given if isinstance(one, str)]
    if example.source is None or not wrong or len(wrong) < len(given):
        raise DataError(f"{where} has no wrong target {contrast!r} to compare with")
    return wrong


def _accuracy(is_right: Sequence[bool]) -> dict[str, Any]:
    return {"n": len(is_right), "accuracy": sum(is_right) / len(is_right)}
