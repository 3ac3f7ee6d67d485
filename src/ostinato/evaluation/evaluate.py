"""Measure a model on a split: teacher-forced numbers and decoded metrics, overall and by category.

Examples stream through: what is held are a window of examples sorted into batches and running totals, whatever the size
of the split. Numbers do not depend on the batch size beyond float rounding.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ostinato.budget.depth import expected_depths
from ostinato.config.data import DataConfig
from ostinato.config.decoding import DecodingConfig
from ostinato.data.batch import Batch
from ostinato.data.batching import encode_examples, evaluation_batches
from ostinato.data.example import Example
from ostinato.data.subset import take_evenly
from ostinato.data.tokenizer import Tokenizers
from ostinato.decoding import Hypothesis, search
from ostinato.decoding.inference import inference
from ostinato.errors import ConfigError, DataError, Problem
from ostinato.evaluation.depth import DepthTotals, sentence_depths
from ostinato.evaluation.predictions import WriteRecord
from ostinato.evaluation.routing import RoutingTotals
from ostinato.evaluation.scores import SentenceScores, Totals, check_metrics, macro_means, score_sentences
from ostinato.models.language_model import LanguageModel
from ostinato.models.seq2seq import Seq2Seq

_MOST_VALUES = 1000
"""A column of more values than this is an identifier, and totals for each of them would hold the whole split."""


def evaluate(
    model: Seq2Seq | LanguageModel,
    examples: Iterable[Example],
    tokenizers: Tokenizers,
    *,
    data: DataConfig,
    decoding: DecodingConfig,
    metrics: Sequence[str],
    by: Sequence[str] = (),
    n_steps: int | None = None,
    max_examples: int | None = None,
    name: str = "examples",
    predictions: WriteRecord | None = None,
) -> dict[str, Any]:
    """Return the scores of a model on examples.

    The model's mode, its weights and every random state are left as they were.

    Args:
        metrics: decoded metrics by name (`ostinato.metrics`); empty: nothing is decoded.
        by: metadata columns; every number is also given for each of their values.
        n_steps: rounds to run instead of the plans' own (fully shared plans only).
        max_examples: so many at most, spread evenly over all (`take_evenly`); numbers of examples count those taken.
        name: of the split, for error messages and the result.
        predictions: called with a record for every output (index, source, reference, prediction, score, finished,
            columns), see `PredictionWriter`; decodes even where `metrics` is empty.

    Returns:
        name, n, n_labels, loss (nats per label), perplexity, token_accuracy, sequence_accuracy_forced (teacher-forced:
        see `ostinato.evaluation.scores`), the metrics' own numbers and signatures; by: column -> value -> the same
        numbers; macro: column -> their means over the values, each counting once; depth: stack -> rounds a real token
        took part in, on average, in the teacher-forced passes; where tokens halt, halting: stack -> what
        `ostinato.evaluation.depth.describe` says of them, also for every value in `by`, and halting_threshold: stack ->
        what it was; n_steps, seconds; where the model has routers, routing:
        router -> how it used its experts in those passes (`RoutingTotals.compute`); and, where something was decoded,
        n_generated (tokens, end symbols included), n_unfinished (outputs cut at their length limit), decoding_seconds
        (the search alone) and decoding (the settings).

    Raises:
        ConfigError: an unknown metric, or decoded metrics for texts, which have no source.
        DataError: no examples, an example that cannot be encoded or is too long, or an unknown column.
    """
    check_metrics(metrics)
    started = time.perf_counter()
    held: dict[int, Example] = {}
    chosen = _remember(take_evenly(examples, max_examples), held)
    joins_pairs = model.config.joins_pairs
    rows = encode_examples(chosen, tokenizers, data, training=False, name=name, joins_pairs=joins_pairs)
    run = _Evaluation(metrics, by, name, tokenizers, predictions)
    expected = expected_depths(model.config, n_steps=n_steps)
    rounds, routing = {stack: found.rounds for stack, found in expected.items()}, RoutingTotals()
    is_decoding = bool(metrics) or predictions is not None
    # A beam holds that many rows for every sentence.
    budget = max(1, data.eval_tokens_per_batch // (decoding.beam if is_decoding else 1))
    with inference(model):
        for host_batch in evaluation_batches(rows, budget):
            batch = host_batch.to(model.device)
            output = model(batch, n_steps=n_steps)
            scores = score_sentences(output.logits_BTV, batch.labels_BT, batch.loss_BT)
            depths = sentence_depths(output, batch, rounds)
            run.halting |= {name for name, stack in output.stacks.items() if stack.halting is not None}
            routing.add(output)
            del output
            outputs: list[Hypothesis] | list[None] = [None] * batch.n_sentences
            if is_decoding:
                _check_source(batch, metrics)
                began = time.perf_counter()
                outputs = search(model, batch, decoding, n_steps=n_steps)
                run.decoding_seconds += time.perf_counter() - began
            for place, index in enumerate(batch.indices):
                mine = {stack: sums_BV[place] for stack, sums_BV in depths.items()}
                run.add(index, held.pop(index), scores[place], outputs[place], mine)
    result = run.result()
    if is_decoding:
        result |= {
            "n_generated": run.n_generated,
            "n_unfinished": run.n_unfinished,
            "decoding_seconds": run.decoding_seconds,
            "decoding": decoding.model_dump(mode="json"),
        }
    if routed := routing.compute():
        result["routing"] = routed
    if run.halting:
        result["halting_threshold"] = model.halting_thresholds()
    return result | {"n_steps": n_steps, "seconds": time.perf_counter() - started}


def check_columns(columns: Mapping[str, object], by: Sequence[str], where: str) -> None:
    """Raise a DataError where an example lacks a column that scores are reported by; `where` names the example."""
    for column in by:
        if column not in columns:
            raise DataError(f"{where} has no column {column!r}; its columns are: {', '.join(columns) or 'none'}")


def _remember(examples: Iterable[Example], held: dict[int, Example]) -> Iterator[Example]:
    """Pass examples on, and keep each one's texts until its batch has been scored."""
    for index, example in enumerate(examples):
        held[index] = example
        yield example


