"""Measure a model on a split: teacher-forced numbers and decoded metrics, overall and by category.

Examples are streamed: only a window of examples, sorted into batches, and running totals are in memory, whatever the
size of the split. Numbers do not depend on the batch size beyond float rounding.

The result holds

    name, n (blocks where texts are packed), n_labels, loss (nats per label), perplexity, token_accuracy,
    sequence_accuracy_forced (teacher-forced: see `ostinato.evaluation.scores`), of texts word_perplexity and
    bits_per_byte, the metrics' own numbers and signatures; macs: multiply-accumulates of the teacher-forced pass over
    an example, on average, at `full` depth and as `realised` by its tokens' depths (each example by itself:
    `ostinato.budget.macs`); by: column -> value -> the same numbers; macro: column -> their means over the values,
    each counting once; failed, with exact match: column -> values with more than 5 % of outputs wrong; depth: stack ->
    rounds a real token took part in, on average, in the teacher-forced passes; where tokens halt, halting: stack ->
    the result of `ostinato.evaluation.depth.describe`, also for every value in `by`, and halting_threshold: stack
    -> what it was; where they stop by a criterion (`ostinato.nn.exits`), exit: criterion, scope, and by stack whether
    it needs predictions, whose cost realised macs include; where an oracle chose rounds, oracle: stack and scope, and
    all scores, depths and macs are those of its choice; n_steps, seconds; where the model has routers, routing:
    router -> how it used its experts in those passes (`RoutingTotals.compute`); and, where something was decoded,
    n_generated (tokens, end symbols included), n_unfinished (outputs cut at their length limit), decoding_seconds (the
    search alone) and decoding (the settings); with `contrast`, ranking: what `rank` returns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ostinato.config.data import DataConfig
from ostinato.config.decoding import DecodingConfig
from ostinato.config.model import ModelConfig
from ostinato.data.batching import evaluation_batches
from ostinato.data.collate import AnyRow
from ostinato.data.columns import with_columns
from ostinato.data.cuts import Cuts
from ostinato.data.example import Example, take_evenly
from ostinato.data.rows import encode_rows
from ostinato.data.tokenizers import Tokenizers
from ostinato.decoding import inference
from ostinato.decoding.work import BatchRunner, InThisProcess, in_order
from ostinato.errors import ConfigError, Problem
from ostinato.evaluation.oracle import oracle_of
from ostinato.evaluation.passes import Passes, PassTotals
from ostinato.evaluation.predictions import WriteRecord
from ostinato.evaluation.ranking import candidate_rows, rank
from ostinato.evaluation.readout import text_of
from ostinato.evaluation.scores import ForcedCounts, check_metrics
from ostinato.evaluation.tally import Tally
from ostinato.models import Model
from ostinato.nn.execution import ExitScope


def evaluate(
    model: Model,
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
    contrast: str | None = None,
    predictions: WriteRecord | None = None,
    each: Callable[[int, ForcedCounts], None] | None = None,
    runner: BatchRunner | None = None,
    oracle: ExitScope | None = None,
    cuts: Cuts | None = None,
) -> dict[str, Any]:
    """Return the scores of a model on examples.

    The model's mode, its weights and every random state are left as they were.

    Args:
        metrics: decoded metrics by name (`ostinato.metrics`); empty: nothing is decoded.
        by: metadata columns; every number is also given for each of their values.
        n_steps: rounds to run instead of the plans' own (fully shared plans only).
        max_examples: the largest number of examples, spread evenly over all (`take_evenly`).
        name: of the split, for error messages and the result.
        contrast: column of a wrong target, to be compared with the right one (`ostinato.evaluation.ranking`); all
            examples are then in memory.
        predictions: called with a record for every output (index, source, reference, prediction, score, finished,
            columns), see `PredictionWriter`; decodes even where `metrics` is empty.
        each: called with the index and the teacher-forced counts of every example (block).
        runner: does the passes (`ostinato.evaluation.workers`); None: this process. The numbers are the same; contrasts
            are always ranked by this process.
        oracle: "token", "sequence": every label, or every sentence, is that of the first round that has it right
            (`ostinato.evaluation.oracle`), which needs the labels: nothing is written, and contrasts are not ranked.
        cuts: counts what is cut of too long examples.

    Returns:
        The numbers listed at the head of this module.

    Raises:
        ConfigError: an unknown metric, or decoded metrics for texts, which have no source; an oracle for a model
            without rounds, or of what is written; an execution that caches some rounds only (`cached_rounds`), where
            nothing is decoded.
        DataError: no examples, an example that cannot be encoded or is too long, or an unknown column.
    """
    check_metrics(metrics)
    chosen = None if oracle is None else oracle_of(model, oracle)
    started = time.perf_counter()
    needs_outputs = bool(metrics) or predictions is not None
    if chosen is not None and needs_outputs and model.config.generates:
        reason = "reads the right answers, which decoding does not know: leave out metrics and predictions"
        raise ConfigError([Problem("oracle", oracle, reason)])
    is_decoding = needs_outputs and model.config.generates
    if (n_kept := model.current_execution.cached_rounds) is not None and not is_decoding:
        reason = "nothing is decoded here, and given texts are scored without a cache: leave it out"
        raise ConfigError([Problem("cached_rounds", n_kept, reason)])
    held: dict[int, Example] = {}
    taken = take_evenly(examples, max_examples)
    if chosen is not None:
        contrast = None
    if contrast is not None:
        taken = iter(pairs := list(taken))
    read = _hold(with_columns(taken, by, data, name), held)
    rows = encode_rows(read, tokenizers, data, model.config, training=False, name=name, cuts=cuts)
    is_packed = data.block_length is not None
    tally = Tally(
        metrics, by, name, lambda ids, row: text_of(model.config, ids, row, tokenizers, data), predictions, each
    )
    passes = Passes(decoding if needs_outputs else None, tuple(metrics), n_steps, oracle=chosen)
    totals = PassTotals(model, passes)
    # Beam search has `beam` rows for every sentence.
    budget = max(1, data.eval_tokens_per_batch // (decoding.beam if needs_outputs else 1))
    with inference(model, packs_weights=decoding.pack_weights):
        for batch, result in in_order(runner or InThisProcess(model), passes, evaluation_batches(rows, budget)):
            if is_packed:  # A block's texts are not needed: its example has only columns.
                held.clear()
                for place, index in enumerate(batch.indices):
                    held[index] = Example(None, "", {key: values[place] for key, values in batch.columns.items()})
            for index, found in zip(batch.indices, totals.add(batch, result), strict=True):
                tally.add(index, held.pop(index), found)
        # Before pairs are ranked: it refuses a split without examples.
        scores = tally.result(totals.halting, is_decoding=is_decoding) | totals.compute()
        if contrast is not None:
            scores["ranking"] = rank(
                model, pairs, tokenizers, data, contrast=contrast, by=by, name=name, n_steps=n_steps
            )
    return scores | {"n_steps": n_steps, "seconds": time.perf_counter() - started}


def scored_rows(
    examples: Iterable[Example],
    tokenizers: Tokenizers,
    data: DataConfig,
    config: ModelConfig,
    *,
    by: Sequence[str],
    name: str,
    contrast: str | None = None,
    cuts: Cuts | None = None,
) -> Iterator[AnyRow]:
    """Yield the rows that `evaluate` encodes of examples: one that cannot be is found so before any is scored.

    With `contrast` they are those with the right and the wrong targets, of which nothing is cut.

    Args and errors: see `evaluate`.
    """
    checked = with_columns(examples, by, data, name)
    if contrast is None:
        yield from encode_rows(checked, tokenizers, data, config, training=False, name=name, cuts=cuts)
        return
    for rows in candidate_rows(checked, tokenizers, data, config, contrast=contrast, name=name):
        yield from rows


def _hold(examples: Iterable[Example], held: dict[int, Example]) -> Iterator[Example]:
    """Yield the examples, and put each into `held` by its index until its batch has been scored."""
    for index, example in enumerate(examples):
        held[index] = example
        yield example
