"""Baselines without a model: the most frequent answer, the source as the answer, and frequencies of tokens.

A model that is no better than all of them has learned nothing of its task.
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from ostinato.config.data import DataConfig
from ostinato.config.special_ids import NO_LABEL
from ostinato.data.collate import IGNORED_LABEL, AnyRow
from ostinato.data.columns import numeric_order, with_columns
from ostinato.data.example import Example, take_evenly
from ostinato.data.rows import encode_rows
from ostinato.errors import ConfigError, DataError, Problem
from ostinato.metrics import Metric, make_metric
from ostinato.metrics.perplexity import perplexity
from ostinato.tasks.base import Task
from ostinato.tasks.packing import pack_source, training_tokenizers

if TYPE_CHECKING:
    from ostinato.config.recipe import Recipe

_WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)*")
_NAME = re.compile(r"(?<=[\w,;] )(?!I\b)[A-Z][^\W\d_]*")

Scores = dict[str, dict[str, float]]
"""Scores by baseline and metric."""


def baseline_scores_by(recipe: Recipe, task: Task, split: str, column: str | None) -> dict[str, Scores]:
    """Return the scores of a recipe's split without a model, by the metrics of the recipe's evaluation, of the examples
    of every value of a column (None: of all, under "").

    They are those of `trivial_scores_by`, or of `frequency_scores` for texts, which have no generated outputs.

    Raises:
        ConfigError: no such split or metric, or a column of texts.
        DataError: the data cannot be downloaded or read, or an example has no such column.
    """
    metrics = task.metrics if recipe.evaluation.metrics is None else recipe.evaluation.metrics
    if metrics:
        return trivial_scores_by(task, split, column, metrics, recipe.evaluation.max_examples)
    if column is not None:
        raise ConfigError([Problem("--by", column, "frequencies of tokens are counted over all texts: leave it out")])
    return {"": frequency_scores(recipe, task, split)}


def trivial_scores(
    task: Task, split: str, metrics: Sequence[str] | None = None, max_examples: int | None = None
) -> Scores:
    """Return the scores of a task's split without a model, by baseline and metric.

    Args:
        metrics: metrics of outputs by name; None: the task's own.
        max_examples: most examples, spread evenly over the split, as in an evaluation.

    Returns:
        Of targets that are (`Task.answers`)
        - text: ``majority``, the most frequent target of training; ``copy``, the source.
        - tags: ``majority``, the most frequent tag for every word; ``by_word``, the tag that the word has most often in
          training (words that training lacks: the most frequent).
        - a span of the passage: ``majority``; ``last``, of all answers of training the one that begins last in it.
        - the last word of a passage: ``majority``; of the words before it ``random``, one drawn with a fixed seed,
          ``frequent``, the most frequent, and ``name``, the most frequent that has a capital and does not begin a
          sentence.
        Beside them the rules of the task itself (`Task.rules`).

    Raises:
        ConfigError: no such split or metric.
        DataError: the data cannot be downloaded or read.
    """
    return trivial_scores_by(task, split, None, metrics, max_examples)[""]


def trivial_scores_by(
    task: Task, split: str, column: str | None, metrics: Sequence[str] | None = None, max_examples: int | None = None
) -> dict[str, Scores]:
    """Return the same of the examples of every value of a column, numbers by size; None: of all, under "".

    Raises:
        ConfigError: no such split or metric.
        DataError: the data cannot be downloaded or read, or an example has no such column, or it is no category.
    """
    by = [] if column is None else [column]
    taken = take_evenly(_some(task.examples(split), split), max_examples)
    rows = list(with_columns(taken, by, DataConfig(), split))
    names = task.metrics if metrics is None else metrics
    answer = {"text": _targets, "tags": _tags, "span": _spans, "last_word": _words}[task.answers]
    train_split = task.splits()[0]
    found = answer(_some(task.examples(train_split), train_split), rows)
    for example in rows:
        for rule, output in task.rules(example.source or "").items():
            found.setdefault(rule, []).append(output)
    scores: defaultdict[str, Scores] = defaultdict(dict)
    for baseline, outputs in found.items():
        by_value: dict[str, list[Metric]] = {}
        for example, output in zip(rows, outputs, strict=True):
            value = "" if column is None else str(example.columns[column])
            if value not in by_value:
                by_value[value] = [make_metric(name) for name in names]
            for metric in by_value[value]:
                metric.update(output, example.target, example.source or "")
        for value in sorted(by_value, key=numeric_order):
            scores[value][baseline] = {one.name: float(one.compute()[one.name]) for one in by_value[value]}
    return dict(scores)


def frequency_scores(recipe: Recipe, task: Task, split: str) -> Scores:
    """Return the scores of a split's labels by the frequencies of tokens in the training split.

    Returns:
        ``majority``: token_accuracy of the most frequent label as every label, and sequence_accuracy_forced, examples
        all of whose labels it is. ``unigram``: perplexity of labels by (n(label) + 1) / (N + V). Of models that
        predict tokens n and N are counted over training texts and their ends, V is the vocabulary; of heads for labels
        over the training split's labels, V of them (of answers in a passage: columns, as many as a sequence may have).
        word_perplexity where every row is a whole text that the tokenizer keeps (`ostinato.data.batch.TextSize`).

    Raises:
        ConfigError, DataError: as of training on the recipe.
    """
    examples = list(_some(task.examples(task.splits()[0]), task.splits()[0]))
    tokenizers = training_tokenizers(recipe, pack_source(recipe, task), examples)
    model, unknown, counts = recipe.model, recipe.data.unknown, Counter[int]()
    if model.generates or model.reads == "masked":
        encoder = tokenizers.target if model.generates else tokenizers.source
        n_kinds = encoder.vocab_size
        for example in examples:
            counts.update([*encoder.encode(example.target, unknown=unknown), encoder.special_ids.eos])
    else:
        n_kinds = recipe.data.max_source_length if model.reads == "span" else tokenizers.target.vocab_size
        for row in encode_rows(examples, tokenizers, recipe.data, model, training=True, name=task.splits()[0]):
            counts.update(_counted_labels(row))
    chosen = take_evenly(_some(task.examples(split), split), recipe.evaluation.max_examples)
    rows = list(encode_rows(chosen, tokenizers, recipe.data, model, training=False, name=split))
    labels = [_counted_labels(row) for row in rows]
    ((majority, _),) = counts.most_common(1)
    n_right = [row.count(majority) for row in labels]
    n_labels, total = sum(map(len, labels)), counts.total() + n_kinds
    nll = sum(-n * math.log((counts[label] + 1) / total) for label, n in Counter(chain(*labels)).items())
    sizes = [row.size for row in rows if row.size is not None]
    unigram = {"perplexity": perplexity(nll / n_labels)}
    if len(sizes) == len(rows):
        unigram["word_perplexity"] = perplexity(nll / sum(size.n_words for size in sizes))
    n_rows_right = sum(0 < len(row) == right for row, right in zip(labels, n_right, strict=True))
    scores = {"token_accuracy": sum(n_right) / n_labels, "sequence_accuracy_forced": n_rows_right / len(rows)}
    return {"majority": scores, "unigram": unigram}


def _some(examples: Iterable[Example], split: str) -> Iterator[Example]:
    """Yield the examples of a split; a DataError where there are none."""
    is_empty = True
    for example in examples:
        is_empty = False
        yield example
    if is_empty:
        raise DataError(f"{split}: there are no examples")


def _counted_labels(row: AnyRow) -> list[int]:
    return [label for label in row.labels if label != IGNORED_LABEL]


def _targets(training: Iterable[Example], rows: Sequence[Example]) -> dict[str, list[str]]:
    majority = _most_frequent(example.target for example in training)
    return {"majority": [majority] * len(rows), "copy": [example.source or "" for example in rows]}


def _tags(training: Iterable[Example], rows: Sequence[Example]) -> dict[str, list[str]]:
    by_word: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for example in training:
        for word, tag in zip((example.source or "").split(), example.target.split(), strict=True):
            if tag != NO_LABEL:
                by_word[word][tag] += 1
    usual = {word: _most_frequent(counts.elements()) for word, counts in by_word.items()}
    majority = _most_frequent(tag for counts in by_word.values() for tag in counts.elements())
    by_name: tuple[tuple[str, dict[str, str]], ...] = (("majority", {}), ("by_word", usual))
    return {
        name: [
            " ".join(
                tag if tag == NO_LABEL else chosen.get(word, majority)
                for word, tag in zip((example.source or "").split(), example.target.split(), strict=True)
            )
            for example in rows
        ]
        for name, chosen in by_name
    }


def _spans(training: Iterable[Example], rows: Sequence[Example]) -> dict[str, list[str]]:
    answers = Counter(example.target.partition("\t")[0] for example in training)
    ((majority, _),) = answers.most_common(1)
    lengths = sorted({len(answer) for answer in answers if answer}, reverse=True)

    def begins_last(passage: str) -> str:
        """Return the answer that begins last in a passage, of several the longest; where none does the majority."""
        # From the end, where one is soon found: to look for every answer in every passage takes half an hour of SQuAD.
        for place in reversed(range(len(passage))):
            for n in lengths:
                if len(found := passage[place : place + n]) == n and found in answers:
                    return found
        return majority

    last = [begins_last((example.source or "").partition("\t")[2]) for example in rows]
    return {"majority": [majority] * len(rows), "last": last}


def _words(training: Iterable[Example], rows: Sequence[Example]) -> dict[str, list[str]]:
    majority, draw = _most_frequent(example.target for example in training), random.Random(0)
    texts = [" ".join(reversed((example.source or "").split("\t"))) for example in rows]
    words = [_WORD.findall(text) or [""] for text in texts]
    names = [[match.group() for match in _NAME.finditer(text)] for text in texts]
    return {
        "majority": [majority] * len(rows),
        "random": [draw.choice(found) for found in words],
        "frequent": [_most_frequent(found) for found in words],
        "name": [_most_frequent(found or [majority]) for found in names],
    }


def _most_frequent(items: Iterable[str]) -> str:
    ((found, _),) = Counter(items).most_common(1)
    return found