def _check_source(batch: Batch, metrics: Sequence[str]) -> None:
    if not batch.has_sources:
        reason = (
            "texts have no source to decode from: they are measured by loss, perplexity and token_accuracy, "
            "so leave the list empty"
        )
        raise ConfigError([Problem("evaluation.metrics", list(metrics), reason)])


@dataclass(slots=True)
class _Group:
    """Totals of a group of examples."""

    scores: Totals
    depths: DepthTotals = field(default_factory=DepthTotals)

    def compute(self, halting: Collection[str]) -> dict[str, Any]:
        """Return all numbers; `halting`: stacks whose depths are not the same for every token."""
        found = {stack: numbers for stack, numbers in self.depths.compute().items() if stack in halting}
        return self.scores.compute() | ({"halting": found} if found else {})


class _Evaluation:
    """Totals over all examples and by category."""

    def __init__(
        self,
        metrics: Sequence[str],
        by: Sequence[str],
        name: str,
        tokenizers: Tokenizers,
        predictions: WriteRecord | None,
    ) -> None:
        self.metrics, self.name, self.tokenizers, self.predictions = metrics, name, tokenizers, predictions
        self.total = _Group(Totals(metrics))
        self.groups: dict[str, dict[str, _Group]] = {column: {} for column in by}
        self.halting: set[str] = set()
        self.n_generated = self.n_unfinished = 0
        self.decoding_seconds = 0.0

    def add(
        self,
        index: int,
        example: Example,
        scores: SentenceScores,
        output: Hypothesis | None,
        depths: Mapping[str, Tensor],
    ) -> None:
        """Count one example."""
        groups = [self.total, *self._groups_of(index, example.columns)]
        for group in groups:
            group.scores.add(scores)
            group.depths.add(depths)
        if output is None:
            return
        self.n_generated += output.n_tokens
        self.n_unfinished += not output.finished
        prediction = self.tokenizers.target.decode(output.ids)
        for group in groups:
            group.scores.add_prediction(prediction, example.target)
        if self.predictions is not None:
            self.predictions(
                {
                    "index": index,
                    "source": example.source,
                    "reference": example.target,
                    "prediction": prediction,
                    "score": output.score,
                    "finished": output.finished,
                    "columns": example.columns,
                }
            )

    def result(self) -> dict[str, Any]:
        """Return all numbers."""
        if self.total.scores.n == 0:
            raise DataError(f"{self.name}: there are no examples to evaluate")
        by = {
            column: {value: groups[value].compute(self.halting) for value in sorted(groups, key=_natural)}
            for column, groups in self.groups.items()
        }
        macro = {column: macro_means(groups) for column, groups in by.items()}
        depth = {stack: found["mean"] for stack, found in self.total.depths.compute().items()}
        return {"name": self.name, **self.total.compute(self.halting), "by": by, "macro": macro, "depth": depth}

    def _groups_of(self, index: int, columns: dict[str, object]) -> Iterator[_Group]:
        check_columns(columns, list(self.groups), f"{self.name}: example {index + 1}")
        for column, groups in self.groups.items():
            value = str(columns[column])
            if value not in groups:
                if len(groups) == _MOST_VALUES:
                    reason = "report by a column of categories, not of identifiers"
                    raise DataError(f"{self.name}: column {column!r} has more than {_MOST_VALUES} values: {reason}")
                groups[value] = _Group(Totals(self.metrics))
            yield groups[value]


def _natural(value: str) -> tuple[int, float, str]:
    """Sort numbers by size, then everything else by text."""
    try:
        return (0, float(value), value)
    except ValueError:
        return (1, 0.0, value)
