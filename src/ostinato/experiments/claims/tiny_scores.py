"""What an arm scores, in a few numbers: a tiny version goes the way from texts to metrics, as a run does.

A few texts of made-up words, the same for all arms of a kind, become tokens, rows and batches by the arm's own
tokenizers and data settings; its model has three updates on them, and is evaluated on others with the arm's decoding
and metrics, also those of the measures that a claim names. The numbers of that evaluation, together with the metrics of
outputs that are fixed, are compared as losses are (`ostinato.experiments.claims.fingerprint`): where they differ,
tokens, the order of data, masks, decoding, depths, routing or metrics have changed. No file is read, so that of what a
task reads or draws they say nothing: the runs' content addresses have the hash of that. Analyses have no part in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any

import torch

from ostinato.config.data import DataConfig, TokenizerConfig
from ostinato.config.model import ModelConfig
from ostinato.config.recipe import Recipe
from ostinato.data.batching import TrainingBatches
from ostinato.data.example import Example
from ostinato.data.objectives import objective_of
from ostinato.data.rows import encode_rows
from ostinato.data.tokenizers import Tokenizers
from ostinato.evaluation.evaluate import evaluate
from ostinato.experiments.claims.fingerprint import PLACES, without_dropout
from ostinato.metrics import make_metric
from ostinato.models import build_model
from ostinato.tasks.registry import TASKS, task_config
from ostinato.training.optim import build_optimizer
from ostinato.training.rng import preserved_randomness
from ostinato.training.threads import cpu_threads
from ostinato.training.update import Updater, execution_of

_WORDS = ("ba", "ce", "di", "fo", "gu", "ha", "je", "ki", "lo", "mu")
_N_TRAIN, _N_SCORED = 24, 8
_TOKENS_PER_BATCH = 64
_LENGTHS = {"max_length": 8, "max_length_ratio": 0.0, "min_length": 4, "min_length_ratio": 0.0}
"""Of outputs: models that have hardly learned write nothing, or as much as they may."""
_LEFT_OUT = ("seconds", "decoding_seconds", "decoding", "macs", "n_steps")
"""What an evaluation returns and is not compared: times, settings, and what is counted from settings."""
_UNREAD = ("tagging", "span")

Scores = dict[str, float]


def tiny_scores(recipe: Recipe, metrics: Sequence[str] = ()) -> Scores | None:
    """Return the numbers of the evaluation of a tiny version; None of word labels and spans, which have none.

    Args:
        metrics: of decoded outputs, beside the recipe's own.

    Raises:
        ConfigError: a metric whose library is not here.
    """
    if recipe.model.reads in _UNREAD:
        return None
    task = TASKS[task_config(recipe.task).kind]
    own = recipe.evaluation.metrics
    if own is None:
        own = list(task.metrics) if task_config(recipe.task).has_sources else []
    wanted = list(dict.fromkeys((*own, *metrics)))
    data = _tiny_data(recipe.data)
    contrast = task.contrast
    examples = _examples(recipe, contrast)
    learned, scored = examples[:_N_TRAIN], examples[_N_TRAIN:]
    with cpu_threads(1), preserved_randomness():
        tokenizers = Tokenizers.train(data, learned, recipe.model.reads)
        sizes = recipe.model.vocabulary_sizes(tokenizers.source.vocab_size, tokenizers.target.vocab_size)
        config: ModelConfig = without_dropout(recipe.model.model_copy(update=sizes))
        torch.manual_seed(1)
        model = build_model(config, execution_of(recipe.training))
        rows = encode_rows(learned, tokenizers, data, config, training=True, name="train")
        batches = TrainingBatches(rows, data.tokens_per_batch, 1, objective_of(config, data, tokenizers))
        updater = Updater(model, build_optimizer(model, recipe.training.optimizer), recipe.training)
        found: Scores = {}
        for place in PLACES:
            update = max(1, round(place * recipe.training.n_updates))
            gradient = updater.accumulate([next(batches)], update)
            found[f"training loss {len(found) + 1}"] = sum(gradient.losses) / gradient.n_labels
            updater.apply(gradient, update)
        outputs: list[dict[str, Any]] = []
        result = evaluate(
            model,
            scored,
            tokenizers,
            data=data,
            decoding=recipe.decoding.model_copy(update=_LENGTHS),
            metrics=wanted,
            contrast=contrast,
            predictions=outputs.append if wanted else None,
        )
    found |= dict(_numbers({key: value for key, value in result.items() if key not in _LEFT_OUT}))
    scores = [output["score"] for output in outputs if output["score"] is not None]
    found |= {"score of the outputs": sum(scores)} if scores else {}
    return found | {f"{name} of fixed outputs": _of_fixed_outputs(name) for name in wanted}


def _tiny_data(data: DataConfig) -> DataConfig:
    """Return the settings of data for a few texts: small batches, no files, and no mixture of several data sets."""
    changes: dict[str, Any] = {"tokens_per_batch": _TOKENS_PER_BATCH, "mixture": None, "over_length": "truncate"}
    for key in ("tokenizer", "target_tokenizer"):
        own = getattr(data, key)
        if own is not None and own.kind == "file":
            changes[key] = TokenizerConfig()
    return data.model_copy(update=changes)


def _examples(recipe: Recipe, contrast: str | None) -> list[Example]:
    """Return texts in the form that a model reads; the target is the source backwards, a label or a last word."""
    draws = Random(1)
    reads, has_sources = recipe.model.reads, task_config(recipe.task).has_sources
    found = []
    for number in range(_N_TRAIN + _N_SCORED):
        words = draws.choices(_WORDS, k=draws.randint(3, 6))
        text, label = " ".join(words), _WORDS[number % len(_WORDS)]
        if recipe.model.max_words is not None:
            found.append(Example("\t".join(words), label))
        elif reads == "classification":
            found.append(Example(f"{text}\t{words[0]}", label))
        elif contrast is not None:
            found.append(Example(text, label, {contrast: words[0]}, continues=True))
        elif has_sources:
            found.append(Example(text, " ".join(reversed(words))))
        else:
            found.append(Example(None, text))
    return found


def _numbers(found: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, float]]:
    """Yield every number of nested results by its dotted path."""
    for key, value in found.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{path}{key}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{path}{key}", float(value)


def _of_fixed_outputs(name: str) -> float:
    """Return a metric of outputs of which one is right, two nearly, and one wrong."""
    metric = make_metric(name)
    text = " ".join(_WORDS[:6])
    for output in (text, text.replace("fo", "ba"), text[:-3], "mu"):
        metric.update(output, text, text)
    return float(metric.compute()[name])
