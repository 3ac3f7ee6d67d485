"""Measure a model on a split: teacher-forced numbers and decoded metrics, overall and by category.

Examples stream through: what is held are a window of examples sorted into batches and running totals, whatever the size
of the split. Numbers do not depend on the batch size beyond float rounding.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ostinato.config.data import DataConfig
from ostinato.config.decoding import DecodingConfig
from ostinato.data.batching import encode_examples, evaluation_batches
from ostinato.data.example import Example
from ostinato.data.subset import take_evenly
from ostinato.data.tokenizer import Tokenizers
from ostinato.decoding.inference import inference
from ostinato.evaluation.passes import Passes
from ostinato.evaluation.predictions import WriteRecord
from ostinato.evaluation.scores import check_metrics
from ostinato.evaluation.tally import Tally
from ostinato.models.language_model import LanguageModel
from ostinato.models.seq2seq import Seq2Seq


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
        see `ostinato.evaluation.scores`), the metrics' own numbers and signatures; macs: multiply-accumulates of the
        teacher-forced pass over an example, on average, at `full` depth and as `realised` by its tokens' depths (each
        example by itself: `ostinato.budget.realised`); by: column -> value -> the same numbers; macro: column -> their
        means over the values, each counting once; failed, with exact match: column -> values with more than 5 % of
        outputs wrong; depth: stack -> rounds a real token took part in, on average, in the
        teacher-forced passes; where tokens halt, halting: stack -> what `ostinato.evaluation.depth.describe` says of
        them, also for every value in `by`, and halting_threshold: stack -> what it was; n_steps, seconds; where the
        model has routers, routing: router -> how it used its experts in those passes (`RoutingTotals.compute`); and,
        where something was decoded, n_generated (tokens, end symbols included), n_unfinished (outputs cut at their
        length limit), decoding_seconds (the search alone) and decoding (the settings).

    Raises:
        ConfigError: an unknown metric, or decoded metrics for texts, which have no source.
        DataError: no examples, an example that cannot be encoded or is too long, or an unknown column.
    """
    check_metrics(metrics)
    started = time.perf_counter()
    is_decoding = bool(metrics) or predictions is not None
    held: dict[int, Example] = {}
    chosen = _remember(take_evenly(examples, max_examples), held)
    joins_pairs = model.config.joins_pairs
    rows = encode_examples(chosen, tokenizers, data, training=False, name=name, joins_pairs=joins_pairs)
    tally = Tally(metrics, by, name, tokenizers, predictions)
    passes = Passes(model, decoding if is_decoding else None, metrics, n_steps)
    # A beam holds that many rows for every sentence.
    budget = max(1, data.eval_tokens_per_batch // (decoding.beam if is_decoding else 1))
    with inference(model):
        for batch in evaluation_batches(rows, budget):
            for index, found in zip(batch.indices, passes.run(batch.to(model.device)), strict=True):
                tally.add(index, held.pop(index), found)
    result = tally.result(passes.halting, is_decoding=is_decoding) | passes.result()
    return result | {"n_steps": n_steps, "seconds": time.perf_counter() - started}


def _remember(examples: Iterable[Example], held: dict[int, Example]) -> Iterator[Example]:
    """Pass examples on, and keep each one's texts until its batch has been scored."""
    for index, example in enumerate(examples):
        held[index] = example
        yield example
